"""BatchNorm -> ReLU (-> max-pool), and the first convolution before it, in one piece where a GPU gains by it.

The modules stay what they are, with their names, buffers and state dicts. While training on a GPU with Triton,
channels-last, BatchNorm2d without affine followed by nn.ReLU runs as the operators of `norm_ops` and `norm_stem`;
anywhere else, and for any other module, hook or layout, the modules run one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from askew.models.norm_ops import norm_relu, norm_relu_backward
from askew.models.norm_stem import WIDTH, Stem, flat, padded_rows

DEVICES = {"cuda"} if find_spec("triton") else set()  # whose tensors the kernels take
HALF = (torch.bfloat16, torch.float16)
LIMIT = 2**31  # elements: places are counted in 32 bits
M = TypeVar("M", bound=nn.Module)
_fusing = True


@contextmanager
def unfused() -> Iterator[None]:
    """Inside, the plain modules run: to compare with."""
    global _fusing
    before, _fusing = _fusing, False
    try:
        yield
    finally:
        _fusing = before


class Chain(nn.Sequential):
    """nn.Sequential that takes BN -> ReLU (-> 2x2 max-pool) and conv -> BN -> ReLU on images in one piece."""

    def forward(self, input: Tensor) -> Tensor:
        layers, x = list(self), input
        while layers:
            x, used = _advance(layers, x)
            layers = layers[used:]
        return x


def _advance(layers: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, int]:
    """x after the first layers, and how many they were."""
    if len(layers) > 2 and starts(x, *layers[:3]):
        return _stem(x, *layers[:3]), 3  # pyright: ignore[reportArgumentType]
    if len(layers) > 1 and fuses(x, *layers[:2]):
        pool = len(layers) > 2 and halves(x, layers[2])
        return _norm(x, layers[0], pool), 3 if pool else 2  # pyright: ignore[reportArgumentType]
    return layers[0](x), 1


def norm_activation(z: Tensor, norm: nn.Module, activation: nn.Module, residual: Tensor | None = None) -> Tensor:
    """activation(norm(z) + residual)."""
    if fuses(z, norm, activation) and (residual is None or _alike(z, residual)):
        return _norm(z, norm, False, residual)  # pyright: ignore[reportArgumentType]
    y = norm(z)
    return activation(y if residual is None else y + residual)


def fuses(z: Tensor, norm: nn.Module, activation: nn.Module) -> bool:
    """Whether BN and activation of this input run in one piece."""
    return (
        _fusing
        and z.device.type in DEVICES
        and _is_plain(norm, nn.BatchNorm2d)
        and _is_plain(activation, nn.ReLU)
        and norm.training
        and norm.weight is None
        and norm.bias is None
        and z.ndim == 4
        and (z.dtype in HALF or z.dtype == torch.float32)
        and z.is_contiguous(memory_format=torch.channels_last)
        and z.numel() // z.shape[1] > 1
        and z.numel() < LIMIT
    )


def halves(z: Tensor, pool: nn.Module) -> bool:
    """Whether `pool` is the max over 2x2 squares that cover z."""
    return (
        _is_plain(pool, nn.MaxPool2d)
        and pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.return_indices
        and z.shape[2] % 2 == z.shape[3] % 2 == 0
    )


def starts(x: Tensor, conv: nn.Module, norm: nn.Module, activation: nn.Module) -> bool:
    """Whether conv, BN and activation of images run in one piece: 3x3, in 16 bits, no gradient for x."""
    return (
        _is_plain(conv, nn.Conv2d)
        and not x.requires_grad
        and conv.in_channels <= 3
        and conv.out_channels >= 16
        and conv.bias is None
        and (conv.kernel_size, conv.stride, conv.padding, conv.dilation) == ((3, 3), (1, 1), (1, 1), (1, 1))
        and (conv.groups, conv.padding_mode) == (1, "zeros")
        and fuses(x, norm, activation)
        and x.shape[1] == conv.in_channels
        and padded_rows(x.numel() // x.shape[1]) * max(conv.out_channels, WIDTH) < LIMIT
        and _dtype(x) in HALF
    )


def _is_plain(module: nn.Module, kind: type[M]) -> TypeGuard[M]:
    """Exactly of this class, and nobody listens to it."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and not any(hooks)


def _alike(z: Tensor, other: Tensor) -> bool:
    layout = other.is_contiguous(memory_format=torch.channels_last)
    return z.shape == other.shape and z.dtype == other.dtype and layout


def _dtype(x: Tensor) -> torch.dtype:
    """What a convolution of x would compute in."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _running(norm: nn.BatchNorm2d) -> tuple[Tensor | None, Tensor | None, Tensor | None, float, float]:
    """Running mean, variance, batches counted (None if not tracked), momentum (-1: plain average), eps."""
    momentum = -1.0 if norm.momentum is None else norm.momentum
    if not norm.track_running_stats:
        return None, None, None, momentum, norm.eps
    return norm.running_mean, norm.running_var, norm.num_batches_tracked, momentum, norm.eps


def _norm(z: Tensor, norm: nn.BatchNorm2d, pool: bool, residual: Tensor | None = None) -> Tensor:
    return NormReLU.apply(z, residual, *_running(norm), pool)  # pyright: ignore[reportReturnType]


def _stem(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, activation: nn.Module) -> Tensor:
    return Stem.apply(x, flat(conv.weight), *_running(norm), _dtype(x))  # pyright: ignore[reportReturnType]


class NormReLU(torch.autograd.Function):
    """y = max((pool(z) - m) r + residual, 0)."""

    @staticmethod
    def forward(ctx, z, residual, running_mean, running_var, count, momentum, eps, pool):  # pyright: ignore
        y, mean, rstd = norm_relu(z, residual, running_mean, running_var, count, momentum, eps, pool)
        ctx.pool, ctx.shortcut = pool, residual is not None
        ctx.save_for_backward(z, y if pool or ctx.shortcut else None, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):  # pyright: ignore
        z, y, mean, rstd = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dz, shortcut = norm_relu_backward(z, y, dy, mean, rstd, ctx.pool, ctx.shortcut)
        return dz, shortcut if ctx.shortcut else None, *(None,) * 6
