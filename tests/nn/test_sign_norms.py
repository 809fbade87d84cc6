"""BatchNorm before signs: put where none is, left out behind a norm, named in a warning where it cannot be told."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import askew
from askew.models import norm as models_norm
from askew.models.resnet import ResNet18
from askew.models.small_conv import small_conv
from askew.models.vgg_small import VGGSmall
from askew.nn import NormWarning, Sign, quantize_activations
from askew.train.evaluate import reestimate_batchnorm


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def quiet(model: nn.Module, **options: object) -> nn.Module:
    """One bit, and a NormWarning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NormWarning)
        return quantize_activations(model, 1, **options)  # pyright: ignore[reportArgumentType]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


OWN_NORMS = {
    "VGG-small": (
        lambda: VGGSmall(width=4, image=8, pool_first=True),
        lambda: VGGSmall(width=4, image=8, activation=Sign, pool_first=True),
    ),
    "VGG-small, pool last": (
        lambda: VGGSmall(width=4, image=8),
        lambda: VGGSmall(width=4, image=8, activation=Sign),
    ),
    "ResNet-18": (
        lambda: ResNet18(classes=4, stem="tiny"),
        lambda: ResNet18(classes=4, stem="tiny", activation=Sign),
    ),
}


@pytest.mark.parametrize("name", OWN_NORMS)
@pytest.mark.parametrize("device", ["none", "cuda"])
def test_our_models_stay_as_they_are(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit the models with Sign injected, and the same state dict; with kernels for a GPU or without."""
    monkeypatch.setattr(models_norm, "DEVICES", {device})
    plain, injected = OWN_NORMS[name]
    model, twin = quiet(seeded(plain)), seeded(injected)
    assert [(n, type(m)) for n, m in model.named_modules()] == [(n, type(m)) for n, m in twin.named_modules()]
    x = torch.randn(4, 3, 32, 32) if "ResNet" in name else torch.randn(4, 3, 8, 8)
    assert torch.equal(model(x), twin(x)) and list(model.state_dict()) == list(twin.state_dict())
    assert torch.equal(model.eval()(x), twin.eval()(x))


def test_small_conv_and_other_norms_need_none() -> None:
    assert sum(isinstance(m, nn.BatchNorm2d) for m in quiet(small_conv()).modules()) == 3
    for norm in (nn.BatchNorm1d(5), nn.LayerNorm(5), nn.GroupNorm(1, 5)):
        model = quiet(nn.Sequential(nn.Linear(6, 5), norm, nn.Dropout(), nn.ReLU(), nn.Linear(5, 3)))
        assert isinstance(model[3], Sign)  # pyright: ignore[reportIndexIssue]


def test_a_linear_layer_gets_a_batchnorm() -> None:
    model = quiet(seeded(mlp), gradient="clip")
    names = [n for n, _ in model.named_parameters()]
    assert names == [n for n, _ in mlp().named_parameters()]
    put = model.get_submodule("1")
    assert isinstance(put.norm, nn.BatchNorm1d) and not put.norm.affine and put.norm.num_features == 5
    assert isinstance(put.sign, Sign) and put.sign.gradient == "clip"
    x = torch.randn(400, 6)
    plain = seeded(mlp).get_submodule("0")(x)
    out = model.get_submodule("1")(model.get_submodule("0")(x))
    assert torch.equal(out, torch.where(plain >= plain.mean(0), 1.0, -1.0))
    assert quiet(mlp(), norm=False).get_submodule("1").__class__ is Sign


def test_a_norm_may_learn_where_the_sign_changes() -> None:
    put = quiet(mlp(), norm="affine").get_submodule("1")
    assert put.norm.weight.shape == put.norm.bias.shape == (5,)
    with torch.no_grad():
        put.norm.bias.copy_(torch.tensor([9.0, -9.0, 0.0, 0.0, 0.0]))
    out = put(torch.randn(400, 5))
    assert (out[:, 0] == 1).all() and (out[:, 1] == -1).all() and 100 < (out[:, 2] == 1).sum() < 300
    with pytest.raises(ValueError, match="norm must be True, False or 'affine', got 'layer'"):
        quantize_activations(mlp(), 1, norm="layer")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (nn.Conv1d(3, 5, 2), nn.BatchNorm1d, (4, 3, 9)),
        (nn.Conv2d(3, 5, 2), nn.BatchNorm2d, (4, 3, 9, 8)),
        (nn.ConvTranspose2d(3, 5, 2), nn.BatchNorm2d, (4, 3, 9, 8)),
        (nn.Conv3d(3, 5, 2), nn.BatchNorm3d, (4, 3, 5, 4, 3)),
        (nn.Linear(3, 5), nn.BatchNorm1d, (4, 3)),
        (nn.Linear(3, 5), nn.BatchNorm1d, (7, 5, 3)),  # as many places as features
        (nn.Linear(3, 5), nn.BatchNorm1d, (2, 4, 6, 3)),
    ],
)
def test_channels_of_every_layer(layer: nn.Module, norm: type[nn.Module], shape: tuple[int, ...]) -> None:
    """The norm has the layer's channels, whose means over all else it takes away."""
    model = quiet(nn.Sequential(layer, nn.GELU()).double())
    put = model.get_submodule("1")
    assert type(put.norm) is norm and put.norm.running_mean.dtype == torch.float64
    x = torch.randn(shape, dtype=torch.float64)
    y = layer(x)
    axis = -1 if isinstance(layer, nn.Linear) else 1
    means = y.movedim(axis, -1).flatten(0, -2).mean(0)
    wide = means if axis == -1 else means.view(-1, *[1] * (y.ndim - 2))
    assert torch.equal(model(x), torch.where(y >= wide, 1.0, -1.0).double())
    torch.testing.assert_close(put.norm.running_mean, 0.1 * means)
    assert model.eval()(x[:0]).shape == y[:0].shape


class Paths(nn.Module):
    """Sums and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1)
        self.norm, self.pool = nn.BatchNorm2d(6), nn.MaxPool2d(2)
        self.first, self.second, self.third = nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(input=self.a(x) + self.b(x))
        y = self.pool(self.norm(self.c(y)))
        return self.third(self.second(y))


def test_sums_and_pools_pass_the_width_on() -> None:
    model = quiet(Paths())
    widths = {n: m.num_features for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert widths == {"norm": 6, "first.norm": 4, "second.norm": 6, "third.norm": 6}
    model(torch.randn(2, 3, 4, 4))


def test_a_model_that_is_a_chain_itself() -> None:
    assert isinstance(quiet(VGGSmall(width=4, image=8).features[0]).get_submodule("activation"), Sign)


def test_a_module_named_like_a_sum_is_none() -> None:
    """`add` here flattens, so the width of the convolution says nothing."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.add, self.act = nn.Conv1d(6, 4, 1), nn.Flatten(), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.add(self.conv(x)))

    with pytest.warns(NormWarning, match="the signs act, "):
        quantize_activations(Flat(), 1)


class Wanders(nn.Module):
    """A forward that looks at its input, around parts that do not; keeps what it saw, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.activation = nn.ReLU()
        self.seen: Tensor | None = None
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        self.count.add_(1)
        y = self.body(x)
        return self.activation(y) if y.sum() > 0 else y


def test_what_cannot_be_traced_is_named() -> None:
    model = Wanders()
    with pytest.warns(NormWarning, match=r"Wanders: no BatchNorm before the signs activation, .*norm=False") as caught:
        quantize_activations(model, 1)
    assert caught[0].filename == __file__
    assert isinstance(model.body[1].norm, nn.BatchNorm1d) and isinstance(model.activation, Sign)  # pyright: ignore
    assert model.seen is None and model.count == 0  # the trace left nothing behind
    quiet(Wanders(), norm=False)
    quiet(Wanders(), skip="activation")


def test_one_activation_at_two_places() -> None:
    class Shared(nn.Module):
        def __init__(self, norm: bool) -> None:
            super().__init__()
            self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()
            self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.norm(self.b(self.act(self.norm(self.a(x))))))

    assert isinstance(quiet(Shared(True)).act, Sign)
    with pytest.warns(NormWarning, match="the signs act, "):
        assert isinstance(quantize_activations(Shared(False), 1).act, Sign)


@pytest.mark.parametrize(
    "front",
    [[], [nn.Linear(6, 8), nn.MaxPool1d(2)], [nn.Conv1d(6, 4, 1), nn.Flatten()], [nn.Embedding(6, 4)]],
    ids=["input", "pooled features", "flattened", "embedding"],
)
def test_unknown_widths_are_named(front: list[nn.Module]) -> None:
    with pytest.warns(NormWarning, match=f"the signs {len(front)}, "):
        quantize_activations(nn.Sequential(*front, nn.ReLU(), nn.Linear(4, 2)), 1)


def test_only_signs_get_norms() -> None:
    assert not any(isinstance(m, nn.BatchNorm1d) for m in quantize_activations(mlp(), 4, at="activations").modules())


def test_copies_files_modes_and_reestimation() -> None:
    model = quiet(seeded(mlp).eval())
    assert not any(m.training for m in model.modules())
    batches = [(torch.randn(16, 6), torch.zeros(16)) for _ in range(3)]
    reestimate_batchnorm(model, batches)
    x = torch.randn(5, 6)
    other = quiet(mlp()).eval()
    other.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other):
        assert torch.equal(twin(x), model(x))
    torch.testing.assert_close(torch.cat([model(row) for row in x.split(1)]), model(x))  # no batch statistics
    assert int(model.get_submodule("1.norm").num_batches_tracked) == 3  # pyright: ignore[reportArgumentType]


def test_one_bit_everywhere_learns_by_one_call() -> None:
    """Inputs far from zero: signs alone would hardly ever change from one of them to the next."""

    def accuracy(norm: bool) -> float:
        torch.manual_seed(0)
        layers = [nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)]
        model = quiet(nn.Sequential(*layers), norm=norm)
        x = 3 + torch.rand(256, 6)
        y = (x[:, 0] > x[:, 1]).long()
        groups = askew.groups(model, askew.binary(), skip="4")
        opt = askew.ASkew(torch.optim.Adam(groups, lr=0.03), askew.LevelFirst(start=0.5), total_steps=200)
        for _ in range(200):
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        with askew.snapped(opt):
            return float((model(x).argmax(1) == y).float().mean())

    assert accuracy(norm=False) < 0.75 < accuracy(norm=True)


def test_compiled_whole() -> None:
    model = quiet(seeded(mlp))
    twin = copy.deepcopy(model)
    x = torch.randn(7, 6)
    assert torch.equal(torch.compile(twin, fullgraph=True, backend="aot_eager")(x), model(x))
