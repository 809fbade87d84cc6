"""What runs of `askew train` have done: a table and a page with curves, weight histograms and diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from askew.report import page, tables
from askew.report.tables import Column, Grid
from askew.train.recipes import DATASETS
from askew.train.record import Record, load_all

COLUMNS = (
    Column("accuracy", "test accuracy (%)", 2),
    Column("train_loss", "training loss", 3),
    Column("bits", "bits per weight", 2, spread=False),
    Column("distance_mean", "mean distance", 3, spread=False),
    Column("train_seconds", "training (s)", 0, spread=False),
)
NOTE = (
    "Mean ± sample standard deviation over n seeds, after the last epoch; weights on their levels, BatchNorm "
    "re-estimated on training images. Distance: how far the weights that the optimizer moves lie from their levels, in "
    "level units. Training: steps only, without the scoring."
)


def trained(folder: Path) -> list[Record]:
    """The records of a run's folder, or of all runs in a folder; none if they are of something else."""
    found = load_all(folder) or [r for run in sorted(folder.glob("*/")) for r in load_all(run)]
    return [record for record in found if record.experiment in DATASETS]


def overview(records: Sequence[Record]) -> Grid:
    """A row a method and width."""
    return tables.overview(records, COLUMNS, note=NOTE)


def render(records: Sequence[Record]) -> str:
    """The page's HTML."""
    first = records[0]
    sets = ", ".join(dict.fromkeys(str(r.config["train_set"]) for r in records))
    lead = (
        f"{len(records)} {'run' if len(records) == 1 else 'runs'} on {sets}: {first.config['model']}, "
        f"{first.summary['weights']:,} weights on levels, {first.config['epochs']} epochs, scored on "
        f"{first.config['test_images']:,} images."
    )
    return page.comparison("Trained nets", lead, records, COLUMNS, NOTE)
