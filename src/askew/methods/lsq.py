"""LSQ (Esser et al., ICLR 2020): the step between levels is learned with the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from askew.core import LevelSet
from askew.core.annealing import check_positive
from askew.core.direction import snap
from askew.core.levels import compute_dtype, nearest
from askew.methods.base import Method, Site, snapped
from askew.methods.fusible import fusible

StepRule = Literal["adam", "sgd"]
DECAY, SQUARE_DECAY, TINY = 0.9, 0.999, 1e-16  # of the two moments of the step's gradient; added to the root


@dataclass
class Lsq(Method):
    """Latent weights w and a step s; the network computes with s * nearest level of w/s.

    gradient of w   the gradient where w/s lies in [c_1, c_K], else 0
    gradient of s   see `step_gradient`, times 1/sqrt(N c_K), N the weights that share the step
    start           s = 2 E|w| / sqrt(c_K)

    The step is the group's scale, so it is what diagnostics, snapping and files see, per tensor or per channel; give
    the group scale='sawb' or 'abs-mean' (which one does not matter here: LSQ starts from its own). It is no parameter
    of the base optimizer. It lies in the method's memory with its moments, is in the state dict, and moves in
    `direction`, from the same gradient and at the same moment as the weights:

    rule="sgd"   momentum .9 and lr * rate, as in the authors' runs; it never falls by more than half at once
    rule="adam"  log s by Adam at the rate lr * rate: a step of relative size lr, whatever the size of the weights.
                 Adam divides by the gradient's size, so 1/sqrt(N c_K) has no effect here, as it has none on weights

    Bases that call a closure many times a step (LBFGS) would move the step as often.
    """

    rule: StepRule = "adam"
    rate: float = 1.0
    name: ClassVar[str] = "lsq"
    latent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self.rate, "Lsq(rate)")
        if self.rule not in get_args(StepRule):
            raise ValueError(f"Lsq(rule) must be 'adam' or 'sgd', got {self.rule!r}")

    def direction(self, gradient: Tensor, w: Tensor, site: Site) -> Tensor:
        s = site.scale = self._step(w, site)
        passed = inside(gradient, w, site.levels, s)
        self._move(s, step_gradient(gradient, w, site.levels, s), site)
        return passed

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        site.scale = self._step(w, site)
        return snapped(w, site.levels, site.scale)

    def final(self, w: Tensor, site: Site) -> Tensor:
        return snap(w, site.levels, site.memory.get("scale", site.scale))

    def _step(self, w: Tensor, site: Site) -> Tensor:
        """The learned step, made at the first call; it counts as frozen for everyone else."""
        if site.scale is None:
            raise ValueError(f"{site.name}: LSQ learns its scale; build the optimizer with scale='sawb' or 'abs-mean'")
        if "moment" not in site.memory:
            site.memory["scale"] = first_step(w, site.levels, site.scale)
            for key in ("moment", "square", "count"):
                site.memory[key] = torch.zeros_like(site.memory["scale"])
        return site.memory["scale"]

    def _move(self, s: Tensor, gradient: Tensor, site: Site) -> None:
        """One step of the step, in place."""
        moment, square, count = (site.memory[key] for key in ("moment", "square", "count"))
        if self.rule == "sgd":
            momentum_step(s, gradient, moment, site.lr, self.rate)
        else:
            adam_step(s, gradient, moment, square, count, site.lr, self.rate)


@fusible
def inside(gradient: Tensor, w: Tensor, levels: LevelSet, s: Tensor) -> Tensor:
    """The gradient where w/s lies in [c_1, c_K], else 0."""
    q = w.to(s.dtype) / s
    kept = (q >= levels.values[0]) & (q <= levels.values[-1])
    return torch.where(kept, gradient, torch.zeros_like(gradient))


@fusible
def momentum_step(s: Tensor, gradient: Tensor, moment: Tensor, lr: float | Tensor, rate: float) -> None:
    """s and its moment, in place."""
    moment.mul_(DECAY).add_(gradient)
    s.copy_(torch.maximum(s - lr * rate * moment, s / 2))


@fusible
def adam_step(
    s: Tensor, gradient: Tensor, moment: Tensor, square: Tensor, count: Tensor, lr: float | Tensor, rate: float
) -> None:
    """s, by its logarithm, and its moments, in place."""
    relative = gradient * s
    count.add_(1)
    moment.lerp_(relative, 1 - DECAY)
    square.lerp_(relative * relative, 1 - SQUARE_DECAY)
    size = (square / (1 - SQUARE_DECAY**count)).sqrt() + TINY
    s.mul_(torch.exp(-lr * rate * moment / (1 - DECAY**count) / size))


def _shared(x: Tensor, s: Tensor) -> tuple[int, ...]:
    """The dimensions of x that one step serves: all, or all but the channels'."""
    return tuple(range(x.ndim)) if s.ndim == 0 else tuple(range(1, x.ndim))


def first_step(w: Tensor, levels: LevelSet, like: Tensor) -> Tensor:
    """2 E|w| / sqrt(c_K), shaped as `like` (0-d or one for each channel)."""
    size = w.detach().to(compute_dtype(w.dtype)).abs()
    s = 2 * size.mean(dim=_shared(w, like), keepdim=like.ndim > 0) / math.sqrt(_top(levels))
    return s.clamp(min=torch.finfo(s.dtype).tiny)


def step_gradient(gradient: Tensor, w: Tensor, levels: LevelSet, s: Tensor) -> Tensor:
    """sum over the weights of g * d(s nearest(w/s))/ds, divided by sqrt(N c_K):

    nearest(q) - q  where q = w/s lies in [c_1, c_K] (straight through the rounding);  c_1 or c_K beyond
    """
    total = step_change(gradient, w, levels, s).sum(dim=_shared(w, s), keepdim=s.ndim > 0)
    return total / math.sqrt(w.numel() / s.numel() * _top(levels))


@fusible
def step_change(gradient: Tensor, w: Tensor, levels: LevelSet, s: Tensor) -> Tensor:
    """g * d(s nearest(w/s))/ds of each weight."""
    q = w.to(s.dtype) / s
    low, high = levels.values[0], levels.values[-1]
    change = nearest(q, levels) - torch.where((q >= low) & (q <= high), q, torch.zeros_like(q))
    return gradient.to(s.dtype) * change


def _top(levels: LevelSet) -> float:
    """Q_P of the paper: the largest level (for one-bit integers {-1, 0}, whose largest is 0: 1)."""
    return levels.values[-1] if levels.values[-1] > 0 else max(abs(c) for c in levels.values)
