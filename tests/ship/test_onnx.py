"""ONNX files: packed weights, standard operators, and onnxruntime gives what torch gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ship_kit import close, on_levels, settled
from torch import nn

from askew.core import LevelSet, binary, ternary, uniform
from askew.models.resnet import ResNet18
from askew.models.vgg_small import VGGSmall
from askew.nn import Sign, quantize_activations
from askew.ship.export import float_bytes, to_graph

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from askew.ship.onnx import save_onnx, session, signed, to_onnx  # noqa: E402


def run(
    model: nn.Module, levels: LevelSet | None, x: torch.Tensor, path: Path, wide: bool = False
) -> tuple[np.ndarray, np.ndarray, int]:
    size = save_onnx(to_graph(model, levels, wide=wide), path)
    with torch.no_grad():
        return model(x).numpy(), session(path).run(None, {"input": x.numpy()})[0], size


@pytest.mark.parametrize(
    ("levels", "kind"),
    [
        (binary(), "INT2"),
        (ternary(), "INT2"),
        (uniform(2), "INT2"),
        (uniform(2, "symmetric"), "INT4"),
        (uniform(4), "INT4"),
        (uniform(4, "paper"), "INT8"),
        (uniform(8), "INT8"),
        (LevelSet((-2.0, -0.3, 0.1)), None),
    ],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_every_level_set(tmp_path: Path, levels: LevelSet, kind: str | None) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 40), nn.Linear(40, 5)
    )
    settled(model, (3, 7, 7), levels, scale=0.3)
    wide = levels.name == "int4+1"
    expected, got, _ = run(model, levels, torch.randn(4, 3, 7, 7), tmp_path / "net.onnx", wide)
    assert close(expected, got)
    weight = next(n.weight for n in to_graph(model, levels, wide=wide).nodes if n.weight)
    found = signed(weight)
    assert (found[0] if found else None) == kind


def test_networks(tmp_path: Path) -> None:
    for model, image in ((ResNet18(9, stem="tiny"), 32), (VGGSmall(width=32, image=16), 16)):
        settled(model, (3, image, image))
        expected, got, size = run(model, binary(), torch.randn(2, 3, image, image), tmp_path / "net.onnx")
        assert close(expected, got)
        assert float_bytes(model) / size > 12  # two bits a weight, 16 at most


def test_signs_and_integers(tmp_path: Path) -> None:
    model = settled(VGGSmall(width=8, image=8, activation=Sign, pool_first=True), (3, 8, 8))
    expected, got, _ = run(model, binary(), torch.randn(3, 3, 8, 8), tmp_path / "sign.onnx")
    assert close(expected, got)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.AvgPool2d(2, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = settled(quantize_activations(nn.Sequential(*model, nn.Linear(4, 2)), 4), (2, 6, 6))
    expected, got, _ = run(model, binary(), torch.randn(3, 2, 6, 6), tmp_path / "codes.onnx")
    assert close(expected, got)


def test_negative_slopes_and_embeddings(tmp_path: Path) -> None:
    model = nn.Sequential(Sign(), nn.Linear(20, 9), nn.BatchNorm1d(9), Sign(), nn.Linear(9, 4), nn.BatchNorm1d(4))
    settled(model, (20,), scale=0.5)
    with torch.no_grad():
        model[2].weight[::2] *= -1
        model[5].weight[::2] *= -1
    expected, got, _ = run(model, binary(), torch.randn(5, 20), tmp_path / "slopes.onnx")
    assert close(expected, got)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3), nn.Flatten(), nn.Linear(6, 2)).eval()
    expected, got, _ = run(on_levels(model, ternary(), 0.2), ternary(), torch.randint(7, (5, 2)), tmp_path / "e.onnx")
    assert close(expected, got)


def test_the_model_says_who_made_it() -> None:
    model = settled(nn.Sequential(nn.Linear(4, 2)), (4,))
    made = to_onnx(to_graph(model, binary()))
    assert made.producer_name == "askew" and made.opset_import[0].version == 25
