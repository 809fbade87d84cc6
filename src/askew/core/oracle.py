"""The mathematics once more: float64, one scalar at a time, slow and obviously right. Only tests use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def _bracket(q: float, c: Sequence[float]) -> tuple[float, float] | None:
    """(a, b) with a <= q < b, or None outside [c_1, c_K)."""
    for a, b in pairwise(c):
        if a <= q < b:
            return a, b
    return None


def nearest(q: float, c: Sequence[float]) -> float:
    """The nearest level; a tie goes to the right."""
    best = c[0]
    for level in c[1:]:
        if abs(q - level) <= abs(q - best):
            best = level
    return best


def phi(q: float, c: Sequence[float]) -> float:
    """(q-a)^2 (q-b)^2 inside, (q-c_1)^2 below, (q-c_K)^2 above."""
    pair = _bracket(q, c)
    if pair:
        a, b = pair
        return (q - a) ** 2 * (q - b) ** 2
    return (q - c[0]) ** 2 if q < c[0] else (q - c[-1]) ** 2


def phi_prime(q: float, c: Sequence[float]) -> float:
    """Derivative of phi, by the product rule."""
    pair = _bracket(q, c)
    if pair:
        a, b = pair
        return 2 * (q - a) * (q - b) ** 2 + 2 * (q - a) ** 2 * (q - b)
    return 2 * (q - c[0]) if q < c[0] else 2 * (q - c[-1])


def direction(u: float, q: float, c: Sequence[float], epsilon: float, alpha: float, clip: float) -> float:
    """argmin { |v + u|^2 / 2 : psi' v >= -alpha psi if psi <= 0 }, clipped to [-M, M] where the constraint binds."""
    psi, psi_prime = epsilon - phi(q, c), -phi_prime(q, c)
    if psi > 0:
        return -u
    if psi_prime * -u >= -alpha * psi:
        return -u
    if psi_prime == 0:
        return clip
    bound = -alpha * psi / psi_prime
    return math.copysign(min(abs(bound), clip), bound)


def captured(q: float, c: Sequence[float], radius: float) -> bool:
    """Whether q lies within `radius` half gaps of its nearest level."""
    inside = c[0] <= q <= c[-1]
    if inside and q not in c:
        a, b = _bracket(q, c) or (c[-2], c[-1])
        remote = abs(nearest(q, c) - q) / ((b - a) / 2)
    else:
        remote = 0.0
    return radius > 0 and remote <= radius


def shown(q: float, c: Sequence[float], radius: float) -> float:
    """What a network computes with while capture is reversible."""
    return nearest(q, c) if captured(q, c, radius) else q


def level_first(u: float, q: float, c: Sequence[float], radius: float, alpha: float) -> float:
    """The level-first direction of one coordinate."""
    level = nearest(q, c)
    if not captured(q, c, radius):
        return -u
    if q == level:
        return 0.0
    towards = 1.0 if level > q else -1.0
    floor = alpha * abs(level - q)
    return -u if -u * towards >= floor else towards * floor


def intervals(c: Sequence[float], epsilon: float) -> list[tuple[float, float]]:
    """The connected pieces of { q : phi(q) <= eps }, from left to right."""
    root = math.sqrt(epsilon)
    pieces = [[c[0] - root, c[0]]]
    for a, b in pairwise(c):
        h = b - a
        room = h * h / 4 - root
        if room >= 0:
            t = math.sqrt(room)
            pieces[-1][1] = (a + b) / 2 - t
            pieces.append([(a + b) / 2 + t, b])
    pieces[-1][1] = c[-1] + root
    return [(low, high) for low, high in pieces]
