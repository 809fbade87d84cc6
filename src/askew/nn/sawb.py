"""The scale of activations: SAWB's clip from the moments of a batch, for numbers of either sign or of one sign only.

Integers low..high times a scale s. Signed: -2^(b-1) .. 2^(b-1)-1, s = 2 clip / (2^b - 1), clip by SAWB's row b.
Unsigned: 0 .. 2^b-1, s = clip / (2^b - 1). What follows a ReLU is one half of a distribution: mirrored at zero it
has nearly 2^(b+1) levels, so its clip is that of row b+1 (at 8 bits: of row 8, the last).

Moments are those of the entries that are not zero: zero is a level itself, costs no error and says nothing about the
clip. With the zeros of a ReLU counted in, SAWB's clip of half a Gaussian is far too large.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from askew.core.levels import compute_dtype
from askew.core.scale import SAWB_COEFFICIENTS, clip_from


def limits(bits: int, signed: bool) -> tuple[int, int]:
    """(low, high) of b-bit integers."""
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def tally(x: Tensor) -> Tensor:
    """(5,): sum |x|, sum x^2, entries that are not zero, negative entries, max|x|; `pooled` adds parts up.

    Zeros for an empty tensor.
    """
    y = x.detach().to(compute_dtype(x.dtype))
    if not y.numel():
        return y.new_zeros(5)
    size = y.abs()
    counts = [(y != 0).sum().to(y.dtype), (y < 0).sum().to(y.dtype)]
    return torch.stack([size.sum(), (size * size).sum(), *counts, size.amax()])


def pooled(tallies: Tensor) -> Tensor:
    """The tally of the whole from (parts, 5)."""
    return torch.cat([tallies[:, :4].sum(0), tallies[:, 4:].amax(0)])


def moments(counted: Tensor) -> Tensor:
    """(3,): E|x|, E x^2 and max|x| over the entries that are not zero (zeros if there are none), from a tally."""
    total, squares, count, _, largest = counted
    return torch.stack([total / count.clamp(min=1), squares / count.clamp(min=1), largest])


def nonzero_moments(x: Tensor) -> Tensor:
    """The moments of one tensor."""
    return moments(tally(x))


def signed_scale(moment: Tensor, bits: int) -> Tensor:
    """s = 2 clip / (2^b - 1)."""
    return _positive(2 * clip_from(moment, bits) / (2**bits - 1))


def unsigned_scale(moment: Tensor, bits: int) -> Tensor:
    """s = clip / (2^b - 1) with the clip of row b+1, but at least mean + k sd, and at most the largest entry.

    k is row b's clip of a standard Gaussian. The floor is for activations that stand away from zero (after
    max-pooling, say), which no symmetric distribution resembles; half a Gaussian or an exponential does not reach it.
    """
    mean, square, largest = moment
    c1, c2 = SAWB_COEFFICIENTS[bits]
    k = c1 - c2 * math.sqrt(2 / math.pi)
    spread = (square - mean * mean).clamp(min=0).sqrt()
    clip = torch.maximum(clip_from(moment, min(8, bits + 1)), mean + k * spread)
    return _positive(torch.minimum(clip, largest) / (2**bits - 1))


def _positive(scale: Tensor) -> Tensor:
    return scale.clamp(min=torch.finfo(scale.dtype).tiny)
