"""Triton kernels of BatchNorm + ReLU or sign (+ 2x2 max-pool, + shortcut): channels-last maps as (rows, channels).

A sum over rows is made in P parts by one kernel, added up in a fixed order by every program of the next: no atomics,
the same bits each time, and no third launch. All arithmetic is float32. The second pass goes through the rows
backwards, so that it begins with what the first one left in the cache. ACT: 0 for ReLU, 1 to 3 for the sign with
the gradients tanh, clip and quadratic.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def tile(data, rows, columns, end, C: tl.constexpr):
    """data[rows, columns], 0 outside."""
    inside = (rows < end)[:, None] & (columns < C)[None, :]
    return tl.load(data + rows.to(tl.int64)[:, None] * C + columns[None, :], mask=inside, other=0.0)


@triton.jit
def put(data, value, rows, columns, end, C: tl.constexpr):
    """data[rows, columns] = value."""
    inside = (rows < end)[:, None] & (columns < C)[None, :]
    tl.store(data + rows.to(tl.int64)[:, None] * C + columns[None, :], value.to(data.dtype.element_ty), mask=inside)


@triton.jit
def keep(partial, first, second, part, columns, C: tl.constexpr, P: tl.constexpr):
    """Two sums of one part of the rows: partial[part] and partial[P + part]."""
    tl.store(partial + part * C + columns, tl.sum(first, 0), mask=columns < C)
    tl.store(partial + (P + part) * C + columns, tl.sum(second, 0), mask=columns < C)


@triton.jit
def total(partial, columns, C: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr):
    """Sum of partial[0:P, columns], always in the same order."""
    at = partial + tl.arange(0, CHUNK)[:, None] * C + columns[None, :]
    found = tl.load(at, mask=(columns < C)[None, :], other=0.0)
    for i in tl.static_range(CHUNK, P, CHUNK):
        found += tl.load(at + i * C, mask=(columns < C)[None, :], other=0.0)
    return tl.sum(found, 0)


@triton.jit
def window(row, OW: tl.constexpr):
    """First of the four rows under a pooled row: (image, 2 i, 2 j) for (image, i, j), OW pooled places in a line."""
    return 4 * OW * (row // OW) + 2 * (row % OW)


@triton.jit
def moments(
    z, partial, count, n, C: tl.constexpr, P: tl.constexpr, TRACK: tl.constexpr, CB: tl.constexpr, ROWS: tl.constexpr
):
    """Sums of z - z[0] and of its square by parts; z[0] itself goes to partial[2P]. Counts the batch."""
    part = tl.program_id(0)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    shift = tl.load(z + columns, mask=columns < C, other=0.0)
    span = tl.cdiv(n, P)
    end = tl.minimum((part + 1) * span, n)
    rows = part * span + tl.arange(0, ROWS)
    at = z + rows.to(tl.int64)[:, None] * C + columns[None, :]
    some = (columns < C)[None, :]
    value = tl.load(at, mask=(rows < end)[:, None] & some, other=shift[None, :])
    center = shift.to(tl.float32)[None, :]
    first = tl.zeros([ROWS, CB], tl.float32)
    second = tl.zeros([ROWS, CB], tl.float32)
    for _ in range(part * span, end, ROWS):
        rows += ROWS
        at += ROWS * C
        following = tl.load(at, mask=(rows < end)[:, None] & some, other=shift[None, :])  # on its way meanwhile
        difference = value.to(tl.float32) - center
        first += difference
        second += difference * difference
        value = following
    keep(partial, first, second, part, columns, C, P)
    if part == 0:
        tl.store(partial + 2 * P * C + columns, shift.to(tl.float32), mask=columns < C)
        if TRACK and tl.program_id(1) == 0:
            tl.store(count, tl.load(count) + 1)


@triton.jit
def publish(
    m, variance, mean, rstd, running_mean, running_var, count, n, epsilon, momentum,
    columns, lead, C: tl.constexpr, TRACK: tl.constexpr,
):  # fmt: skip
    """(m, r), r = 1 / sqrt(var + epsilon); the leading program keeps them and moves the running ones.

    A negative momentum stands for the plain average over all batches counted.
    """
    live = columns < C
    variance = tl.where(variance < 0, 0.0, variance)
    r = 1.0 / tl.sqrt(variance + epsilon)
    if lead:
        tl.store(mean + columns, m, mask=live)
        tl.store(rstd + columns, r, mask=live)
        if TRACK:
            share = momentum
            if momentum < 0:
                share = 1.0 / tl.load(count).to(tl.float32)
            old = tl.load(running_mean + columns, mask=live, other=0.0)
            tl.store(running_mean + columns, old + share * (m - old), mask=live)
            old = tl.load(running_var + columns, mask=live, other=0.0)
            tl.store(running_var + columns, old + share * (variance * (n / (n - 1.0)) - old), mask=live)
    return m, r


@triton.jit
def vector(data, columns, C: tl.constexpr):
    """data[columns] as a line, in float32."""
    return tl.load(data + columns, mask=columns < C, other=0.0).to(tl.float32)[None, :]


@triton.jit
def scaled(xhat, scale, bias, columns, C: tl.constexpr, AFFINE: tl.constexpr):
    """t = c xhat + b."""
    if AFFINE:
        xhat = xhat * vector(scale, columns, C) + vector(bias, columns, C)
    return xhat


@triton.jit
def activated(t, ACT: tl.constexpr):
    """f(t); not-a-number stays under ReLU."""
    return tl.where(t < 0, 0.0, t) if ACT == 0 else tl.where(t >= 0, 1.0, -1.0)


@triton.jit
def through(g, t, ACT: tl.constexpr):
    """f'(t) g; 1 - tanh(t)^2 = 4 e / (1 + e)^2 with e = exp(-2 |t|)."""
    if ACT == 0:
        g = tl.where(t > 0, g, 0.0)
    elif ACT == 1:
        e = tl.exp(-2.0 * tl.abs(t))
        g = g * (4.0 * e / ((1.0 + e) * (1.0 + e)))
    elif ACT == 2:
        g = tl.where(tl.abs(t) <= 1.0, g, 0.0)
    else:
        g = g * tl.where(tl.abs(t) > 1.0, 0.0, 2.0 - 2.0 * tl.abs(t))  # not-a-number stays
    return g


