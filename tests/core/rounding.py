"""What the tests of the mathematics share: points that matter on a level set, and the answers that rounding permits.

A direction jumps where psi changes sign, where the gradient just meets its floor, and at midpoints. A test in finite
precision leaves no such point out: `allowed_skew` and `allowed_level_first` list every answer that an error of a few
rounding units can lead to, and everywhere else that is a single one. (No Hypothesis here: a bare GPU machine runs it.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, product

import torch

from askew.core import LevelSet, oracle
from askew.core.levels import compute_dtype

UNIT = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
SLACK = 8.0  # rounding units that a chain of about ten operations may lose


def special_points(levels: LevelSet, epsilon: float | None = None) -> list[float]:
    """Levels, midpoints, borders, each with its floating-point neighbours, and points outside."""
    marks = [*levels.values, *levels.midpoints]
    if epsilon is not None:
        marks += [end for piece in oracle.intervals(levels.values, epsilon) for end in piece]
    low, high = levels.values[0], levels.values[-1]
    near = [math.nextafter(m, s * math.inf) for m in marks for s in (-1, 1)]
    return [*marks, *near, low - 0.3, low - 7.0, high + 0.3, high + 7.0]


def tensor(values: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def as_computed(levels: LevelSet, dtype: torch.dtype) -> LevelSet:
    """The levels as the mathematics sees them: rounded to the computing dtype. The oracle is asked about these."""
    return LevelSet(tuple(tensor(list(levels.values), compute_dtype(dtype)).tolist()), levels.name)


def slope_error(q: float, levels: LevelSet, dtype: torch.dtype) -> float:
    """Rounding error of phi'(q): it is relative to (q-a)(q-b)(|q-a|+|q-b|), whose terms cancel near a midpoint."""
    unit = UNIT[compute_dtype(dtype)]
    tiny = torch.finfo(compute_dtype(dtype)).tiny
    if not levels.values[0] <= q <= levels.values[-1]:
        return SLACK * unit * abs(oracle.phi_prime(q, levels.values)) + tiny
    a, b = gap_around(q, levels)
    return SLACK * unit * 2 * abs((q - a) * (q - b)) * (abs(q - a) + abs(q - b)) + tiny


def phi_error(q: float, levels: LevelSet, dtype: torch.dtype) -> float:
    """Rounding error of phi(q), a product: relative, but for underflow."""
    unit = UNIT[compute_dtype(dtype)]
    return SLACK * unit * oracle.phi(q, levels.values) + torch.finfo(compute_dtype(dtype)).tiny


def near_midpoint(q: float, levels: LevelSet, dtype: torch.dtype) -> float:
    """How far the computed midpoint next to q may be off, if that is enough to change q's nearest level; else 0."""
    error = 2 * UNIT[compute_dtype(dtype)] * max(abs(levels.values[0]), abs(levels.values[-1]))
    return error if min(abs(q - m) for m in levels.midpoints) <= error else 0.0


@dataclass
class Allowed:
    """Answers within rounding: -u (bit for bit) if `keep`, or a value in one of the closed `ranges`."""

    keep: bool
    ranges: list[tuple[float, float]]

    @property
    def ambiguous(self) -> bool:
        return self.keep and bool(self.ranges)

    def accepts(self, v: float, u: float) -> bool:
        same = v == -u and math.copysign(1.0, v) == math.copysign(1.0, -u)
        return (self.keep and same) or any(low <= v <= high for low, high in self.ranges)


def allowed_skew(
    u: float, q: float, levels: LevelSet, epsilon: float, alpha: float, clip: float, dtype: torch.dtype
) -> Allowed:
    """What skew() may answer at q in `dtype`: interval arithmetic on the oracle's phi and phi'."""
    unit, phi = UNIT[compute_dtype(dtype)], oracle.phi(q, levels.values)
    blur = phi_error(q, levels, dtype) + SLACK * unit * epsilon
    psi_low, psi_high = epsilon - phi - blur, epsilon - phi + blur
    slope, blur = -oracle.phi_prime(q, levels.values), slope_error(q, levels, dtype)
    slope_low, slope_high = slope - blur, slope + blur
    gains = sorted((-u * slope_low, -u * slope_high))
    widen = SLACK * unit * max(abs(gains[0]), abs(gains[1]))
    floor_low = max(0.0, -alpha * psi_high) * (1 - SLACK * unit)
    floor_high = max(0.0, -alpha * psi_low) * (1 + SLACK * unit)
    keep = psi_high > 0 or gains[1] + widen >= floor_low
    bind = psi_low <= 0 and gains[0] - widen < floor_high
    ranges = []
    if bind and slope_high >= 0:
        ranges.append(_rounded(_ratio(floor_low, slope_high), _ratio(floor_high, slope_low), clip, dtype))
    if bind and slope_low <= 0:
        low, high = _rounded(_ratio(floor_low, -slope_low), _ratio(floor_high, -slope_high), clip, dtype)
        ranges.append((-high, -low))
    return Allowed(keep, ranges)


def _ratio(over: float, under: float) -> float:
    return over / under if under > 0 else math.inf


def _rounded(low: float, high: float, clip: float, dtype: torch.dtype) -> tuple[float, float]:
    wide = SLACK * UNIT[compute_dtype(dtype)] + UNIT[dtype]
    return min(low, clip) * (1 - wide), min(high, clip) * (1 + wide)


def allowed_level_first(
    u: float, q: float, levels: LevelSet, radius: float, alpha: float, dtype: torch.dtype
) -> Allowed:
    """What level_first() may answer: the oracle's answers at every corner of the box of rounding errors.

    A weight that is a level rounded to its dtype counts as on that level.
    """
    q = next((c for c in levels.values if tensor([c], dtype).item() == q), q)
    unit, shift = SLACK * UNIT[compute_dtype(dtype)], near_midpoint(q, levels, dtype)
    keep, pulls = False, set()
    for move, r, a in product({-shift, 0.0, shift}, (1 - unit, 1.0, 1 + unit), (1 - unit, 1.0, 1 + unit)):
        reach = radius * r if radius < 1 else math.inf  # radius 1 captures everybody, in every dtype
        v = oracle.level_first(u, q + move, levels.values, reach, alpha * a)
        pull = alpha * (oracle.nearest(q + move, levels.values) - q)
        keep = keep or v == -u
        if v != -u or v == pull:
            pulls.add(pull)
    wide = unit + UNIT[dtype]
    return Allowed(keep, [(min(p * (1 - wide), p * (1 + wide)), max(p * (1 - wide), p * (1 + wide))) for p in pulls])


def gap_around(q: float, levels: LevelSet) -> tuple[float, float]:
    """(a, b) with a <= q < b, the outermost pair outside."""
    for a, b in pairwise(levels.values):
        if q < b:
            return a, b
    return levels.values[-2], levels.values[-1]


def check(answers: list[Allowed], v: torch.Tensor, u: torch.Tensor) -> None:
    """Every v is an allowed answer to its u."""
    for allowed, got, push in zip(answers, v.double().tolist(), u.double().tolist(), strict=True):
        assert allowed.accepts(got, push), f"got {got} for u={push}, allowed {allowed}"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal values and equal signs of zero."""
    return a.dtype == b.dtype and torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())
