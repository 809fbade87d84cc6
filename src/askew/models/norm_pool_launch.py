"""How the kernels of `norm_pool_kernels` are cut up and launched; needs Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from askew.models import norm_kernels
from askew.models import norm_pool_kernels as kernels
from askew.models.norm_launch import on, plan
from askew.models.norm_ops import empty_map


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
    """(y, top, place, m, r), as in `norm_pool`."""
    c, n = z.shape[1], z.numel() // z.shape[1]
    how, track = plan(n, c, z.itemsize, True), running_mean is not None
    y, top = empty_map(z, True), empty_map(z, True)
    place = torch.empty_like(y, dtype=torch.int8)
    mean, rstd = z.new_empty(c, dtype=torch.float32), z.new_empty(c, dtype=torch.float32)
    partial = z.new_empty((2 * how.parts + 1, c), dtype=torch.float32)
    blocks = -(-c // how.block)
    on(norm_kernels.moments, how.parts, blocks)(
        z, partial, count, n, C=c, P=how.parts, TRACK=track, CB=how.block, ROWS=how.sum_rows, num_warps=how.sum_warps
    )
    on(kernels.pooled, how.writers, blocks)(
        z, y, top, place, partial, scale, bias, mean, rstd, running_mean, running_var, count, n, eps, momentum,
        C=c, P=how.parts, CHUNK=min(how.parts, 32), OH=y.shape[2], OW=y.shape[3], AFFINE=scale is not None, TRACK=track,
        CB=how.block, ROWS=how.write_rows, num_warps=how.write_warps,
    )  # fmt: skip
    return y, top, place, mean, rstd


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
    """(dz, dc, db), as in `norm_pool`."""
    c, n, affine = z.shape[1], z.numel() // z.shape[1], scale is not None
    how = plan(n, c, z.itemsize, True)
    dz, g = empty_map(z, False), torch.empty_like(top)
    partial = z.new_empty((2 * how.parts, c), dtype=torch.float32)
    scale_gradient, bias_gradient = (mean.new_empty(c if affine else 0) for _ in range(2))
    blocks = -(-c // how.block)
    on(kernels.pooled_sums, how.parts, blocks)(
        top, dy, g, partial, mean, rstd, scale, bias, n // 4, C=c, P=how.parts, AFFINE=affine, CB=how.block,
        ROWS=how.write_rows, num_warps=how.write_warps,
    )  # fmt: skip
    on(kernels.pooled_gradient, how.writers, blocks)(
        z, g, place, dz, partial, mean, rstd, scale, scale_gradient, bias_gradient, n, C=c, P=how.parts,
        CHUNK=min(how.parts, 32), OH=top.shape[2], OW=top.shape[3], AFFINE=affine, CB=how.block, ROWS=how.write_rows,
        num_warps=how.write_warps,
    )  # fmt: skip
    return dz, scale_gradient, bias_gradient
