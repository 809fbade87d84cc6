"""LUQ's gradient quantiser (Chmiel et al. 2023): gradients of activations on a logarithmic grid, without bias."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from askew.core.levels import compute_dtype
from askew.optim.sharding import gathered

LEAST, MOST = 2, 5  # bits of a gradient: 2^(2^(b-1) - 2) is the ratio of its largest to its smallest size


def logarithmic(g: Tensor, bits: int = 4, largest: Tensor | None = None, shift: float = 0.0) -> Tensor:
    """g on the levels 0, +-a, +-2a, +-4a, ..., +-2^(n-1) a with n = 2^(b-1) - 1 and 2^(n-1) a = max|g|; mean g.

    One bit for the sign, the others for zero or an exponent. With y = |g| / a:
      y < 1               1 with probability y, else 0 (underflow, pruned at random)
      2^k <= y < 2^(k+1)  2^(k+1) with probability y / 2^k - 1, else 2^k
    Each has mean y, and max|g| is a level, so nothing is clipped: E Q(g) = g. Draws come from torch's generator.

    largest  max|g| of the whole gradient that g is a part of
    shift    added to the draws (modulo 1), so that processes whose generators are alike draw different numbers
    """
    if g.numel() == 0:
        return g.clone()
    x = g.to(compute_dtype(g.dtype))
    size = x.abs()
    top = 2.0 ** (2 ** (bits - 1) - 2)
    a = ((size.amax() if largest is None else largest.to(x.dtype)) / top).clamp(min=torch.finfo(x.dtype).tiny)
    y = (size / a).clamp(max=top)
    floor = torch.exp2(torch.floor(torch.log2(y.clamp(min=1.0))))
    lower = torch.where(y < 1, torch.zeros_like(y), floor)
    gap = torch.where(y < 1, torch.ones_like(y), floor)
    up = (torch.rand_like(y) + shift) % 1.0 * gap < y - lower
    return (torch.where(up, lower + gap, lower) * a * x.sign()).to(g.dtype)


class _Logarithmic(torch.autograd.Function):
    """The identity; backward: `logarithmic` of the gradient, `shared` by all processes or this one's own."""

    @staticmethod
    def forward(x: Tensor, bits: int, shared: bool) -> Tensor:
        return x.clone()  # a view of x would forbid an in-place ReLU behind it

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.bits, ctx.shared = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        g = gradients[0]
        if not ctx.shared:
            return logarithmic(g, ctx.bits), None, None
        everyone: Any = dist.group.WORLD
        own = g.abs().amax() if g.numel() else g.new_zeros(())  # an empty part still joins the other processes
        largest = gathered(own, everyone).amax()
        return logarithmic(g, ctx.bits, largest, dist.get_rank() / dist.get_world_size()), None, None


class QuantizedGradient(nn.Module):
    """The identity, whose gradient is put on LUQ's logarithmic grid; to stand behind a layer.

    bits  2 to 5: one for the sign, the rest for zero or an exponent (4: 0 and seven powers of two)

    `shared`: the grid is that of the largest gradient in all processes (see `shared_scales`).
    """

    def __init__(self, bits: int = 4) -> None:
        super().__init__()
        if isinstance(bits, bool) or not isinstance(bits, int) or not LEAST <= bits <= MOST:
            raise ValueError(f"QuantizedGradient(bits) must be a whole number from {LEAST} to {MOST}, got {bits!r}")
        self.bits, self.shared = bits, False

    def forward(self, x: Tensor) -> Tensor:
        return _Logarithmic.apply(x, self.bits, self.shared)  # pyright: ignore[reportReturnType]

    def extra_repr(self) -> str:
        return f"bits={self.bits}"
