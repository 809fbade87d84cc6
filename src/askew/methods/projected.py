"""Projected gradient: each step ends on a simple set around the level patterns; weights are snapped at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from askew.core import LevelSet
from askew.core.levels import compute_dtype
from askew.methods.base import Method, Site, hull
from askew.methods.fusible import fusible


@dataclass
class ProjectedGradient(Method):
    """w <- P(w - base step), real-valued forward, no latent copy. P projects each layer (d weights)

    onto="sphere"  of radius sqrt(d) * sqrt(mean c^2), times the scale: it passes through the sign vertices
    onto="cube"    [c_1, c_K]^d, times the scale

    There is no sphere while an adaptive scale still follows the weights: E|w| lies below the root mean square, so the
    two would shrink each other to nothing.
    """

    onto: Literal["sphere", "cube"] = "sphere"
    name: ClassVar[str] = "projected"

    def __post_init__(self) -> None:
        if self.onto not in ("sphere", "cube"):
            raise ValueError(f"ProjectedGradient(onto) must be 'sphere' or 'cube', got {self.onto!r}")

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        if self.onto == "cube":
            return hull(w, site)
        follows = site.scale is not None and "scale" not in site.memory
        return w if follows else sphere(w, site.levels, site.scale)


def sphere(w: Tensor, levels: LevelSet, scale: Tensor | None = None) -> Tensor:
    """The nearest point of the sphere of radius sqrt(sum_i (s_i r)^2), r = sqrt(mean c^2); from 0, along (1, .., 1)."""
    x = w.to(compute_dtype(w.dtype))
    root_mean_square = (sum(c * c for c in levels.values) / len(levels)) ** 0.5
    ones = torch.ones_like(x) if scale is None else scale.expand_as(x)
    radius = root_mean_square * torch.linalg.vector_norm(ones)
    norm = torch.linalg.vector_norm(x)
    return stretched(w, radius, norm, radius / x.numel() ** 0.5)


@fusible
def stretched(w: Tensor, radius: Tensor, norm: Tensor, flat: Tensor) -> Tensor:
    """w * radius / norm; from norm 0, flat."""
    return torch.where(norm > 0, w.to(compute_dtype(w.dtype)) * (radius / norm), flat).to(w.dtype)
