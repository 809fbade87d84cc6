"""The fused step as a Triton kernel; imported only where Triton and a CUDA device are.

One program treats one block of one parameter; which, it reads from `blocks`, the parameter's addresses from `table` and
`gradients`. So one launch serves any number of parameters that share their group's scalars and their dtypes. The
formulas are those of native/step_kernel.cpp. Numbers that may change while a CUDA graph is replayed (the schedule's
value, and where they live there the learning rate and the step count) are read from the device.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

INTERVAL = tl.constexpr(1)
LEVEL_FIRST = tl.constexpr(2)
PAIR = tl.constexpr(0)
EVEN = tl.constexpr(1)
MOMENTUM = tl.constexpr(1)
ADAPTIVE = tl.constexpr(2)
NEAREST = tl.constexpr(1)
SHOWN = tl.constexpr(2)
COLUMNS = tl.constexpr(9)  # of the table: w m v out count scale n inner channels
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def at(entry, HALF: tl.constexpr, ALIGNED: tl.constexpr):
    """The array whose address stands there."""
    address = tl.load(entry)
    if HALF:  # noqa: SIM108 (the branches differ in type)
        array = address.to(tl.pointer_type(tl.bfloat16))
    else:
        array = address.to(tl.pointer_type(tl.float32))
    if ALIGNED:
        array = tl.multiple_of(array, 16)
    return array


@triton.jit
def put(array, offset, x, mask, HALF: tl.constexpr):
    """Store, to the nearest bfloat16 if need be."""
    if HALF:
        tl.store(array + offset, x.to(tl.bfloat16, fp_downcast_rounding="rtne"), mask=mask)
    else:
        tl.store(array + offset, x, mask=mask)


@triton.jit
def around(q, levels, middles, gap, inverse_gap, GRID: tl.constexpr, K: tl.constexpr):
    """a <= q < b, the outermost pair beyond the range, and their middle."""
    if GRID == PAIR:
        a, b, middle = tl.load(levels), tl.load(levels + 1), tl.load(middles)
    elif GRID == EVEN:
        low = tl.load(levels)
        k = tl.floor((q - low) * inverse_gap)
        k = tl.where(k > 0, k, 0.0)
        k = tl.where(k < K - 2, k, K - 2.0)
        a = low + k * gap
        a = tl.where((q < a) & (k > 0), a - gap, a)
        b = a + gap
        middle = a + 0.5 * gap
    else:
        left = tl.zeros(q.shape, tl.int32)
        for k in range(1, K - 1):
            left += (q >= tl.load(levels + k)).to(tl.int32)
        a, b, middle = tl.load(levels + left), tl.load(levels + left + 1), tl.load(middles + left)
    return a, b, middle


@triton.jit
def interval(x, u, s, value, alpha, clip, levels, middles, gap, inverse_gap, GRID: tl.constexpr, K: tl.constexpr):
    """core.direction.skew, negated."""
    q = x / s
    a, b, _ = around(q, levels, middles, gap, inverse_gap, GRID, K)
    left, right = q - a, q - b
    product = left * right
    beyond = tl.where(q < tl.load(levels), left, right)
    outside = product > 0
    phi = tl.where(outside, beyond * beyond, product * product)
    slope = 2 * tl.where(outside, beyond, product * (left + right))
    psi = value - phi
    floor = -alpha * psi
    free = (psi > 0) | (slope * u >= floor * s)
    pull = floor / tl.where(slope == 0, 1.0, -slope)
    pull = tl.where(pull < -clip, -clip, pull)
    pull = tl.where(pull > clip, clip, pull)
    pull = tl.where(slope == 0, clip, pull)
    return tl.where(free, u, -(pull * s))


@triton.jit
def limit_of(radius):
    """Infinite at 1, where everybody is captured, minus infinity at 0, where nobody is."""
    return tl.where(radius > 0, tl.where(radius >= 1, INFINITY, radius), -INFINITY)


@triton.jit
def level_first(
    x, u, s, lo, hi, value, alpha, levels, middles, gap, inverse_gap,
    GRID: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """core.direction.level_first, negated, and where the step may end (core.direction.arrive)."""
    q = x / s
    a, b, middle = around(q, levels, middles, gap, inverse_gap, GRID, K)
    level = tl.where(q >= middle, b, a)
    target = level * s
    if HALF:
        target = target.to(tl.bfloat16, fp_downcast_rounding="rtne").to(tl.float32)
    q = tl.where(x == target, level, q)
    left, right = q - a, b - q
    inward = tl.where(left < right, left, right)
    captured = inward <= limit_of(value) * ((b - a) * 0.5)
    distance = level - q
    pull = -alpha * distance * s
    below, above = captured & (distance >= 0), captured & (distance <= 0)
    d = tl.where(below, tl.where(u <= pull, u, pull), u)
    d = tl.where(above, tl.where(d >= pull, d, pull), d)
    return d, tl.where(above, target, lo), tl.where(below, target, hi)


@triton.jit
def nearest(x, s, levels, middles, gap, inverse_gap, GRID: tl.constexpr, K: tl.constexpr):
    """core.direction.snap."""
    q = x / s
    a, b, middle = around(q, levels, middles, gap, inverse_gap, GRID, K)
    return tl.where(q >= middle, b, a) * s


@triton.jit
def shown(x, s, value, levels, middles, gap, inverse_gap, GRID: tl.constexpr, K: tl.constexpr):
    """core.direction.shown."""
    q = x / s
    a, b, middle = around(q, levels, middles, gap, inverse_gap, GRID, K)
    left, right = q - a, b - q
    inward = tl.where(left < right, left, right)
    captured = inward <= limit_of(value) * ((b - a) * 0.5)
    return tl.where(captured, tl.where(q >= middle, b, a) * s, x)


@triton.jit
def forward(
    x, s, value_at, levels, middles, gap, inverse_gap, FORWARD: tl.constexpr, GRID: tl.constexpr, K: tl.constexpr
):
    """What the network computes with."""
    if FORWARD == NEAREST:
        x = nearest(x, s, levels, middles, gap, inverse_gap, GRID, K)
    if FORWARD == SHOWN:
        x = shown(x, s, tl.load(value_at).to(tl.float32), levels, middles, gap, inverse_gap, GRID, K)
    return x


@triton.jit
def show_kernel(
    blocks, table, levels, middles, value_at, gap, inverse_gap,
    GRID: tl.constexpr, K: tl.constexpr, FORWARD: tl.constexpr, W_HALF: tl.constexpr, OUT_HALF: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What the network computes with, of weights that have made their step, at the scales in the table."""
    pid = tl.program_id(0)
    number = tl.load(blocks + 2 * pid + 1)
    entry = table + tl.load(blocks + 2 * pid) * COLUMNS
    size = tl.load(entry + 6)
    if ALIGNED:
        size = tl.multiple_of(size, 16)
    offset = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < size
    x = tl.load(at(entry, W_HALF, ALIGNED) + offset, mask=mask, other=0.0).to(tl.float32)
    x = forward(x, scale_at(entry, offset, mask), value_at, levels, middles, gap, inverse_gap, FORWARD, GRID, K)
    put(at(entry + 3, OUT_HALF, ALIGNED), offset, x, mask, OUT_HALF)


