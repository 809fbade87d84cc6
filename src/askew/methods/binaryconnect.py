"""BinaryConnect (Courbariaux, Bengio, David 2015): latent weights, a forward pass at the levels, straight-through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from askew.methods.base import Method, Site, drawn, hull, snapped


@dataclass
class BinaryConnect(Method):
    """forward: s * nearest level of w/s, or a draw;  gradient: as it is;  retract: w clamped to s [c_1, c_K].

    stochastic  between neighbours a <= q < b of q = w/s (after the clamp) the forward weight is b with probability
                (q-a)/(b-a), else a: the mean is q. For {-1, +1}: +1 with p = clamp((w+1)/2, 0, 1).

    Draws use torch's global generator, one a step: a checkpoint of its state resumes them. Scored at the nearest levels
    in both forms (the authors score the stochastic form at the real w). Their layer-wise factor on the learning rate,
    sqrt((fan_in + fan_out)/1.5), is a matter of the groups' lr.
    """

    stochastic: bool = False
    name: ClassVar[str] = "binaryconnect"
    latent: ClassVar[bool] = True

    @property
    def random(self) -> bool:
        return self.stochastic

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        return hull(w, site)

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        if not self.stochastic:
            return snapped(w, site.levels, site.scale)
        return drawn(w, site)
