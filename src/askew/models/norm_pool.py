"""BatchNorm + ReLU + the 3x3 max-pool of stride 2 that follows a ResNet's first layer, as two operators.

    t = c xhat + b,  xhat = (z - m) r,  y = max(pool(t), 0),  g = dy where y > 0,
    G = g un-pooled: a place gets the g of each of the one to four pools (they overlap) that it is the largest in,
    dz = c r (G - mean(G) - xhat mean(G xhat)),   dc = sum(G xhat),   db = sum(G).

c and b as in `norm_ops`. Since t rises or falls with z, the pool looks at z itself, and neither t nor max(t, 0) is
stored at full size. Kept for the backward pass: z, m, r and, of each pooled place, the z it comes from (`top`) and
which of the nine that was (`place`: row by row, the first of the largest). On a GPU these are the kernels of
`norm_pool_kernels`; written out here is what they compute, for the CPU and for the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, relu

from askew.models.norm_ops import affine, channels_last, empty_map, in_line, move, per_channel, wide

POOL = {"kernel_size": 3, "stride": 2, "padding": 1}


@torch.library.custom_op("askew::norm_pool", mutates_args=("running_mean", "running_var", "count"))
def norm_pool(
    z: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    count: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(y, top, place, m, r) of z, its height and width even; momentum as in `norm_ops`."""
    x = z.to(wide(z.dtype))
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    move(mean, variance, x.numel() // x.shape[1], running_mean, running_var, count, momentum)
    rstd = torch.rsqrt(variance + eps)
    up = 1.0 if scale is None else per_channel(torch.where(scale < 0, -1.0, 1.0).to(x.dtype))
    best, at = max_pool2d(up * x, POOL["kernel_size"], POOL["stride"], POOL["padding"], return_indices=True)
    top = up * best
    y = relu(affine((top - per_channel(mean)) * per_channel(rstd), scale, bias))
    place = channels_last(_place(at, z.shape[3]), torch.int8)
    return channels_last(y, z.dtype), channels_last(top, z.dtype), place, mean, rstd


def _place(at: Tensor, width: int) -> Tensor:
    """Which of its nine, row by row, from torch's places in an image of this width."""
    i, j = (torch.arange(size, device=at.device) for size in at.shape[2:])
    return 3 * (at // width - 2 * i[:, None] + 1) + at % width - 2 * j + 1


def _places(place: Tensor, width: int) -> Tensor:
    """torch's places in an image of this width."""
    i, j = (torch.arange(size, device=place.device) for size in place.shape[2:])
    which = place.long()
    return (2 * i[:, None] - 1 + which // 3) * width + 2 * j - 1 + which % 3


@norm_pool.register_kernel("cuda")
def _(z, scale, bias, running_mean, running_var, count, momentum, eps):
    from askew.models import norm_pool_launch

    return norm_pool_launch.norm_pool(z, *in_line(scale, bias), running_mean, running_var, count, momentum, eps)


@norm_pool.register_fake
def _(z, scale, bias, running_mean, running_var, count, momentum, eps):
    y, mean = empty_map(z, True), z.new_empty(z.shape[1], dtype=wide(z.dtype))
    return y, torch.empty_like(y), torch.empty_like(y, dtype=torch.int8), mean, torch.empty_like(mean)


@torch.library.custom_op("askew::norm_pool_backward", mutates_args=())
def norm_pool_backward(
    z: Tensor,
    top: Tensor,
    place: Tensor,
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dz, dc, db) from channels-last dy and what `norm_pool` gave; dc, db empty without a scale."""
    dtype = mean.dtype
    m, r = per_channel(mean), per_channel(rstd)
    t = affine((top.to(dtype) - m) * r, scale, bias)
    g = torch.where(t > 0, dy.to(dtype), 0)
    G = torch.zeros_like(z, dtype=dtype, memory_format=torch.contiguous_format)
    G.flatten(2).scatter_add_(2, _places(place, z.shape[3]).flatten(2), g.flatten(2))
    xhat = (z.to(dtype) - m) * r
    sum_g, sum_gx = (value.sum((0, 2, 3)) for value in (G, G * xhat))
    n = z.numel() // z.shape[1]
    dz = r * (G - per_channel(sum_g) / n - xhat * per_channel(sum_gx) / n)
    if scale is None:
        return channels_last(dz, z.dtype), mean.new_empty(0), mean.new_empty(0)
    return channels_last(per_channel(scale) * dz, z.dtype), sum_gx, sum_g


@norm_pool_backward.register_kernel("cuda")
def _(z, top, place, dy, mean, rstd, scale, bias):
    from askew.models import norm_pool_launch

    return norm_pool_launch.norm_pool_backward(z, top, place, dy, mean, rstd, *in_line(scale, bias))


@norm_pool_backward.register_fake
def _(z, top, place, dy, mean, rstd, scale, bias):
    vector = mean.new_empty(0 if scale is None else z.shape[1])
    return empty_map(z, False), vector, torch.empty_like(vector)


class NormPool(torch.autograd.Function):
    """y = max(pool(c (z - m) r + b), 0), the pool 3x3 of stride 2."""

    @staticmethod
    def forward(ctx, z, scale, bias, running_mean, running_var, count, momentum, eps):  # pyright: ignore
        y, top, place, mean, rstd = norm_pool(z, scale, bias, running_mean, running_var, count, momentum, eps)
        ctx.save_for_backward(z, top, place, mean, rstd, scale, bias)
        return y

    @staticmethod
    def backward(ctx, dy):  # pyright: ignore
        z, top, place, mean, rstd, scale, bias = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dz, dc, db = norm_pool_backward(z, top, place, dy, mean, rstd, scale, bias)
        vectors = (None, None) if scale is None else (dc.to(scale.dtype), db.to(bias.dtype))
        return dz, *vectors, *(None,) * 5
