"""askew export and askew predict: from a finished run to a file, to classes, by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from image_kit import pictures, small_job
from PIL import Image
from torch import nn

import askew
from askew import cli, entry
from askew.data.imagenet import MEAN, STD, ImageNet
from askew.data.loader import normalise
from askew.optim import MethodOptimizer, snapped
from askew.ship.predict import Predict, predict
from askew.train.checkpoint import CheckpointError, read_file
from askew.train.images import build_model, build_optimizer, load_images, train_images
from askew.train.record import Record
from askew.train.shipping import Export, export_run, prepare, settings_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(folder of the run, data)."""
    place = tmp_path_factory.mktemp("ship")
    data = pictures(place / "data")
    _, path = train_images(small_job(data, place / "runs"))
    return path.parent, data


def test_from_run_to_classes_by_the_commands(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = run
    out = tmp_path / "net.askew"
    cli.main(["export", str(folder), str(out), "--data", str(data)])
    assert "times smaller" in capsys.readouterr().out
    shown = [str(data / "test" / "class3" / "0.png"), str(data / "test" / "class9" / "1.png")]
    entry.predict([str(out), *shown, "--out", str(tmp_path / "y.npy"), "--threads", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == shown
    assert all(line.split("\t")[1].startswith("class") for line in lines)
    assert np.load(tmp_path / "y.npy").shape == (2, 10)
    cli.main(["predict", str(out), *shown])
    assert capsys.readouterr().out.splitlines()[0].split() == lines[0].split()


def test_the_shipped_net_says_what_the_trained_one_says(run: tuple[Path, Path], tmp_path: Path) -> None:
    folder, data = run
    done = export_run(Export(folder / "last.pt", tmp_path / "net.askew", data))
    assert done.ratio > 2  # a net of width 4 is mostly BatchNorm
    net = askew.load(done.path)
    assert net.metadata["record"].startswith("cifar10-") and len(net.metadata["classes"]) == 10
    assert len(net.metadata["mean"]) == 3 and 0 <= net.metadata["accuracy"] <= 100
    x = torch.randn(20, 3, 32, 32)
    model, optimizer = rebuilt(folder, data)
    with snapped(optimizer), torch.no_grad():
        assert torch.allclose(torch.from_numpy(net(x.numpy())), model(x), rtol=1e-4, atol=1e-4)


def rebuilt(folder: Path, data: Path | None = None) -> tuple[nn.Module, MethodOptimizer]:
    """The run's net in evaluation mode, with BatchNorm re-estimated if there are images, and its optimizer."""
    payload = read_file(folder / "last.pt")
    record = Record(**json.loads(payload["record"]))
    job = settings_of(record, data)
    model = build_model(job, int(record.config["classes"]))
    optimizer = build_optimizer(job, model, total_steps=1)
    model.load_state_dict(payload["model"])
    optimizer.load_state_dict(payload["parts"]["optimizer"])
    if data is not None:
        prepare(job, model, optimizer, 20000, record.config["data_digest"])
    return model.eval(), optimizer


def test_an_export_takes_the_images_that_the_run_has_seen(run: tuple[Path, Path], tmp_path: Path) -> None:
    _, data = run
    seen = {}
    for name, part in {"all": {}, "some": {"images": 20}, "others": {"holdout": 20}}.items():
        _, path = train_images(small_job(data, tmp_path / name, epochs=1, **part))
        done = export_run(Export(path.parent, tmp_path / f"{name}.askew", data))
        seen[name] = askew.load(done.path).metadata["mean"]
        job = settings_of(Record(**json.loads(read_file(path.parent / "last.pt")["record"])), data)
        assert seen[name] == pytest.approx(load_images(job).train.mean)
    assert len({tuple(mean) for mean in seen.values()}) == 3


def test_an_export_refuses_other_images_than_the_runs(run: tuple[Path, Path], tmp_path: Path) -> None:
    other = pictures(tmp_path / "other", train=5)
    with pytest.raises(ValueError, match="holds other images than the run was trained on"):
        export_run(Export(run[0], tmp_path / "net.askew", other))
    assert not (tmp_path / "net.askew").exists()
    for wrong in ({"images": 5}, {"images": 0, "data": run[1]}):
        with pytest.raises(ValueError, match="images, 1 or more, are taken from --data"):
            Export(run[0], tmp_path / "net.askew", **wrong)


def test_a_run_on_imagenet_ships_with_what_pictures_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in range(2):
            place = tmp_path / "data" / split / f"n{label:02d}"
            place.mkdir(parents=True)
            for k in range(4):
                Image.fromarray(rng.integers(0, 255, (44, 40, 3), np.uint8)).save(place / f"{k}.JPEG", "png")
    sizes = {"resize": 36, "crop": 32, "workers": 0, "width": None, "batch": 4, "epochs": 1}
    _, path = train_images(small_job(tmp_path / "data", tmp_path / "runs", dataset="imagenet", **sizes))
    out = tmp_path / "net.askew"
    export_run(Export(path.parent, out, tmp_path / "data"))
    net = askew.load(out)
    kept = {name: net.metadata[name] for name in ("classes", "resize", "crop")}
    assert kept == {"classes": ["n00", "n01"], "resize": 36, "crop": 32} and len(net.metadata["mean"]) == 3
    entry.predict([str(out), str(tmp_path / "data/val/n01/0.JPEG"), "--out", str(tmp_path / "y.npy")])
    assert capsys.readouterr().out.split("\t")[1].startswith("n0")
    val = ImageNet(tmp_path / "data", "val", resize=36, crop=32, classes=None)
    x = normalise(val[4][0][None], torch.tensor(MEAN), torch.tensor(STD))
    assert np.allclose(np.load(tmp_path / "y.npy"), net(x.numpy()), atol=1e-4)


OTHERS = [
    {"bits": 2, "activation_bits": 4},
    {"activation_bits": 1},
    {"method": "binaryconnect"},
    {"method": "binaryconnect", "average": 0.5},
    {"affine": True},
    {"stagger": 0.5},
    {"affine": False, "activation_bits": 1},
    {"method": "luq", "bits": 4, "activation_bits": 4, "gradient_bits": 4},
    {"bits": 2, "form": "symmetric", "weight_decay": 0.1},
    {"scale": "abs-mean", "per": "channel", "weight_decay": 0.1},
    {"scale": "abs-mean", "activation_bits": 1},
    {"bits": 2, "form": "ternary", "scale": "abs-mean"},
    {"method": "lsq", "bits": 2, "activation_bits": 4, "form": "symmetric"},
    {"method": "parq", "bits": 2, "activation_bits": 4},
    {"method": "parq", "bits": 4, "activation_bits": 4, "options": {}},
    {"method": "askew", "bits": 3, "activation_bits": 8, "per": "channel"},
    {"model": "resnet18", "width": 4},
    {"model": "resnet18", "width": 4, "stem": "tiny", "bits": 2, "activation_bits": 4},
]


@pytest.mark.parametrize("options", OTHERS)
def test_other_runs_ship_too(run: tuple[Path, Path], tmp_path: Path, options: dict) -> None:
    _, path = train_images(small_job(run[1], tmp_path / "runs", **options))
    done = export_run(Export(path.parent, tmp_path / "net.askew", onnx=None))
    model, optimizer = rebuilt(path.parent)
    x = torch.randn(40, 3, 32, 32)
    with snapped(optimizer), torch.no_grad():
        apart = (torch.from_numpy(askew.load(done.path, 1)(x.numpy())) - model(x)).abs().amax(1)
    exact = options.get("activation_bits") is None  # else a value on a threshold may fall to either side
    assert (apart < 1e-3).float().mean() >= (1.0 if exact else 0.9)


def test_seventeen_levels_ask_for_wide(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = train_images(small_job(run[1], tmp_path / "runs", bits=4, form="paper"))
    out = tmp_path / "net.askew"
    with pytest.raises(SystemExit) as stop:
        cli.main(["export", str(path.parent), str(out)])
    line = capsys.readouterr().err
    assert stop.value.code == 2 and line.count("\n") == 1 and not out.exists()
    assert "17 levels take 8 bits a weight" in line and "--wide" in line
    cli.main(["export", str(path.parent), str(out), "--wide"])
    assert askew.load(out, 1)(torch.randn(2, 3, 32, 32).numpy()).shape == (2, 10)


def test_a_run_goes_to_torchao(run: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    cli.main(["export", str(run[0]), str(tmp_path / "net.askew"), "--torchao", str(tmp_path / "net.pt")])
    state = torch.load(tmp_path / "net.pt", weights_only=True)
    made = [value for value in state.values() if type(value) is not torch.Tensor]
    assert len(made) == 1 and set(made[0].dequantize().unique().tolist()) == {-1.0, 1.0}


def test_predict_does_not_import_torch(run: tuple[Path, Path], tmp_path: Path) -> None:
    export_run(Export(run[0], tmp_path / "net.askew"))
    np.save(tmp_path / "x.npy", np.zeros((3, 3, 32, 32), np.float32))
    script = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is not to be imported here")
sys.meta_path.insert(0, Refuse())
sys.argv = ["askew", "predict", {str(tmp_path / "net.askew")!r}, {str(tmp_path / "x.npy")!r}]
from askew.entry import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_bad_input_ends_with_one_line(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = run
    picture = str(data / "test" / "class3" / "0.png")
    export_run(Export(folder, tmp_path / "net.askew"))
    np.save(tmp_path / "x.npy", np.zeros((3, 3, 8, 8), np.float32))
    np.save(tmp_path / "i.npy", np.zeros((3, 3, 32, 32), np.int32))
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    for inputs, message in [
        ([str(tmp_path / "net.askew")], "at least one"),
        ([str(tmp_path / "net.askew"), picture], "no mean and std"),
        ([str(tmp_path / "net.askew"), str(tmp_path / "x.npy")], "inputs got|too small|takes"),
        ([str(tmp_path / "net.askew"), str(tmp_path / "i.npy")], "takes float32"),
        ([str(tmp_path / "net.askew"), str(tmp_path / "bad.npy")], "cannot be read as an array"),
        ([str(tmp_path / "none.askew"), picture], "cannot be read"),
        ([str(tmp_path / "bad.npy"), picture], "not a safetensors file"),
    ]:
        with pytest.raises(SystemExit) as stop:
            entry.predict(inputs)
        assert stop.value.code == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and any(part in line for part in message.split("|")), line
    np.save(tmp_path / "none.npy", np.zeros((0, 3, 32, 32), np.float32))
    np.save(tmp_path / "nan.npy", np.full((1, 3, 32, 32), np.nan, np.float32))
    for name, said in (("none", "an empty array"), ("nan", "NaN or infinite"), ("x", "x.npy: ")):
        with pytest.raises(ValueError, match=said):
            predict(Predict(tmp_path / "net.askew", (tmp_path / f"{name}.npy",)))
    with pytest.raises(FileNotFoundError, match="no such folder to write to") as missing:
        export_run(Export(folder, tmp_path / "nowhere" / "net.askew"))
    assert missing.value.filename == str(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no training run"):
        export_run(Export(tmp_path / "nothing", tmp_path / "out.askew"))
