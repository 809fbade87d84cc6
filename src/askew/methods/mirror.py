"""Mirror descent with the tanh mirror map, MD-tanh (Ajanthan, Gupta, Torr, Hartley, Dokania, AISTATS 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from askew.core import Clock, LevelSet
from askew.core.annealing import check_positive
from askew.core.levels import compute_dtype
from askew.methods.base import Method, Site
from askew.methods.fusible import fusible
from askew.methods.pace import check_growth, check_period, grown, periods

CAP = 1e35  # the authors' largest beta


@dataclass
class MirrorDescent(Method):
    """The dual variable x is what the base optimizer moves, with the gradient at w unchanged (no tanh').

    forward  {-1, +1}:     w = tanh(beta x)
             {-1, 0, +1}:  w = (tanh(beta (x + 1/2)) + tanh(beta (x - 1/2))) / 2
             in general:   w = (c_1 + c_K)/2 + sum_j h_j/2 tanh(beta (x - m_j)), gaps h_j and midpoints m_j
             (x and w in level units; the first two are the authors', the third says both)
    final    the nearest level of x: sign(x)

    This is the stable dual form. The multiplicative form on w is the same rule in exact arithmetic under a constant
    beta, up to its learning rate, but w = +-1 absorbs it and its exponent overflows in float32. x is not clipped.

    beta            constant by default. The ASkew paper says "without annealing", alpha = .01 and mu = 100; the
                    authors' code knows neither name, and mu is read here as beta (alpha has no counterpart)
    growth, period  beta grows by this factor each period, up to 1e35; the authors start at beta = 1 and use 1.02 each
                    200 of 100k steps (CIFAR-10, ResNet-18) or 1.2 each 500 (TinyImageNet)
    """

    beta: float = 100.0
    growth: float = 1.0
    period: float | int = 0.01
    name: ClassVar[str] = "md-tanh"
    latent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self.beta, "MirrorDescent(beta)")
        check_growth(self.growth, "MirrorDescent(growth)")
        check_period(self.period, "MirrorDescent(period)")

    def steepness(self, clock: Clock) -> float:
        """beta at this clock; a constant one asks for no length of the run."""
        if self.growth == 1:
            return min(self.beta, CAP)
        return grown(self.beta, self.growth, periods(clock, self.period), CAP)

    def numbers(self, clock: Clock) -> dict[str, float]:
        return {"beta": self.steepness(clock)}

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        return mirrored(w, site.levels, site.scale, self.number("beta", site))


@fusible
def mirrored(w: Tensor, levels: LevelSet, scale: Tensor | None, beta: float | Tensor) -> Tensor:
    """s * soft_levels(w/s)."""
    x = w.to(compute_dtype(w.dtype))
    if scale is None:
        return soft_levels(x, levels, beta).to(w.dtype)
    return (soft_levels(x / scale, levels, beta) * scale).to(w.dtype)


def soft_levels(x: Tensor, levels: LevelSet, beta: float | Tensor) -> Tensor:
    """(c_1 + c_K)/2 + sum_j h_j/2 tanh(beta (x - m_j)): a staircase through the levels, steps of slope beta h/2."""
    out = torch.full_like(x, (levels.values[0] + levels.values[-1]) / 2)
    for gap, middle in zip(levels.gaps, levels.midpoints, strict=True):
        out += gap / 2 * torch.tanh(beta * (x - middle))
    return out
