"""W1/A1 on CIFAR-10 with affine BatchNorm and a full-precision net as teacher: not in the paper.

A sign sees only on which side of its threshold a value lies. BatchNorm's bias lets the net choose that threshold; the
paper's BatchNorm has none. Methods and their settings as at the best schedule of cifar-w1a1; each net is taught by full
precision's of the same seed, which has the affine BatchNorm, too: gaps are to the same net in full precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from askew.paper import cifar_w1a1, low_bit
from askew.paper.cifar_taught import SHARE
from askew.paper.image_runs import CifarLike
from askew.paper.images_common import Search
from askew.paper.low_bit import LowBit, Row
from askew.train.grid_job import OnJob
from askew.train.record import Record

WINNERS = {row.key: Search((row.search.winner,)) for row in cifar_w1a1.TABLE.rows if row.search}
OURS = tuple(f"askew-level-first{form}" for form in ("", "-rounded", "-reversible"))
METHODS = ("binaryconnect", "parq", "adaste", *OURS)

TABLE = LowBit(
    "cifar-w1a1-taught",
    "One bit a weight and one an activation on CIFAR-10, with affine BatchNorm and a teacher",
    {"dataset": "cifar10", "affine": True},
    (
        Row("full-precision", "w32a32", None, WINNERS["full-precision-w32a32"]),
        Row("full-precision", "w32a32", None, WINNERS["full-precision-w32a32"], taught=SHARE),
        Row("full-precision", "w32a1", None, WINNERS["full-precision-w32a1"], taught=SHARE),
        *(Row(method, "w1a1", None, WINNERS[f"{method}-w1a1"], taught=SHARE) for method in METHODS),
    ),
    {},
    settings_from="those of cifar-w1a1",
)


@dataclass(frozen=True)
class CifarW1A1Taught(CifarLike):
    """One bit a weight and one an activation on CIFAR-10, with affine BatchNorm and a teacher."""

    like: ClassVar[str] = "cifar-w1a1"

    out: Path = Path("results/cifar-w1a1-taught")
    """Folder for the records, tables and figures."""


def run(config: CifarW1A1Taught, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return low_bit.run(TABLE, config, on_status)
