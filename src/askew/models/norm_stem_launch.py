"""How the kernels of `norm_stem_kernels` are cut up and launched; needs Triton."""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from askew.models import norm_stem_kernels as kernels
from askew.models.norm_launch import ACTS, on, power_of_two
from askew.models.norm_stem import TILE, WIDTH, empty_like_z, padded_rows

DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
GRAM_PARTS, GRAM_WARPS = 512, 8  # of TILE rows each: many in flight, since U is gathered
WRITERS, WRITE_ROWS, WRITE_WARPS = 264, 64, 4  # two for each multiprocessor of a large GPU; they outlive many tiles
PARTS, SUM_ROWS, SUM_WARPS = 256, 64, 4  # 64 rows: the shape of Hopper's matrix instruction; they divide TILE
STAGES = 3  # tiles on their way while one is multiplied


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
    """(y, U, U'U, m, r), as in `norm_stem`."""

    def floats(*size: int) -> Tensor:
        return x.new_empty(size, dtype=torch.float32)

    (b, channels, h, w), (c, taps), track = x.shape, weight.shape, running_mean is not None
    n, padded, block = b * h * w, padded_rows(b * h * w), min(power_of_two(c), 128)
    parts = min(GRAM_PARTS, padded // TILE)
    y, U = empty_like_z(x, weight, dtype), x.new_empty((padded, WIDTH), dtype=dtype)
    squares = x.new_empty((WIDTH, c), dtype=torch.float64)
    partial, gram, mean, rstd = floats(parts, WIDTH, WIDTH), floats(WIDTH, WIDTH), floats(c), floats(c)
    on(kernels.stem_windows, parts)(
        x, U, partial, n, padded, H=h, W=w, CIN=channels, ROWS=TILE, num_warps=GRAM_WARPS, num_stages=1
    )
    on(kernels.stem_gram, WIDTH)(
        partial, weight, gram, squares, count, parts, C=c, TAPS=taps, TRACK=track, DTYPE=DTYPES[dtype],
        CB=block, CHUNK=power_of_two(parts), num_warps=16,
    )  # fmt: skip
    on(kernels.stem_normalise, min(WRITERS, -(-n // WRITE_ROWS)), -(-c // block))(
        U, weight, squares, y, scale, bias, mean, rstd, running_mean, running_var, count, n, eps, momentum,
        C=c, TAPS=taps, AFFINE=scale is not None, ACT=ACTS[act], TRACK=track, CB=block, ROWS=WRITE_ROWS,
        num_warps=WRITE_WARPS, num_stages=STAGES,
    )  # fmt: skip
    return y, U, gram, mean, rstd


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
    """(dK' (C, 9 channels), dc, db) in float32, as in `norm_stem`."""
    (c, taps), n, affine = weight.shape, dy.numel() // len(weight), scale is not None
    block, parts = min(power_of_two(c), 128), min(PARTS, -(-n // SUM_ROWS))
    products = dy.new_empty((parts, c, WIDTH), dtype=torch.float32)
    on(kernels.stem_products, parts, -(-c // block))(
        U, weight, dy, mean, rstd, scale, bias, products, n, C=c, TAPS=taps, AFFINE=affine, ACT=ACTS[act],
        CB=block, ROWS=SUM_ROWS, num_warps=SUM_WARPS, num_stages=STAGES,
    )  # fmt: skip
    gradient = dy.new_empty((c, taps), dtype=torch.float32)
    scale_gradient, bias_gradient = (mean.new_empty(c if affine else 0) for _ in range(2))
    on(kernels.stem_gradient, -(-c // 2))(
        products, weight, gram, mean, rstd, scale, gradient, scale_gradient, bias_gradient, n, parts,
        C=c, TAPS=taps, DTYPE=DTYPES[dy.dtype], AFFINE=affine, CB=2, CHUNK=power_of_two(parts), num_warps=8,
    )  # fmt: skip
    return gradient, scale_gradient, bias_gradient
