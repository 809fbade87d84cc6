"""Checkpoints: whole or not at all, the run's own or refused."""

import errno
from pathlib import Path

import pytest
import torch
from torch import nn

import askew
from askew.train import checkpoint
from askew.train.checkpoint import CheckpointError, Position
from askew.train.record import Record


def parts(seed: int = 0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    base = torch.optim.Adam(askew.groups(model, levels=askew.binary()), lr=0.05)
    optimizer = askew.ASkew(base, askew.LevelFirst(start=0.2), total_steps=30)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    return model, {"optimizer": optimizer, "scheduler": scheduler}


def train(model, made, steps: int) -> None:
    for _ in range(steps):
        made["optimizer"].zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        made["optimizer"].step()
        made["scheduler"].step()


CONFIG = {"lr": 0.05, "epochs": 3}


def test_a_run_cut_in_two_equals_the_whole_one(tmp_path: Path) -> None:
    model, made = parts()
    record = Record("x", "askew", CONFIG, 0)
    record.log(1, loss=0.5)
    train(model, made, 10)
    checkpoint.save(tmp_path / "last.pt", model, made, Position(1, 4), record, CONFIG)
    train(model, made, 20)
    other, again = parts(seed=9)
    position, loaded = checkpoint.load(tmp_path / "last.pt", other, again, CONFIG)
    train(other, again, 20)
    assert position == Position(1, 4)
    assert loaded.metrics == record.metrics
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert made["scheduler"].get_last_lr() == again["scheduler"].get_last_lr()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = parts()
    path = tmp_path / "last.pt"
    checkpoint.save(path, model, made, Position(0, 1), Record("x", "m", {}, 0), CONFIG)
    before = path.read_bytes()

    def full(payload, stream) -> None:
        stream.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"No space left.*the one before it is untouched"):
        checkpoint.save(path, model, made, Position(0, 2), Record("x", "m", {}, 0), CONFIG)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.parametrize("cut", [0, 10, 1000])
def test_a_truncated_file_is_named(tmp_path: Path, cut: int) -> None:
    model, made = parts()
    path = tmp_path / "last.pt"
    checkpoint.save(path, model, made, Position(0, 1), Record("x", "m", {}, 0), CONFIG)
    path.write_bytes(path.read_bytes()[:cut])
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"last\.pt cannot be read"):
        checkpoint.load(path, model, made, CONFIG)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "owned",))

    torch.save({"format": 1, "x": Hostile()}, tmp_path / "last.pt")
    model, made = parts()
    with pytest.raises(CheckpointError):
        checkpoint.load(tmp_path / "last.pt", model, made, CONFIG)
    assert not (tmp_path / "owned").exists()


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    model, made = parts()
    path = tmp_path / "last.pt"
    checkpoint.save(path, model, made, Position(0, 1), Record("x", "m", {}, 0), CONFIG)
    with pytest.raises(CheckpointError, match=r"epochs: 3 there, 4 here"):
        checkpoint.load(path, model, made, CONFIG | {"epochs": 4})
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none.pt", model, made, CONFIG)
