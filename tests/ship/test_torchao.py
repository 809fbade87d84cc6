"""Linear weights as torchao tensors: the same values, and what torchao cannot hold is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ship_kit import on_levels, settled
from torch import Tensor, nn

import askew
from askew.core import LevelSet, binary, ternary, uniform
from askew.ship.graph import ShipError

intx = pytest.importorskip("torchao.quantization").IntxUnpackedToInt8Tensor
LEVELS = {
    "binary": (binary(), torch.int2),
    "ternary": (ternary(), torch.int2),
    "int2": (uniform(2), torch.int2),
    "symmetric": (uniform(2, "symmetric"), torch.int3),
    "int4": (uniform(4), torch.int4),
    "paper": (uniform(4, "paper"), torch.int5),
}


def mlp() -> Any:
    return nn.Sequential(nn.Linear(20, 18), nn.BatchNorm1d(18), nn.ReLU(), nn.Linear(18, 10))


def shipped(model: nn.Module, how: Any, folder: Path, wide: bool = False) -> dict[str, Any]:
    done = askew.export(model, how, folder / "net.askew", torchao=folder / "net.pt", wide=wide)
    assert done.torchao_bytes == (folder / "net.pt").stat().st_size
    return torch.load(folder / "net.pt", weights_only=True)


@pytest.mark.parametrize("name", LEVELS)
def test_the_model_computes_the_same(name: str, tmp_path: Path) -> None:
    levels, dtype = LEVELS[name]
    model = settled(mlp(), (20,), levels, scale=0.037)
    state = shipped(model, levels, tmp_path, wide=name == "paper")
    assert isinstance(state["0.weight"], intx) and state["0.weight"].target_dtype == dtype
    other = mlp().eval()
    other.load_state_dict(state, assign=True)
    x = torch.randn(7, 20)
    with torch.no_grad():
        torch.testing.assert_close(other(x), model(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(other[0].weight.dequantize(), model[0].weight, rtol=1e-6, atol=0)


def test_scales_of_the_optimizer_are_kept_while_they_follow_the_weights(tmp_path: Path) -> None:
    model = mlp()
    groups = askew.groups(model, uniform(4), scale="sawb", per="channel")
    optimizer = askew.ASkew(torch.optim.Adam(groups, lr=0.01), askew.LevelFirst(), total_steps=4)
    before = model[0].weight.detach().clone()
    state = shipped(model.eval(), optimizer, tmp_path)
    assert torch.equal(model[0].weight, before)  # the model itself is left as it is
    assert state["0.weight"].scale.shape == (18, 1)
    with askew.snapped(optimizer):
        torch.testing.assert_close(state["0.weight"].dequantize(), model[0].weight.detach(), rtol=1e-6, atol=0)


def test_convolutions_stay_floats_on_their_levels(tmp_path: Path) -> None:
    net: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    model: Any = settled(net, (3, 8, 8))
    state = shipped(model, binary(), tmp_path)
    assert type(state["0.weight"]) is Tensor and torch.equal(state["0.weight"], model[0].weight)
    assert isinstance(state["3.weight"], intx)


def test_what_torchao_cannot_hold_is_named(tmp_path: Path) -> None:
    uneven = LevelSet((-1.0, 0.3, 1.0), "uneven")
    with pytest.raises(ShipError, match=r"0\.weight: torchao holds equally spaced"):
        shipped(on_levels(mlp(), uneven).eval(), uneven, tmp_path)
    assert not (tmp_path / "net.pt").exists()
    with pytest.raises(ShipError, match="no Linear weight lies on levels"):
        shipped(mlp().eval(), None, tmp_path)
