"""Two and four bits a weight, four an activation, on ImageNet: ResNet-18, Adam, batch 512, 200 epochs.

First convolution and last layer stay in full precision; shorter side 256, random crops of 224. The paper's learning
rate is .1, divided by 10 at epochs 30, 60 and 90. It takes three rows from the literature; they are shown as such and
not run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from askew.paper import low_bit, tiny_low
from askew.paper.image_runs import ImageNetTable
from askew.paper.low_bit import LowBit, Row
from askew.train.grid_job import OnJob
from askew.train.record import Record

VALUES = {
    "full-precision-w32a32": "69.32",
    "luq-w4a4": "68.41",
    "askew-w2a4": "66.45",
    "askew-w4a4": "68.51",
}
LITERATURE = {
    "ReActNet [W1/A1] (2 steps)": "65.5",
    "AdaBin [W1/A1] (2 steps)": "66.4",
    "Ultra-low [W4/A4]": "68.27",
}


def here(row: Row) -> Row:
    """A row of the TinyImageNet table with ImageNet's value and learning rate."""
    return replace(row, value=VALUES.get(row.key, ""), paper=row.paper and {**row.paper, "lr": 0.1})


TABLE = LowBit(
    "imagenet-low",
    "Two and four bits a weight on ImageNet",
    {"dataset": "imagenet", "skip": ("stem.conv", "head.linear")},
    tuple(map(here, tiny_low.TABLE.rows)),
    {"paper": {"milestones": (0.15, 0.3, 0.45), "factor": 0.1}},
    "learning rate .1, divided by 10 at 15%, 30% and 45% of the run (epochs 30, 60 and 90 of 200)",
    LITERATURE,
    settings_from="those of TinyImageNet",
)


@dataclass(frozen=True)
class ImageNetLow(ImageNetTable):
    """Two and four bits a weight, four an activation, on ImageNet."""

    usual_epochs: ClassVar[int] = 200

    out: Path = Path("results/imagenet-low")
    """Folder for the records, tables and figures."""


def run(config: ImageNetLow, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return low_bit.run(TABLE, config, on_status)
