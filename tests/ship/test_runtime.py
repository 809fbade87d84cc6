"""Loading and running: what is asked of the input, no torch needed, and what says so when there is no library."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ship_kit import settled
from torch import nn

import askew
from askew.models.small_conv import small_conv
from askew.ship.graph import ShipError

WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "scipy", "sklearn", "matplotlib", "PIL", "rich", "tyro"):
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Refuse())
import logging; logging.basicConfig()
import numpy as np, askew
net = askew.load(sys.argv[1], threads=1)
np.save(sys.argv[3], net(np.load(sys.argv[2])))
print(net.engine)
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    model = settled(small_conv(8), (1, 8, 8))
    path = tmp_path_factory.mktemp("ship") / "net.askew"
    askew.export(model, askew.binary(), path, input_shape=(1, 8, 8), record="digits-askew-0")
    return path, model


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_process_without_torch(shipped: tuple[Path, nn.Module], tmp_path: Path, native: str) -> None:
    path, model = shipped
    x = torch.randn(5, 1, 8, 8)
    np.save(tmp_path / "x.npy", x.numpy())
    files = [str(path), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    environment = os.environ | {"ASKEW_NATIVE": native}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *files], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    if native == "0":
        assert done.stdout.strip() == "numpy"
    with torch.no_grad():
        expected = model(x).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, atol=1e-5 * np.abs(expected).max())


def test_wrong_inputs_are_named(shipped: tuple[Path, nn.Module]) -> None:
    net = askew.load(shipped[0])
    with pytest.raises(TypeError, match=r"float32 of shape \(batch, 1, 8, 8\), got int64"):
        net(np.zeros((2, 1, 8, 8), np.int64))
    for shape in [(1, 8, 8), (2, 3, 8, 8), (2, 1, 9, 8), (0, 1, 8, 8), (2, 1, 8, 8, 1)]:
        with pytest.raises(ValueError, match=r"takes float32 of shape \(batch, 1, 8, 8\), got shape"):
            net(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="threads"):
        askew.load(shipped[0], threads=0)


def test_other_float_types_and_layouts_are_taken(shipped: tuple[Path, nn.Module]) -> None:
    net = askew.load(shipped[0])
    x = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
    y = net(x)
    assert np.array_equal(net(x.astype(np.float64)), y)
    assert np.array_equal(net(np.asfortranarray(x)), y)
    assert np.array_equal(net(torch.from_numpy(x)), y)
    assert y.dtype == np.float32 and y.shape == (3, 10)


def test_an_image_of_another_size_where_any_will_do(tmp_path: Path) -> None:
    model = settled(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)), (3, 9, 9)
    )
    askew.export(model, askew.binary(), tmp_path / "net.askew")
    net = askew.load(tmp_path / "net.askew")
    assert net(np.zeros((2, 3, 7, 12), np.float32)).shape == (2, 2)
    with pytest.raises(ValueError, match="too small"):
        net(np.zeros((2, 3, 2, 2), np.float32))
    fixed = settled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2)), (3, 5, 5))
    askew.export(fixed, askew.binary(), tmp_path / "fixed.askew")
    with pytest.raises(ValueError, match="36 inputs"):
        askew.load(tmp_path / "fixed.askew")(np.zeros((1, 3, 6, 6), np.float32))


def test_metadata_travels(shipped: tuple[Path, nn.Module]) -> None:
    net = askew.load(shipped[0])
    assert net.metadata["record"] == "digits-askew-0" and net.metadata["model"] == "Sequential"
    assert net.metadata["levels"] == [{"name": "binary", "bits": 1, "values": [-1.0, 1.0]}]
    assert net.metadata["float_bytes"] > 20 * 100


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ShipError, match=r"none\.askew: cannot be read"):
        askew.load(tmp_path / "none.askew")


def test_the_example_ships_digits_that_agree_with_torch_on_every_image() -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "03_ship.py"))
    accuracy, same = example["main"](epochs=8)
    assert accuracy > 80 and same == 100


def test_an_image_of_another_size_is_named_with_the_layer_it_does_not_fit(tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 2)).eval()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.copy_(torch.where(layer.weight >= 0, 1.0, -1.0))
    askew.export(model, askew.binary(), tmp_path / "net.askew")
    net = askew.load(tmp_path / "net.askew")
    assert net(np.zeros((1, 3, 8, 8), np.float32)).shape == (1, 2)
    with pytest.raises(ShipError, match=r"shape \(1, 3, 9, 9\) does not fit: at .*144 inputs got 196"):
        net(np.zeros((1, 3, 9, 9), np.float32))
