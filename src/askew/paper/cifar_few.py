"""One, two and four bits a weight where images are few: 5,000 of CIFAR-10's, on a CPU, every method with its search.

A small model of `tiny-w1` and `tiny-low`: ResNet-18 with a 7x7 first layer and a pool, at a quarter of its width,
mirror images only, so that a net can learn its training images by heart. Two cores make the table in three hours, with
several seeds and a search for every row. The last layer stays in full precision. Weights of one bit are held in
[-1, 1], or have a scale, in which case weight decay settles their size; which of the two is part of the search, for
rivals as for ours, as AdamW's decay is. Nets with one-bit activations have affine BatchNorm, all others none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from askew.paper import low_bit
from askew.paper.image_runs import ImageTable
from askew.paper.images_common import AGAIN, COLD, EARLY, Search, Settings, each
from askew.paper.low_bit import LowBit, Row, Widths
from askew.train.grid_job import OnJob
from askew.train.record import Record

DECAYS: tuple[Settings, ...] = tuple(
    {"lr": lr, "weight_decay": decay}
    for lr, decay in ((0.01, 0.1), (0.01, 0.3), (0.01, 1.0), (0.03, 0.03), (0.03, 0.1), (0.03, 0.3))
)  # learning rates with AdamW's decay
RATES: tuple[Settings, ...] = ({"lr": 0.01}, *DECAYS)


SCALED = each(DECAYS[1:], scale="abs-mean")  # one bit, free in size
LATE: Settings = {"options": {"anneal_end": 0.9}}  # PARQ, as it is best elsewhere
CAPTURE: Settings = {"alpha": 0.05, **EARLY}
PULLS = ((0.03, 5e-4), (0.03, 2e-3), (0.1, 5e-4), (0.1, 2e-3), (0.3, 5e-4), (0.3, 1e-4), (1.0, 5e-4), (0.1, 1e-4))
PULLS = (*PULLS, (0.3, 2e-5), (1.0, 1e-4))  # ProxQuant: learning rate, rate
ONE_BIT = {
    "binaryconnect": Search((*each(({"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3}, {"lr": 1.0})), *SCALED), chosen=1),
    "md-tanh": Search(each(({"lr": 0.01}, {"lr": 0.03}, {"lr": 0.1}), options={"beta": 1.0, "growth": 1.1}), chosen=1),
    "proxquant": Search(tuple({"lr": lr, "options": {"rate": rate}} for lr, rate in PULLS), chosen=8),
    "parq": Search(each(RATES, **LATE), chosen=2),
    "askew-level-first": Search(
        (*each(({"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3}), **CAPTURE), *each(SCALED, **CAPTURE)),
        chosen=5,
    ),
    "askew-level-first-rounded": Search(
        (*each(({"lr": 0.1}, {"lr": 0.3}), **{**CAPTURE, **COLD}), *each(SCALED, **CAPTURE)),
        chosen=0,
    ),
    "askew-level-first-reversible": Search(
        (*each(({"lr": 0.03}, {"lr": 0.1}), **AGAIN), *each(SCALED, **AGAIN)),
        chosen=5,
    ),
}
SYMMETRIC: Settings = {"form": "symmetric"}
BESIDE_RATES: dict[str, Settings] = {  # what each method has at two and four bits
    "luq": SYMMETRIC,
    "lsq": SYMMETRIC,
    "parq": LATE,
    "askew-level-first": {**CAPTURE, **SYMMETRIC},
    "askew-level-first-rounded": {**CAPTURE, **SYMMETRIC},
    "askew-level-first-reversible": {**AGAIN, **SYMMETRIC},
}


def few_bits(rates: Sequence[Settings], *chosen: int) -> dict[str, Search]:
    """Each method's search over these rates, with the places of the chosen ones."""
    return {
        method: Search(each(rates, **more), chosen=place)
        for (method, more), place in zip(BESIDE_RATES.items(), chosen, strict=True)
    }


FEW_BITS = few_bits(RATES, 5, 2, 2, 4, 1, 2)
FOUR = tuple(DECAYS[i] for i in (0, 1, 3))  # at four bits: the learning rates and decays that were good at two
FOUR_BITS = few_bits(FOUR, 1, 1, 1, 0, 0, 1)
AFFINE: Settings = {"affine": True}  # a sign's threshold is then the net's choice
GENTLE = tuple({"lr": lr, "weight_decay": 0.01} for lr in (0.03, 0.1))  # such nets fall short of their training images
FEW_SCALED = (*(SCALED[i] for i in (0, 2, 3)), *each(GENTLE, scale="abs-mean"))
LATER: Settings = {**AGAIN, "end": 0.9}  # as late as PARQ
SIGNS = {
    "binaryconnect": Search(
        each(({"lr": 0.01}, {"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3}, *FEW_SCALED), **AFFINE), chosen=6
    ),
    "parq": Search(each((*FOUR, *GENTLE), **LATE, **AFFINE), chosen=2),
    "adaste": Search(each(({"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3}), **AFFINE), chosen=1),
    "askew-level-first": Search(each(({"lr": 0.03}, {"lr": 0.1}, *FEW_SCALED[1:4]), **CAPTURE, **AFFINE), chosen=4),
    "askew-level-first-rounded": Search(
        each(({"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3}, *FEW_SCALED[1:4]), **{**CAPTURE, **COLD}, **AFFINE),
        chosen=3,
    ),
    "askew-level-first-reversible": Search(
        (
            *each(({"lr": 0.03}, {"lr": 0.1}, *FEW_SCALED), **AGAIN, **AFFINE),
            *each((FEW_SCALED[1], FEW_SCALED[3]), **LATER, **AFFINE),
        ),
        chosen=5,
    ),
}


def rows(widths: Widths, searches: dict[str, Search]) -> tuple[Row, ...]:
    """The methods at one width."""
    return tuple(Row(method, widths, None, found) for method, found in searches.items())


TABLE = LowBit(
    "cifar-few",
    "Few bits from few images: 5,000 of CIFAR-10's, on a CPU",
    {
        "dataset": "cifar10",
        "model": "resnet18",
        "stem": "tiny",
        "width": 16,
        "pad": 0,
        "batch": 50,
        "skip": ("head.linear",),
    },
    (
        Row("full-precision", "w32a32", None, Search(RATES, chosen=5)),
        *rows("w1a32", ONE_BIT),
        *rows("w2a4", FEW_BITS),
        *rows("w4a4", FOUR_BITS),
        Row("full-precision", "w32a1", None, Search(each((*FOUR, *GENTLE), **AFFINE), chosen=2)),
        *rows("w1a1", SIGNS),
    ),
    {},
    "none",
)


@dataclass(frozen=True)
class CifarFew(ImageTable):
    """One, two and four bits a weight from few images, on a CPU: every method at its best schedule, several seeds."""

    scorings: ClassVar[int] = 5
    usual_epochs: ClassVar[int] = 30
    search_epochs: ClassVar[int] = 30

    out: Path = Path("results/cifar-few")
    """Folder for the records, tables and figures."""
    images: int | None = 5000
    """Training and test images of a run; a search holds out others."""
    device: str = "cpu"
    """cpu, cuda, or auto: a GPU if there is one."""
    per_device: int = 2
    """Runs at a time; cores are shared among them."""


def run(config: CifarFew, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    return low_bit.run(TABLE, with_more_to_hold_out(config), on_status)


def with_more_to_hold_out(config: CifarFew) -> CifarFew:
    """A search trains on as many images as the table does: those it holds out come on top."""
    if not config.search or config.images is None:
        return config
    return replace(config, images=config.images + config.holdout)
