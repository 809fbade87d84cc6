"""One bit a weight and one an activation on CIFAR-10: VGG-small with signs, a BatchNorm before each.

Images enter the first layer as they are; all else that a layer multiplies is -1 or +1. Adam, batch 100, 100 epochs,
learning rate .03. Beside it the same net in full precision with ReLUs, and with real weights and signs, which shows how
much of the gap is the activations'.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from askew.paper import low_bit
from askew.paper.image_runs import ImageTable
from askew.paper.images_common import AGAIN, COLD, EARLY, Search, Settings
from askew.paper.low_bit import LowBit, Row
from askew.train.grid_job import OnJob
from askew.train.record import Record

ALPHAS = {0.2: "81.12", 0.5: "84.34", 0.7: "82.92"}
BUMPS = ("tanh", "clip", "quadratic")  # what may stand for the derivative of the sign


def bumps(*rates: float, **more: Any) -> tuple[Settings, ...]:
    return tuple({"lr": lr, "sign_gradient": bump, **more} for lr in rates for bump in BUMPS)


TABLE = LowBit(
    "cifar-w1a1",
    "One bit a weight and one an activation on CIFAR-10",
    {"dataset": "cifar10"},
    (
        Row("full-precision", "w32a32", {"lr": 0.08}, Search(({"lr": 0.03},)), "89.46±0.07"),
        Row("full-precision", "w32a1", None, Search(bumps(0.01), chosen=0)),
        Row("binaryconnect", "w1a1", None, Search(bumps(0.01, 0.03), chosen=3)),
        Row("parq", "w1a1", None, Search(bumps(0.03, 0.06, options={"anneal_end": 0.9}), chosen=0)),
        Row("adaste", "w1a1", None, Search(bumps(0.03, 0.1), chosen=0)),
        *(
            Row("askew", "w1a1", {"lr": 0.03, "alpha": alpha}, None, value, tag=f"alpha{alpha:g}")
            for alpha, value in ALPHAS.items()
        ),
        Row(
            "askew-level-first",
            "w1a1",
            {"lr": 0.03},
            Search((*bumps(0.03, 0.06, alpha=0.05), *bumps(0.03, alpha=0.05, **EARLY)), chosen=6),
        ),
        Row("askew-level-first-rounded", "w1a1", None, Search(bumps(0.01, 0.03, alpha=0.05, **COLD), chosen=3)),
        Row(
            "askew-level-first-reversible",
            "w1a1",
            None,
            Search((*bumps(0.01, 0.03, **AGAIN), *bumps(0.03, weight_decay=0.01, scale="abs-mean", **AGAIN)), chosen=6),
        ),
    ),
    {},
    "learning rate halved at 20% and 40% of the run",
)


@dataclass(frozen=True)
class CifarW1A1(ImageTable):
    """One bit a weight and one an activation on CIFAR-10."""

    out: Path = Path("results/cifar-w1a1")
    """Folder for the records, tables and figures."""
    seeds: int = 3
    """Runs of each row at each kind of schedule."""
    width: int | None = None
    """Width of VGG-small's first layer (128 if not given); less for a trial."""

    def own(self) -> dict[str, Any]:
        return {"width": self.width}


def run(config: CifarW1A1, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return low_bit.run(TABLE, config, on_status)
