"""Steps with a gradient that is not their own: forward exactly on the levels, backward as stated."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from askew.core.levels import compute_dtype
from askew.core.signs import SignGradient as SignGradient
from askew.core.signs import slope as slope


class _Round(torch.autograd.Function):
    """s clamp(round(x / s), low, high); backward: the gradient where low <= x / s <= high, else 0."""

    @staticmethod
    def forward(x: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        codes = integer_codes(x, scale, low, high)
        return (codes * scale).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore
        x, scale, low, high = ctx.saved_tensors
        q = x.to(compute_dtype(x.dtype)) / scale
        (gradient,) = gradients
        return torch.where((q >= low) & (q <= high), gradient, torch.zeros_like(gradient)), None, None, None


class _Sign(torch.autograd.Function):
    """+1 where x >= 0, else -1; backward: the gradient times a bump around 0."""

    @staticmethod
    def forward(x: Tensor, kind: SignGradient) -> Tensor:
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.kind = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        (x,) = ctx.saved_tensors
        (gradient,) = gradients
        return gradient * slope(x, ctx.kind).to(gradient.dtype), None


def integer_codes(x: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """clamp(round(x / s), low, high) in the computing dtype; a tie goes to the even integer."""
    return (x.to(compute_dtype(x.dtype)) / scale).round().clamp(low, high)


def round_to(x: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The nearest of s low .. s high, straight-through inside that range, gradient 0 outside it."""
    return _Round.apply(x, scale, low, high)  # pyright: ignore[reportReturnType]


def sign(x: Tensor, gradient: SignGradient = "tanh") -> Tensor:
    """sign(x) with sign(0) = +1; the gradient is multiplied by `slope`."""
    return _Sign.apply(x, gradient)  # pyright: ignore[reportReturnType]


def check_sign_gradient(kind: str) -> None:
    """Raise a ValueError for a gradient that does not exist."""
    if kind not in get_args(SignGradient):
        raise ValueError(f"Sign(gradient) must be one of {', '.join(get_args(SignGradient))}, got {kind!r}")
