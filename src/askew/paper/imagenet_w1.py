"""One bit a weight on ImageNet: ResNet-18, Adam, batch 512, 100 epochs, shorter side 256, random crops of 224.

The last layer stays in full precision, the first is binary, and no layer has a scale. The paper ran each method once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from askew.paper import cifar_w1, image_runs
from askew.paper.image_runs import ImageNetTable
from askew.paper.images_common import Contender, Experiment
from askew.train.grid_job import OnJob
from askew.train.record import Record

VALUES = {
    "full-precision": ("66.39", "95.32"),
    "binaryconnect": ("45.85", "71.05"),
    "md-tanh": ("46.38", "71.18"),
    "adaste": ("35.37", "62.22"),
    "projected": ("2.58", "7.93"),
    "askew": ("46.95", "72.11"),
}


def here(contender: Contender) -> Contender:
    """A method of the CIFAR-10 table with ImageNet's values."""
    values = VALUES.get(contender.method)
    return replace(contender, values=dict(zip(("accuracy", "top5"), values, strict=True)) if values else {})


EXPERIMENT = Experiment(
    "imagenet-w1",
    "One bit a weight on ImageNet",
    {"dataset": "imagenet", "skip": ("head.linear",)},
    tuple(map(here, cifar_w1.EXPERIMENT.contenders)),
    settings_from="those of CIFAR-10",
    metrics={"accuracy": "top-1 (%)", "top5": "top-5 (%)"},
)


@dataclass(frozen=True)
class ImageNetW1(ImageNetTable):
    """One bit a weight on ImageNet: every method at the paper's schedule and at its best."""

    out: Path = Path("results/imagenet-w1")
    """Folder for the records, tables and figures."""


def run(config: ImageNetW1, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return image_runs.run(EXPERIMENT, config, on_status)
