"""Starting from a float checkpoint: names, prefixes, torchvision's names, and files that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from image_kit import pictures, small_job
from torch import nn

from askew.models.resnet import ResNet18
from askew.models.small_conv import small_conv
from askew.train.checkpoint import CheckpointError, read_file
from askew.train.images import train_images
from askew.train.initial import initialise, match, our_name, plain_name, spread


def foreign_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our ResNet's names as torchvision has them."""
    out = {}
    for name, tensor in state.items():
        for ours, theirs in (
            ("stem.conv.", "conv1."),
            ("stem.norm.", "bn1."),
            ("head.linear.", "fc."),
            (".shortcut.conv.", ".downsample.0."),
            (".shortcut.norm.", ".downsample.1."),
            (".norm1.", ".bn1."),
            (".norm2.", ".bn2."),
        ):
            name = name.replace(ours, theirs)
        parts = name.split(".")
        if parts[0] == "stages":
            name = ".".join([f"layer{int(parts[1]) + 1}", *parts[2:]])
        out[name] = tensor
    return out


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_checkpoint_comes_back(tmp_path: Path, suffix: str) -> None:
    source, target = small_conv(8), small_conv(8)
    path = tmp_path / f"float{suffix}"
    if suffix == ".pt":
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in source.state_dict().items()}}, path)
    else:
        pytest.importorskip("safetensors.torch").save_file(source.state_dict(), path)
    found = initialise(target, path)
    assert not found.missing and not found.unused and not found.shapes
    assert all(
        torch.equal(a, b) for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True)
    )


def test_a_torchvision_resnet_is_mapped(tmp_path: Path) -> None:
    source, target = ResNet18(10, head_norm=False), ResNet18(10)
    torch.save(foreign_names(source.state_dict()), tmp_path / "resnet18.pt")
    found = initialise(target, tmp_path / "resnet18.pt")
    assert all(name.startswith("head.norm") for name in found.missing)
    assert torch.equal(target.stages[2][0].shortcut.conv.weight, source.stages[2][0].shortcut.conv.weight)
    assert our_name("layer4.1.bn2.running_var") == "stages.3.1.norm2.running_var"


def test_another_number_of_classes_is_named_and_left(tmp_path: Path) -> None:
    torch.save(small_conv(8, classes=5).state_dict(), tmp_path / "five.pt")
    found = initialise(small_conv(8), tmp_path / "five.pt")
    assert "(5, 64) there, (10, 64) here" in str(found) and "matched by name" in str(found)


def test_prefixes_are_dropped_and_nothing_is_paired_twice() -> None:
    assert plain_name("module._orig_mod.model.fc.weight") == "fc.weight"
    w = torch.zeros(2, 2)
    found = match({"fc.weight": w}, {"fc.weight": w, "module.fc.weight": w})
    assert found.pairs == {"fc.weight": "fc.weight"} and found.unused == ("module.fc.weight",)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="no weight of it matches"):
        initialise(small_conv(8), tmp_path / "other.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="no tensors by name"):
        initialise(small_conv(8), tmp_path / "list.pt")
    torch.save(small_conv(4).state_dict(), tmp_path / "narrow.pt")
    with pytest.raises(ValueError, match=r"other shapes: .* there, .* here"):
        initialise(small_conv(8), tmp_path / "narrow.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "pickled.pt")
    with pytest.raises(ValueError, match="save a state_dict") as refused:
        initialise(small_conv(8), tmp_path / "pickled.pt")
    assert "weights_only" not in str(refused.value)
    with pytest.raises(CheckpointError, match="save a state_dict"):
        read_file(tmp_path / "pickled.pt")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing at all")
    with pytest.raises(ValueError, match="cannot be read"):
        initialise(small_conv(8), tmp_path / "bad.safetensors")
    with pytest.raises(FileNotFoundError, match="no such file to start from"):
        initialise(small_conv(8), tmp_path / "none.pt")


def test_spread_weights_leave_a_net_with_batchnorm_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20, bias=False), nn.BatchNorm1d(20, affine=False, eps=1e-12))
    x = torch.randn(50, 6)
    before = model(x)
    spread(model, 0.5)
    assert abs(float(model[0].weight.detach().abs().mean()) - 0.5) < 1e-6
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)


def test_a_run_starts_from_a_float_run(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    _, first = train_images(small_job(data, tmp_path / "float", method="full-precision", lr=0.01))
    start = first.parent / "last.pt"
    record, _ = train_images(small_job(data, tmp_path / "low", init=start, epochs=2))
    assert record.extra["init"]["matched"] > 10 and not record.extra["init"]["missing"]
    assert record.summary["distance_max"] == 0
    assert record.config["init"] == "last.pt"
