"""BatchNorm without affine + ReLU (+ 2x2 max-pool, + shortcut) as two operators that the compiler leaves whole.

    y  = max((pool(z) - m) r + shortcut, 0),  m and r = 1 / sqrt(var + eps) over the batch,
    dz = r (g - mean(g) - xhat mean(g xhat)),  xhat = (z - m) r,  g = dy where y > 0, un-pooled.

Pooling first is exact: what follows does not decrease. z, y and their gradients are channels-last; m, r are float32.
Kept for the backward pass: z, m, r, and y where there is a pool or a shortcut (the next layer keeps y anyway). On a GPU
these are the kernels of `norm_kernels`; written out here is what they compute, for the CPU and for the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, max_unpool2d, relu


def empty_map(like: Tensor, pool: bool) -> Tensor:
    """Channels-last, half as high and wide under a pool."""
    b, c, h, w = like.shape
    size = (b, c, h // 2, w // 2) if pool else (b, c, h, w)
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Of the statistics: float32, float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def channels_last(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def per_channel(x: Tensor) -> Tensor:
    return x[:, None, None]


def move(
    mean: Tensor,
    variance: Tensor,
    n: int,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    count: Tensor | None,
    momentum: float,
) -> None:
    """Running statistics move as nn.BatchNorm2d moves them, by a batch of n values a channel."""
    if running_mean is not None and running_var is not None and count is not None:
        count += 1
        share = momentum if momentum >= 0 else 1 / count.to(running_mean.dtype)
        running_mean += share * (mean - running_mean)
        running_var += share * (variance * (n / (n - 1)) - running_var)


@torch.library.custom_op("askew::norm_relu", mutates_args=("running_mean", "running_var", "count"))
def norm_relu(
    z: Tensor,
    residual: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    count: Tensor | None,
    momentum: float,
    eps: float,
    pool: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, m, r). A negative momentum: running statistics are the plain average over all batches counted."""
    x = z.to(wide(z.dtype))
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    move(mean, variance, x.numel() // x.shape[1], running_mean, running_var, count, momentum)
    rstd = torch.rsqrt(variance + eps)
    y = ((max_pool2d(x, 2) if pool else x) - per_channel(mean)) * per_channel(rstd)
    return channels_last(relu(y if residual is None else y + residual), z.dtype), mean, rstd


@norm_relu.register_kernel("cuda")
def _(z, residual, running_mean, running_var, count, momentum, eps, pool):
    from askew.models import norm_launch

    return norm_launch.norm_relu(z, residual, running_mean, running_var, count, momentum, eps, pool)


@norm_relu.register_fake
def _(z, residual, running_mean, running_var, count, momentum, eps, pool):
    c, dtype = z.shape[1], wide(z.dtype)
    return empty_map(z, pool), z.new_empty(c, dtype=dtype), z.new_empty(c, dtype=dtype)


@torch.library.custom_op("askew::norm_relu_backward", mutates_args=())
def norm_relu_backward(
    z: Tensor, y: Tensor | None, dy: Tensor, mean: Tensor, rstd: Tensor, pool: bool, residual: bool
) -> tuple[Tensor, Tensor]:
    """(dz, gradient of the shortcut), the second empty where there is none."""
    x = z.to(mean.dtype)
    r = per_channel(rstd)
    xhat = (x - per_channel(mean)) * r
    g = torch.where((xhat if y is None else y) > 0, dy, 0).to(mean.dtype)
    shortcut = channels_last(g, z.dtype) if residual else z.new_empty(0)
    if pool:
        _, places = max_pool2d(x, 2, return_indices=True)
        g = max_unpool2d(g, places, [2, 2])
    mean_g, mean_gx = (per_channel(t.mean((0, 2, 3))) for t in (g, g * xhat))
    return channels_last(r * (g - mean_g - xhat * mean_gx), z.dtype), shortcut


@norm_relu_backward.register_kernel("cuda")
def _(z, y, dy, mean, rstd, pool, residual):
    from askew.models import norm_launch

    return norm_launch.norm_relu_backward(z, y, dy, mean, rstd, pool, residual)


@norm_relu_backward.register_fake
def _(z, y, dy, mean, rstd, pool, residual):
    return empty_map(z, False), empty_map(z, False) if residual else z.new_empty(0)
