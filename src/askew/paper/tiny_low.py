"""Two and four bits a weight, four an activation, on TinyImageNet: ResNet-18, Adam, batch 512, 200 epochs.

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
from askew.paper.images_common import COLD, EARLY, Search, Settings
from askew.paper.low_bit import LowBit, Row, Widths
from askew.train.grid_job import OnJob
from askew.train.record import Record

RATES: tuple[Settings, ...] = ({"lr": 0.003}, {"lr": 0.01}, {"lr": 0.03})
DECAYS: tuple[Settings, ...] = tuple({"lr": 0.01, "weight_decay": decay} for decay in (0.1, 0.3, 1.0))
FORMS: tuple[Settings, ...] = (
    *({**rate, "form": "symmetric"} for rate in (*RATES, *DECAYS)),
    {"lr": 0.01, "form": "int"},
)
PAPER: Settings = {"lr": 0.06}


def level_first(form: str, lr: float, alpha: float = 0.05, start: float = 0.5) -> Settings:
    return {"lr": lr, "alpha": alpha, "start": start, "form": form, **COLD}


OURS = (
    *(level_first("symmetric", lr, start=start) for lr, start in ((0.01, 0.5), (0.03, 0.2), (0.06, 0.2))),
    level_first("int", 0.03, start=0.2),
    {**level_first("symmetric", 0.03), **EARLY},
    *({**level_first("symmetric", 0.03), **EARLY, "weight_decay": decay} for decay in (0.03, 0.1, 0.3)),
)
ROUNDED = (
    *(level_first("symmetric", lr) for lr in (0.003, 0.01, 0.03)),
    level_first("symmetric", 0.01, start=0.2),
    *({**level_first("symmetric", 0.03), **EARLY, "weight_decay": decay} for decay in (0.1, 0.3)),
)
OWN: tuple[Settings, ...] = (  # PARQ's own levels need no form
    *RATES,
    {"lr": 0.01, "options": {"anneal_end": 0.9}},
    *({**decay, "options": {"anneal_end": 0.9}} for decay in DECAYS[1:]),
)
LEARNED: tuple[Settings, ...] = (*FORMS, {"lr": 0.01, "form": "symmetric", "options": {"rule": "sgd"}})
SKEWED: tuple[Settings, ...] = tuple({"lr": lr, "alpha": 0.5, "form": "symmetric"} for lr in (0.01, 0.03, 0.06))
SEARCHES = {
    "luq": Search(FORMS, chosen=1),
    "lsq": Search(LEARNED, chosen=1),
    "parq": Search(OWN, chosen=1),
    "parq-fixed": Search(FORMS, chosen=1),
    "askew": Search(SKEWED, chosen=1),
    "askew-level-first": Search(OURS, chosen=4, elsewhere="found at one bit"),
    "askew-level-first-rounded": Search(ROUNDED, chosen=1),
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
    )


TABLE = LowBit(
    "tiny-low",
    "Two and four bits a weight on TinyImageNet",
    {"dataset": "tiny-imagenet", "batch": 512, "skip": ("head.linear",)},
    (
        Row("full-precision", "w32a32", PAPER, Search((*RATES, *DECAYS), chosen=1), "56.46±0.46"),
        *rows("w2a4", "54.14±0.42", "53.54±0.28", searched=True),
        *rows("w4a4", "55.69±0.32", "55.85±0.30", searched=False),
    ),
    {"paper": {"milestones": (0.1, 0.2)}},
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
