"""ASkewSGD as a method: the skewed direction (paper), or the level-first one; no latent copy of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from askew.core import Clock, LevelSet
from askew.core.direction import (
    arrive,
    level_first,
    level_units,
    quantile_radius,
    remoteness,
    shown,
    skew,
    snap,
)
from askew.methods.base import Method, Site, clamped, drawn, has_hull, hull, near, snapped
from askew.methods.fusible import fusible

EDGE = 1e-4  # of half a gap: nearer than this to the capture radius, rounding decides


class EpsilonSkew(Method):
    """The paper's form: gradient <- -s^c_{eps,alpha}(gradient, w), then the base optimizer.

    With torch.optim.SGD this is Algorithm 1. With Adam the skew comes before Adam. `clamp` keeps the weights in
    [c_1, c_K] after the step, as the published Adam runs do; Algorithm 1 has no clamp.
    """

    name: ClassVar[str] = "askew"

    def direction(self, gradient: Tensor, w: Tensor, site: Site) -> Tensor:
        return skewed(gradient, w, site.levels, site.value, site.alpha, site.clip, site.scale)

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        return hull(w, site) if site.clamp else w


@dataclass
class LevelFirstSkew(Method):
    """Level-first: captured weights are drawn to their level and cannot pass it; at the end of the run all are on it.

    by="radius": the schedule's value is the capture radius; by="quantile": the part of the tensor's weights to capture,
    whose radius, never shrinking, is kept in the site's memory.
    """

    by: Literal["radius", "quantile"] = "radius"
    name: ClassVar[str] = "askew-level-first"
    needs_before: ClassVar[bool] = True

    def phase(self, clock: Clock) -> bool:
        """The last step snaps."""
        return clock.last

    def direction(self, gradient: Tensor, w: Tensor, site: Site) -> Tensor:
        self.measure(w, site)
        return drawn_first(gradient, w, site.levels, self.radius(site), site.alpha, site.scale)

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        if self.phase(site.clock):
            return snapped(w, site.levels, site.scale)
        if before is not None:
            return arrived(w, before, site.levels, self.radius(site), site.scale, site.clamp and has_hull(site))
        return hull(w, site) if site.clamp else w

    def measure(self, w: Tensor, site: Site) -> None:
        """By quantile: the radius that captures the schedule's part of these weights."""
        if self.by == "quantile":
            radius = quantile_radius(remote(w, site.levels, site.scale), site.value)
            held = site.memory.setdefault("radius", radius)
            held.copy_(torch.maximum(held, radius))

    def radius(self, site: Site) -> Tensor:
        """The capture radius in force at this site (by quantile: 0 until the first direction has measured it)."""
        if self.by == "radius":
            return site.value
        return site.memory["radius"] if "radius" in site.memory else torch.zeros_like(site.value)


class DitheredLevelFirst(LevelFirstSkew):
    """Level-first with a forward pass at weights rounded at random to a neighbouring level; keeps a latent copy."""

    name: ClassVar[str] = "askew-level-first-dithered"
    latent: ClassVar[bool] = True

    @property
    def random(self) -> bool:
        return True

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        """One of the two levels around w, at random; w itself on its level, though w / s may round off it."""
        return torch.where(w == snap(w, site.levels, site.scale), w, drawn(w, site))


class RoundedLevelFirst(LevelFirstSkew):
    """Level-first with a forward pass at the nearest levels and a straight-through gradient; keeps a latent copy."""

    name: ClassVar[str] = "askew-level-first-rounded"
    latent: ClassVar[bool] = True

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        return snapped(w, site.levels, site.scale)


class ReversibleLevelFirst(LevelFirstSkew):
    """Level-first whose weights may leave their levels again: only what the network computes with is captured.

    The optimizer moves a latent copy by the gradient at the shown weights, passed straight through where they are
    captured. Without a scale the copy is kept in [c_1, c_K].
    """

    name: ClassVar[str] = "askew-level-first-reversible"
    latent: ClassVar[bool] = True
    judged_as_shown: ClassVar[bool] = True
    needs_before: ClassVar[bool] = False

    def direction(self, gradient: Tensor, w: Tensor, site: Site) -> Tensor:
        self.measure(w, site)
        return gradient

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        if self.phase(site.clock):
            return snapped(w, site.levels, site.scale)
        return clamped(w, site.levels, None) if site.clamp and site.scale is None else w

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        return let_seen(w, site.levels, self.radius(site), site.scale)

    def belongs(self, p: Tensor, seen: Tensor, latent: Tensor, site: Site) -> bool:
        """Also where rounding decides who is captured, and at a midpoint by which level."""
        remoteness = remote(latent, site.levels, site.scale)
        edge = ((remoteness - self.radius(site)).abs() < EDGE) | (remoteness > 1 - EDGE)
        either = (p == latent.to(p.dtype)) | near(p, snapped(latent, site.levels, site.scale))
        return bool((near(p, seen) | (edge & either)).all())


@fusible
def skewed(
    gradient: Tensor,
    w: Tensor,
    levels: LevelSet,
    epsilon: Tensor,
    alpha: float,
    clip: float | Tensor,
    scale: Tensor | None,
) -> Tensor:
    """-s^c_{eps,alpha}(gradient, w)."""
    return skew(gradient, w, levels, epsilon, alpha, clip, scale).neg_()


@fusible
def drawn_first(
    gradient: Tensor, w: Tensor, levels: LevelSet, radius: Tensor, alpha: float, scale: Tensor | None
) -> Tensor:
    """The level-first direction as a gradient."""
    return level_first(gradient, w, levels, radius, alpha, scale).neg_()


@fusible
def arrived(w: Tensor, before: Tensor, levels: LevelSet, radius: Tensor, scale: Tensor | None, clamp: bool) -> Tensor:
    """Where a level-first step from `before` to w may end; then, if asked for, clamped to s [c_1, c_K]."""
    w = arrive(w, before, levels, radius, scale)
    return clamped(w, levels, scale) if clamp else w


@fusible
def let_seen(w: Tensor, levels: LevelSet, radius: Tensor, scale: Tensor | None) -> Tensor:
    """Captured weights at their levels, the others as they are."""
    return shown(w, levels, radius, scale)


@fusible
def remote(w: Tensor, levels: LevelSet, scale: Tensor | None) -> Tensor:
    """Each weight's distance to its level in half gaps."""
    return remoteness(level_units(w, levels, scale), levels)
