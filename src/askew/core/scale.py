"""How a layer's weights map to level units: w = s q, with s per tensor or per output channel (the first dimension).

none      s = 1 (returned as None)
abs-mean  s = E|w| / mean|c|: the levels have the mean magnitude of the weights ({-1,+1}: s = E|w|);
          for two or three levels: with more of them the outermost falls short of a Gaussian's large weights
sawb      s = 2 clip / (c_K - c_1) with clip = c1 sqrt(E w^2) - c2 E|w|, the clip of least squared error
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from askew.core.levels import LevelSet, compute_dtype

ScaleKind = Literal["none", "abs-mean", "sawb"]
Per = Literal["tensor", "channel"]

# bits -> (c1, c2). 1 to 4 bits: Choi et al. 2018. 5 to 8 bits: the line of least worst excess error over Gaussian,
# Laplace, logistic and uniform weights (re-derived in tests/core/sawb_fit.py; least squares fails there).
SAWB_COEFFICIENTS: dict[int, tuple[float, float]] = {
    1: (0.0, -1.0),
    2: (3.19, 2.14),
    3: (7.40, 6.66),
    4: (11.86, 11.68),
    5: (17.38, 18.10),
    6: (22.56, 24.05),
    7: (27.82, 30.10),
    8: (33.19, 36.34),
}


def check_scale(kind: str, per: str, w: Tensor, name: str) -> None:
    """Raise a ValueError that names the parameter when kind, per and the weight's shape do not fit."""
    if kind not in get_args(ScaleKind):
        raise ValueError(f"{name}: scale must be one of {', '.join(get_args(ScaleKind))}, got {kind!r}")
    if per not in get_args(Per):
        raise ValueError(f"{name}: per must be 'tensor' or 'channel', got {per!r}")
    if per == "channel" and w.ndim < 2:
        raise ValueError(f"{name}: a scale per channel needs a weight of two dimensions or more, got {tuple(w.shape)}")


def _mean(x: Tensor, per: Per) -> Tensor:
    if per == "tensor":
        return x.mean()
    return x.mean(dim=tuple(range(1, x.ndim)), keepdim=True)


def sawb_bits(levels: LevelSet) -> int:
    """The row of SAWB's table for K levels: round(log2 K), so 17 levels count as 4 bits."""
    return min(8, max(1, round(math.log2(len(levels)))))


def moments(w: Tensor, kind: ScaleKind, per: Per = "tensor") -> Tensor:
    """What a scale needs to know of w, stacked: E|w|, and for sawb E w^2 and max|w|; (n,) or (n, C, 1, ..).

    Parts of one tensor pool into the whole: the means by their counts, the maximum by the maximum.
    """
    x = w.detach().to(compute_dtype(w.dtype))
    if x.numel() == 0:
        one = () if per == "tensor" else (x.shape[0], *(1,) * (x.ndim - 1))
        return x.new_zeros((1 if kind == "abs-mean" else 3, *one))
    size = x.abs()
    if kind == "abs-mean":
        return _mean(size, per).unsqueeze(0)
    largest = size.amax() if per == "tensor" else size.amax(dim=tuple(range(1, x.ndim)), keepdim=True)
    return torch.stack([_mean(size, per), _mean(x * x, per), largest])


def clip_from(moment: Tensor, bits: int) -> Tensor:
    """SAWB's clip from the three moments (see sawb_clip)."""
    if bits not in SAWB_COEFFICIENTS:
        raise ValueError(f"SAWB is tabulated for 1 to 8 bits, got {bits}")
    c1, c2 = SAWB_COEFFICIENTS[bits]
    mean_abs, mean_square, largest = moment
    if bits == 1:
        return mean_abs
    clip = c1 * mean_square.sqrt() - c2 * mean_abs
    return torch.where(clip < mean_abs, largest, torch.minimum(clip, largest))


def sawb_clip(w: Tensor, bits: int, per: Per = "tensor") -> Tensor:
    """clip = c1 sqrt(E w^2) - c2 E|w|, at most max|w|; max|w| too where the formula falls below E|w|.

    From 5 bits on the two moments say little about nearly binary or few weights; there max|w| is the safe clip.
    """
    return clip_from(moments(w, "sawb", per), bits)


def scale_from(moment: Tensor, levels: LevelSet, kind: ScaleKind) -> Tensor:
    """The scale s from the moments of that kind: E|w| / mean|c|, or 2 clip / (c_K - c_1)."""
    if kind == "abs-mean":
        s = moment[0] / (sum(abs(c) for c in levels.values) / len(levels))
    else:
        s = 2 * clip_from(moment, sawb_bits(levels)) / (levels.values[-1] - levels.values[0])
    return s.clamp(min=torch.finfo(moment.dtype).tiny)


def scale_of(w: Tensor, levels: LevelSet, kind: ScaleKind, per: Per = "tensor") -> Tensor | None:
    """The scale s of w (0-d, or (C, 1, ..) per channel) in the computing dtype, or None for kind 'none'."""
    return None if kind == "none" else scale_from(moments(w, kind, per), levels, kind)


def scales_of(ws: Sequence[Tensor], levels: LevelSet, kind: ScaleKind, per: Per = "tensor") -> list[Tensor]:
    """scale_of for each of several tensors of one device, up to rounding: on a GPU in a few launches, in float32.

    (On a CPU torch's norms add up one number after another, which loses a large tensor's later ones.)
    """
    if per == "channel" or not all(w.is_cuda and w.dtype == torch.float32 and w.numel() for w in ws):
        return [s for w in ws if (s := scale_of(w, levels, kind, per)) is not None]
    sizes = [w.numel() for w in ws]

    def norms(order: float) -> list[Tensor]:
        return [*torch._foreach_norm([w.detach() for w in ws], order)]  # pyright: ignore

    means = torch.stack(torch._foreach_div(norms(1), sizes))  # pyright: ignore
    if kind == "abs-mean":
        return [*scale_from(means[None], levels, kind).unbind()]
    roots = torch.stack(torch._foreach_div(norms(2), [math.sqrt(n) for n in sizes]))  # pyright: ignore
    known = torch.stack([means, roots * roots, torch.stack(norms(math.inf))])
    return [*scale_from(known, levels, kind).unbind()]
