"""VGG-small: shapes, weights counted by hand, the two places of the pool."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from askew.models.vgg_small import VGGSmall


class Sign(nn.Module):
    def forward(self, x):
        return torch.where(x < 0, -1.0, 1.0)


def count(model):
    return sum(p.numel() for p in model.parameters())


# 3x3 convolutions at 3-128-128-256-256-512-512 channels:
#   3,456 + 147,456 + 294,912 + 589,824 + 1,179,648 + 2,359,296 = 4,574,592
# and the linear layer from 512 channels times (image/8)^2 places to the classes.
@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, 4_574_592 + 512 * 4 * 4 * 10),  # 4,656,512
        ({"classes": 100}, 4_574_592 + 512 * 4 * 4 * 100),  # 5,393,792
        ({"classes": 200, "image": 64}, 4_574_592 + 512 * 8 * 8 * 200),  # 11,128,192
        ({"width": 64}, 1_144_512 + 256 * 4 * 4 * 10),  # a quarter of each, but half of the first: 1,185,472
        ({"head_norm": False, "pool_first": True}, 4_656_512),  # neither has weights
    ],
)
def test_weights(options, weights):
    assert count(VGGSmall(**options)) == weights


@pytest.mark.parametrize("pool_first", [False, True])
@pytest.mark.parametrize("image", [8, 28, 32, 64, 224])
def test_shapes(image, pool_first):
    model = VGGSmall(classes=7, width=4, image=image, pool_first=pool_first)
    places = []
    for block in model.features:
        block.register_forward_hook(lambda _, __, y: places.append(tuple(y.shape[1:])))
    assert model(torch.randn(2, 3, image, image)).shape == (2, 7)
    half, quarter, eighth = image // 2, image // 4, image // 8
    sides = [image, half, half, quarter, quarter, eighth]
    assert places == [(c, s, s) for c, s in zip([4, 4, 8, 8, 16, 16], sides, strict=True)]


def test_an_image_too_small_for_three_poolings():
    with pytest.raises(ValueError, match="at least 8x8, not 7x7"):
        VGGSmall(image=7)


@pytest.mark.parametrize(
    ("pool_first", "with_pool"),
    [(False, ["conv", "norm", "activation", "pool"]), (True, ["conv", "pool", "norm", "activation"])],
)
def test_order_of_the_layers(pool_first, with_pool):
    model = VGGSmall(width=2, pool_first=pool_first)
    orders = [[name for name, _ in block.named_children()] for block in model.features]
    assert orders == [["conv", "norm", "activation"], with_pool] * 3
    assert [name for name, _ in model.head.named_children()] == ["flatten", "linear", "norm"]
    plain = VGGSmall(width=2, head_norm=False)
    assert [name for name, _ in plain.head.named_children()] == ["flatten", "linear"]


@pytest.mark.parametrize("activation", [nn.ReLU, Sign])
def test_both_orders_agree_at_given_statistics(activation):
    """max commutes with what does not decrease, BN without affine and the activation: equal to the last bit."""
    torch.manual_seed(0)
    late = VGGSmall(width=4, activation=activation)
    early = VGGSmall(width=4, activation=activation, pool_first=True)
    x = torch.randn(16, 3, 32, 32)
    late(x)
    early.load_state_dict(late.state_dict())
    assert torch.equal(late.eval()(x), early.eval()(x))


def test_pooling_first_keeps_sign_activations_balanced():
    """What enters each layer after a pool is -1 or +1 either way, but mostly +1 if the pool comes last."""
    torch.manual_seed(0)
    x = torch.randn(16, 3, 32, 32)
    means = {}
    for pool_first in (False, True):
        model = VGGSmall(width=8, activation=Sign, pool_first=pool_first)
        y = model.features[:2](x)
        assert set(y.unique().tolist()) == {-1.0, 1.0}
        means[pool_first] = y.mean().item()
    assert abs(means[True]) < 0.2 and means[False] > 0.5, means


def test_normalised_logits():
    """With head_norm each logit has mean 0 and variance 1 over the training batch."""
    torch.manual_seed(0)
    y = VGGSmall(width=4)(torch.randn(32, 3, 32, 32))
    torch.testing.assert_close(y.mean(0), torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.var(0, correction=0), torch.ones(10), atol=1e-2, rtol=0)
