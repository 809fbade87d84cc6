"""BatchNorm -> ReLU (-> max-pool) or sign, and the first convolution before it, in one piece where a GPU gains by it.

The modules stay what they are, with their names, buffers and state dicts. While training on a GPU with Triton,
channels-last, BatchNorm2d followed by nn.ReLU or a sign runs as the operators of `norm_ops`, `norm_pool` and
`norm_stem`; anywhere else, and for any other module, hook or layout, the modules run one after another. A sign is a
module that says so: `fused_as` names its gradient (see `askew.nn.Sign`). A quantizer behind a ReLU runs by itself. A
first convolution of stride 2 runs as that of `few_channels`. The operators have first derivatives only, and none for
torch.func: inside `unfused()` the modules run by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeGuard, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from askew.core.signs import SignGradient
from askew.models.few_channels import blocked, fits
from askew.models.norm_ops import norm_act, norm_act_backward
from askew.models.norm_pool import POOL, NormPool
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
    """nn.Sequential that takes BN -> ReLU (-> max-pool), BN -> sign, and these behind a convolution of images in
    one piece."""

    def forward(self, input: Tensor) -> Tensor:
        layers, x = opened(self), input
        while layers:
            x, used = _advance(layers, x)
            layers = layers[used:]
        return x


def _advance(layers: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, int]:
    """x after the first layers, and how many they were."""
    if len(layers) > 2 and starts(x, *layers[:3]):
        return _stem(x, *layers[:3]), 3  # pyright: ignore[reportArgumentType]
    if strides(x, layers[0]):
        return blocked(x.to(_dtype(x)), layers[0].weight), 1  # pyright: ignore[reportArgumentType]
    if len(layers) > 1 and fuses(x, layers[0], layers[1]):
        pooled = len(layers) > 2 and fused_as(layers[1]) == "relu"
        if pooled and overlaps(x, layers[2]):
            return _pooled(x, layers[0]), 3  # pyright: ignore[reportArgumentType]
        pool = pooled and halves(x, layers[2])
        return _norm(x, *layers[:2], pool), 3 if pool else 2  # pyright: ignore
    return layers[0](x), 1


def opened(layers: Iterable[nn.Module]) -> list[nn.Module]:
    """The layers, those of a plain nn.Sequential one by one: a ReLU may have a quantizer behind it in one of these."""
    return [m for layer in layers for m in (opened(layer) if _is_plain(layer, nn.Sequential) else [layer])]


def norm_activation(z: Tensor, norm: nn.Module, activation: nn.Module, residual: Tensor | None = None) -> Tensor:
    """activation(norm(z) + residual)."""
    parts = opened([activation])
    if parts and fuses(z, norm, parts[0]) and (residual is None or _alike(z, residual)):
        y = _norm(z, norm, parts[0], False, residual)  # pyright: ignore[reportArgumentType]
        for part in parts[1:]:
            y = part(y)
        return y
    y = norm(z)
    return activation(y if residual is None else y + residual)


def fuses(z: Tensor, norm: nn.Module, activation: nn.Module, channels: int | None = None) -> bool:
    """Whether BN and activation of this input (or of so many channels made of it) run in one piece."""
    return (
        _fusing
        and z.device.type in DEVICES
        and _is_plain(norm, nn.BatchNorm2d)
        and fused_as(activation) is not None
        and norm.training
        and all(b is None or b.is_contiguous() for b in (norm.running_mean, norm.running_var))
        and (norm.weight is None) == (norm.bias is None)
        and z.ndim == 4
        and norm.num_features == (z.shape[1] if channels is None else channels)
        and (z.dtype in HALF or z.dtype == torch.float32)
        and z.is_contiguous(memory_format=torch.channels_last)
        and z.numel() // z.shape[1] > 1
        and z.numel() < LIMIT
    )


def fused_as(activation: nn.Module) -> str | None:
    """What the kernels call an activation: "relu", or a sign by its gradient; None if they have no such thing."""
    if _is_plain(activation, nn.ReLU):
        return "relu"
    named = getattr(type(activation), "fused_as", None) is not None  # by its own class, not by what it wraps
    name = getattr(activation, "fused_as", None) if named else None
    return name if isinstance(name, str) and name in get_args(SignGradient) and _unheard(activation) else None


def halves(z: Tensor, pool: nn.Module) -> bool:
    """Whether `pool` is the max over 2x2 squares that cover z."""
    return _pools(z, pool, kernel_size=2, stride=2, padding=0)


def overlaps(z: Tensor, pool: nn.Module) -> bool:
    """Whether `pool` is the max over 3x3 squares about every other place of z."""
    return _pools(z, pool, **POOL)


def _pools(z: Tensor, pool: nn.Module, kernel_size: int, stride: int, padding: int) -> bool:
    """Whether `pool` is this max-pool and z of even height and width."""
    return (
        _is_plain(pool, nn.MaxPool2d)
        and pool.kernel_size in (kernel_size, (kernel_size, kernel_size))
        and pool.stride in (stride, (stride, stride))
        and pool.padding in (padding, (padding, padding))
        and pool.dilation in (1, (1, 1))
        and not (pool.return_indices or pool.ceil_mode)
        and z.shape[2] % 2 == z.shape[3] % 2 == 0
    )


def strides(x: Tensor, conv: nn.Module) -> bool:
    """Whether this is a strided convolution of images that gains by more channels: in 16 bits, no gradient for x."""
    return (
        _fusing
        and x.device.type in DEVICES
        and _is_plain(conv, nn.Conv2d)
        and conv.training
        and not x.requires_grad
        and conv.in_channels <= 4
        and fits(x, conv)
        and _dtype(x) in HALF
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
        and fuses(x, norm, activation, conv.out_channels)
        and x.shape[1] == conv.in_channels
        and padded_rows(x.numel() // x.shape[1]) * max(conv.out_channels, WIDTH) < LIMIT
        and _dtype(x) in HALF
    )


def _is_plain(module: nn.Module, kind: type[M]) -> TypeGuard[M]:
    """Exactly of this class, and nobody listens to it."""
    return type(module) is kind and _unheard(module)


def _unheard(module: nn.Module) -> bool:
    """Nobody listens to it, and its forward is its class's (which a compiler need not follow)."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    own = torch.compiler.is_compiling() or ("forward" not in module.__dict__ and not _has_any_global_hook())
    return own and not any(hooks)


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


