"""The Triton kernels against torch in float64: on a GPU, or anywhere with Triton and TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d, max_pool2d, relu

from askew.models import norm_stem
from askew.models.norm_stem import flat

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else pytest.mark.cuda
DEVICE = "cpu" if INTERPRETED else "cuda"
LAST = torch.channels_last
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 5e-3, torch.float16: 6e-4}
KINDS = ["plain", "pool", "shortcut"]
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
    y, m, r = launch.norm_relu(z, residual, *own, 0.1, 1e-5, pool)
    inputs = [t.double().requires_grad_() for t in (z, residual) if t is not None]
    before = batch_norm(inputs[0], None, None, training=True) + (inputs[1] if shortcut else 0)
    before = max_pool2d(before, 2) if pool else before
    exact, dy = relu(before), some(*before.shape, dtype=dtype, seed=3)
    dy[before.abs() < 1e-5] = 0  # which side of zero is up to rounding
    dz, g = launch.norm_relu_backward(z, y if pool or shortcut else None, dy, m, r, pool, shortcut)
    expected = torch.autograd.grad(exact, inputs, dy.double())
    assert y.dtype == dz.dtype == dtype and y.is_contiguous(memory_format=LAST) and dz.is_contiguous(memory_format=LAST)
    assert off(y, exact.detach()) < ROUNDING[dtype]
    assert off(dz, expected[0]) < 2 * ROUNDING[dtype]
    assert not shortcut or off(g, expected[1]) < ROUNDING[dtype]
    bn.double()(z.double())
    assert off(own[0], bn.running_mean) < 1e-5 and off(own[1], bn.running_var) < 1e-5 and own[2] == 1


@pytest.mark.parametrize("dtype", ROUNDING if INTERPRETED else [B], ids=str)
def test_equal_values_under_a_pool(launch, dtype):
    """Few distinct values, so that most squares hold a tie: the first gets the gradient."""
    z = (3 * some(4, 40, 8, 8, dtype=torch.float32, seed=0)).round().clamp(-2, 2).to(dtype)
    y, m, r = launch.norm_relu(z, None, None, None, None, 0.1, 1e-5, True)
    dy = some(*y.shape, dtype=dtype, seed=1)
    dz, _ = launch.norm_relu_backward(z, y, dy, m, r, True, False)
    exact = z.double().requires_grad_()
    out = max_pool2d(relu(batch_norm(exact, None, None, training=True)), 2)
    (expected,) = torch.autograd.grad(out, exact, dy.double())
    assert off(dz, expected) < 2 * ROUNDING[dtype]


def test_a_mean_far_above_the_spread(launch):
    """Sums of squares in float32 would lose the variance; sums about the first value do not."""
    z = some(8, 16, 8, 8, dtype=torch.float32, seed=0) + 1e4
    y, m, r = launch.norm_relu(z, None, None, None, None, 0.1, 1e-5, False)
    variance, mean = torch.var_mean(z.double(), (0, 2, 3), correction=0)
    torch.testing.assert_close(r.double(), (variance + 1e-5).rsqrt(), rtol=1e-5, atol=0)
    torch.testing.assert_close(m.double(), mean, rtol=1e-6, atol=0)
    assert off(y, relu((z - mean.view(-1, 1, 1)) * (variance + 1e-5).rsqrt().view(-1, 1, 1))) < 1e-3


def test_the_plain_average_of_running_statistics(launch):
    bn = nn.BatchNorm2d(24, affine=False, momentum=None, device=DEVICE)
    own = [t.clone() for t in (bn.running_mean, bn.running_var, bn.num_batches_tracked)]
    for seed in range(3):
        z = some(5, 24, 4, 4, dtype=torch.float32, seed=seed)
        launch.norm_relu(z, None, *own, -1.0, 1e-5, False)
        bn(z)
    for mine, theirs in zip(own, (bn.running_mean, bn.running_var, bn.num_batches_tracked), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_not_a_number_is_not_hidden(launch):
    z = some(4, 16, 4, 4, dtype=torch.float32, seed=0)
    z[1, 3, 2, 2] = float("nan")
    for pool in (False, True):
        y, _, _ = launch.norm_relu(z, None, None, None, None, 0.1, 1e-5, pool)
        assert y[:, 3].isnan().all() and not y[:, :3].isnan().any() and not y[:, 4:].isnan().any()


@pytest.mark.parametrize(("shape", "c", "dtype"), STEMS, ids=str)
def test_the_first_layer(stem_launch, shape, c, dtype):
    """Images and weights rounded to dtype, everything after that exact up to float32 and the rounding of y."""
    x = some(*shape, dtype=torch.float32, seed=0) + 0.5
    w = some(c, shape[1], 3, 3, dtype=torch.float32, seed=1)
    bn = nn.BatchNorm2d(c, affine=False, device=DEVICE)
    own = [t.clone() for t in (bn.running_mean, bn.running_var, bn.num_batches_tracked)]
    y, U, gram, m, r = stem_launch.stem(x, flat(w), *own, 0.1, 1e-5, dtype)
    expected_U = norm_stem.windows(x.to(dtype))
    assert torch.equal(U[: len(expected_U)], expected_U) and not U[len(expected_U) :].any()
    assert off(gram, expected_U.double().T @ expected_U.double()) < 1e-5
    dy = some(*y.shape, dtype=dtype, seed=2)
    dw = stem_launch.stem_backward(U, flat(w), dy, gram, m, r)
    exact = w.to(dtype).double().requires_grad_()
    z = conv2d(x.to(dtype).double(), exact, padding=1)
    out = relu(batch_norm(z, None, None, training=True))
    (expected,) = torch.autograd.grad(out, exact, dy.double())
    assert off(y, out.detach()) < ROUNDING[dtype]
    assert off(dw, flat(expected)) < 1e-4
    bn.double()(z.detach())
    assert off(own[0], bn.running_mean) < 5e-5 and off(own[1], bn.running_var) < 5e-5 and own[2] == 1


def test_filters_that_see_little_of_bright_smooth_images(stem_launch):
    """The variance of differences of neighbours, a thousandth of the squares it is computed from."""
    line = torch.linspace(0, 3, 16, device=DEVICE)
    x = (3 + torch.sin(line[:, None] + line) + 0.02 * some(8, 3, 16, 16, dtype=torch.float32, seed=0)).to(H)
    x = x.contiguous(memory_format=LAST)
    w = some(16, 3, 3, 3, dtype=torch.float32, seed=1)
    w = (w - w.mean((1, 2, 3), keepdim=True)).to(H).float()
    _, _, _, m, r = stem_launch.stem(x, flat(w), None, None, None, 0.1, 1e-5, H)
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
