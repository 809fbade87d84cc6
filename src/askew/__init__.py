"""askew: train networks whose weights take a few values, by constrained optimisation (ASkewSGD), and ship them packed.

Names are fetched when first used: `askew.load` runs a shipped net with numpy alone and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from askew import nn
    from askew.core import Custom, Exponential, LevelFirst, LevelSet, Logarithmic, Plateau, binary, ternary, uniform
    from askew.optim import ASkew, diagnose, groups, snapped
    from askew.ship.export import export
    from askew.ship.runtime import load

__all__ = [
    "ASkew",
    "Custom",
    "Exponential",
    "LevelFirst",
    "LevelSet",
    "Logarithmic",
    "Plateau",
    "binary",
    "diagnose",
    "export",
    "groups",
    "load",
    "nn",
    "snapped",
    "ternary",
    "uniform",
]

_HOMES = {
    "askew.core": (
        "Custom",
        "Exponential",
        "LevelFirst",
        "LevelSet",
        "Logarithmic",
        "Plateau",
        "binary",
        "ternary",
        "uniform",
    ),
    "askew.optim": ("ASkew", "diagnose", "groups", "snapped"),
    "askew.ship.export": ("export",),
    "askew.ship.runtime": ("load",),
}
_ROOMS = ("core", "methods", "nn", "optim")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"askew.{name}")
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module 'askew' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
