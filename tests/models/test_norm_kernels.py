"""The Triton kernels against torch in float64: on a GPU, or anywhere with Triton and TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d, max_pool2d, relu

from askew.models import norm_stem
from askew.models.norm_stem import flat
from askew.nn.straight_through import sign

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else pytest.mark.cuda
DEVICE = "cpu" if INTERPRETED else "cuda"
LAST = torch.channels_last
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 5e-3, torch.float16: 6e-4}
KINDS = ["plain", "pool", "shortcut"]
ACTS = ["relu", "tanh", "clip", "quadratic"]
NOTHING = (None, None, None, 0.1, 1e-5)  # running statistics that are not kept; momentum, eps
B, H, F = torch.bfloat16, torch.float16, torch.float32

# odd numbers of rows and channels; less than a tile; one channel; blocks that do not fill
SMALL = [(3, 5, 4, 6), (2, 64, 8, 8), (5, 96, 6, 2), (7, 128, 4, 4), (2, 200, 2, 2), (9, 16, 10, 10), (11, 1, 2, 2)]
# every case compiles four kernels, so on a GPU few of them: each kind at a large and at an odd size
FEW = [
    ((100, 128, 32, 32), B, "plain"), ((100, 128, 32, 32), B, "pool"), ((100, 64, 64, 64), B, "shortcut"),
    ((37, 512, 2, 2), H, "plain"), ((2, 200, 2, 2), B, "pool"), ((5, 96, 6, 2), H, "shortcut"),
    ((3, 5, 4, 6), F, "plain"), ((9, 16, 10, 10), F, "pool"), ((11, 1, 2, 2), F, "shortcut"),
]  # fmt: skip
CASES = [(shape, dtype, kind) for shape in SMALL for dtype in ROUNDING for kind in KINDS] if INTERPRETED else FEW
# with scale and bias: ReLU in every kind, signs where no pool is
SCALED = [
    ((5, 96, 6, 2), H, "plain", "relu"),
    ((9, 16, 10, 10), F, "pool", "relu"),
    ((2, 200, 2, 2), B, "pool", "relu"),
]
SCALED += [
    ((7, 128, 4, 4), B, "shortcut", "relu"),
    ((3, 5, 4, 6), F, "plain", "tanh"),
    ((2, 64, 8, 8), B, "plain", "tanh"),
]
SCALED += [
    ((7, 128, 4, 4), F, "shortcut", "tanh"),
    ((5, 96, 6, 2), F, "plain", "clip"),
    ((11, 1, 2, 2), F, "plain", "quadratic"),
]
SCALED += [] if INTERPRETED else [((100, 128, 32, 32), B, kind, "relu") for kind in KINDS]
SCALED += [] if INTERPRETED else [((100, 128, 32, 32), B, "plain", "tanh")]
POOLED = [((3, 5, 4, 6), F), ((2, 64, 8, 8), B), ((5, 96, 6, 2), H), ((2, 200, 2, 2), F), ((9, 16, 10, 10), B)]
POOLED += [((1, 5, 2, 2), F)] if INTERPRETED else [((100, 64, 32, 32), B), ((1, 5, 2, 2), F)]
STEMS = [((3, 3, 6, 5), 48, H), ((2, 1, 4, 4), 16, H), ((5, 2, 7, 9), 200, H)]
STEMS += [((6, 3, 16, 16), 128, F), ((3, 3, 7, 9), 16, F)] if INTERPRETED else [((100, 3, 32, 32), 128, B)]


@pytest.fixture
def launch(monkeypatch):
    pytest.importorskip("triton")
    from askew.models import norm_launch

    if INTERPRETED:  # program after program in Python: few of them
        monkeypatch.setattr(norm_launch, "PROGRAMS", 8)
    return norm_launch


@pytest.fixture
def pool_launch(launch):
    from askew.models import norm_pool_launch

    return norm_pool_launch


@pytest.fixture
def stem_launch(monkeypatch):
    pytest.importorskip("triton")
    from askew.models import norm_stem_launch

    if INTERPRETED:
        for name, few in {"GRAM_PARTS": 3, "WRITERS": 3, "PARTS": 5}.items():
            monkeypatch.setattr(norm_stem_launch, name, few)
    return norm_stem_launch


def some(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
    return x.contiguous(memory_format=LAST)


def off(mine: torch.Tensor, exact: torch.Tensor) -> float:
    """||mine - exact|| / ||exact||; not-a-number never passes a comparison with it."""
    return ((mine.double() - exact).norm() / exact.norm().clamp_min(1e-12)).item()


@pytest.mark.parametrize(("shape", "dtype", "kind"), CASES, ids=str)
def test_forward_and_backward(launch, shape, dtype, kind):
    pool, shortcut = kind == "pool", kind == "shortcut"
    c = shape[1]
    z = (some(*shape, dtype=torch.float32, seed=0) * 3 + some(1, c, 1, 1, dtype=torch.float32, seed=1)).to(dtype)
    residual = some(*shape, dtype=dtype, seed=2) if shortcut else None
    bn = nn.BatchNorm2d(c, affine=False, device=DEVICE)
    own = [t.clone() for t in (bn.running_mean, bn.running_var, bn.num_batches_tracked)]
    y, m, r = launch.norm_act(z, residual, None, None, *own, 0.1, 1e-5, pool, "relu")
    inputs = [t.double().requires_grad_() for t in (z, residual) if t is not None]
    before = batch_norm(inputs[0], None, None, training=True) + (inputs[1] if shortcut else 0)
    before = max_pool2d(before, 2) if pool else before
    exact, dy = relu(before), some(*before.shape, dtype=dtype, seed=3)
    dy[before.abs() < 1e-5] = 0  # which side of zero is up to rounding
    kept = y if pool or shortcut else None
    dz, g, *_ = launch.norm_act_backward(z, kept, dy, m, r, None, None, pool, shortcut, "relu")
    expected = torch.autograd.grad(exact, inputs, dy.double())
    assert y.dtype == dz.dtype == dtype and y.is_contiguous(memory_format=LAST) and dz.is_contiguous(memory_format=LAST)
    assert off(y, exact.detach()) < ROUNDING[dtype]
    assert off(dz, expected[0]) < 2 * ROUNDING[dtype]
    assert not shortcut or off(g, expected[1]) < ROUNDING[dtype]
    bn.double()(z.double())
    assert off(own[0], bn.running_mean) < 1e-5 and off(own[1], bn.running_var) < 1e-5 and own[2] == 1


def vectors(c: int) -> list[torch.Tensor]:
    """Scales of both signs, and biases."""
    return [torch.randn(c, generator=torch.Generator().manual_seed(seed)).to(DEVICE) for seed in (7, 8)]


def edge(t: torch.Tensor, act: str) -> torch.Tensor:
    """Where rounding decides: on which side of zero, and for the bump that ends at 1 of that."""
    return (t.abs() < 1e-5) | ((t.abs() - 1).abs() < 1e-5 if act == "clip" else torch.zeros_like(t, dtype=torch.bool))


@pytest.mark.parametrize(("shape", "dtype", "kind", "act"), SCALED, ids=str)
def test_with_scale_and_bias(launch, shape, dtype, kind, act):
    pool, shortcut, c = kind == "pool", kind == "shortcut", shape[1]
    z = (some(*shape, dtype=torch.float32, seed=0) * 3 + some(1, c, 1, 1, dtype=torch.float32, seed=1)).to(dtype)
    residual = some(*shape, dtype=dtype, seed=2) if shortcut else None
    scale, bias = vectors(c)
    y, m, r = launch.norm_act(z, residual, scale, bias, *NOTHING, pool, act)
    inputs = [t.double().requires_grad_() for t in (z, residual, scale, bias) if t is not None]
    t = batch_norm(inputs[0], None, None, *inputs[-2:], training=True) + (inputs[1] if shortcut else 0)
    t = max_pool2d(t, 2) if pool else t
    exact, dy = relu(t) if act == "relu" else sign(t, act), some(*t.shape, dtype=dtype, seed=3)
    unclear = edge(t.detach(), act)
    dy[unclear] = 0
    kept = (y if act == "relu" else residual) if shortcut else None
    dz, g, dc, db = launch.norm_act_backward(z, kept, dy, m, r, scale, bias, pool, shortcut, act)
    expected = torch.autograd.grad(exact, inputs, dy.double())  # pyright: ignore
    assert off(torch.where(unclear, 0, y), torch.where(unclear, 0, exact.detach())) < ROUNDING[dtype]
    assert off(dz, expected[0]) < 2 * ROUNDING[dtype]
    assert not shortcut or off(g, expected[1]) < ROUNDING[dtype]
    assert off(dc, expected[-2]) < 1e-4 and off(db, expected[-1]) < 1e-4


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), POOLED, ids=str)
def test_overlapping_pools(pool_launch, shape, dtype, affine):
    """Few distinct values in a part of the channels, so that there are ties: the first of the largest counts."""
    c = shape[1]
    z = some(*shape, dtype=torch.float32, seed=0) * 3 + some(1, c, 1, 1, dtype=torch.float32, seed=1)
    z[:, : c // 2] = z[:, : c // 2].round().clamp(-2, 2)
    z = z.to(dtype).contiguous(memory_format=LAST)
    own_vectors = vectors(c) if affine else [None, None]
    bn = nn.BatchNorm2d(c, affine=False, device=DEVICE)
    own = [t.clone() for t in (bn.running_mean, bn.running_var, bn.num_batches_tracked)]
    y, top, place, m, r = pool_launch.norm_pool(z, *own_vectors, *own, 0.1, 1e-5)
    inputs = [t.double().requires_grad_() for t in (z, *own_vectors) if t is not None]
    before = max_pool2d(batch_norm(inputs[0], None, None, *(inputs[1:] or (None, None)), training=True), 3, 2, 1)
    dy = some(*before.shape, dtype=dtype, seed=3)
    dy[before.abs() < 1e-5] = 0  # which side of zero is up to rounding
    dz, *found = pool_launch.norm_pool_backward(z, top, place, dy, m, r, *own_vectors)
    expected = torch.autograd.grad(relu(before), inputs, dy.double())
    assert y.dtype == top.dtype == dz.dtype == dtype and place.dtype == torch.int8
    assert all(t.is_contiguous(memory_format=LAST) for t in (y, top, place, dz))
    assert off(y, relu(before).detach()) < ROUNDING[dtype]
    assert off(dz, expected[0]) < 2 * ROUNDING[dtype]
    assert all(off(mine, theirs) < 1e-4 for mine, theirs in zip(found, expected[1:], strict=False))
    bn.double()(z.double())
    assert off(own[0], bn.running_mean) < 1e-5 and off(own[1], bn.running_var) < 1e-5 and own[2] == 1


@pytest.mark.parametrize("dtype", ROUNDING if INTERPRETED else [B], ids=str)
def test_equal_values_under_a_pool(launch, dtype):
    """Few distinct values, so that most squares hold a tie: the first gets the gradient."""
    z = (3 * some(4, 40, 8, 8, dtype=torch.float32, seed=0)).round().clamp(-2, 2).to(dtype)
    y, m, r = launch.norm_act(z, None, None, None, *NOTHING, True, "relu")
    dy = some(*y.shape, dtype=dtype, seed=1)
    dz, *_ = launch.norm_act_backward(z, y, dy, m, r, None, None, True, False, "relu")
    exact = z.double().requires_grad_()
    out = max_pool2d(relu(batch_norm(exact, None, None, training=True)), 2)
    (expected,) = torch.autograd.grad(out, exact, dy.double())
    assert off(dz, expected) < 2 * ROUNDING[dtype]


def test_a_mean_far_above_the_spread(launch):
    """Sums of squares in float32 would lose the variance; sums about the first value do not."""
    z = some(8, 16, 8, 8, dtype=torch.float32, seed=0) + 1e4
    y, m, r = launch.norm_act(z, None, None, None, *NOTHING, False, "relu")
    variance, mean = torch.var_mean(z.double(), (0, 2, 3), correction=0)
    torch.testing.assert_close(r.double(), (variance + 1e-5).rsqrt(), rtol=1e-5, atol=0)
    torch.testing.assert_close(m.double(), mean, rtol=1e-6, atol=0)
    assert off(y, relu((z - mean.view(-1, 1, 1)) * (variance + 1e-5).rsqrt().view(-1, 1, 1))) < 1e-3


def test_the_plain_average_of_running_statistics(launch):
    bn = nn.BatchNorm2d(24, affine=False, momentum=None, device=DEVICE)
    own = [t.clone() for t in (bn.running_mean, bn.running_var, bn.num_batches_tracked)]
    for seed in range(3):
        z = some(5, 24, 4, 4, dtype=torch.float32, seed=seed)
        launch.norm_act(z, None, None, None, *own, -1.0, 1e-5, False, "relu")
        bn(z)
    for mine, theirs in zip(own, (bn.running_mean, bn.running_var, bn.num_batches_tracked), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_not_a_number_is_not_hidden(launch):
    z = some(4, 16, 4, 4, dtype=torch.float32, seed=0)
    z[1, 3, 2, 2] = float("nan")
    for pool in (False, True):
        y, _, _ = launch.norm_act(z, None, None, None, *NOTHING, pool, "relu")
        assert y[:, 3].isnan().all() and not y[:, :3].isnan().any() and not y[:, 4:].isnan().any()


@pytest.mark.parametrize("act", [None, "relu", "tanh"])
@pytest.mark.parametrize(("shape", "c", "dtype"), STEMS, ids=str)
def test_the_first_layer(stem_launch, shape, c, dtype, act):
    """Images and weights rounded to dtype, everything after that exact up to float32 and the rounding of y and g.

    act: of a layer with scale and bias; None for a ReLU without them.
    """
    own_vectors, f = (vectors(c), act) if act else ((None, None), "relu")
    x = some(*shape, dtype=torch.float32, seed=0) + 0.5
    w = some(c, shape[1], 3, 3, dtype=torch.float32, seed=1)
    bn = nn.BatchNorm2d(c, affine=False, device=DEVICE)
    own = [t.clone() for t in (bn.running_mean, bn.running_var, bn.num_batches_tracked)]
    y, U, gram, m, r = stem_launch.stem(x, flat(w), *own_vectors, *own, 0.1, 1e-5, dtype, f)
    expected_U = norm_stem.windows(x.to(dtype))
    assert torch.equal(U[: len(expected_U)], expected_U) and not U[len(expected_U) :].any()
    assert off(gram, expected_U.double().T @ expected_U.double()) < 1e-5
    dy = some(*y.shape, dtype=dtype, seed=2)
    exact = w.to(dtype).double().requires_grad_()
    inputs = [exact, *(v.double().requires_grad_() for v in own_vectors if v is not None)]
    z = conv2d(x.to(dtype).double(), exact, padding=1)
    t = batch_norm(z, None, None, *(inputs[1:] or (None, None)), training=True)
    out, unclear = relu(t) if f == "relu" else sign(t, f), edge(t.detach(), f)
    dy[unclear] = 0
    found = stem_launch.stem_backward(U, flat(w), dy, gram, m, r, *own_vectors, f)
    expected = torch.autograd.grad(out, inputs, dy.double())  # pyright: ignore
    assert off(torch.where(unclear, 0, y), torch.where(unclear, 0, out.detach())) < ROUNDING[dtype]
    close = 1e-4 if f == "relu" else 2 * ROUNDING[dtype] + 1e-4
    assert off(found[0], flat(expected[0])) < close
    assert all(off(mine, theirs) < close for mine, theirs in zip(found[1:], expected[1:], strict=False))
    bn.double()(z.detach())
    assert off(own[0], bn.running_mean) < 5e-5 and off(own[1], bn.running_var) < 5e-5 and own[2] == 1


def test_filters_that_see_little_of_bright_smooth_images(stem_launch):
    """The variance of differences of neighbours, a thousandth of the squares it is computed from."""
    line = torch.linspace(0, 3, 16, device=DEVICE)
    x = (3 + torch.sin(line[:, None] + line) + 0.02 * some(8, 3, 16, 16, dtype=torch.float32, seed=0)).to(H)
    x = x.contiguous(memory_format=LAST)
    w = some(16, 3, 3, 3, dtype=torch.float32, seed=1)
    w = (w - w.mean((1, 2, 3), keepdim=True)).to(H).float()
    _, _, _, m, r = stem_launch.stem(x, flat(w), None, None, *NOTHING, H, "relu")
    variance, mean = torch.var_mean(conv2d(x.double(), w.double(), padding=1), (0, 2, 3), correction=0)
    torch.testing.assert_close(r.double(), (variance + 1e-5).rsqrt(), rtol=1e-3, atol=0)
    assert ((m.double() - mean).abs() * r < 1e-3).all()


@pytest.mark.parametrize(("rows", "channels"), [(1, 1), (63, 7), (102400, 128), (6400, 512), (409600, 64), (49, 3000)])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_plans_are_powers_of_two_that_cover_the_map(launch, rows, channels, itemsize):
    for pool in (False, True):
        how = launch.plan(rows, channels, itemsize, pool)
        for value in (how.block, how.parts, how.sum_rows, how.write_rows, how.sum_warps, how.write_warps):
            assert value == launch.power_of_two(value) >= 1
        assert how.writers >= 1 and how.block * how.sum_rows <= 2**14
