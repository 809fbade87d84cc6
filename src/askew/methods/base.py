"""The three hooks every training method is written in; each is the identity by default.

One step of the optimizer (optim/wrapper.py):
    gradient = method.direction(gradient, w, site)     what the base optimizer is given in place of the gradient
    w        = base optimizer step on w
    w        = method.retract(w, before, site)         where the step may end
    forward  = method.forward_weight(w, site)          what the network computes with
Only a method with `latent = True` has a forward_weight of its own; the wrapper then keeps w as a second copy.

What a hook computes weight by weight is a `@fusible` function (fusible.py): one kernel inside a CUDA graph of a step.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from askew.core import Clock, LevelSet, Per, ScaleKind, scale_of
from askew.core.direction import level_units, snap
from askew.core.levels import draw
from askew.methods.fusible import fusible

ROUNDING = 1e-5  # relative: more than two ways of adding up a scale differ by


@dataclass
class Site:
    """What a hook may know of the parameter it works on, at this step.

    value is the schedule's current number (epsilon in level units, or the capture radius), a 0-d tensor on the
    parameter's device; memory is the method's own storage for this parameter, kept in the state dict and changed in
    place; numbers are the method's own numbers at this step (Method.numbers), 0-d tensors like value. ascends: the base
    maximises, so that what descends is minus the gradient. first_lr: what a scheduler's learning rates began with.
    """

    name: str
    levels: LevelSet
    scale: Tensor | None
    scale_rule: tuple[ScaleKind, Per]
    lr: float | Tensor
    alpha: float
    clip: float | Tensor
    clamp: bool
    value: Tensor
    clock: Clock
    memory: dict[str, Tensor]
    numbers: dict[str, Tensor] = field(default_factory=dict)
    ascends: bool = False
    first_lr: float | Tensor | None = None

    def follow(self, w: Tensor) -> None:
        """Measure the scale of w anew, unless there is none or it is frozen."""
        if self.scale is not None and "scale" not in self.memory:
            self.scale = scale_of(w, self.levels, *self.scale_rule)


class Method:
    """The identity in all three hooks: full precision. Subclasses override what they change."""

    name: ClassVar[str] = "full-precision"
    latent: ClassVar[bool] = False
    needs_before: ClassVar[bool] = False
    judged_as_shown: ClassVar[bool] = False  # diagnostics look at what the network computes with, not at the copy

    @property
    def random(self) -> bool:
        """True when forward_weight draws from torch's generator."""
        return False

    def numbers(self, clock: Clock) -> dict[str, float]:
        """What changes along the run by itself; hooks read it by `number`, so that a CUDA graph sees it change."""
        return {}

    def number(self, name: str, site: Site) -> float | Tensor:
        """The number of that name at this step: on the device where the optimizer keeps it there."""
        return site.numbers[name] if name in site.numbers else self.numbers(site.clock)[name]

    def phase(self, clock: Clock) -> Hashable:
        """What the hooks decide on the host at this step. A CUDA graph of a step is good while it stays the same."""
        return None

    def direction(self, gradient: Tensor, w: Tensor, site: Site) -> Tensor:
        return gradient

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        return w

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        return w

    def final(self, w: Tensor, site: Site) -> Tensor:
        """The weights that are scored and shipped: the nearest levels (full precision keeps w)."""
        return snap(w, site.levels, site.scale)

    def belongs(self, p: Tensor, seen: Tensor, latent: Tensor, site: Site) -> bool:
        """Is p what the network computes with, `seen`, up to rounding? A fused step rounds in its own way."""
        return bool(near(p, seen).all())

    def describe(self) -> dict[str, Any]:
        """Plain values that identify the method in records and state dicts."""
        own = asdict(self) if is_dataclass(self) and not isinstance(self, type) else {}
        return {"method": self.name} | own


class FullPrecision(Method):
    """No constraint: the base optimizer alone; nothing is snapped."""

    def final(self, w: Tensor, site: Site) -> Tensor:
        return w


def near(p: Tensor, other: Tensor) -> Tensor:
    """Where p is the other, in its own dtype and up to rounding."""
    return torch.isclose(p, other.to(p.dtype), rtol=ROUNDING, atol=0.0)


def hull(w: Tensor, site: Site) -> Tensor:
    """w clamped to [c_1, c_K], times the scale; not to a scale that still follows w, or both would shrink."""
    return clamped(w, site.levels, site.scale) if has_hull(site) else w


def has_hull(site: Site) -> bool:
    """Whether `hull` clamps here: there is no scale, or it is frozen."""
    return site.scale is None or "scale" in site.memory


@fusible
def clamped(w: Tensor, levels: LevelSet, scale: Tensor | None) -> Tensor:
    """w clamped to s [c_1, c_K]."""
    low, high = levels.values[0], levels.values[-1]
    return w.clamp(low, high) if scale is None else w.clamp((low * scale).to(w.dtype), (high * scale).to(w.dtype))


snapped = fusible(snap)


def drawn(w: Tensor, site: Site) -> Tensor:
    """s times one of the two levels around w / s, at random with mean w (within the levels' range)."""
    picked = draw(level_units(w, site.levels, site.scale), site.levels)
    return (picked if site.scale is None else picked * site.scale).to(w.dtype)
