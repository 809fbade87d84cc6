"""The maps of PARQ: the slope between two levels, and the levels that fit a tensor best (least squares, greedily)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from askew.core import LevelSet
from askew.methods.fusible import fusible

TERNARY = 1.1  # torchao's factor of the mean size for ternary levels


@fusible
def slope(w: Tensor, rho: float | Tensor, *levels: Tensor) -> Tensor:
    """clamp(m + (w-m)/rho, a, b) between the levels a < b around w, m = (a+b)/2; the end levels beyond them.

    levels: c_1 <= ... <= c_K in weight units, each 0-d or one for each channel.
    """
    a, b = _around(w, levels)
    tiny = torch.finfo(w.dtype).tiny
    m = (a + b) / 2
    rho = rho.clamp(min=tiny) if isinstance(rho, Tensor) else max(tiny, rho)
    return torch.minimum(torch.maximum(m + (w - m) / rho, a), b)


@fusible
def fixed_slope(w: Tensor, levels: LevelSet, scale: Tensor | None, rho: float | Tensor) -> Tensor:
    """`slope` for the levels s c_1 .. s c_K."""
    table = levels.table(w).unbind()
    return slope(w, rho, *((c if scale is None else c * scale).to(w.dtype) for c in table))


@fusible
def even_slope(w: Tensor, v: Tensor, rho: float | Tensor) -> Tensor:
    """`slope` for the levels -v, v."""
    return slope(w, rho, -v, v)


def _around(w: Tensor, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The levels a < w <= b; both c_1 up to it, both c_K beyond it. A kernel compares with each."""
    if len(levels) == 2 or torch.compiler.is_compiling():
        a = b = levels[0]
        for low, high in pairwise(levels):
            a, b = torch.where(w > high, high, a), torch.where(w > low, high, b)
        return a, b
    rows = levels[0].ndim > 0
    table = torch.stack([c.reshape(-1) if rows else c for c in levels], dim=-1)
    flat = w.reshape(w.shape[0], -1).contiguous() if rows else w.contiguous()
    upper = torch.searchsorted(table, flat)
    indices = (upper - 1).clamp(min=0), upper.clamp(max=len(levels) - 1)
    a, b = ((table.gather(1, i) if rows else table[i]).reshape(w.shape) for i in indices)
    return a, b


def least_squares_levels(w: Tensor, bits: int) -> tuple[Tensor, ...]:
    """The 2^b sums +-v_1 ... +-v_b, rising, each v the mean size of what the ones before leave.

    bits = 0 is ternary: {-v, 0, v} with v = 1.1 times the mean size.
    """
    if bits == 0:
        v = TERNARY * w.abs().mean()
        return -v, torch.zeros_like(v), v
    sizes, _ = _peel(w, bits)
    if bits == 1:
        return -sizes[0], sizes[0]
    first, *others = (torch.stack([-v, v]) for v in sizes)
    table = reduce(lambda sums, pair: (sums.unsqueeze(-1) + pair).flatten(), others, first)
    return table.msort().unbind()


def least_squares_nearest(w: Tensor, bits: int) -> Tensor:
    """w at its level."""
    if bits == 0:
        return nearest_of_three(w, TERNARY * w.abs().mean())
    sizes, rest = _peel(w, bits)
    return reached(w, rest, sizes[-1])


def _peel(w: Tensor, bits: int) -> tuple[list[Tensor], Tensor]:
    """(v_1 .. v_b, what the ones before the last leave of w)."""
    rest, sizes = w, [w.abs().mean()]
    for _ in range(bits - 1):
        rest = peeled(rest, sizes[-1])
        sizes.append(rest.abs().mean())
    return sizes, rest


@fusible
def peeled(rest: Tensor, v: Tensor) -> Tensor:
    """What +-v leaves."""
    return rest - torch.where(rest >= 0, v, -v)


@fusible
def reached(w: Tensor, rest: Tensor, v: Tensor) -> Tensor:
    """w without what is left after the last v."""
    return w - peeled(rest, v)


@fusible
def nearest_of_three(w: Tensor, v: Tensor) -> Tensor:
    """-v, 0 or v, with borders at +-v/2."""
    return torch.where(w > 0.5 * v, v, torch.where(w > -0.5 * v, torch.zeros_like(v), -v))
