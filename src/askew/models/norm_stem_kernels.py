"""Triton kernels of the first layer: a 3x3 convolution of few channels, BatchNorm, ReLU or sign.

Few channels make the convolution cheap to repeat (27 numbers a pixel) and its output dear to keep, so it is never
written. What is written, once a batch, are the windows U: a row for each pixel with its 3x3 neighbourhood, a 1, zeros
up to 32, and empty rows up to a whole tile. Each pass then reads whole rows of U and multiplies. The statistics need no
pass at all: they follow from U'U. Sums are made by parts and added up in a fixed order, as in `norm_kernels`.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from askew.models.norm_kernels import activated, publish, put, scaled, through, tile, vector


@triton.jit
def weights(weight, columns, C: tl.constexpr, TAPS: tl.constexpr, DTYPE: tl.constexpr):
    """(32, columns): the kernel of each output channel in the order of the windows; weight is (C, TAPS)."""
    k = tl.arange(0, 32)
    inside = (k < TAPS)[:, None] & (columns < C)[None, :]
    return tl.load(weight + columns[None, :] * TAPS + k[:, None], mask=inside, other=0.0).to(DTYPE)


@triton.jit
def stem_windows(
    x, windows, partial, n, padded,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """windows[row] = (x[i + a, j + b, channel] for a, b = -1, 0, 1, then 1, then zeros); partial[part] = U'U."""
    part = tl.program_id(0)
    k = tl.arange(0, 32)
    a, along = k // (3 * CIN) - 1, k % (3 * CIN) - CIN  # nine values of one image line lie side by side
    gram = tl.zeros([32, 32], tl.float32)
    for start in range(part * ROWS, padded, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        down = ((rows // W) % H)[:, None] + a[None, :]
        across = (rows % W * CIN)[:, None] + along[None, :]
        real = (rows < n)[:, None]
        inside = real & (k < 9 * CIN)[None, :] & (down >= 0) & (down < H) & (across >= 0) & (across < W * CIN)
        found = tl.load(x + (rows * CIN)[:, None] + (a * W * CIN + along)[None, :], mask=inside, other=0.0)
        around = tl.where(real & (k == 9 * CIN)[None, :], 1.0, found.to(tl.float32)).to(windows.dtype.element_ty)
        tl.store(windows + rows[:, None] * 32 + k[None, :], around)
        gram += tl.dot(tl.trans(around), around, input_precision="ieee")
    tl.store(partial + part * 1024 + k[:, None] * 32 + k[None, :], gram)


@triton.jit
def stem_gram(
    partial, weight, gram, squares, count, parts,
    C: tl.constexpr, TAPS: tl.constexpr, TRACK: tl.constexpr, DTYPE: tl.constexpr,
    CB: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Line k of U'U; squares[k] = K[k] (U'U K)[k], which add up to sums of z^2; in the line of ones: sums of z.

    In float64, since a filter that blurs nothing sees the small difference of large numbers. Counts the batch.
    """
    k, other = tl.program_id(0), tl.arange(0, 32)
    found = tl.zeros([CHUNK, 32], tl.float64)
    for start in range(0, parts, CHUNK):
        part = start + tl.arange(0, CHUNK)
        at = partial + part[:, None] * 1024 + k * 32 + other[None, :]
        found += tl.load(at, mask=(part < parts)[:, None], other=0.0).to(tl.float64)
    line = tl.sum(found, 0)
    tl.store(gram + k * 32 + other, line.to(tl.float32))
    for start in range(0, C, CB):
        columns = start + tl.arange(0, CB)
        with_z = tl.sum(weights(weight, columns, C, TAPS, DTYPE).to(tl.float64) * line[:, None], 0)
        own = tl.load(weight + columns * TAPS + k, mask=columns < tl.where(k < TAPS, C, 0), other=0.0).to(DTYPE)
        value = tl.where(k == TAPS, with_z, own.to(tl.float64) * with_z)
        tl.store(squares + k * C + columns, value, mask=columns < C)
    if TRACK and k == 0:
        tl.store(count, tl.load(count) + 1)


@triton.jit
def stem_normalise(
    windows, weight, squares, y, scale, bias, mean, rstd, running_mean, running_var, count, n, epsilon, momentum,
    C: tl.constexpr, TAPS: tl.constexpr, AFFINE: tl.constexpr, ACT: tl.constexpr, TRACK: tl.constexpr,
    CB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = f(c (z - m) r + b)."""
    part, k = tl.program_id(0), tl.arange(0, 32)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    kernel = weights(weight, columns, C, TAPS, windows.dtype.element_ty)
    inside = (k < TAPS)[:, None] & (columns < C)[None, :]
    lines = tl.load(squares + k[:, None] * C + columns[None, :], mask=inside, other=0.0)
    m = tl.load(squares + TAPS * C + columns, mask=columns < C, other=0.0) / n
    variance = tl.sum(lines, 0) / n - m * m
    m, r = publish(
        m.to(tl.float32), variance.to(tl.float32), mean, rstd, running_mean, running_var, count, n, epsilon, momentum,
        columns, part == 0, C, TRACK,
    )  # fmt: skip
    for start in range(part * ROWS, n, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        around = tl.load(windows + rows[:, None] * 32 + k[None, :])
        z = tl.dot(around, kernel, input_precision="ieee")
        t = scaled((z - m[None, :]) * r[None, :], scale, bias, columns, C, AFFINE)
        put(y, activated(t, ACT), rows, columns, n, C)


@triton.jit
def stem_products(
    windows, weight, dy, mean, rstd, scale, bias, products, n,
    C: tl.constexpr, TAPS: tl.constexpr, AFFINE: tl.constexpr, ACT: tl.constexpr, CB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """products[part] = g'U (C, 32) by parts, g = f'(c (z - m) r + b) dy; z is made again, cheaper than reading y."""
    part, k = tl.program_id(0), tl.arange(0, 32)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    m, r = vector(mean, columns, C), vector(rstd, columns, C)
    kernel = weights(weight, columns, C, TAPS, windows.dtype.element_ty)
    found = tl.zeros([CB, 32], tl.float32)
    for start in range(part * ROWS, n, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        gradient = tile(dy, rows, columns, n, C)
        around = tl.load(windows + rows[:, None] * 32 + k[None, :])
        z = tl.dot(around, kernel, input_precision="ieee")
        g = through(gradient.to(tl.float32), scaled((z - m) * r, scale, bias, columns, C, AFFINE), ACT)
        found += tl.dot(tl.trans(g.to(around.dtype)), around, input_precision="ieee")
    at = products + (part * C + columns)[:, None] * 32 + k[None, :]
    tl.store(at, found, mask=(columns < C)[:, None])


@triton.jit
def stem_gradient(
    products, weight, gram, mean, rstd, scale, gradient, scale_gradient, bias_gradient, n, parts,
    C: tl.constexpr, TAPS: tl.constexpr, DTYPE: tl.constexpr, AFFINE: tl.constexpr,
    CB: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """dK' = c r (g'U - mean(g) 1'U - mean(g xhat) r (K'U'U - m 1'U)), from g'U by parts and U'U."""
    columns, k = tl.program_id(0) * CB + tl.arange(0, CB), tl.arange(0, 32)
    live, taps = columns < C, k < TAPS
    found = tl.zeros([CHUNK, CB, 32], tl.float32)
    for start in range(0, parts, CHUNK):
        part = start + tl.arange(0, CHUNK)
        at = products + (part[:, None] * C + columns[None, :])[:, :, None] * 32 + k[None, None, :]
        found += tl.load(at, mask=((part < parts)[:, None] & live[None, :])[:, :, None], other=0.0)
    with_gradient = tl.sum(found, 0)
    inside = live[:, None] & taps[None, :]
    kernel = tl.load(weight + columns[:, None] * TAPS + k[None, :], mask=inside, other=0.0).to(DTYPE).to(tl.float32)
    m = tl.load(mean + columns, mask=live, other=0.0)
    r = tl.load(rstd + columns, mask=live, other=0.0)
    ones = tl.load(gram + TAPS * 32 + k)
    with_z = tl.sum(kernel[:, :, None] * tl.load(gram + k[:, None] * 32 + k[None, :])[None, :, :], 1)
    mean_g = tl.sum(tl.where((k == TAPS)[None, :], with_gradient, 0.0), 1) / n
    mean_gx = r * (tl.sum(kernel * with_gradient, 1) / n - m * mean_g)
    about = with_z - m[:, None] * ones[None, :]
    steep = r
    if AFFINE:
        steep = r * tl.load(scale + columns, mask=live, other=0.0).to(tl.float32)
        tl.store(scale_gradient + columns, n * mean_gx, mask=live)
        tl.store(bias_gradient + columns, n * mean_g, mask=live)
    value = steep[:, None] * (with_gradient - mean_g[:, None] * ones[None, :] - (mean_gx * r)[:, None] * about)
    tl.store(gradient + columns[:, None] * TAPS + k[None, :], value, mask=inside)
