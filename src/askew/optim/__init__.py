"""Optimizers: which weights take levels, the wrapper around any torch optimizer, and looks at a run."""

from askew.optim.groups import groups
from askew.optim.look import Diagnosis, diagnose, snapped
from askew.optim.skew import ASkew
from askew.optim.wrapper import MethodOptimizer

__all__ = ["ASkew", "Diagnosis", "MethodOptimizer", "diagnose", "groups", "snapped"]
