"""AdaSTE (Le, Hoier, Lin, Zach, CVPR 2022): a forward map that hardens, a gradient damped by coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from askew.core import Clock
from askew.core.annealing import check_positive
from askew.core.levels import compute_dtype
from askew.methods.base import Method, Site
from askew.methods.fusible import fusible
from askew.methods.pace import check_growth, check_period, grown, periods


@dataclass
class AdaSTE(Method):
    """Latent theta, levels {-1, +1} only. With mu = min(mu0 growth^t, 1/alpha) after t whole periods:

    forward   w = clamp((theta + mu (1+alpha) sign theta) / (1+mu), -1, 1)
              = argmin over [-1, 1] of (w - theta)^2 / 2 + mu/2 (|w| - (1+alpha))^2;  sign(theta) once alpha mu >= 1
    gradient  g * factor(theta, g), see `factor`;  latents are not clipped

    growth, period  the authors' 1.05 an epoch of 700, as a fraction of the run: mu reaches 1/alpha at 27% of it
    limit           largest factor of an inward gradient (the authors' 1/tau, tau = 2)
    quiet           gradients up to this size are not damped (authors' 1e-3, of the mini-batch mean)

    Two things differ from the authors' code. Their inward factor below saturation has -theta where the finite
    difference gives +|theta|; they never get there, because their latents start at +-10 under an optimizer of their own
    with weight decay; latents of order 1 under SGD or Adam do, so the difference is used. And sign(0) = +1, not 0.
    """

    alpha: float = 0.01
    mu0: float = 0.01
    growth: float = 1.05
    period: float | int = 1 / 700
    limit: float = 0.5
    quiet: float = 1e-3
    name: ClassVar[str] = "adaste"
    latent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for what in ("alpha", "mu0", "limit"):
            check_positive(getattr(self, what), f"AdaSTE({what})")
        check_growth(self.growth, "AdaSTE(growth)")
        check_period(self.period, "AdaSTE(period)")
        if not 0 <= self.quiet < math.inf:
            raise ValueError(f"AdaSTE(quiet) must not be negative, got {self.quiet}")

    def mu(self, clock: Clock) -> float:
        """The weight of the double well at this clock."""
        return grown(self.mu0, self.growth, periods(clock, self.period), 1 / self.alpha)

    def numbers(self, clock: Clock) -> dict[str, float]:
        """mu for the next forward pass; mu_before of the one this step's gradient was taken at."""
        return {"mu": self.mu(clock), "mu_before": self.mu(Clock(max(0, clock.step - 1), clock.total))}

    def phase(self, clock: Clock) -> tuple[bool, bool]:
        """Whether w = sign(theta), in the next forward pass and in the one before."""
        now = self.numbers(clock)
        return _hard(now["mu"], self.alpha), _hard(now["mu_before"], self.alpha)

    def direction(self, gradient: Tensor, w: Tensor, site: Site) -> Tensor:
        mu, hard = self.number("mu_before", site), self.phase(site.clock)[1]
        return damped(gradient, w, site.scale, mu, self.alpha, self.limit, self.quiet, hard)

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        if site.levels.values != (-1.0, 1.0):
            raise ValueError(
                f"{site.name}: AdaSTE is defined for the levels -1 and +1 only, got {list(site.levels.values)}"
            )
        return hardened(w, site.scale, self.number("mu", site), self.alpha, self.phase(site.clock)[0])


@fusible
def damped(
    gradient: Tensor,
    w: Tensor,
    scale: Tensor | None,
    mu: float | Tensor,
    alpha: float,
    limit: float,
    quiet: float,
    hard: bool,
) -> Tensor:
    """g * factor(w/s, g)."""
    return (gradient * factor(_level_units(w, scale), gradient, mu, alpha, limit, quiet, hard)).to(gradient.dtype)


@fusible
def hardened(w: Tensor, scale: Tensor | None, mu: float | Tensor, alpha: float, hard: bool) -> Tensor:
    """s * forward_map(w/s)."""
    out = forward_map(_level_units(w, scale), mu, alpha, hard)
    return (out if scale is None else out * scale).to(w.dtype)


def _level_units(w: Tensor, scale: Tensor | None) -> Tensor:
    q = w.to(compute_dtype(w.dtype))
    return q if scale is None else q / scale


def _hard(mu: float, alpha: float) -> bool:
    """alpha mu >= 1, also where alpha * (1/alpha) rounds to a little less."""
    return alpha * mu >= 1 - 1e-12


def forward_map(theta: Tensor, mu: float | Tensor, alpha: float, hard: bool | None = None) -> Tensor:
    """clamp((theta + mu (1+alpha) sign theta) / (1+mu), -1, 1), and sign(theta) exactly once alpha mu >= 1 (hard)."""
    sign = torch.where(theta >= 0, 1.0, -1.0).to(theta.dtype)
    if _hard(float(mu), alpha) if hard is None else hard:
        return sign
    return ((theta + mu * (1 + alpha) * sign) / (1 + mu)).clamp(-1, 1)


def factor(
    theta: Tensor,
    gradient: Tensor,
    mu: float | Tensor,
    alpha: float,
    limit: float,
    quiet: float,
    hard: bool | None = None,
) -> Tensor:
    """What multiplies the straight-through gradient g; inward: a step along -g moves theta towards 0.

    with T = 1 - alpha mu > 0 (w saturates at |theta| = T) and f the forward map:
      quiet |g|, or |theta| <= 1e-6   1/(1+mu)
      outward                         1/(1+mu) up to T, 0 beyond
      inward                          min(limit, (f(|theta|) - f(0-)) / |theta|),  -f(0-) = mu (1+alpha) / (1+mu)
    with T <= 0 (hard: w = sign theta), as released:
      quiet |g|, or |theta| <= 1e-3   1
      outward 0;  inward min(limit, 1/|theta|)
    """
    size = theta.abs()
    hard = _hard(float(mu), alpha) if hard is None else hard
    slope = 1.0 if hard else 1 / (1 + mu)
    rise = torch.ones_like(size) if hard else forward_map(size, mu, alpha, hard) + mu * (1 + alpha) / (1 + mu)
    inward = (rise / size).clamp(max=limit)
    unsaturated = (size <= 1 - alpha * mu) | (size <= 1e-6)
    outward = slope * unsaturated.to(size.dtype)
    damped = torch.where(theta * gradient > 0, inward, outward)
    free = (gradient.abs() <= quiet) | (size <= (1e-3 if hard else 1e-6))
    return torch.where(free, slope, damped).to(size.dtype)
