"""ProxQuant (Bai, Wang, Liberty, ICLR 2019): a proximal step towards the levels after each base step, ever stronger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from askew.core import Clock, LevelSet
from askew.core.annealing import check_point, check_positive
from askew.core.direction import snap
from askew.methods.base import Method, Site, clamped, has_hull, snapped
from askew.methods.fusible import fusible
from askew.methods.pace import check_period, periods


@dataclass
class ProxQuant(Method):
    """No latent copy: w <- clamp(prox_lambda(w), s c_1, s c_K) after the base step, lambda = lr * rate * t.

    t counts whole periods (epochs) from 0, so lambda = 0 during the first. The prox is that of lambda times the
    distance to the nearest level, exact for any level set; for {-1, +1}
        prox(w) = sign(w) (1 + sign(|w|-1) max(||w|-1| - lambda, 0)).

    rate    the authors' 1e-4 (per epoch), for 300 epochs of 391 steps at lr .01 from a trained net. In a run of n
            steps and E periods the prox moves a weight by at most lr * rate * (E-1) * n/2: keep that above half a gap,
            so short runs and small learning rates need a larger rate
    adjust  the authors' way with a learning rate that falls: lambda = lr_0 * rate * t with the first one, so that the
            pull does not fall with it
    freeze  from this point on (int steps or float fraction; the authors: 2/3 of the run) the weights stay at
            their levels and only the rest of the net trains; None: never

    The authors leave w = 0 at 0; here it counts as nearest to the level on its right, a minimiser of the prox.
    """

    rate: float = 1e-4
    period: float | int = 0.01
    freeze: float | int | None = None
    adjust: bool = False
    name: ClassVar[str] = "proxquant"

    def __post_init__(self) -> None:
        check_positive(self.rate, "ProxQuant(rate)")
        check_period(self.period, "ProxQuant(period)")
        if self.freeze is not None:
            check_point(self.freeze, "ProxQuant(freeze)")

    def numbers(self, clock: Clock) -> dict[str, float]:
        return {"rate": self.rate * periods(clock, self.period)}

    def phase(self, clock: Clock) -> bool:
        """True from `freeze` on."""
        return self.freeze is not None and clock.step >= clock.at(self.freeze, "freeze")

    def direction(self, gradient: Tensor, w: Tensor, site: Site) -> Tensor:
        return torch.zeros_like(gradient) if self.phase(site.clock) else gradient

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        if self.phase(site.clock):
            return snapped(w, site.levels, site.scale)
        lr = site.first_lr if self.adjust and site.first_lr is not None else site.lr
        return drawn_in(w, site.levels, site.scale, lr, self.number("rate", site), has_hull(site))


@fusible
def drawn_in(
    w: Tensor, levels: LevelSet, scale: Tensor | None, lr: float | Tensor, rate: float | Tensor, clamp: bool
) -> Tensor:
    """prox_lambda(w), lambda = lr * rate; then, if asked for, clamped to s [c_1, c_K]."""
    x = prox(w, levels, lr * rate, scale)
    return clamped(x, levels, scale) if clamp else x


def prox(w: Tensor, levels: LevelSet, strength: float | Tensor, scale: Tensor | None = None) -> Tensor:
    """argmin_x (x-w)^2 / 2 + strength * min_c |x - s c|: soft-thresholding of the way from the nearest level."""
    level = snap(w, levels, scale)
    away = w - level
    return level + away.sign() * (away.abs() - strength).clamp(min=0)
