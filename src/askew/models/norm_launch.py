"""How the kernels of `norm_kernels` are cut up and launched; needs Triton."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from askew.models import norm_kernels as kernels
from askew.models.norm_ops import empty_map

LINE = 64  # bytes of one row that a program reads at a time
ACTS = {"relu": 0, "tanh": 1, "clip": 2, "quadratic": 3}  # ReLU, and the sign by its gradient
PROGRAMS = 128  # for sums: about one for each multiprocessor of a large GPU, a power of two


class Plan(NamedTuple):
    """How the (rows, channels) of a map are cut up: powers of two, all but `writers`."""

    block: int  # channels of a program
    parts: int  # of the rows, for sums
    sum_rows: int  # rows in flight in a program that sums
    sum_warps: int
    writers: int  # programs that write, for each block of channels
    write_rows: int
    write_warps: int


def plan(rows: int, channels: int, itemsize: int, pool: bool) -> Plan:
    """Fixed sizes by shape: wide loads, every multiprocessor busy, few enough parts to be added up by each writer."""
    block = min(power_of_two(channels), LINE // itemsize)
    blocks = -(-channels // block)
    parts = max(1, min(PROGRAMS // power_of_two(blocks), power_of_two(rows) // 64))
    writers = max(1, min(4 * PROGRAMS // blocks, rows // 32))
    return Plan(block, parts, 8192 // block, 16, writers, (1024 if pool else 4096) // block, 4 if pool else 8)


def on(kernel: Any, *grid: int) -> Any:
    """The launcher of a kernel over a grid of programs."""
    return kernel[grid]


def power_of_two(n: int) -> int:
    """The smallest that is not below n."""
    return 1 << max(0, n - 1).bit_length()


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
    """(y, m, r), as in `norm_ops`."""
    c, n = z.shape[1], z.numel() // z.shape[1]
    how, track = plan(n, c, z.itemsize, pool), running_mean is not None
    y, mean, rstd = empty_map(z, pool), z.new_empty(c, dtype=torch.float32), z.new_empty(c, dtype=torch.float32)
    partial = z.new_empty((2 * how.parts + 1, c), dtype=torch.float32)
    blocks = -(-c // how.block)
    on(kernels.moments, how.parts, blocks)(
        z, partial, count, n, C=c, P=how.parts, TRACK=track, CB=how.block, ROWS=how.sum_rows, num_warps=how.sum_warps
    )
    on(kernels.normalise, how.writers, blocks)(
        z, residual, y, partial, scale, bias, mean, rstd, running_mean, running_var, count, n, eps, momentum,
        C=c, P=how.parts, CHUNK=min(how.parts, 32), OW=y.shape[3], POOL=pool, RESIDUAL=residual is not None,
        AFFINE=scale is not None, ACT=ACTS[act], TRACK=track, CB=how.block, ROWS=how.write_rows,
        num_warps=how.write_warps,
    )  # fmt: skip
    return y, mean, rstd


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
    """(dz, gradient of the shortcut, dc, db), as in `norm_ops`."""
    c, n, affine = z.shape[1], z.numel() // z.shape[1], scale is not None
    how = plan(n, c, z.itemsize, pool)
    dz, g = empty_map(z, False), empty_map(z, False) if residual else z.new_empty(0)
    partial = z.new_empty((2 * how.parts, c), dtype=torch.float32)
    scale_gradient, bias_gradient = (mean.new_empty(c if affine else 0) for _ in range(2))
    blocks = -(-c // how.block)
    rows = how.sum_rows // 4 if affine and pool else how.sum_rows  # of four places each
    on(kernels.gradient_sums, how.parts, blocks)(
        z, kept, dy, g, partial, mean, rstd, scale, bias, n, C=c, P=how.parts, OW=dy.shape[3], POOL=pool,
        RESIDUAL=residual, AFFINE=affine, ACT=ACTS[act], CB=how.block, ROWS=rows,
        num_warps=how.sum_warps,
    )  # fmt: skip
    on(kernels.gradient, how.writers, blocks)(
        z, g if residual else dy, dz, partial, mean, rstd, scale, bias, scale_gradient, bias_gradient, n,
        C=c, P=how.parts, CHUNK=min(how.parts, 32), OW=dy.shape[3], POOL=pool, MASKED=residual, AFFINE=affine,
        ACT=ACTS[act], CB=how.block, ROWS=how.write_rows, num_warps=how.write_warps,
    )  # fmt: skip
    return dz, g, scale_gradient, bias_gradient
