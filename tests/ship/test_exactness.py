"""export(model)(x) == model(x): every bit width, layer kind, odd shape and batch size, with kernels and with numpy."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from ship_kit import both, close, on_levels, settled
from torch import Tensor, nn

from askew.core import LevelSet, binary, ternary, uniform
from askew.models.resnet import ResNet18
from askew.models.vgg_small import VGGSmall
from askew.nn import Sign, quantize_activations, quantized_relu
from askew.ship import kernels
from askew.ship.export import to_graph
from askew.ship.graph import ShipError
from askew.ship.runtime import Net

LEVELS = {
    "binary": binary(),
    "ternary": ternary(),
    "int2": uniform(2),
    "sym2": uniform(2, "symmetric"),
    "int3": uniform(3),
    "int4": uniform(4),
    "int2+1": uniform(2, "paper"),
    "int4+1": uniform(4, "paper"),
    "int8": uniform(8),
    "uneven": LevelSet((-2.0, -0.3, 0.1, 5.0, 5.5)),
}
WIDE = ("int2+1", "int4+1")  # one level takes them to twice the bits


@pytest.fixture(params=["native", "numpy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "library", lambda: None)
    elif kernels.library() is None:
        pytest.skip("the native library was not built")
    return request.param


class Residual(nn.Module):
    """Two ways that meet again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(5, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.short = nn.Conv2d(5, 5, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)) + self.short(x))
        y += x
        return torch.flatten(y, 1)


NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(37, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 3)), (37,)),
    "conv": (lambda: nn.Conv2d(3, 17, 3, stride=2, padding=1), (3, 9, 7)),
    "dilated": (lambda: nn.Conv2d(4, 6, (3, 2), padding=(2, 1), dilation=2), (4, 8, 9)),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(6, 12, 3, groups=3), nn.ReLU(), nn.Conv2d(12, 12, 3, groups=12)),
        (6, 9, 9),
    ),
    "pools": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 5, 3), nn.MaxPool2d(3, 2, 1), nn.BatchNorm2d(5), nn.AvgPool2d(2, 1, 1), nn.AdaptiveAvgPool2d(1)
        ),
        (2, 11, 13),
    ),
    "avg": (lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False)), (2, 8, 7)),
    "flatten": (lambda: nn.Sequential(nn.Conv2d(2, 5, 3), nn.Flatten(), nn.ReLU(), nn.Linear(5 * 30, 7)), (2, 7, 8)),
    "residual": (Residual, (5, 6, 7)),
    "norm first": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(), nn.Conv2d(3, 4, 2)), (3, 5, 5)),
}


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("name", NETS)
def test_float_activations(engine: str, name: str, levels: LevelSet) -> None:
    make, shape = NETS[name]
    model = settled(make(), shape, levels, scale=0.37)
    for batch in (1, 5):
        assert close(*both(model, levels, torch.randn(batch, *shape), wide=levels.name in WIDE))


@pytest.mark.parametrize("levels", [LEVELS[k] for k in ("binary", "ternary", "int4")], ids=lambda v: v.name)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_integer_activations(engine: str, levels: LevelSet, bits: int) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 9, 3, padding=1, bias=False),
        nn.BatchNorm2d(9),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(9, 12, 3, groups=3),
        nn.Flatten(),
        nn.Linear(48, 5),
    )
    model = settled(quantize_activations(model, bits), (3, 8, 8), levels, scale=0.5)
    for batch in (1, 4):
        assert close(*both(model, levels, torch.randn(batch, 3, 8, 8)))


def test_quantized_relu_between_layers(engine: str) -> None:
    model = VGGSmall(width=8, image=8, activation=partial(quantized_relu, 4))
    model = settled(model, (3, 8, 8), uniform(4), 0.1)
    assert close(*both(model, uniform(4), torch.randn(3, 3, 8, 8)))


@pytest.mark.parametrize("pool_first", [True, False])
@pytest.mark.parametrize("width", [8, 10])
def test_signs_everywhere(engine: str, pool_first: bool, width: int) -> None:
    model = VGGSmall(width=width, image=8, activation=Sign, pool_first=pool_first)
    model = settled(model, (3, 8, 8))
    for batch in (1, 6):
        assert close(*both(model, binary(), torch.randn(batch, 3, 8, 8)))


