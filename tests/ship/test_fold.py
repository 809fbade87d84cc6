"""BatchNorm folded away: the same numbers, the same signs, no level touched."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from ship_kit import settled, signs
from torch import nn

from askew.core import binary
from askew.nn import Sign
from askew.ship.export import to_graph
from askew.ship.fold import LIMIT, batchnorm, thresholds
from askew.ship.runtime import Net

finite = st.floats(-100, 100, allow_nan=False)


@given(finite, finite, st.integers(-200, 200))
def test_a_threshold_is_the_sign_of_the_line(s: float, b: float, z: int) -> None:
    t, flip = thresholds(np.array([s]), np.array([b]))
    value = s * z + b
    if abs(value) > 1e-9 * (abs(s * z) + abs(b)) or s == 0:
        assert bool((z >= t[0]) != flip[0]) == (value >= 0)


def test_extreme_lines_stay_within_int32() -> None:
    s, b = np.array([1e-30, -1e-30, 0.0, 0.0]), np.array([-1.0, -1.0, 1.0, -1.0])
    t, flip = thresholds(s, b)
    assert t.tolist()[0] == LIMIT and t[2] == -LIMIT and t[3] == LIMIT
    assert flip.tolist() == [False, True, False, False]


def test_batchnorm_is_its_line() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(7).eval()
    with torch.no_grad():
        for t in (norm.weight, norm.bias, norm.running_mean):
            assert t is not None
            t.normal_()
        assert norm.running_var is not None
        norm.running_var.uniform_(0.1, 3)
    arrays = [t.detach().double().numpy() for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)]
    s, b = batchnorm(arrays[0], arrays[1], norm.eps, arrays[2], arrays[3])
    z = torch.randn(5, 7)
    np.testing.assert_allclose(s * z.numpy() + b, norm(z).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_codes_and_levels_are_those_of_the_weights() -> None:
    model = settled(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (3, 6, 6))
    graph = to_graph(model, binary())
    assert [n.op for n in graph.nodes] == ["input", "conv2d", "relu"]
    weight = graph.nodes[1].weight
    assert weight is not None and weight.levels == (-1.0, 1.0)
    assert np.array_equal(weight.dense(), model[0].weight.detach().numpy())


def test_signs_between_layers_become_thresholds_before_the_pool() -> None:
    conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    layers = [
        nn.Conv2d(2, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        Sign(),
        conv,
        nn.BatchNorm2d(8),
        nn.MaxPool2d(2),
        Sign(),
    ]
    model = settled(nn.Sequential(*layers, nn.Flatten(), nn.Linear(72, 5)), (2, 8, 8))
    graph = to_graph(model, binary())
    expected = ["input", "conv2d", "sign", "conv2d", "threshold", "max_pool", "flatten", "linear"]
    assert [n.op for n in graph.nodes] == expected
    assert graph.nodes[3].arrays == {}


def test_thresholds_equal_torch_for_slopes_of_both_signs() -> None:
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(50, 40, bias=False), nn.BatchNorm1d(40), Sign())
    model = settled(nn.Sequential(Sign(), *inner, nn.Linear(40, 40, bias=False)), (50,))
    with torch.no_grad():
        model[2].weight.copy_(signs(40) * 0.7)
    graph = to_graph(model, binary())
    node = next(n for n in graph.nodes if n.op == "threshold")
    z = torch.arange(-50, 51, 2).float()[:, None].expand(-1, 40)
    y = model[2](z).detach().numpy()
    flip = np.unpackbits(node.arrays["flip"], bitorder="little", count=40).astype(bool)
    ours = (z.numpy() >= node.arrays["threshold"]) != flip
    clear = np.abs(y) > 1e-5
    assert clear.mean() > 0.99 and np.array_equal(ours[clear], (y >= 0)[clear])


def pooled(*tail: nn.Module) -> nn.Sequential:
    """conv -> pool -> BN with slopes of both signs and one of 0 -> sign -> tail, behind a layer of signs."""
    inner = [nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(12), Sign()]
    first = [nn.Conv2d(2, 8, 3, bias=False), nn.BatchNorm2d(8), Sign()]
    model = settled(nn.Sequential(*first, *inner, *tail), (2, 12, 12))
    with torch.no_grad():
        model[5].weight.copy_(signs(12) * 0.7)
        model[5].weight[3] = 0.0
    return model


def test_a_negative_slope_behind_a_pool_goes_into_the_next_weights() -> None:
    tails = {
        "conv": [nn.Conv2d(12, 6, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(150, 4, bias=False)],
        "flat": [nn.Flatten(), nn.Linear(300, 6, bias=False)],
    }
    for name, tail in tails.items():
        model = pooled(*tail)
        assert (model[5].weight < 0).any() and (model[5].weight > 0).any()
        graph = to_graph(model, binary())
        assert [n.op for n in graph.nodes][3:6] == ["conv2d", "threshold", "max_pool"], name
        assert not any(n.op == "affine" for n in graph.nodes)
        x = torch.randn(50, 2, 12, 12)
        with torch.no_grad():
            expected = model(x).numpy()
        apart = np.abs(Net(graph, 1)(x.numpy()) - expected).reshape(50, -1).max(1)
        assert (apart < 1e-3).mean() >= 0.9, name  # a value on a threshold may fall to either side


def test_a_sign_that_others_see_keeps_its_slopes() -> None:
    """A second pool looks at it: nothing to put the minus into."""
    model = pooled(nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(192, 3, bias=False))
    graph = to_graph(model, binary())
    assert sum(n.op == "affine" for n in graph.nodes) == 1
    x = torch.randn(50, 2, 12, 12)
    with torch.no_grad():
        apart = np.abs(Net(graph, 1)(x.numpy()) - model(x).numpy()).max(1)
    assert (apart < 1e-3).mean() >= 0.9
