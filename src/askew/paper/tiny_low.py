"""Two and four bits a weight, four an activation, on TinyImageNet: ResNet-18, Adam, batch 512, 200 epochs (best: 40).

The last layer stays in full precision; images enter the first layer as they are. At the paper's schedule the paper's
methods have learning rate .06, halved at epochs 20 and 40, and ASkew in the paper's form its 2^b + 1 levels; else all
have 2^b, LUQ symmetric ones there, as SAWB's clip asks for. Activations are the same for all methods (SAWB, straight
through), LSQ's too: the rows compare what is done to the weights. PARQ has a row with levels of its own, found by
least squares, and one with fixed ones, as the others have. Settings of the best schedule are searched at two bits and
taken over at four.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from askew.models.resnet import Stem
from askew.paper import low_bit
from askew.paper.image_runs import ImageTable
from askew.paper.images_common import AGAIN, EARLY, Search, Settings
from askew.paper.low_bit import LowBit, Row, Widths
from askew.train.grid_job import OnJob
from askew.train.record import Record

DECAYS: tuple[Settings, ...] = tuple({"lr": 0.01, "weight_decay": decay} for decay in (0.03, 0.1, 0.3))
RATES: tuple[Settings, ...] = ({"lr": 0.01}, *DECAYS)
SYMMETRIC: tuple[Settings, ...] = tuple({**rate, "form": "symmetric"} for rate in RATES)
PAPER: Settings = {"lr": 0.06}


def level_first(lr: float, **more: Any) -> Settings:
    return {"lr": lr, "alpha": 0.05, "form": "symmetric", **EARLY, **more}


CAPTURES = (
    level_first(0.03, weight_decay=0.03),
    level_first(0.03, weight_decay=0.1),
    level_first(0.01, weight_decay=0.1),
    level_first(0.01, weight_decay=0.3),
    level_first(0.03, weight_decay=0.03, start=0.7),
)
ROUNDED = (level_first(0.03, weight_decay=0.03), level_first(0.01, weight_decay=0.1))
REVERSIBLE: tuple[Settings, ...] = tuple({**rate, "form": "symmetric", **AGAIN} for rate in DECAYS)
OWN: tuple[Settings, ...] = tuple({**rate, "options": {"anneal_end": 0.9}} for rate in DECAYS)  # levels need no form
SKEWED: tuple[Settings, ...] = tuple({"lr": lr, "alpha": 0.5, "form": "symmetric"} for lr in (0.01, 0.03, 0.06))
SEARCHES = {
    "luq": Search(SYMMETRIC, chosen=2),
    "lsq": Search(SYMMETRIC[1:]),
    "parq": Search(OWN),
    "parq-fixed": Search(SYMMETRIC),
    "askew": Search(SKEWED, chosen=1),
    "askew-level-first": Search(CAPTURES, elsewhere="found at one bit"),
    "askew-level-first-rounded": Search(ROUNDED),
    "askew-level-first-reversible": Search(REVERSIBLE),
}  # at two bits; four bits take what was found there


def rows(widths: Widths, luq: str, askew: str, searched: bool) -> tuple[Row, ...]:
    """The methods at one width, with the paper's values for two of them."""
    search = SEARCHES if searched else {method: Search((found.winner,)) for method, found in SEARCHES.items()}
    return (
        Row("luq", widths, {**PAPER, "form": "symmetric"}, search["luq"], luq),
        Row("lsq", widths, None, search["lsq"]),
        Row("parq", widths, None, search["parq"]),
        Row("parq-fixed", widths, None, search["parq-fixed"]),
        Row("askew", widths, {"lr": 0.06, "alpha": 0.5, "form": "paper"}, search["askew"], askew),
        Row("askew-level-first", widths, None, search["askew-level-first"]),
        Row("askew-level-first-rounded", widths, None, search["askew-level-first-rounded"]),
        Row("askew-level-first-reversible", widths, None, search["askew-level-first-reversible"]),
    )


TABLE = LowBit(
    "tiny-low",
    "Two and four bits a weight on TinyImageNet",
    {"dataset": "tiny-imagenet", "batch": 512, "skip": ("head.linear",)},
    (
        Row("full-precision", "w32a32", PAPER, Search(RATES, chosen=2), "56.46±0.46"),
        *rows("w2a4", "54.14±0.42", "53.54±0.28", searched=True),
        *rows("w4a4", "55.69±0.32", "55.85±0.30", searched=False),
    ),
    {"paper": {"milestones": (0.1, 0.2)}, "best": {"epochs": 40}},
    "learning rate .06, halved at 10% and 20% of the run (epochs 20 and 40 of 200)",
)


@dataclass(frozen=True)
class TinyLow(ImageTable):
    """Two and four bits a weight, four an activation, on TinyImageNet."""

    usual_epochs: ClassVar[int] = 200

    out: Path = Path("results/tiny-low")
    """Folder for the records, tables and figures."""
    seeds: int = 3
    """Runs of each row at each kind of schedule."""
    stem: Stem = "tiny"
    """ResNet-18's first layer: tiny (7x7 and a pool) or small (3x3)."""

    def own(self) -> dict[str, Any]:
        return {"stem": self.stem}


def run(config: TinyLow, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return low_bit.run(TABLE, config, on_status)
