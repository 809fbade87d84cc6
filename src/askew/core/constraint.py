"""The interval constraint psi_eps(q) >= 0 of ASkewSGD (section 2 of the paper).

For neighbours a <= q < b:  phi(q) = (q-a)^2 (q-b)^2;  below c_1: (q-c_1)^2;  above c_K: (q-c_K)^2.
psi_eps = eps - phi and psi' = -phi'. Everything is in level units (q = w / scale).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from askew.core.levels import LevelSet, bracket, compute_dtype, index


class EpsilonWarning(UserWarning):
    """Epsilon lies above the bound of Theorem 1, so the intervals of neighbouring levels have merged."""


class Shape(NamedTuple):
    """phi and its derivative at the same points."""

    phi: Tensor
    slope: Tensor


def shape(q: Tensor, levels: LevelSet) -> Shape:
    """phi(q) and phi'(q); inside phi' = 2 (q-a)(q-b)(2q-a-b), outside 2 (q-c)."""
    x = q.to(compute_dtype(q.dtype))
    a, b = bracket(x, levels)
    left, right = x - a, x - b
    product = left * right
    beyond = torch.where(x < levels.values[0], left, right)
    outside = product > 0  # the outermost pair brackets everything else
    phi = torch.where(outside, beyond * beyond, product * product)
    slope = 2 * torch.where(outside, beyond, product * (left + right))
    return Shape(phi, slope)


def phi(q: Tensor, levels: LevelSet) -> Tensor:
    """phi(q) >= 0, zero exactly on the levels."""
    return shape(q, levels).phi


def psi(q: Tensor, levels: LevelSet, epsilon: float | Tensor) -> Tensor:
    """psi_eps(q) = eps - phi(q); feasible where >= 0."""
    return epsilon - shape(q, levels).phi


def psi_prime(q: Tensor, levels: LevelSet) -> Tensor:
    """psi'(q) = -phi'(q); it does not depend on eps."""
    return -shape(q, levels).slope


def borders(levels: LevelSet, epsilon: float | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Closed-form ends (low, high), each (K,), of the feasible interval that holds each level.

    With h = b - a the border between two levels lies at distance t = sqrt(h^2/4 - sqrt(eps)) from their midpoint,
    real when eps <= h^4/16; above that the two intervals have merged and share their ends. Outside the range the
    slack is sqrt(eps).
    """
    c = levels.table(like)
    width = epsilon.to(c.dtype) if isinstance(epsilon, Tensor) else c.new_full((), epsilon)
    root = width.clamp(min=0).sqrt()
    h = c[1:] - c[:-1]
    middle = (c[1:] + c[:-1]) / 2
    room = h * h / 4 - root
    t = room.clamp(min=0).sqrt()
    low = torch.cat([(c[0] - root).reshape(1), middle + t])
    high = torch.cat([middle - t, (c[-1] + root).reshape(1)])
    parted = room >= 0  # is there a border between level j and j+1?
    ends = torch.arange(len(levels), device=c.device)
    one = torch.ones(1, dtype=torch.bool, device=c.device)
    first = torch.where(torch.cat([one, parted]), ends, 0).cummax(0).values
    last = torch.where(torch.cat([parted, one]), ends, len(levels) - 1).flip(0).cummin(0).values.flip(0)
    return low[first], high[last]


def interval(q: Tensor, levels: LevelSet, epsilon: float | Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the feasible interval around the nearest level, for each element of q."""
    low, high = borders(levels, epsilon, q)
    j = index(q, levels)
    return low[j], high[j]


def feasible(q: Tensor, levels: LevelSet, epsilon: float | Tensor) -> Tensor:
    """Boolean: psi_eps(q) >= 0."""
    return psi(q, levels, epsilon) >= 0
