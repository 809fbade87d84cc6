"""One bit a weight on CIFAR-10, three times as long: not in the paper.

After the epochs of cifar-w1, full precision has fitted the training images as well as it will; the one-bit nets are
still learning. Methods and settings as at the best schedule of cifar-w1, of the rivals those near the front there; what
is a fraction of the run grows with it. All rows, full precision's too, have the same epochs: a longer run for one of
them only would flatter it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from askew.paper import low_bit
from askew.paper.cifar_taught import METHODS, WINNERS
from askew.paper.image_runs import CifarLike
from askew.paper.low_bit import LowBit, Row
from askew.train.grid_job import OnJob
from askew.train.record import Record

TABLE = LowBit(
    "cifar-long",
    "One bit a weight on CIFAR-10, three times as long",
    {"dataset": "cifar10"},
    (
        Row("full-precision", "w32a32", None, WINNERS["full-precision"]),
        *(Row(method, "w1a32", None, WINNERS[method]) for method in METHODS),
    ),
    {},
    settings_from="those of cifar-w1",
)


@dataclass(frozen=True)
class CifarLong(CifarLike):
    """One bit a weight on CIFAR-10, three times as long."""

    usual_epochs: ClassVar[int] = 300

    out: Path = Path("results/cifar-long")
    """Folder for the records, tables and figures."""


def run(config: CifarLong, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return low_bit.run(TABLE, config, on_status)
