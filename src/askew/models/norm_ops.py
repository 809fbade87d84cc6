"""BatchNorm + ReLU or sign (+ 2x2 max-pool, + shortcut) as two operators that the compiler leaves whole.

    t  = c xhat + b,  xhat = (z - m) r,  m and r = 1 / sqrt(var + eps) over the batch,  y = f(pool(t) + shortcut),
    g  = f'(pool(t) + shortcut) dy, un-pooled,   db = sum(g),   dc = sum(g xhat),
    dz = c r (g - mean(g) - xhat mean(g xhat)).

c and b are BatchNorm's scale and bias, 1 and 0 where it has none. f is max(., 0) or the sign, whose f' is a bump
(`askew.core.signs`); a pool goes with max(., 0). z, y and their gradients are channels-last; m, r are float32. Kept
for the backward pass: z, m, r; with a shortcut y, or for a sign the shortcut; with a pool and no scale y (all of which
other layers keep anyway). On a GPU these are the kernels of `norm_kernels`; written out here is what they compute, for
the CPU and for the tests (but where c = 0 makes equal what a pool sees: dc may be that of any of the four).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, max_unpool2d, relu

from askew.core.signs import slope


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


def in_line(scale: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """As the kernels read them: one number after another."""
    return scale if scale is None else scale.contiguous(), bias if bias is None else bias.contiguous()


def affine(xhat: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """c xhat + b for each channel, the second dimension."""
    return xhat if scale is None or bias is None else xhat * per_channel(scale) + per_channel(bias)


def activate(t: Tensor, act: str) -> Tensor:
    """f: "relu", or the sign by the name of its gradient."""
    return relu(t) if act == "relu" else torch.where(t >= 0, 1.0, -1.0).to(t.dtype)


def through(dy: Tensor, t: Tensor, act: str) -> Tensor:
    """f'(t) dy."""
    return torch.where(t > 0, dy, 0) if act == "relu" else dy * slope(t, act)  # pyright: ignore[reportArgumentType]


@torch.library.custom_op("askew::norm_act", mutates_args=("running_mean", "running_var", "count"))
def norm_act(
    z: Tensor,
    residual: Tensor | None,
    scale: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    count: Tensor | None,
    momentum: float,
    eps: float,
    pool: bool,
    act: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, m, r). A negative momentum: running statistics are the plain average over all batches counted."""
    x = z.to(wide(z.dtype))
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    move(mean, variance, x.numel() // x.shape[1], running_mean, running_var, count, momentum)
    rstd = torch.rsqrt(variance + eps)
    t = affine((x - per_channel(mean)) * per_channel(rstd), scale, bias)
    t = max_pool2d(t, 2) if pool else t
    return channels_last(activate(t if residual is None else t + residual, act), z.dtype), mean, rstd


@norm_act.register_kernel("cuda")
def _(z, residual, scale, bias, running_mean, running_var, count, momentum, eps, pool, act):
    from askew.models import norm_launch

    return norm_launch.norm_act(z, residual, scale, bias, running_mean, running_var, count, momentum, eps, pool, act)


@norm_act.register_fake
def _(z, residual, scale, bias, running_mean, running_var, count, momentum, eps, pool, act):
    c, dtype = z.shape[1], wide(z.dtype)
    return empty_map(z, pool), z.new_empty(c, dtype=dtype), z.new_empty(c, dtype=dtype)


@torch.library.custom_op("askew::norm_act_backward", mutates_args=())
def norm_act_backward(
    z: Tensor,
    kept: Tensor | None,
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    pool: bool,
    residual: bool,
    act: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dz, gradient of the shortcut, dc, db), empty where there is none; kept: see above."""
    x = z.to(mean.dtype)
    r = per_channel(rstd)
    xhat = (x - per_channel(mean)) * r
    t, places = affine(xhat, scale, bias), None
    if pool:
        t, places = max_pool2d(t, 2, return_indices=True)
    if residual:
        assert kept is not None
        t = kept if act == "relu" else t + kept
    g = through(dy.to(mean.dtype), t, act)
    shortcut = channels_last(g, z.dtype) if residual else z.new_empty(0)
    if places is not None:
        g = max_unpool2d(g, places, [2, 2])
    sum_g, sum_gx = (t.sum((0, 2, 3)) for t in (g, g * xhat))
    n = x.numel() // x.shape[1]
    dz = r * (g - per_channel(sum_g) / n - xhat * per_channel(sum_gx) / n)
    if scale is None:
        return channels_last(dz, z.dtype), shortcut, mean.new_empty(0), mean.new_empty(0)
    return channels_last(per_channel(scale) * dz, z.dtype), shortcut, sum_gx, sum_g


@norm_act_backward.register_kernel("cuda")
def _(z, kept, dy, mean, rstd, scale, bias, pool, residual, act):
    from askew.models import norm_launch

    return norm_launch.norm_act_backward(z, kept, dy, mean, rstd, *in_line(scale, bias), pool, residual, act)


@norm_act_backward.register_fake
def _(z, kept, dy, mean, rstd, scale, bias, pool, residual, act):
    vector = mean.new_empty(0 if scale is None else z.shape[1])
    return empty_map(z, False), empty_map(z, False) if residual else z.new_empty(0), vector, torch.empty_like(vector)