@triton.jit
def scale_at(entry, offset, mask):
    """The scale of each element."""
    inner, channels = tl.load(entry + 7), tl.load(entry + 8)
    return tl.load(at(entry + 5, False, False) + (offset // inner) % channels, mask=mask, other=1.0)


@triton.jit
def bad_kernel(blocks, table, gradients, flag, G_HALF: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Raise the flag if a block of a gradient holds NaN or infinity."""
    pid = tl.program_id(0)
    row = tl.load(blocks + 2 * pid)
    number = tl.load(blocks + 2 * pid + 1)
    size = tl.load(table + row * COLUMNS + 6)
    if ALIGNED:
        size = tl.multiple_of(size, 16)
    offset = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(at(gradients + row, G_HALF, ALIGNED) + offset, mask=offset < size, other=0.0).to(tl.float32)
    fine = tl.abs(u) < INFINITY
    if tl.sum(fine.to(tl.int32), 0) < BLOCK:
        tl.store(flag, 1)


@triton.jit
def count_kernel(rows, table, corrections, lr_at, lr, log1, log2, LR_THERE: tl.constexpr):
    """One parameter a program, where step counts live on the device: count + 1 and Adam's bias corrections,
    -lr / (1 - beta1^count) and 1 / sqrt(1 - beta2^count), in float64, for the programs of step_kernel.
    """
    row = tl.load(rows + tl.program_id(0))
    here = at(table + row * COLUMNS + 4, False, False)
    after = tl.load(here) + 1
    tl.store(here, after)
    if LR_THERE:
        lr = tl.load(lr_at).to(tl.float32)
    count = after.to(tl.float64)
    tl.store(corrections + 2 * row, (-lr / (1 - tl.exp(count * log1))).to(tl.float32))
    tl.store(corrections + 2 * row + 1, (1 / tl.sqrt(1 - tl.exp(count * log2))).to(tl.float32))


@triton.jit
def step_kernel(
    blocks, table, gradients, corrections, levels, middles, value_at, lr_at, clip_at,
    gap, inverse_gap, alpha, clip, lr, decay, beta1, beta2, rest1, rest2, epsilon, momentum, damped, step, over_root,
    MODE: tl.constexpr, GRID: tl.constexpr, K: tl.constexpr, UPDATE: tl.constexpr, SCALED: tl.constexpr,
    CLAMP: tl.constexpr, SNAP: tl.constexpr, FORWARD: tl.constexpr, OUT: tl.constexpr, FRESH: tl.constexpr,
    NESTEROV: tl.constexpr, DECOUPLED: tl.constexpr, SMALL: tl.constexpr, COUNTED: tl.constexpr,
    LR_THERE: tl.constexpr, CLIP_THERE: tl.constexpr, W_HALF: tl.constexpr, G_HALF: tl.constexpr,
    M_HALF: tl.constexpr, OUT_HALF: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    row = tl.load(blocks + 2 * pid)
    number = tl.load(blocks + 2 * pid + 1)
    entry = table + row * COLUMNS
    size = tl.load(entry + 6)
    if ALIGNED:
        size = tl.multiple_of(size, 16)
    offset = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < size
    w, g = at(entry, W_HALF, ALIGNED), at(gradients + row, G_HALF, ALIGNED)
    x = tl.load(w + offset, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(g + offset, mask=mask, other=0.0).to(tl.float32)
    s = 1.0
    if SCALED:
        s = scale_at(entry, offset, mask)
    if LR_THERE:
        lr = tl.load(lr_at).to(tl.float32)
    if CLIP_THERE:
        clip = tl.load(clip_at).to(tl.float32)
    lo = tl.full((BLOCK,), -INFINITY, tl.float32)
    hi = tl.full((BLOCK,), INFINITY, tl.float32)
    if CLAMP:
        lo = tl.zeros((BLOCK,), tl.float32) + tl.load(levels) * s
        hi = tl.zeros((BLOCK,), tl.float32) + tl.load(levels + K - 1) * s
    d = u
    if MODE == INTERVAL:
        value = tl.load(value_at).to(tl.float32)
        d = interval(x, u, s, value, alpha, clip, levels, middles, gap, inverse_gap, GRID, K)
    if MODE == LEVEL_FIRST:
        value = tl.load(value_at).to(tl.float32)
        d, lo, hi = level_first(x, u, s, lo, hi, value, alpha, levels, middles, gap, inverse_gap, GRID, K, W_HALF)
    keep = 1.0
    if DECOUPLED:
        keep = 1 - lr * decay
    else:
        d = d + decay * x
    if UPDATE == ADAPTIVE:
        m, v = at(entry + 1, M_HALF, ALIGNED), at(entry + 2, M_HALF, ALIGNED)
        first = tl.load(m + offset, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(v + offset, mask=mask, other=0.0).to(tl.float32)
        if SMALL:  # noqa: SIM108
            first = first + rest1 * (d - first)
        else:
            first = d - beta1 * (d - first)
        second = second * beta2 + rest2 * d * d
        if COUNTED:  # the count lies on the device
            step, over_root = tl.load(corrections + 2 * row), tl.load(corrections + 2 * row + 1)
        elif LR_THERE:
            step = step * lr
        put(m, offset, first, mask, M_HALF)
        put(v, offset, second, mask, M_HALF)
        x = x * keep + step * first / (tl.sqrt(second) * over_root + epsilon)
    else:
        if UPDATE == MOMENTUM:
            m = at(entry + 1, M_HALF, ALIGNED)
            buffer = d
            if not FRESH:
                buffer = tl.load(m + offset, mask=mask, other=0.0).to(tl.float32) * momentum + damped * d
            put(m, offset, buffer, mask, M_HALF)
            if NESTEROV:  # noqa: SIM108
                d = d + momentum * buffer
            else:
                d = buffer
        x = x - lr * d
    x = tl.where(x < lo, lo, x)
    x = tl.where(x > hi, hi, x)
    if SNAP:
        x = nearest(x, s, levels, middles, gap, inverse_gap, GRID, K)
    put(w, offset, x, mask, W_HALF)
    if OUT:
        if W_HALF:  # what the network computes with is made of what is kept
            x = x.to(tl.bfloat16, fp_downcast_rounding="rtne").to(tl.float32)
        x = forward(x, s, value_at, levels, middles, gap, inverse_gap, FORWARD, GRID, K)
        put(at(entry + 3, OUT_HALF, ALIGNED), offset, x, mask, OUT_HALF)
