"""Pure tensor mathematics of ASkewSGD: levels, scales, constraint, direction, schedules, diagnostics."""

from askew.core.annealing import (
    Annealing,
    Clock,
    Constant,
    Custom,
    Exponential,
    LevelFirst,
    Logarithmic,
    Plateau,
)
from askew.core.constraint import EpsilonWarning
from askew.core.levels import LevelSet, as_levels, binary, ternary, uniform
from askew.core.scale import Per, ScaleKind, scale_of

__all__ = [
    "Annealing",
    "Clock",
    "Constant",
    "Custom",
    "EpsilonWarning",
    "Exponential",
    "LevelFirst",
    "LevelSet",
    "Logarithmic",
    "Per",
    "Plateau",
    "ScaleKind",
    "as_levels",
    "binary",
    "scale_of",
    "ternary",
    "uniform",
]
