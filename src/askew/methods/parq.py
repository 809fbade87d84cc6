"""PARQ (Jin, Ma, Liu, Gromov, Defazio, Xiao 2025): the forward weight is a slope that steepens into a staircase."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from askew.core import Clock
from askew.core.annealing import check_point, check_positive
from askew.core.direction import snap
from askew.methods.base import Method, Site, snapped
from askew.methods.parq_maps import even_slope, fixed_slope, least_squares_levels, least_squares_nearest, slope

Phase = Literal["free", "slope", "hard"]


@dataclass
class Parq(Method):
    """Latent weights, the gradient as it is, no clipping; the forward weight is a map of the latents.

    Between neighbouring levels a, b with centre m:  clamp(m + (w-m)/rho, a, b), where rho falls from 1 at anneal_start
    to 0 at anneal_end as a normalised sigmoid: s(f) = 1/(1+exp(S (f-1/2))), rho = (s(f)-s(1))/(s(0)-s(1)). Before the
    start w itself, after the end (hard=True: always; the straight-through form) the nearest level.

    anneal_start, anneal_end  steps (int) or fractions of the run (float); the authors' CIFAR runs: 0 and 3/4
    steepness                 S; torchao's default 10 (advised 1 to 20; the CIFAR example has 100)
    levels                    'lsbq': least-squares levels, per tensor, anew at each step (1 bit: +-mean|w|; ternary;
                              2^b levels greedily): only the number of the group's levels counts, and its scale must be
                              'none'. 'fixed': the group's own levels and scale

    Equal to torchao's QuantOptimizer(quant_period=1) bit for bit, but for one thing: there the very first gradient is
    taken at the float weights, here already at the mapped ones (the same if anneal_start > 0). torchao's own code is
    what `askew bench step` measures; its maps keep numbers on the host, so no CUDA graph can hold them; these can.
    """

    anneal_start: float | int = 0.0
    anneal_end: float | int = 0.75
    steepness: float = 10.0
    hard: bool = False
    levels: Literal["lsbq", "fixed"] = "lsbq"
    name: ClassVar[str] = "parq"
    latent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_point(self.anneal_start, "Parq(anneal_start)")
        check_point(self.anneal_end, "Parq(anneal_end)")
        check_positive(self.steepness, "Parq(steepness)")
        if self.steepness > 1000:
            raise ValueError(f"Parq(steepness) must be at most 1000 (its exponential overflows), got {self.steepness}")
        start, end = self.anneal_start, self.anneal_end
        if type(start) is type(end) and end <= start:
            raise ValueError(f"Parq: anneal_end must come after anneal_start, got {start} .. {end}")
        if self.levels not in ("lsbq", "fixed"):
            raise ValueError(f"Parq(levels) must be 'lsbq' or 'fixed', got {self.levels!r}")

    def phase(self, clock: Clock) -> Phase:
        if self.hard:
            return "hard"
        start, end = self._window(clock)
        return "free" if clock.step < start else "slope" if clock.step < end else "hard"

    def numbers(self, clock: Clock) -> dict[str, float]:
        return {"rho": self.rho(clock) if self.phase(clock) == "slope" else 1.0}

    def rho(self, clock: Clock) -> float:
        """The inverse slope between two levels."""
        start, end = self._window(clock)

        def s(f: float) -> float:
            return 1 / (1 + math.exp(self.steepness * (f - 0.5)))

        return (s((clock.step - start) / (end - start)) - s(1.0)) / (s(0.0) - s(1.0))

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        phase = self.phase(site.clock)
        bits = None if self.levels == "fixed" else _lsbq_bits(site)
        if phase == "free":
            return w.clone()
        if bits is None:
            if phase == "hard":
                return snapped(w, site.levels, site.scale)
            return fixed_slope(w, site.levels, site.scale, self.number("rho", site))
        if phase == "hard":
            return least_squares_nearest(w.detach(), bits)
        if bits == 1:
            return even_slope(w, w.detach().abs().mean(), self.number("rho", site))
        return slope(w, self.number("rho", site), *least_squares_levels(w.detach(), bits))

    def final(self, w: Tensor, site: Site) -> Tensor:
        if self.levels == "fixed":
            return snap(w, site.levels, site.scale)
        bits = _lsbq_bits(site)
        table = torch.stack(least_squares_levels(w.detach(), bits))
        trained = least_squares_nearest(w.detach(), bits)  # up to rounding one of the table, not always w's nearest
        return table[torch.bucketize(trained.contiguous(), (table[:-1] + table[1:]) / 2, right=True)]

    def _window(self, clock: Clock) -> tuple[float, float]:
        """Start and end of annealing in steps."""
        start, end = clock.at(self.anneal_start, "anneal_start"), clock.at(self.anneal_end, "anneal_end")
        if end <= start:
            raise ValueError(f"Parq: anneal_end must come after anneal_start, got steps {start:g} .. {end:g}")
        return start, end


def _lsbq_bits(site: Site) -> int:
    """b for 2^b levels; 0 stands for ternary."""
    count = len(site.levels)
    if site.scale is not None:
        raise ValueError(f"{site.name}: Parq(levels='lsbq') finds its own scale; use scale='none', or levels='fixed'")
    if count == 3:
        return 0
    if count & (count - 1):
        raise ValueError(f"{site.name}: Parq(levels='lsbq') needs 3 or 2^b levels, got {count}; use levels='fixed'")
    return count.bit_length() - 1
