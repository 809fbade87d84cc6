"""A run's settings validate themselves, describe themselves and drive the learning rate."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from askew.core import LevelFirst
from askew.train.config import TrainConfig


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"method": ""}, "method"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": True}, "epochs"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"schedule": "step"}, "schedule"),
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


def test_description_is_plain():
    described = TrainConfig("m", annealing=LevelFirst(start=0.2), alpha=0.1).describe()
    assert json.loads(json.dumps(described))["annealing"]["schedule"] == "LevelFirst"
    assert TrainConfig("m").describe()["annealing"] is None