@triton.jit
def upwards(scale, columns, C: tl.constexpr, AFFINE: tl.constexpr):
    """The sign of c: the largest of four t is that of the largest, or if c < 0 the smallest, z."""
    up = tl.full([1, 1], 1.0, tl.float32)
    if AFFINE:
        up = tl.where(vector(scale, columns, C) < 0, -1.0, 1.0)
    return up


@triton.jit
def normalise(
    z, residual, y, partial, scale, bias, mean, rstd, running_mean, running_var, count, n, epsilon, momentum,
    C: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr,
    RESIDUAL: tl.constexpr, AFFINE: tl.constexpr, ACT: tl.constexpr, TRACK: tl.constexpr,
    CB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = f(pool(c (z - m) r + b) + residual)."""
    turn = tl.num_programs(0) - 1 - tl.program_id(0)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    first = total(partial, columns, C, P, CHUNK) / n
    second = total(partial + P * C, columns, C, P, CHUNK) / n
    shift = tl.load(partial + 2 * P * C + columns, mask=columns < C, other=0.0)
    m, r = publish(
        shift + first, second - first * first, mean, rstd, running_mean, running_var, count, n, epsilon, momentum,
        columns, tl.program_id(0) == 0, C, TRACK,
    )  # fmt: skip
    up = upwards(scale, columns, C, AFFINE)
    outputs = n // 4 if POOL else n
    span = tl.cdiv(outputs, tl.num_programs(0))
    end = tl.minimum((turn + 1) * span, outputs)
    for start in range(turn * span, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        if POOL:
            a, b, c, d = window_values(z, rows, columns, end, C, OW)
            value = up * tl.maximum(tl.maximum(up * a, up * b), tl.maximum(up * c, up * d))
        else:
            value = tile(z, rows, columns, end, C).to(tl.float32)
        value = scaled((value - m[None, :]) * r[None, :], scale, bias, columns, C, AFFINE)
        if RESIDUAL:
            value += tile(residual, rows, columns, end, C).to(tl.float32)
        put(y, activated(value, ACT), rows, columns, end, C)


@triton.jit
def window_values(z, rows, columns, end, C: tl.constexpr, OW: tl.constexpr):
    """The four values under each pooled row, in the order of torch's max_pool2d."""
    at = z + window(rows, OW).to(tl.int64)[:, None] * C + columns[None, :]
    inside = (rows < end)[:, None] & (columns < C)[None, :]
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + C, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(at + 2 * OW * C, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(at + (2 * OW + 1) * C, mask=inside, other=0.0).to(tl.float32)
    return a, b, c, d


@triton.jit
def gradient_sums(
    z, kept, dy, residual_gradient, partial, mean, rstd, scale, bias, n,
    C: tl.constexpr, P: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr, RESIDUAL: tl.constexpr,
    AFFINE: tl.constexpr, ACT: tl.constexpr, CB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sums of g and of g xhat by parts, g = f'(t) dy.

    Under a pool without a scale xhat is wanted only where y > 0, and there it is y, which was kept: a quarter of the
    reading. With a shortcut the y that was kept tells where g lives (for a sign the shortcut was kept), and g, which
    is the shortcut's gradient as well, is written.
    """
    part = tl.program_id(0)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    m, r = vector(mean, columns, C), vector(rstd, columns, C)
    up = upwards(scale, columns, C, AFFINE)
    outputs = n // 4 if POOL else n
    span = tl.cdiv(outputs, P)
    end = tl.minimum((part + 1) * span, outputs)
    first = tl.zeros([ROWS, CB], tl.float32)
    second = tl.zeros([ROWS, CB], tl.float32)
    rows = part * span + tl.arange(0, ROWS)
    gradient = tile(dy, rows, columns, end, C)
    value = peak(z, kept, rows, columns, end, up, C, OW, POOL, AFFINE)
    for _ in range(part * span, end, ROWS):
        following = tile(dy, rows + ROWS, columns, end, C)
        following_value = peak(z, kept, rows + ROWS, columns, end, up, C, OW, POOL, AFFINE)
        g = gradient.to(tl.float32)
        xhat = value.to(tl.float32)
        if AFFINE or not POOL:
            xhat = (xhat - m) * r
        t = scaled(xhat, scale, bias, columns, C, AFFINE)
        if RESIDUAL:
            other = tile(kept, rows, columns, end, C).to(tl.float32)
            t = other if ACT == 0 else t + other
        g = through(g, t, ACT)
        if RESIDUAL:
            put(residual_gradient, g, rows, columns, end, C)
        first += g
        second += g * xhat
        rows += ROWS
        gradient = following
        value = following_value
    keep(partial, first, second, part, columns, C, P)


@triton.jit
def peak(z, kept, rows, columns, end, up, C: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr, AFFINE: tl.constexpr):
    """z; under a pool the one of four that t is largest for, or y where that will do."""
    if POOL and AFFINE:
        a, b, c, d = window_values(z, rows, columns, end, C, OW)
        value = up * tl.maximum(tl.maximum(up * a, up * b), tl.maximum(up * c, up * d))
    else:
        value = tile(kept if POOL else z, rows, columns, end, C)
    return value


@triton.jit
def hand_out(at, g, value, top, up, m, flat, slope, inside):
    """Write the gradient of one of four values; returns what is left of g for the others."""
    mine = up * value == top
    found = tl.where(mine, g, 0.0) - flat - (value - m) * slope
    tl.store(at, found.to(at.dtype.element_ty), mask=inside)
    return tl.where(mine, 0.0, g)


@triton.jit
def gradient(
    z, dy, dz, partial, mean, rstd, scale, bias, scale_gradient, bias_gradient, n,
    C: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr,
    MASKED: tl.constexpr, AFFINE: tl.constexpr, ACT: tl.constexpr, CB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dz = c r (g - mean(g) - xhat mean(g xhat)); under a pool g goes to the first of the largest of the four.

    The leading programs write dc = sum(g xhat) and db = sum(g). MASKED: what is given as dy is g.
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
    up = upwards(scale, columns, C, AFFINE)
    outputs = n // 4 if POOL else n
    span = tl.cdiv(outputs, tl.num_programs(0))
    end = tl.minimum((turn + 1) * span, outputs)
    for start in range(turn * span, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        g = tile(dy, rows, columns, end, C).to(tl.float32)
        if POOL:
            a, b, c, d = window_values(z, rows, columns, end, C, OW)
            top = tl.maximum(tl.maximum(up * a, up * b), tl.maximum(up * c, up * d))
            g = steep * through(g, scaled((up * top - m) * r, scale, bias, columns, C, AFFINE), ACT)
            at = dz + window(rows, OW).to(tl.int64)[:, None] * C + columns[None, :]
            inside = (rows < end)[:, None] & (columns < C)[None, :]
            g = hand_out(at, g, a, top, up, m, flat, slope, inside)
            g = hand_out(at + C, g, b, top, up, m, flat, slope, inside)
            g = hand_out(at + 2 * OW * C, g, c, top, up, m, flat, slope, inside)
            g = hand_out(at + (2 * OW + 1) * C, g, d, top, up, m, flat, slope, inside)
        else:
            value = tile(z, rows, columns, end, C).to(tl.float32) - m
            if not MASKED:
                g = through(g, scaled(value * r, scale, bias, columns, C, AFFINE), ACT)
            put(dz, steep * g - flat - value * slope, rows, columns, end, C)