def test_signs_by_one_call_with_their_own_batchnorm(engine: str) -> None:
    """quantize_activations at one bit: the norms it puts before the signs are folded into thresholds."""
    model = nn.Sequential(
        nn.Conv2d(3, 9, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(9, 12, 3),
        nn.MaxPool2d(2),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(108, 20),
        nn.ReLU(),
        nn.Linear(20, 5),
    )
    settled(quantize_activations(model, 1), (3, 8, 8))
    ops = [n.op for n in to_graph(model, binary()).nodes]
    assert "affine" not in ops and ops.count("threshold") == 2 and ops.count("sign") == 1
    for batch in (1, 4):
        assert close(*both(model, binary(), torch.randn(batch, 3, 8, 8)))


class Keyword(nn.Module):
    """Layers, norm and activations called by keyword."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(37, 20), nn.ReLU(), nn.Linear(20, 5)
        self.norm = nn.BatchNorm1d(20) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(input=self.act(input=self.norm(input=self.a(input=x))))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("bits", [None, 4, 1])
def test_modules_called_by_keyword(engine: str, bits: int | None, norm: bool) -> None:
    model = Keyword(norm) if bits is None else quantize_activations(Keyword(norm), bits)
    assert close(*both(settled(model, (37,)), binary(), torch.randn(3, 37)))


def test_signs_with_negative_slopes_and_scales(engine: str) -> None:
    model = nn.Sequential(
        Sign(),
        nn.Conv2d(5, 9, 3, 2, 1),
        nn.BatchNorm2d(9),
        Sign(),
        nn.Conv2d(9, 11, 3, padding=2, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(11),
        Sign(),
        nn.Flatten(),
        nn.Linear(99, 20, bias=False),
        nn.BatchNorm1d(20),
        Sign(),
        nn.Linear(20, 4),
    )
    settled(model, (5, 9, 9), scale=0.25)  # a power of two: torch's sums stay exact
    with torch.no_grad():
        for i in (2, 6, 10):
            model[i].weight[::3] *= -1
    assert close(*both(model, binary(), torch.randn(7, 5, 9, 9)))


def test_signs_meet_weights_of_more_bits(engine: str) -> None:
    model = nn.Sequential(Sign(), nn.Linear(70, 30), nn.BatchNorm1d(30), Sign(), nn.Linear(30, 4))
    settled(model, (70,), uniform(4))
    assert close(*both(model, uniform(4), torch.randn(5, 70)))


@pytest.mark.parametrize("activation", [nn.ReLU, Sign])
def test_resnet_with_its_shortcuts(engine: str, activation: type[nn.Module]) -> None:
    model = settled(ResNet18(7, stem="small", activation=activation), (3, 16, 16))
    assert close(*both(model, binary(), torch.randn(2, 3, 16, 16)))


def test_embeddings(engine: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)).eval()
    on_levels(model, ternary(), 0.3)
    x = torch.randint(11, (3, 4))
    assert close(*both(model, ternary(), x))
    with pytest.raises(ValueError, match=r"0\.\.10"):
        Net(to_graph(model, ternary()))(x.numpy() + 8)


def test_signs_of_embeddings(engine: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 6), Sign(), nn.Linear(6, 10), Sign(), nn.Flatten(), nn.Linear(40, 3)).eval()
    on_levels(model, binary(), 0.5)
    assert close(*both(model, binary(), torch.randint(9, (5, 4))))


def test_signs_of_embeddings_by_one_call(engine: str) -> None:
    """A norm over features at places goes into its linear layer; behind anything else it is an error by name."""
    torch.manual_seed(0)
    layers = [nn.Embedding(9, 6), nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Flatten()]
    model = quantize_activations(nn.Sequential(*layers, nn.Linear(40, 3)), 1)
    on_levels(model, binary(), 0.5)
    for _ in range(3):
        model(torch.randint(9, (16, 4)))
    assert close(*both(model.eval(), binary(), torch.randint(9, (5, 4))))
    sums = quantize_activations(nn.Sequential(nn.Embedding(9, 6), Doubled(), nn.ReLU()), 1).eval()
    with pytest.raises(ShipError, match=r"'2\.norm' \(affine\): cannot take a value of 3 dimensions"):
        to_graph(sums, None)


class Forked(nn.Module):
    """A linear layer that an activation and a sum look at."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(6, 5), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.act(y) + y


def test_a_norm_stays_out_of_a_layer_with_other_users(engine: str) -> None:
    model = settled(quantize_activations(Forked(), 1), (6,))
    assert close(*both(model, binary(), torch.randn(5, 6)))


class Doubled(nn.Module):
    """A sum behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y + y


class Reused(nn.Module):
    """One layer at two places, and views in the place of Flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 30, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(self.conv(x)))
        return self.head(x.view(x.size(0), -1)) + self.head(x.reshape(x.shape[0], -1))


def test_modules_called_twice_and_views(engine: str) -> None:
    model = settled(Reused(), (4, 5, 6))
    assert close(*both(model, binary(), torch.randn(3, 4, 5, 6)))


def test_full_precision_and_mixed_levels(engine: str) -> None:
    model = settled(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4)), (20,))
    x = torch.randn(6, 20)
    graph = to_graph(model, {"0": binary()})
    assert [n.weight.bits for n in graph.nodes if n.weight] == [1, 32]
    with torch.no_grad():
        assert close(model(x).numpy(), Net(graph, 1)(x.numpy()))
    assert close(*both(model, None, x))


def test_threads_and_engines_agree() -> None:
    if kernels.library() is None:
        pytest.skip("the native library was not built")
    model = settled(VGGSmall(width=16, image=16, activation=Sign), (3, 16, 16))
    graph, x = to_graph(model, binary()), torch.randn(9, 3, 16, 16).numpy()
    one = Net(graph, 1)(x)
    assert np.array_equal(Net(graph, 4)(x), one)
    for name in ("portable", "avx2"):
        with kernels.limited(name):
            assert close(one, Net(graph, 2)(x))
