"""Every training method by its name in tables, records and on the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from askew.methods.adaste import AdaSTE
from askew.methods.askew import DitheredLevelFirst, EpsilonSkew, LevelFirstSkew, ReversibleLevelFirst, RoundedLevelFirst
from askew.methods.base import FullPrecision, Method
from askew.methods.binaryconnect import BinaryConnect
from askew.methods.lsq import Lsq
from askew.methods.luq import Luq
from askew.methods.mirror import MirrorDescent
from askew.methods.parq import Parq
from askew.methods.projected import ProjectedGradient
from askew.methods.proxquant import ProxQuant

METHODS: dict[str, Callable[..., Method]] = {
    "full-precision": FullPrecision,
    "binaryconnect": BinaryConnect,
    "binaryconnect-stochastic": partial(BinaryConnect, stochastic=True),
    "adaste": AdaSTE,
    "md-tanh": MirrorDescent,
    "proxquant": ProxQuant,
    "projected": ProjectedGradient,
    "parq": Parq,
    "parq-hard": partial(Parq, hard=True),
    "parq-fixed": partial(Parq, levels="fixed"),
    "luq": Luq,
    "lsq": Lsq,
    "askew": EpsilonSkew,
    "askew-level-first": LevelFirstSkew,
    "askew-level-first-dithered": DitheredLevelFirst,
    "askew-level-first-rounded": RoundedLevelFirst,
    "askew-level-first-reversible": ReversibleLevelFirst,
}


def method(name: str, **options: Any) -> Method:
    """The method of that name with its options (the two askew ones also need an annealing of their kind)."""
    if name not in METHODS:
        raise ValueError(f"no method named {name!r}; known: {', '.join(METHODS)}")
    return METHODS[name](**options)
