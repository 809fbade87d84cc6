"""Two and four bits a weight, four an activation, on TinyImageNet: ResNet-18, Adam, batch 512, 200 epochs (best: 40).

The last layer stays in full precision; images enter the first layer as they are. At the paper's schedule the paper's
methods have learning rate .06, halved at epochs 20 and 40, and ASkew in the paper's form its 2^b + 1 levels; else all
have 2^b, LUQ symmetric ones there, as SAWB's clip asks for. Activations are the same for all methods (SAWB, straight
through), LSQ's too: the rows compare what is done to the weights. PARQ has a row with levels of its own, found by
least squares, and one with fixed ones, as the others have. The best schedule has a search at two bits, and a shorter
one at four.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from askew.models.resnet import Stem
from askew.paper import low_bit
from askew.paper.image_runs import ImageTable
from askew.paper.images_common import AGAIN, EARLY, Search, Settings, each
from askew.paper.low_bit import LowBit, Row, Widths
from askew.train.grid_job import OnJob
from askew.train.record import Record

DECAYS: tuple[Settings, ...] = tuple({"lr": 0.01, "weight_decay": decay} for decay in (0.1, 0.3, 1.0, 2.0))
SYMMETRIC: Settings = {"form": "symmetric"}
PAPER: Settings = {"lr": 0.06}


def captured(rate: Settings) -> Settings:
    """A rate of plain level-first, decay last."""
    return {"lr": rate["lr"], "alpha": 0.05, **SYMMETRIC, **EARLY, **rate}


def pulled(rates: Sequence[Settings], *chosen: int) -> dict[str, Search]:
    """The rivals' searches over these rates, with the places of the chosen ones; PARQ's own levels need no form."""
    formed = each(rates, **SYMMETRIC)
    tried = formed, formed, each(rates, options={"anneal_end": 0.9}), formed
    places = zip(("luq", "lsq", "parq", "parq-fixed"), tried, chosen, strict=True)
    return {method: Search(some, chosen=place) for method, some, place in places}


SKEWED = each(
    ({"lr": 0.03}, DECAYS[1], {"lr": 0.03, "start": 0.9}, {**DECAYS[1], "start": 0.9}), alpha=0.5, **SYMMETRIC
)
TWO_BITS = {
    **pulled(DECAYS, 2, 2, 2, 2),
    "askew": Search(SKEWED, chosen=3),
    "askew-level-first": Search(tuple(map(captured, ({"lr": 0.03, "weight_decay": 0.03}, *DECAYS[:2]))), chosen=2),
    "askew-level-first-rounded": Search(tuple(map(captured, DECAYS[:2])), chosen=1),
    "askew-level-first-reversible": Search(each(DECAYS[1:], **SYMMETRIC, **AGAIN), chosen=1),
}
FOUR_BITS = {
    **pulled(DECAYS[1:], 1, 1, 1, 1),
    "askew": Search(SKEWED, chosen=3),
    "askew-level-first": Search(tuple(map(captured, DECAYS[:2])), chosen=1),
    "askew-level-first-rounded": Search(tuple(map(captured, DECAYS[:2])), chosen=1),
    "askew-level-first-reversible": Search(each(DECAYS[1:], **SYMMETRIC, **AGAIN), chosen=1),
}


def rows(widths: Widths, luq: str, askew: str, search: Mapping[str, Search]) -> tuple[Row, ...]:
    """The methods at one width, with the paper's values for two of them."""
    paper: dict[str, tuple[Settings, str]] = {
        "luq": ({**PAPER, "form": "symmetric"}, luq),
        "askew": ({"lr": 0.06, "alpha": 0.5, "form": "paper"}, askew),
    }
    return tuple(
        Row(method, widths, settings, found, value)
        for method, found in search.items()
        for settings, value in [paper.get(method, (None, ""))]
    )


TABLE = LowBit(
    "tiny-low",
    "Two and four bits a weight on TinyImageNet",
    {"dataset": "tiny-imagenet", "batch": 512, "skip": ("head.linear",)},
    (
        Row("full-precision", "w32a32", PAPER, Search(DECAYS, chosen=2), "56.46±0.46"),
        *rows("w2a4", "54.14±0.42", "53.54±0.28", TWO_BITS),
        *rows("w4a4", "55.69±0.32", "55.85±0.30", FOUR_BITS),
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
