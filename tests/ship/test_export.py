"""What export takes from the optimizer, what it refuses, and how small the file gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ship_kit import close, settled
from torch import Tensor, nn
from torch.nn.functional import gelu

import askew
from askew.methods.binaryconnect import BinaryConnect
from askew.methods.registry import method
from askew.models.resnet import ResNet18
from askew.nn import quantize_activations
from askew.optim import MethodOptimizer
from askew.ship.export import to_graph
from askew.ship.graph import ShipError
from askew.ship.runtime import Net


def trained(scale: str, per: str, levels: askew.LevelSet, steps: int = 12) -> tuple[nn.Sequential, askew.ASkew]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 3))
    groups = askew.groups(model, levels=levels, scale=scale, per=per)
    optimizer = askew.ASkew(torch.optim.Adam(groups, lr=0.05), askew.LevelFirst(start=0.5), total_steps=steps)
    x, y = torch.randn(64, 12), torch.randint(3, (64,))
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), optimizer


@pytest.mark.parametrize("levels", [askew.binary(), askew.ternary(), askew.uniform(4)], ids=lambda v: v.name)
@pytest.mark.parametrize(("scale", "per"), [("none", "tensor"), ("abs-mean", "channel"), ("sawb", "tensor")])
@pytest.mark.parametrize("steps", [12, 7])
def test_levels_and_scales_are_the_optimizers_own(levels: askew.LevelSet, scale: str, per: str, steps: int) -> None:
    model, optimizer = trained(scale, per, levels)
    if steps == 7:  # half-way: export snaps, and leaves the model as it was
        with torch.no_grad():
            model[0].weight += 0.01
    before = model[0].weight.detach().clone()
    net = Net(to_graph(model, optimizer), 1)
    assert torch.equal(model[0].weight, before)
    x = torch.randn(9, 12)
    with askew.snapped(optimizer), torch.no_grad():
        assert close(model(x).numpy(), net(x.numpy()))


@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_scales_that_still_follow_their_weights_ship_in_few_bits(per: str) -> None:
    """Before annealing the scale is taken from the weights; the snapped ones would give another."""
    model = nn.Sequential(nn.Linear(20, 18)).eval()
    groups = askew.groups(model, levels=askew.uniform(4), scale="sawb", per=per)
    optimizer = askew.ASkew(torch.optim.Adam(groups, lr=0.01), askew.LevelFirst(), total_steps=4)
    graph = to_graph(model, optimizer)
    assert [n.weight.bits for n in graph.nodes if n.weight is not None] == [4]
    x = torch.randn(9, 20)
    with askew.snapped(optimizer), torch.no_grad():
        assert close(model(x).numpy(), Net(graph, 1)(x.numpy()))


def test_a_latent_method_ships_its_forward_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4)).eval()
    optimizer = MethodOptimizer(torch.optim.SGD(askew.groups(model, levels=askew.binary()), lr=0.1), BinaryConnect())
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert close(model(x).numpy(), Net(to_graph(model, optimizer), 1)(x.numpy()))


def test_tied_weights_are_found_by_both_names() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    settled(model, (6,))
    graph = to_graph(model, askew.binary())
    assert [n.weight.bits for n in graph.nodes if n.weight] == [1, 1]


def test_a_weight_off_its_levels_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    with pytest.raises(ShipError, match=r"0\.weight: .* no multiple of the levels .* snap it"):
        to_graph(model, askew.binary())


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("by", ["optimizer", "levels"])
def test_one_level_too_many_is_named_and_goes_wide_if_told(bits: int, by: str, tmp_path: Path) -> None:
    """The paper's form: 17 levels would take 8 bits a weight, 5 would take 4."""
    levels, path = askew.uniform(bits, "paper"), tmp_path / "net.askew"
    model = settled(nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 4)), (40,), levels)
    how = {"0": askew.binary(), "2": levels} if by == "levels" else levels
    with torch.no_grad():
        model[0].weight.sign_()
        model[0].weight[model[0].weight == 0] = 1.0
    if by == "optimizer":
        groups = askew.groups(model, {"0": askew.binary(), "2": levels})
        how = askew.ASkew(torch.optim.SGD(groups, lr=0.1), total_steps=4)
    count, wide = 2**bits + 1, 2 * bits
    message = rf"2\.weight: {count} levels take {wide} bits a weight, twice the {bits} of {count - 1} levels; train .*"
    with pytest.raises(ShipError, match=message + rf"uniform\({bits}\) .*'symmetric'.* wide=True, .*--wide"):
        askew.export(model, how, path)
    assert not path.exists()
    askew.export(model, how, path, wide=True)
    net, x = askew.load(path, 1), torch.randn(5, 40)
    assert [n.weight.bits for n in to_graph(model, how, wide=True).nodes if n.weight] == [1, wide]
    with torch.no_grad():
        assert close(model(x).numpy(), net(x.numpy()))


