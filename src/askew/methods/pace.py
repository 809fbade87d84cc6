"""The pace of methods that change along the run in whole periods, and the checks their options share.

A period is a number of optimizer steps (int) or a fraction of the run (float), as in core.annealing.
"""

from __future__ import annotations

import math

from askew.core import Clock
from askew.core.annealing import check_point, check_positive


def check_period(period: float | int, what: str) -> None:
    """A point in time that is not zero."""
    check_point(period, what)
    check_positive(period, what)


def check_growth(growth: float, what: str) -> None:
    """A factor that never shrinks."""
    if not 1 <= growth < math.inf:
        raise ValueError(f"{what} must be at least 1 and finite, got {growth}")


def periods(clock: Clock, period: float | int) -> int:
    """Whole periods done at this clock ("epoch", counted from 0)."""
    return math.floor(clock.step / clock.at(period, "period") + 1e-9)


def grown(initial: float, growth: float, count: int, cap: float) -> float:
    """min(initial * growth^count, cap), without overflow."""
    if count * math.log(growth) >= math.log(cap / initial):
        return cap
    return initial * growth**count
