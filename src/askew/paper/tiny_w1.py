"""One bit a weight on TinyImageNet: ResNet-18, 64x64 images, random mirror images, otherwise as on CIFAR-10.

At the best schedule all runs have 40 epochs: these nets overfit, and of every method that was tried at 40 and at 100
epochs the best trial, on held-out images, is one of 40.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from askew.models.resnet import Stem
from askew.paper import cifar_w1, image_runs
from askew.paper.image_runs import ImageTable
from askew.paper.images_common import AGAIN, COLD, EARLY, Contender, Experiment, Search, Settings, each
from askew.train.grid_job import OnJob
from askew.train.record import Record

VALUES = {
    "full-precision": "56.46±0.46",
    "binaryconnect": "42.35±0.33",
    "md-tanh": "34.89±0.36",
    "proxquant": "48.79±0.32",
    "projected": "11.78±0.67",
    "askew": "50.23±0.37",
}
EPOCHS = 40  # at the best schedule, as in its search
LONG: Settings = {"epochs": 100}  # a trial as long as the paper's runs
BIG: Settings = {"batch": 512}  # as in tiny-low; a step of decay then has five times as many images behind it
STRONG = ({"lr": 0.01, "weight_decay": 0.5, **BIG}, {"lr": 0.01, "weight_decay": 1.0, **BIG})
SCALED: Settings = {"scale": "abs-mean"}
LATE: Settings = {"options": {"anneal_end": 0.9}}
CAPTURE: Settings = {"alpha": 0.05, "start": 0.5, **EARLY}
SEARCHES = {  # TinyImageNet's own
    "full-precision": Search(
        (
            {"lr": 0.003},
            {"lr": 0.01},
            {"lr": 0.03},
            {"lr": 0.01, "weight_decay": 0.02},
            {"lr": 0.01, "weight_decay": 0.1},
            {"lr": 0.01, "weight_decay": 0.1, **LONG},
            {"lr": 0.01, "weight_decay": 0.3, **LONG},
            {"lr": 0.01, "weight_decay": 0.3},
            {"lr": 0.01, "weight_decay": 1.0},
            *STRONG,
        ),
        chosen=7,
    ),
    "binaryconnect": Search(
        (
            {"lr": 0.01},
            {"lr": 0.03},
            {"lr": 0.06},
            {"lr": 0.1},
            {"lr": 0.06, **LONG},
            {"lr": 0.03, "weight_decay": 0.03, **LONG},
            {"lr": 0.01, "weight_decay": 0.1, **SCALED},
            {"lr": 0.06, **BIG},
            *each(STRONG, **SCALED),
        ),
        chosen=1,
    ),
    "proxquant": Search(
        (
            {"lr": 0.01, "options": {"rate": 1e-4}},
            {"lr": 0.03, "options": {"rate": 1e-4}},
            {"lr": 0.03, "options": {"rate": 5e-5}},
            {"lr": 0.03, "weight_decay": 0.03, "options": {"rate": 1e-4}, **LONG},
            {"lr": 0.03, "options": {"rate": 2e-4}},
        ),
        chosen=4,
    ),
    "parq": Search(
        (
            {"lr": 0.01, **LATE},
            {"lr": 0.03, **LATE},
            {"lr": 0.06, **LATE},
            {"lr": 0.01, "weight_decay": 0.02, **LATE},
            {"lr": 0.01, "weight_decay": 0.1, **LATE, **LONG},
            {"lr": 0.01, "weight_decay": 0.3, **LATE, **LONG},
            {"lr": 0.01, "weight_decay": 0.1, **LATE},
            {"lr": 0.01, "weight_decay": 0.3, **LATE},
            *each(STRONG, **LATE),
        ),
        chosen=6,
    ),
    "md-tanh": Search(
        tuple({"lr": lr, "options": {"beta": 1.0, "growth": 1.1}} for lr in (0.01, 0.03, 0.06)),
        chosen=1,
    ),
    "projected": Search(tuple({"lr": lr, "options": {"onto": "cube"}} for lr in (0.03, 0.08, 0.2)), chosen=1),
    "adaste": Search(({"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3}), chosen=1),
    "askew": Search(
        (
            {"lr": 0.03, "alpha": 0.5, "start": 0.9},
            {"lr": 0.1, "alpha": 0.5, "start": 0.9},
            {"lr": 0.1, "alpha": 0.5, "start": 0.75},
        ),
        chosen=1,
    ),
    "askew-level-first": Search(
        (
            {"lr": 0.015, "alpha": 0.05, "start": 0.5, "power": 0.5},
            {"lr": 0.03, "alpha": 0.05, "start": 0.5, "power": 0.5},
            {"lr": 0.03, "alpha": 0.05, "start": 0.5, **EARLY},
            {"lr": 0.06, "alpha": 0.05, "start": 0.5, **EARLY},
            {"lr": 0.03, "alpha": 0.05, "start": 0.3, **EARLY},
            {"lr": 0.03, "alpha": 0.05, "start": 0.5, **EARLY, **SCALED, "weight_decay": 0.03},
            {"lr": 0.03, "alpha": 0.05, "start": 0.5, **EARLY, **SCALED, "weight_decay": 0.1},
            {"lr": 0.03, **CAPTURE, "start": 0.3, **LONG},
            {"lr": 0.06, **CAPTURE, **LONG},
            {"lr": 0.03, **CAPTURE, **SCALED, "weight_decay": 0.03, **LONG},
            {"lr": 0.06, **CAPTURE, **BIG},
            {**STRONG[0], **CAPTURE, **SCALED},
        ),
        chosen=2,
    ),
    "askew-level-first-reversible": Search(
        (
            {"lr": 0.01, "weight_decay": 0.1, **SCALED, **AGAIN},
            {"lr": 0.01, "weight_decay": 0.3, **SCALED, **AGAIN},
            {"lr": 0.03, **AGAIN},
            *each(STRONG, **SCALED, **AGAIN),
        ),
        chosen=0,
    ),
    "askew-level-first-rounded": Search(
        (
            {"lr": 0.015, "alpha": 0.05, "start": 0.5, **COLD},
            {"lr": 0.03, "alpha": 0.05, "start": 0.5, **COLD},
            {"lr": 0.06, "alpha": 0.05, "start": 0.5, **COLD},
        ),
        chosen=1,
    ),
}


def here(contender: Contender) -> Contender:
    """A method of the CIFAR-10 table with TinyImageNet's value and search."""
    value = VALUES.get(contender.method)
    return replace(
        contender,
        values={"accuracy": value} if value else {},
        search=SEARCHES.get(contender.method, contender.search),
    )


EXPERIMENT = Experiment(
    "tiny-w1",
    "One bit a weight on TinyImageNet",
    {"dataset": "tiny-imagenet"},
    tuple(map(here, cifar_w1.EXPERIMENT.contenders)),
    steps={50: "8.74", 65: "31.97", 90: "46.96"},
    settings_from="found on CIFAR-10",
    kinds={"best": {"epochs": EPOCHS}},
)


@dataclass(frozen=True)
class TinyW1(ImageTable):
    """One bit a weight on TinyImageNet: every method at the paper's schedule and at its best."""

    out: Path = Path("results/tiny-w1")
    """Folder for the records, tables and figures."""
    seeds: int = 3
    """Runs of each method at each kind of schedule."""
    stem: Stem = "tiny"
    """ResNet-18's first layer: tiny (7x7 and a pool) or small (3x3)."""

    def own(self) -> dict[str, Any]:
        return {"stem": self.stem}


def run(config: TinyW1, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return image_runs.run(EXPERIMENT, config, on_status)
