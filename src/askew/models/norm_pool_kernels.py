"""Triton kernels of BatchNorm + ReLU + 3x3 max-pool of stride 2: channels-last maps as (rows, channels).

Height and width are even, so a pooled place (i, j) has the four places (2i, 2j) ... (2i + 1, 2j + 1) to itself and
looks at five more, of its neighbours above and to the left. What a pool leaves is a quarter: its largest z (`top`) and
which of the nine that was (`place`, row by row) are kept, and the gradients are made of these. Sums are made by parts
and added up in a fixed order, as in `norm_kernels`, whose `moments` goes before.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from askew.models.norm_kernels import (
    activated,
    keep,
    publish,
    put,
    scaled,
    through,
    tile,
    total,
    upwards,
    vector,
    window,
)


@triton.jit
def pooled(
    z, y, top, place, partial, scale, bias, mean, rstd, running_mean, running_var, count, n, epsilon, momentum,
    C: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    AFFINE: tl.constexpr, TRACK: tl.constexpr, CB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = max(pool(c (z - m) r + b), 0), the z that it comes from, and which of the nine: the first of the largest."""
    turn = tl.num_programs(0) - 1 - tl.program_id(0)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    live = (columns < C)[None, :]
    first = total(partial, columns, C, P, CHUNK) / n
    second = total(partial + P * C, columns, C, P, CHUNK) / n
    shift = tl.load(partial + 2 * P * C + columns, mask=columns < C, other=0.0)
    m, r = publish(
        shift + first, second - first * first, mean, rstd, running_mean, running_var, count, n, epsilon, momentum,
        columns, tl.program_id(0) == 0, C, TRACK,
    )  # fmt: skip
    up = upwards(scale, columns, C, AFFINE)
    span = tl.cdiv(n // 4, tl.num_programs(0))
    end = tl.minimum((turn + 1) * span, n // 4)
    for start in range(turn * span, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        above, left = (rows // OW) % OH > 0, rows % OW > 0
        at = z + window(rows, OW).to(tl.int64)[:, None] * C + columns[None, :]
        best = tl.full([ROWS, CB], -float("inf"), tl.float32)
        which = tl.zeros([ROWS, CB], tl.int32)
        for k in tl.static_range(9):
            a, b = k // 3, k % 3
            inside = rows < end
            if a == 0:
                inside = inside & above
            if b == 0:
                inside = inside & left
            found = tl.load(at + ((a - 1) * 2 * OW + b - 1) * C, mask=inside[:, None] & live, other=0.0)
            value = tl.where(inside[:, None], up * found.to(tl.float32), -float("inf"))
            larger = value > best
            best = tl.where(larger, value, best)
            which = tl.where(larger, k, which)
        best = up * best
        t = scaled((best - m[None, :]) * r[None, :], scale, bias, columns, C, AFFINE)
        put(y, activated(t, 0), rows, columns, end, C)
        put(top, best, rows, columns, end, C)
        put(place, which, rows, columns, end, C)


@triton.jit
def pooled_sums(
    top, dy, g, partial, mean, rstd, scale, bias, n,
    C: tl.constexpr, P: tl.constexpr, AFFINE: tl.constexpr, CB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """g = dy where y > 0, and its sums and those of g xhat by parts; n pooled places."""
    part = tl.program_id(0)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    m, r = vector(mean, columns, C), vector(rstd, columns, C)
    span = tl.cdiv(n, P)
    end = tl.minimum((part + 1) * span, n)
    first = tl.zeros([ROWS, CB], tl.float32)
    second = tl.zeros([ROWS, CB], tl.float32)
    for start in range(part * span, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        xhat = (tile(top, rows, columns, end, C).to(tl.float32) - m) * r
        own = tile(dy, rows, columns, end, C).to(tl.float32)
        own = through(own, scaled(xhat, scale, bias, columns, C, AFFINE), 0)
        put(g, own, rows, columns, end, C)
        first += own
        second += own * xhat
    keep(partial, first, second, part, columns, C, P)


@triton.jit
def won(g, place, rows, columns, inside, K: tl.constexpr, C: tl.constexpr):
    """The gradient of these pooled places where the largest was number K of the nine, else 0."""
    at = rows.to(tl.int64)[:, None] * C + columns[None, :]
    found = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    return tl.where(tl.load(place + at, mask=inside, other=-1) == K, found, 0.0)


@triton.jit
def settle(z, dz, at, total_g, steep, flat, slope, m, inside):
    """dz = c r total_g - flat - (z - m) slope."""
    value = tl.load(z + at, mask=inside, other=0.0).to(tl.float32) - m
    tl.store(dz + at, (steep * total_g - flat - value * slope).to(dz.dtype.element_ty), mask=inside)


@triton.jit
def pooled_gradient(
    z, g, place, dz, partial, mean, rstd, scale, scale_gradient, bias_gradient, n,
    C: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    AFFINE: tl.constexpr, CB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dz = c r (G - mean(G) - xhat mean(G xhat)), G of a place: the sum of g over the pools it is the largest in.

    The leading programs write dc = sum(G xhat) and db = sum(G).
    """
    turn = tl.num_programs(0) - 1 - tl.program_id(0)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    m, r = vector(mean, columns, C), vector(rstd, columns, C)
    sum_g = total(partial, columns, C, P, CHUNK)
    sum_gx = total(partial + P * C, columns, C, P, CHUNK)
    if AFFINE and tl.program_id(0) == 0:
        tl.store(bias_gradient + columns, sum_g, mask=columns < C)
        tl.store(scale_gradient + columns, sum_gx, mask=columns < C)
    steep = r * vector(scale, columns, C) if AFFINE else r
    flat = steep * sum_g[None, :] / n
    slope = steep * r * sum_gx[None, :] / n
    span = tl.cdiv(n // 4, tl.num_programs(0))
    end = tl.minimum((turn + 1) * span, n // 4)
    for start in range(turn * span, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < end)[:, None] & (columns < C)[None, :]
        right = inside & (rows % OW < OW - 1)[:, None]
        below = inside & ((rows // OW) % OH < OH - 1)[:, None]
        at = window(rows, OW).to(tl.int64)[:, None] * C + columns[None, :]
        one = won(g, place, rows, columns, inside, 4, C)
        settle(z, dz, at, one, steep, flat, slope, m, inside)
        two = won(g, place, rows, columns, inside, 5, C) + won(g, place, rows + 1, columns, right, 3, C)
        settle(z, dz, at + C, two, steep, flat, slope, m, inside)
        two = won(g, place, rows, columns, inside, 7, C) + won(g, place, rows + OW, columns, below, 1, C)
        settle(z, dz, at + 2 * OW * C, two, steep, flat, slope, m, inside)
        four = won(g, place, rows, columns, inside, 8, C) + won(g, place, rows + 1, columns, right, 6, C)
        four += won(g, place, rows + OW, columns, below, 2, C)
        four += won(g, place, rows + OW + 1, columns, right & below, 0, C)
        settle(z, dz, at + (2 * OW + 1) * C, four, steep, flat, slope, m, inside)
