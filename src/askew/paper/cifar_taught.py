"""One bit a weight on CIFAR-10 with affine BatchNorm and a full-precision net as teacher: not in the paper.

Data, epochs and settings as at the best schedule of cifar-w1. The one-bit nets have BatchNorm's scale and bias, two
numbers a channel; full precision goes without, as there. Each net is taught by full precision's of the same seed, full
precision itself, too: what a teacher gives any net is not what it gives the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from askew.paper import cifar_w1, low_bit
from askew.paper.image_runs import CifarLike
from askew.paper.images_common import Search
from askew.paper.low_bit import LowBit, Row
from askew.train.grid_job import OnJob
from askew.train.record import Record

SHARE = 0.9
METHODS = ("binaryconnect", "md-tanh", "parq", "askew-level-first", "askew-level-first-rounded")
WINNERS = {c.method: Search((c.search.winner,)) for c in cifar_w1.EXPERIMENT.contenders}


def affine(search: Search) -> Search:
    """The same settings with affine BatchNorm."""
    return Search(({**search.winner, "affine": True},))


TABLE = LowBit(
    "cifar-taught",
    "One bit a weight on CIFAR-10, with affine BatchNorm and a teacher",
    {"dataset": "cifar10"},
    (
        Row("full-precision", "w32a32", None, WINNERS["full-precision"]),
        Row("full-precision", "w32a32", None, WINNERS["full-precision"], taught=SHARE),
        *(Row(method, "w1a32", None, affine(WINNERS[method]), taught=SHARE) for method in METHODS),
    ),
    {},
    settings_from="those of cifar-w1",
)


@dataclass(frozen=True)
class CifarTaught(CifarLike):
    """One bit a weight on CIFAR-10 with affine BatchNorm, each net taught by full precision's."""

    out: Path = Path("results/cifar-taught")
    """Folder for the records, tables and figures."""


def run(config: CifarTaught, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return low_bit.run(TABLE, config, on_status)