def _norm(z: Tensor, norm: nn.BatchNorm2d, activation: nn.Module, pool: bool, residual: Tensor | None = None) -> Tensor:
    act = fused_as(activation)
    return NormAct.apply(z, residual, norm.weight, norm.bias, *_running(norm), pool, act)  # pyright: ignore


def _pooled(z: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    return NormPool.apply(z, norm.weight, norm.bias, *_running(norm))  # pyright: ignore


def _stem(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, activation: nn.Module) -> Tensor:
    vectors, act = (norm.weight, norm.bias), fused_as(activation)
    return Stem.apply(x, flat(conv.weight), *vectors, *_running(norm), _dtype(x), act)  # pyright: ignore


class NormAct(torch.autograd.Function):
    """y = f(pool(c (z - m) r + b) + residual)."""

    @staticmethod
    def forward(ctx, z, residual, scale, bias, running_mean, running_var, count, momentum, eps, pool, act):  # pyright: ignore
        running = running_mean, running_var, count, momentum, eps
        y, mean, rstd = norm_act(z, residual, scale, bias, *running, pool, act)
        ctx.pool, ctx.act, ctx.shortcut = pool, act, residual is not None
        kept = (y if act == "relu" else residual) if ctx.shortcut else y if pool and scale is None else None
        ctx.save_for_backward(z, kept, mean, rstd, scale, bias)
        return y

    @staticmethod
    def backward(ctx, dy):  # pyright: ignore
        z, kept, mean, rstd, scale, bias = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        how = ctx.pool, ctx.shortcut, ctx.act
        dz, shortcut, dc, db = norm_act_backward(z, kept, dy, mean, rstd, scale, bias, *how)
        vectors = (None, None) if scale is None else (dc.to(scale.dtype), db.to(bias.dtype))
        return dz, shortcut if ctx.shortcut else None, *vectors, *(None,) * 7
