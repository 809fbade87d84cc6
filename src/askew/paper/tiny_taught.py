"""One bit a weight on TinyImageNet with a full-precision net as teacher: not in the paper.

Data, net, epochs and settings as at the best schedule of tiny-w1. These nets overfit, and what a teacher says of an
image is more than its label. Each net is taught by full precision's of the same seed, full precision itself, too:
what a teacher gives any net is not what it gives the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from askew.models.resnet import Stem
from askew.paper import low_bit, tiny_w1
from askew.paper.cifar_taught import SHARE
from askew.paper.image_runs import Like
from askew.paper.images_common import Search
from askew.paper.low_bit import LowBit, Row
from askew.train.grid_job import OnJob
from askew.train.record import Record

METHODS = ("binaryconnect", "parq", "askew-level-first", "askew-level-first-reversible")
WINNERS = {c.method: Search((c.search.winner,)) for c in tiny_w1.EXPERIMENT.contenders}

TABLE = LowBit(
    "tiny-taught",
    "One bit a weight on TinyImageNet, with a teacher",
    {"dataset": "tiny-imagenet"},
    (
        Row("full-precision", "w32a32", None, WINNERS["full-precision"]),
        Row("full-precision", "w32a32", None, WINNERS["full-precision"], taught=SHARE),
        *(Row(method, "w1a32", None, WINNERS[method], taught=SHARE) for method in METHODS),
    ),
    {"best": {"epochs": tiny_w1.EPOCHS}},
    settings_from="those of tiny-w1",
)


@dataclass(frozen=True)
class TinyTaught(Like):
    """One bit a weight on TinyImageNet, each net taught by full precision's."""

    like: ClassVar[str] = "tiny-w1"

    out: Path = Path("results/tiny-taught")
    """Folder for the records, tables and figures."""
    seeds: int = 2
    """Runs of each row."""
    stem: Stem = "tiny"
    """ResNet-18's first layer: tiny (7x7 and a pool) or small (3x3)."""

    def own(self) -> dict[str, Any]:
        return {"stem": self.stem}


def run(config: TinyTaught, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return low_bit.run(TABLE, config, on_status)
