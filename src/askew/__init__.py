"""askew: train networks whose weights take a few values, by constrained optimisation (ASkewSGD)."""

from askew.core import Custom, Exponential, LevelFirst, LevelSet, Logarithmic, Plateau, binary, ternary, uniform
from askew.optim import ASkew, diagnose, groups, snapped

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
    "groups",
    "snapped",
    "ternary",
    "uniform",
]
