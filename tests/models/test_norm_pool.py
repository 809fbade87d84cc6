"""BatchNorm + ReLU + overlapping max-pool: the written-out formulas against autograd, and where they are taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, max_pool2d, relu

from askew.models import norm
from askew.models.norm import Chain, overlaps, unfused
from askew.models.norm_pool import NormPool, norm_pool, norm_pool_backward
from askew.nn import Sign

LAST = torch.channels_last
NOTHING = (None, None, None, 0.1, 1e-5)  # running statistics that are not kept; momentum, eps


def some(*shape, dtype=torch.float64, seed=0):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return x.contiguous(memory_format=LAST) if x.ndim == 4 else x


def composed(z, vectors=(None, None)):
    return max_pool2d(relu(batch_norm(z, None, None, *vectors, training=True)), 3, 2, 1)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 6, 8), (2, 1, 2, 2), (4, 7, 10, 2)])
def test_formulas_agree_with_autograd(shape, affine):
    """Scales of both signs; one decimal, so that there are ties: the first of the largest has the gradient."""
    c = shape[1]
    z = (3 * some(*shape) + 2).round(decimals=1).contiguous(memory_format=LAST).requires_grad_()
    vectors = [some(c, seed=7).requires_grad_(), some(c, seed=8).requires_grad_()] if affine else [None, None]
    inputs = [t for t in (z, *vectors) if t is not None]
    y, expected = NormPool.apply(z, *vectors, *NOTHING), composed(z, vectors)
    torch.testing.assert_close(y, expected)
    assert y.is_contiguous(memory_format=LAST)
    dy = some(*y.shape, seed=2)
    for mine, theirs in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(expected, inputs, dy), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_place_may_be_the_largest_of_four_pools():
    z = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    z[0, 0, 1, 1] = 1
    _, top, place, *_ = norm_pool(z, None, None, *NOTHING)
    assert (top == 1).all() and place.flatten().tolist() == [8, 6, 2, 0]


def test_the_operators_are_what_they_say():
    """Shapes, strides and what is changed in place, as the compiler is told."""
    z = some(3, 5, 4, 6, dtype=torch.float32)
    for vectors in ((None, None), (torch.ones(5), torch.zeros(5))):
        running = (torch.zeros(5), torch.ones(5), torch.tensor(0))
        torch.library.opcheck(norm_pool, (z, *vectors, *running, 0.1, 1e-5))
        y, *kept, mean, rstd = norm_pool(z, *vectors, *running, 0.1, 1e-5)
        torch.library.opcheck(norm_pool_backward, (z, *kept, torch.ones_like(y), mean, rstd, *vectors))


def test_which_pools():
    z = some(4, 8, 4, 6)
    assert overlaps(z, nn.MaxPool2d(3, 2, padding=1)) and overlaps(z, nn.MaxPool2d((3, 3), (2, 2), (1, 1)))
    others = [nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d(3, 2, 1)]
    others += [nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(3, 2, 1, return_indices=True), nn.MaxPool2d(3, 2, 1, dilation=2)]
    assert not any(overlaps(z, pool) for pool in others)
    assert not overlaps(z[:, :, :3], nn.MaxPool2d(3, 2, padding=1))


@pytest.mark.parametrize("activation", [nn.ReLU, Sign])
def test_a_chain_gives_what_its_modules_give(activation, monkeypatch):
    """Running statistics too; behind a sign the pool runs by itself."""
    monkeypatch.setattr(norm, "DEVICES", {"cpu"})
    used = []
    monkeypatch.setattr(norm, "_pooled", lambda *a, inner=norm._pooled: used.append(1) or inner(*a))
    chains = [Chain(nn.BatchNorm2d(5, affine=False), activation(), nn.MaxPool2d(3, 2, 1)) for _ in range(2)]
    for seed in range(2):
        z = some(4, 5, 6, 6, dtype=torch.float32, seed=seed)
        y = chains[0](z)
        with unfused():
            torch.testing.assert_close(y, chains[1](z))
    assert len(used) == (2 if activation is nn.ReLU else 0)
    for name, value in chains[1].state_dict().items():
        torch.testing.assert_close(chains[0].state_dict()[name], value, msg=name)
    chains[0].eval()(z)
    assert len(used) == (2 if activation is nn.ReLU else 0)