def test_more_levels_than_a_byte_holds_are_named() -> None:
    model = settled(nn.Sequential(nn.Linear(40, 30)), (40,), askew.uniform(8, "paper"))
    for wide in (False, True):
        with pytest.raises(ShipError, match=r"0\.weight: 257 levels do not fit in 8 bits"):
            to_graph(model, askew.uniform(8, "paper"), wide=wide)


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return gelu(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.GELU()), r"1: the module GELU.* not supported"),
        (nn.Sequential(nn.Linear(4, 4), Odd()), "gelu.* not supported"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)), "1: BatchNorm without running"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")), r"0: padding must be numbers and zeros"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding="same")), r"0: padding must be numbers"),
        (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(2, 2, 1)), "0: the module MaxPool2d"),
        (nn.Sequential(nn.Conv2d(2, 2, 1), nn.AdaptiveAvgPool2d(2)), "1: the module AdaptiveAvgPool2d"),
        (quantize_activations(nn.Sequential(nn.Linear(4, 4)), 4), "input_quantizer: its scale was never measured"),
    ],
    ids=["gelu", "function", "batchnorm", "reflect", "same", "ceil", "adaptive", "unmeasured"],
)
def test_what_cannot_be_shipped_is_named(model: nn.Module, message: str) -> None:
    with pytest.raises(ShipError, match=message):
        to_graph(model.eval(), None)


def test_a_hook_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda m, i, o: o + 1)
    with pytest.raises(ShipError, match="forward hook"):
        to_graph(model, None)


def test_two_inputs_are_an_error() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.layer(x) + y

    with pytest.raises(ShipError, match="more than one input"):
        to_graph(Two(), None)


def test_the_file_of_a_one_bit_resnet_is_28_times_smaller(tmp_path: Path) -> None:
    model = settled(ResNet18(200, stem="tiny"), (3, 32, 32))
    done = askew.export(model, askew.binary(), tmp_path / "net.askew")
    assert done.bytes == (tmp_path / "net.askew").stat().st_size
    assert done.ratio >= 28 and done.float_bytes == 4 * sum(
        t.numel() for t in model.state_dict().values() if t.is_floating_point()
    )


def test_other_tools_read_the_file(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    model = settled(nn.Sequential(nn.Linear(9, 4)), (9,))
    askew.export(model, askew.binary(), tmp_path / "net.askew")
    tensors = safetensors.load_file(tmp_path / "net.askew")
    bits = np.unpackbits(tensors["0.weight"], bitorder="little", count=36).reshape(4, 9)
    assert np.array_equal(2.0 * bits - 1, model[0].weight.detach().numpy())


def test_a_method_that_finds_its_levels_itself_ships_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3))
    groups = askew.groups(model, levels=askew.uniform(2))
    optimizer = MethodOptimizer(torch.optim.SGD(groups, lr=0.01), method("parq"), total_steps=5)
    x = torch.randn(9, 12)
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    graph = to_graph(model, optimizer)
    assert all(n.weight.bits <= 4 for n in graph.nodes if n.weight)
    with askew.snapped(optimizer), torch.no_grad():
        assert close(model(x).numpy(), Net(graph, 1)(x.numpy()))
