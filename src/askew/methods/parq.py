"""PARQ (Jin, Ma, Liu, Gromov, Defazio, Xiao 2025) through torchao's own proximal maps and quantiser."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, Literal

import torch
from torch import Tensor

from askew.core.annealing import check_point, check_positive
from askew.core.direction import snap
from askew.methods.base import Method, Site


@dataclass
class Parq(Method):
    """Latent weights, the gradient as it is, no clipping; the forward weight is torchao's map of the latents.

    Between neighbouring levels a, b with centre m:  clamp(m + (w-m)/rho, a, b), where rho falls from 1 at anneal_start
    to 0 at anneal_end as a normalised sigmoid: s(f) = 1/(1+exp(S (f-1/2))), rho = (s(f)-s(1))/(s(0)-s(1)). Before the
    start w itself, after the end (hard=True: always; ProxHardQuant, the straight-through form) the nearest level.

    anneal_start, anneal_end  steps (int) or fractions of the run (float); the authors' CIFAR runs: 0 and 3/4
    steepness                 S; torchao's default 10 (advised 1 to 20; the CIFAR example has 100)
    levels                    'lsbq': torchao's LSBQuantizer, per tensor, anew at each step (1 bit: +-mean|w|; ternary;
                              2^b levels greedily): only the number of the group's levels counts, and its scale must be
                              'none'. 'fixed': the group's own levels and scale

    Equal to torchao's QuantOptimizer(quant_period=1) bit for bit, but for one thing: there the very first gradient is
    taken at the float weights, here already at the mapped ones (the same if anneal_start > 0).
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
        _torchao()

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        torchao = _torchao()
        nearest, table = self._targets(w, site)
        out = w.detach().clone(memory_format=torch.contiguous_format)
        by_channel = table.ndim == 2
        rows = out.view(out.shape[0], -1) if by_channel else out
        prox = torchao.ProxHardQuant() if self.hard else torchao.ProxPARQ(*self._window(site), self.steepness)
        prox.apply_(rows, nearest.reshape(rows.shape), table, site.clock.step, dim=-1 if by_channel else None)
        return out

    def final(self, w: Tensor, site: Site) -> Tensor:
        if self.levels == "fixed":
            return snap(w, site.levels, site.scale)
        _, table = self._targets(w, site)
        return table[torch.bucketize(w.contiguous(), (table[:-1] + table[1:]) / 2, right=True)]

    def _window(self, site: Site) -> tuple[float, float]:
        """Start and end of annealing in steps."""
        start, end = site.clock.at(self.anneal_start, "anneal_start"), site.clock.at(self.anneal_end, "anneal_end")
        if end <= start:
            raise ValueError(f"Parq: anneal_end must come after anneal_start, got steps {start:g} .. {end:g}")
        return start, end

    def _targets(self, w: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        """(the hard-quantised w, the levels in weight units: (K,), or (channels, K) under a scale per channel)."""
        if self.levels == "lsbq":
            return _torchao().LSBQuantizer().quantize(w.detach(), _lsbq_bits(site))
        table = site.levels.table(w)
        if site.scale is not None:
            table = table * (site.scale if site.scale.ndim == 0 else site.scale.reshape(-1, 1))
        return snap(w, site.levels, site.scale), table.to(w.dtype)


def _lsbq_bits(site: Site) -> int:
    """torchao's number of bits for K levels; 0 stands for ternary."""
    count = len(site.levels)
    if site.scale is not None:
        raise ValueError(f"{site.name}: Parq(levels='lsbq') finds its own scale; use scale='none', or levels='fixed'")
    if count == 3:
        return 0
    if count & (count - 1):
        raise ValueError(f"{site.name}: Parq(levels='lsbq') needs 3 or 2^b levels, got {count}; use levels='fixed'")
    return count.bit_length() - 1


def _torchao() -> ModuleType:
    logging.getLogger("torchao").setLevel(logging.ERROR)  # it warns of kernels that 1-bit maps do not use
    try:
        from torchao.prototype import parq
    except ImportError as error:
        raise ImportError("Parq runs torchao's proximal maps: pip install askew[parq]") from error
    return parq
