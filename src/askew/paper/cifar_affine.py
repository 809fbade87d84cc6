"""One bit a weight on CIFAR-10 with affine BatchNorm: not in the paper.

A weight of -1 or +1 cannot say that one channel matters more than another; the scale of BatchNorm can, at two numbers
a channel, and it is what most nets have. Data, epochs and settings as at the best schedule of cifar-w1. Full precision
has a row without it, too: gaps are to the net with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from askew.paper import low_bit
from askew.paper.cifar_taught import METHODS, WINNERS
from askew.paper.image_runs import CifarLike
from askew.paper.images_common import Search
from askew.paper.low_bit import LowBit, Row
from askew.train.grid_job import OnJob
from askew.train.record import Record

PLAIN = Search(({**WINNERS["full-precision"].winner, "affine": False},))
TABLE = LowBit(
    "cifar-affine",
    "One bit a weight on CIFAR-10, with affine BatchNorm",
    {"dataset": "cifar10", "affine": True},
    (
        Row("full-precision", "w32a32", None, WINNERS["full-precision"]),
        Row("full-precision", "w32a32", None, PLAIN, tag="plain"),
        *(Row(method, "w1a32", None, WINNERS[method]) for method in (*METHODS, "askew-level-first-reversible")),
    ),
    {},
    settings_from="those of cifar-w1",
)


@dataclass(frozen=True)
class CifarAffine(CifarLike):
    """One bit a weight on CIFAR-10, with affine BatchNorm."""

    out: Path = Path("results/cifar-affine")
    """Folder for the records, tables and figures."""


def run(config: CifarAffine, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return low_bit.run(TABLE, config, on_status)
