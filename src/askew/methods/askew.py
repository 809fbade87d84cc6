"""ASkewSGD as a method: the skewed direction (paper), or the level-first one; no latent copy of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from askew.core import Clock
from askew.core.direction import arrive, level_first, level_units, quantile_radius, remoteness, skew, snap
from askew.methods.base import Method, Site, drawn, hull


class EpsilonSkew(Method):
    """The paper's form: gradient <- -s^c_{eps,alpha}(gradient, w), then the base optimizer.

    With torch.optim.SGD this is Algorithm 1. With Adam the skew comes before Adam. `clamp` keeps the weights in
    [c_1, c_K] after the step, as the published Adam runs do; Algorithm 1 has no clamp.
    """

    name: ClassVar[str] = "askew"

    def direction(self, gradient: Tensor, w: Tensor, site: Site) -> Tensor:
        return skew(gradient, w, site.levels, site.value, site.alpha, site.clip, site.scale).neg_()

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
        if self.by == "quantile":
            q = level_units(w, site.levels, site.scale)
            radius = quantile_radius(remoteness(q, site.levels), site.value)
            held = site.memory.setdefault("radius", radius)
            held.copy_(torch.maximum(held, radius))
        return level_first(gradient, w, site.levels, self.radius(site), site.alpha, site.scale).neg_()

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        if self.phase(site.clock):
            return snap(w, site.levels, site.scale)
        if before is not None:
            w = arrive(w, before, site.levels, self.radius(site), site.scale)
        return hull(w, site) if site.clamp else w

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
        return snap(w, site.levels, site.scale)
