"""LUQ's gradient quantiser: its levels, its mean (no bias) and its variance."""

import pytest
import torch
from torch import nn

from askew.nn import QuantizedGradient, logarithmic, quantize_gradients


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
def test_levels_are_zero_and_powers_of_two_below_the_largest(bits):
    torch.manual_seed(bits)
    g = torch.randn(4000) * torch.exp(3 * torch.randn(4000))
    q = logarithmic(g, bits)
    top = g.abs().max()
    powers = 2 ** (bits - 1) - 1
    allowed = [0.0, *(float(top) * 2.0**-k for k in range(powers))]
    assert all(any(v == pytest.approx(a, rel=1e-6) for a in allowed) for v in q.abs().unique().tolist())
    assert q.abs().unique().numel() <= 2 ** (bits - 1)
    assert ((q == 0) | (q.sign() == g.sign())).all()
    assert float(q.abs().max()) == pytest.approx(float(top), rel=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_no_bias_and_the_variance_of_the_formula(bits):
    """Over 20,000 draws each mean lies within five standard errors of g; the variance is (upper - y)(y - lower)."""
    torch.manual_seed(0)
    g = torch.cat([torch.linspace(-1, 1, 41), 10.0 ** -torch.arange(1.0, 6.0)]).double()
    a = 1.0 / 2 ** (2 ** (bits - 1) - 2)
    y = g.abs() / a
    low = torch.where(y < 1, 0.0, 2.0 ** torch.floor(torch.log2(y.clamp(min=1))))
    high = torch.where(y < 1, 1.0, 2 * low)
    variance = (high - y) * (y - low) * a * a
    variance = torch.where(y == low, 0.0, variance)
    n = 20_000
    draws = torch.stack([logarithmic(g, bits) for _ in range(n)])
    away = (draws.mean(0) - g).abs()
    assert (away <= 5 * (variance / n).sqrt() + 1e-12).all()
    torch.testing.assert_close(draws.var(0, correction=0), variance, rtol=0.1, atol=5 * a * a / n**0.5)


def test_levels_stay_and_nothing_is_nothing():
    g = torch.tensor([1.0, -0.5, 0.25, 0.0, 1 / 64])
    for _ in range(20):
        assert torch.equal(logarithmic(g, 4), g)  # every entry is a level already
    assert torch.equal(logarithmic(torch.zeros(3)), torch.zeros(3))
    assert logarithmic(torch.randn(3).bfloat16()).dtype == torch.bfloat16


def test_an_empty_batch_has_an_empty_gradient():
    x = torch.zeros(0, 3, requires_grad=True)
    QuantizedGradient(4)(x).sum().backward()
    assert x.grad is not None and x.grad.shape == (0, 3)


def test_forward_is_the_identity_and_backward_is_quantised():
    torch.manual_seed(0)
    x = torch.randn(50, requires_grad=True)
    y = QuantizedGradient(4)(x)
    assert torch.equal(y, x)
    upstream = torch.randn(50)
    y.backward(upstream)
    assert x.grad is not None
    ratio = (x.grad.abs()[x.grad != 0] / upstream.abs().max()).log2()
    torch.testing.assert_close(ratio, ratio.round(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("behind", [nn.ReLU(inplace=True), nn.Hardswish(inplace=True)])
def test_something_in_place_behind_a_layer(behind):
    torch.manual_seed(0)
    net = quantize_gradients(nn.Sequential(nn.Conv2d(3, 4, 3), behind, nn.Flatten(), nn.Linear(144, 2)), 4)
    net(torch.randn(5, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_in_a_model_by_one_call():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3))
    x = torch.randn(7, 6)
    before = net(x)
    assert quantize_gradients(net, 4, skip="3") is net
    assert torch.equal(net(x), before)
    (net(x) * torch.randn(7, 3)).sum().backward()
    assert net[0].weight.grad is not None and net[0].weight.grad.abs().sum() > 0  # pyright: ignore
    assert not hasattr(net[3], "gradient_quantizer") and hasattr(net[0], "gradient_quantizer")
    with pytest.raises(ValueError, match="already"):
        quantize_gradients(net)
    with pytest.raises(ValueError, match=r"QuantizedGradient\(bits\).*got 1"):
        QuantizedGradient(1)
