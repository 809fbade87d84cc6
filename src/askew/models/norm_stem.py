"""The first layer in one piece: 3x3 convolution of images (three channels at most), BatchNorm, ReLU or sign.

    z = U K,  y = f(c xhat + b),  xhat = (z - m) r,
    U: a row for each pixel with its 3x3 window, K: the weights as (9 channels, C); c, b, f as in `norm_ops`.

z is never stored, U is. With a column of ones in U, U'U holds the sums 1'U too, and the statistics need no look at z:

    m = 1'U K / n,  var = diag(K' U'U K) / n - m^2.

The images need no gradient, and that of K needs one pass over dy, for g'U with g = f'(c xhat + b) dy:

    dK = U' dz = c r (U'g - U'1 mean(g) - U' xhat mean(g xhat)),  U' xhat = r (U'U K - U'1 m).

On a GPU the passes are the kernels of `norm_stem_kernels`; written out here is what they compute.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, unfold

from askew.models.norm_ops import activate, channels_last, in_line, move, through, wide

WIDTH = 32  # columns of U: nine for each image channel, the ones, zeros
TILE = 256  # its rows, empty ones at the end, are a multiple of this


def flat(weight: Tensor) -> Tensor:
    """(C, channels, 3, 3) as (C, 9 channels), in memory order if channels-last."""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)


def padded_rows(n: int) -> int:
    return (n + TILE - 1) // TILE * TILE


def windows(x: Tensor) -> Tensor:
    """U (pixels, 32): row, column, channel of each 3x3 window, then 1, then zeros."""
    b, c, h, w = x.shape
    around = unfold(x, 3, padding=1).view(b, c, 9, h * w).permute(0, 3, 2, 1).reshape(-1, 9 * c)
    return pad(pad(around, (0, 1), value=1.0), (0, WIDTH - 9 * c - 1))


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32 at least, also under autocast."""
    dtype = wide(a.dtype)
    with torch.autocast(a.device.type, enabled=False):
        return a.to(dtype) @ b.to(dtype)


def convolved(U: Tensor, weight: Tensor) -> Tensor:
    """z = U K (pixels, C) of the rounded weights."""
    return product(U[:, : weight.shape[1]], weight.to(U.dtype).T)


def scaled(xhat: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """c xhat + b for each column."""
    return xhat if scale is None or bias is None else xhat * scale + bias


def empty_like_z(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    b, _, h, w = x.shape
    return torch.empty((b, len(weight), h, w), dtype=dtype, device=x.device, memory_format=torch.channels_last)


@torch.library.custom_op("askew::stem", mutates_args=("running_mean", "running_var", "count"))
def stem(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    count: Tensor | None,
    momentum: float,
    eps: float,
    dtype: torch.dtype,
    act: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(y, U, U'U, m, r) from channels-last x and weight (C, 9 channels), both rounded to `dtype` first."""
    b, _, h, w = x.shape
    U = windows(x.to(dtype))
    z = convolved(U, weight)
    variance, mean = torch.var_mean(z, 0, correction=0)
    move(mean, variance, len(z), running_mean, running_var, count, momentum)
    rstd = torch.rsqrt(variance + eps)
    y = activate(scaled((z - mean) * rstd, scale, bias), act).view(b, h, w, -1).permute(0, 3, 1, 2)
    rows = pad(U, (0, 0, 0, padded_rows(len(U)) - len(U)))
    return channels_last(y, dtype), rows, product(U.T, U), mean, rstd


@stem.register_kernel("cuda")
def _(x, weight, scale, bias, running_mean, running_var, count, momentum, eps, dtype, act):
    from askew.models import norm_stem_launch

    running = running_mean, running_var, count, momentum, eps
    return norm_stem_launch.stem(x, weight.contiguous(), *in_line(scale, bias), *running, dtype, act)


@stem.register_fake
def _(x, weight, scale, bias, running_mean, running_var, count, momentum, eps, dtype, act):
    U = x.new_empty((padded_rows(x.numel() // x.shape[1]), WIDTH), dtype=dtype)
    gram, mean = (x.new_empty(size, dtype=wide(dtype)) for size in ((WIDTH, WIDTH), len(weight)))
    return empty_like_z(x, weight, dtype), U, gram, mean, torch.empty_like(mean)


@torch.library.custom_op("askew::stem_backward", mutates_args=())
def stem_backward(
    U: Tensor,
    weight: Tensor,
    dy: Tensor,
    gram: Tensor,
    mean: Tensor,
    rstd: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    act: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dK' (C, 9 channels), dc, db) from channels-last dy and what `stem` gave; dc, db empty without a scale."""
    n = dy.numel() // len(weight)
    U = U[:n]
    rows = dy.permute(0, 2, 3, 1).reshape(n, -1)
    t = scaled((convolved(U, weight) - mean) * rstd, scale, bias)
    g = through(rows.to(t.dtype), t, act)
    return gradients(product(g.T, U.to(g.dtype)), gram, weight.to(U.dtype).to(mean.dtype), mean, rstd, scale, n)


@stem_backward.register_kernel("cuda")
def _(U, weight, dy, gram, mean, rstd, scale, bias, act):
    from askew.models import norm_stem_launch

    return norm_stem_launch.stem_backward(U, weight.contiguous(), dy, gram, mean, rstd, *in_line(scale, bias), act)


@stem_backward.register_fake
def _(U, weight, dy, gram, mean, rstd, scale, bias, act):
    vector = mean.new_empty(0 if scale is None else len(weight))
    return mean.new_empty(weight.shape), vector, torch.empty_like(vector)


def gradients(
    products: Tensor, gram: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, scale: Tensor | None, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """dK' (C, 9 channels), dc, db by the formulas above, from g'U (C, 32), U'U (32, 32) and the rounded weights."""
    taps, m, r = weight.shape[1], mean[:, None], rstd[:, None]
    with_gradient, ones, with_z = products[:, :taps], gram[taps, :taps], product(weight, gram[:taps, :taps])
    mean_g = products[:, taps, None] / n
    mean_gz = (weight * with_gradient).sum(1, keepdim=True) / n
    mean_gx = r * (mean_gz - m * mean_g)
    found = r * (with_gradient - mean_g * ones - mean_gx * r * (with_z - m * ones))
    if scale is None:
        return found, mean.new_empty(0), mean.new_empty(0)
    return scale[:, None] * found, n * mean_gx[:, 0], n * mean_g[:, 0]


class Stem(torch.autograd.Function):
    """y of x and weight (C, 9 channels); no gradient for x."""

    @staticmethod
    def forward(ctx, x, weight, scale, bias, running_mean, running_var, count, momentum, eps, dtype, act):  # pyright: ignore
        running = running_mean, running_var, count, momentum, eps
        y, U, gram, mean, rstd = stem(x, weight, scale, bias, *running, dtype, act)
        ctx.act = act
        ctx.save_for_backward(U, weight, gram, mean, rstd, scale, bias)
        return y

    @staticmethod
    def backward(ctx, dy):  # pyright: ignore
        U, weight, gram, mean, rstd, scale, bias = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dK, dc, db = stem_backward(U, weight, dy, gram, mean, rstd, scale, bias, ctx.act)
        vectors = (None, None) if scale is None else (dc.to(scale.dtype), db.to(bias.dtype))
        return None, dK.to(weight.dtype), *vectors, *(None,) * 7
