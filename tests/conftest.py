"""Test set-up for the whole tree: one thread, Hypothesis profiles, the skip of GPU tests where there is none."""

import os

import pytest
import torch

torch.set_num_threads(1)

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a bare GPU machine: what needs no Hypothesis runs all the same
    pass
else:
    # "suite" gives the same examples on every run; HYPOTHESIS_PROFILE=explore looks further, with fresh ones.
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile(
        "suite", max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=quiet
    )
    settings.register_profile("explore", max_examples=1000, deadline=None, suppress_health_check=quiet)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
