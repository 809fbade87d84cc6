"""A run's settings validate themselves, describe themselves and drive the learning rate."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import torch

from askew.core import LevelFirst
from askew.train.config import TrainConfig, decisive


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"method": ""}, "method"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": True}, "epochs"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"schedule": "halved"}, "schedule"),
        ({"cosine_end": 0.0}, "cosine_end"),
        ({"cosine_end": 1.5}, "cosine_end"),
        ({"milestones": (0.4, 0.2)}, "milestones"),
        ({"milestones": (20, 40)}, "milestones"),
        ({"factor": 0.0}, "factor"),
        ({"log_every": 0}, "log_every"),
        ({"min_lr": 0.2}, "min_lr"),
        ({"min_lr": -0.1}, "min_lr"),
        ({"alpha": 0.0}, "alpha"),
        ({"histogram_epochs": (0, 31)}, "histogram_epochs"),
        ({"score_every": 0}, "score_every"),
    ],
)
def test_bad_settings_are_named(wrong: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        TrainConfig(**{"method": "askew"} | wrong)


def test_steps_leave_out_the_incomplete_batch():
    config = TrainConfig("m", epochs=3, batch_size=64)
    assert (config.steps_per_epoch(1348), config.total_steps(1348)) == (21, 63)
    assert config.steps_per_epoch(10) == 1


@pytest.mark.parametrize(("schedule", "middle", "end"), [("constant", 0.1, 0.1), ("cosine", 0.055, 0.01)])
def test_learning_rate(schedule, middle, end):
    config = TrainConfig("m", epochs=2, batch_size=1, lr=0.1, min_lr=0.01, schedule=schedule)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=config.lr)
    scheduler = config.scheduler(optimizer, images=50)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert (rates[0], rates[50]) == pytest.approx((0.1, middle))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(end)


def test_the_papers_learning_rate_is_halved_at_epochs_20_and_40():
    config = TrainConfig("m", epochs=100, lr=0.08, schedule="steps")
    rates = [config.lr * config.rate(epoch * 500, 50_000) for epoch in (0, 19, 20, 39, 40, 99)]
    assert rates == pytest.approx([0.08, 0.08, 0.04, 0.04, 0.02, 0.02])
    assert config.rate(9_999, 50_000) == 1 and config.rate(10_000, 50_000) == 0.5


def test_the_learning_rate_is_divided_by_ten_at_30_60_and_90():
    config = TrainConfig("m", epochs=100, lr=0.1, schedule="steps", milestones=(0.3, 0.6, 0.9), factor=0.1)
    rates = [config.rate(epoch, 100) for epoch in (29, 30, 60, 89, 90)]
    assert rates == pytest.approx([1, 0.1, 0.01, 0.01, 0.001])


def test_a_cosine_may_end_early_and_stay():
    config = TrainConfig("m", lr=0.03, min_lr=0.001, cosine_end=0.95)
    rates = [config.lr * config.rate(step, 1000) for step in range(1001)]
    assert rates[0] == 0.03 and rates[475] == pytest.approx((0.03 + 0.001) / 2)
    assert rates[950:] == pytest.approx([0.001] * 51) and rates[940] > 0.001
    assert all(a >= b for a, b in pairwise(rates))


def test_description_is_plain():
    described = TrainConfig("m", annealing=LevelFirst(start=0.2), alpha=0.1).describe()
    assert json.loads(json.dumps(described))["annealing"]["schedule"] == "LevelFirst"
    assert TrainConfig("m").describe()["annealing"] is None


def test_what_decides_a_run() -> None:
    """The end of a cosine is nothing to a run in steps, nor a device, nor how often it is scored, to any."""
    steps = TrainConfig("m", schedule="steps").describe() | {"device": "cpu"}
    assert decisive(steps) == decisive(steps | {"min_lr": 0.5, "cosine_end": 0.3, "device": "cuda", "score_every": 9})
    assert decisive(steps) != decisive(steps | {"milestones": [0.1]})
    cosine = TrainConfig("m", schedule="cosine").describe()
    assert decisive(cosine) != decisive(cosine | {"cosine_end": 0.3})
    assert decisive(cosine) == decisive(cosine | {"milestones": [0.1], "static": True})
    assert {"lr", "method", "epochs"} <= decisive(cosine).keys() and not {"factor", "device"} & decisive(
        steps | cosine
    ).keys()
