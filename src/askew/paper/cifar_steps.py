"""The paper's form of ASkew while epsilon falls: accuracy of the snapped net at epochs 50, 65 and 90 on CIFAR-10.

The runs are those of cifar-w1 at the paper's schedule: read from its records, or made there if they are missing. What
is needed of them (curves, histograms) is kept in this experiment's own records.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from askew.paper import cifar_w1, image_runs
from askew.paper.image_runs import ImageRuns
from askew.train.grid_job import OnJob
from askew.train.record import Record, writable_folder

NAME = "cifar-steps"
KEPT = ("epoch_loss", "accuracy", "test_loss", "diagnosis", "value", "lr")


@dataclass(frozen=True)
class CifarSteps(ImageRuns):
    """Accuracy of the paper's form of ASkew on CIFAR-10 at epochs 50, 65 and 90."""

    out: Path = Path("results/cifar-steps")
    """Folder for the records, tables and figures."""
    width: int | None = None
    """Width of VGG-small's first layer (128 if not given); less for a trial."""
    table: Path = Path("results/cifar-w1")
    """Folder of the records of cifar-w1, whose runs these are."""


def run(config: CifarSteps, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing in cifar-w1; excerpts of all."""
    folder = writable_folder(config.out)
    shared: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(ImageRuns)}
    shared |= {"out": config.table, "methods": ("askew",), "schedules": "paper", "width": config.width}
    table = cifar_w1.CifarW1(**shared)
    records = [excerpt(record) for record in image_runs.run(cifar_w1.EXPERIMENT, table, on_status)]
    for record in records:
        record.save(folder)
    return records


def excerpt(record: Record) -> Record:
    """The part of a run's record that this experiment shows, under its own name."""
    metrics = {name: series for name, series in record.metrics.items() if name in KEPT}
    return replace(record, experiment=NAME, metrics=metrics)
