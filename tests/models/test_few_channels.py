"""A strided convolution of images over blocks of pixels is the convolution, and so is its gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from askew.models import norm
from askew.models.few_channels import blocked, blocks, fits, reach, stacked
from askew.models.norm import Chain, strides, unfused

LAST = torch.channels_last


def images(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.to(dtype).contiguous(memory_format=LAST)


def convolution(kernel: int, channels: int = 3, **options) -> nn.Conv2d:
    torch.manual_seed(kernel)
    return nn.Conv2d(channels, 5, kernel, **{"stride": 2, "padding": kernel // 2, "bias": False, **options})


@pytest.mark.parametrize("shape", [(2, 3, 8, 12), (3, 1, 4, 6), (1, 4, 10, 2)])
@pytest.mark.parametrize("kernel", [1, 3, 5, 7, 9])
def test_the_same_sums(kernel, shape):
    x, conv = images(*shape), convolution(kernel, shape[1]).double()
    assert fits(x, conv)
    mine, theirs = blocked(x, conv.weight), conv(x)
    torch.testing.assert_close(mine, theirs)
    dy = images(*theirs.shape)
    (found,), (expected,) = (torch.autograd.grad(z, conv.weight, dy) for z in (mine, theirs))
    torch.testing.assert_close(found, expected)


def test_the_shapes_of_a_seven_by_seven_kernel():
    """Four blocks down and across; everything channels-last, as the convolution wants it."""
    x, conv = images(2, 3, 64, 64), convolution(7)
    X, W = blocks(x, 7), stacked(conv.weight)
    assert reach(7) == (2, 1) and X.shape == (2, 48, 35, 32) and W.shape == (5, 48, 4, 1)
    assert X.is_contiguous(memory_format=LAST) and W.is_contiguous(memory_format=LAST)
    assert W.count_nonzero() == conv.weight.count_nonzero()


def test_what_does_not_fit():
    x = images(2, 3, 8, 8)
    others = [{"stride": 1}, {"padding": 2}, {"bias": True}, {"dilation": 2}, {"padding_mode": "circular"}]
    assert fits(x, convolution(7)) and not any(fits(x, convolution(7, **other)) for other in others)
    assert not any(fits(odd, convolution(7)) for odd in (x[:, :, :7], x[:, :2], x[0]))
    assert not fits(x, convolution(4)) and not fits(x, nn.Conv2d(3, 5, (7, 3), 2, padding=3, bias=False))


def test_where_it_is_taken(monkeypatch):
    """On a GPU, training in 16 bits, of images. A chain then gives what its modules give."""
    x, conv = images(4, 3, 16, 16, dtype=torch.float32), convolution(7)
    half = torch.autocast("cpu", torch.bfloat16)
    with half:
        assert not strides(x, conv)
    monkeypatch.setattr(norm, "DEVICES", {"cpu"})
    assert not strides(x, conv) and strides(x.bfloat16(), conv)
    with half:
        assert strides(x, conv) and not strides(x.clone().requires_grad_(), conv)
        assert not strides(images(2, 5, 8, 8), convolution(7, 5)) and not strides(x, nn.ReLU())
        with unfused():
            assert not strides(x, conv)
        chain = Chain(conv, nn.BatchNorm2d(5, affine=False), nn.Tanh())
        used = []
        monkeypatch.setattr(norm, "blocked", lambda *a: used.append(1) or blocked(*a))
        for training in (True, False):
            y = chain.train(training)(x)
            with unfused():
                torch.testing.assert_close(y, chain(x), rtol=0.02, atol=0.05)
        assert len(used) == 1
