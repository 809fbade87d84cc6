"""Devices by name: what is not known or not there is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from image_kit import small_job

from askew.train.device import check_present, device_named
from askew.train.grid_local import local_devices
from askew.train.images import train_images


@pytest.mark.parametrize("name", ["foo", "cuda:x", "meta", ""])
def test_a_device_that_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"no device named '{name}'; known: auto, cpu"):
        device_named(name)


@pytest.mark.parametrize(("name", "count"), [("cuda", 0), ("cuda:2", 1), ("mps", 0)])
def test_a_device_that_is_not_here_is_said_before_anything_is_read(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device {name}: .*(here|1 GPU,)"):
        train_images(small_job(tmp_path / "nothing", tmp_path / "runs", device=name))
    if name != "cuda:2":
        with pytest.raises(ValueError, match=f"device {name}: "):
            local_devices({name})
    assert not (tmp_path / "runs").exists()


def test_devices_that_are_here() -> None:
    check_present(device_named("auto"))
    check_present(device_named("cpu"))
    assert device_named("cuda:1") == torch.device("cuda", 1)
