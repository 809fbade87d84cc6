"""Checkpoints: whole or not at all, the run's own or refused."""

import errno
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from torch import nn

import askew
from askew.atomic import replacing
from askew.train import checkpoint
from askew.train.checkpoint import CheckpointError, Position
from askew.train.initial import read_weights
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


def drawn() -> list[float]:
    """What the global generators give next."""
    return [torch.rand(()).item(), random.random(), random.gauss(0, 1), float(np.random.rand()), np.random.randn()]


def test_all_global_generators_go_on_where_they_were(tmp_path: Path) -> None:
    """A user's module may draw from Python's or NumPy's."""
    model, made = parts()
    random.seed(3), np.random.seed(4)
    drawn()
    checkpoint.save(tmp_path / "last.pt", model, made, Position(0, 1), Record("x", "askew", CONFIG, 0), CONFIG)
    expected = drawn()
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    checkpoint.load(tmp_path / "last.pt", model, made, CONFIG)
    assert drawn() == expected


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
    """The disk fills up within torch's zip writer, which makes a RuntimeError of it."""
    model, made = parts()
    path = tmp_path / "last.pt"
    checkpoint.save(path, model, made, Position(0, 1), Record("x", "m", {}, 0), CONFIG)
    before = path.read_bytes()

    class Full:
        def __init__(self, stream: BinaryIO) -> None:
            self.stream, self.room = stream, 3000

        def write(self, data: bytes) -> int:
            self.room -= len(data)
            if self.room < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.stream.write(data)

        def flush(self) -> None:
            self.stream.flush()

    @contextmanager
    def filling(path: Path) -> Iterator[Full]:
        with replacing(path) as stream:
            yield Full(stream)

    monkeypatch.setattr(checkpoint, "replacing", filling)
    with pytest.raises(
        OSError, match=r"last\.pt could not be .*\(No space left on device\): the one before it is untouch"
    ):
        checkpoint.save(path, model, made, Position(0, 2), Record("x", "m", {}, 0), CONFIG)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the file size")
def test_a_write_that_the_system_refuses(tmp_path: Path) -> None:
    import resource

    model, made = parts()
    path = tmp_path / "last.pt"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"could not be written \(File too large\): there is none before it"):
            checkpoint.save(path, model, made, Position(0, 1), Record("x", "m", {}, 0), CONFIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


FULL_DISK = """
    import sys
    from pathlib import Path
    import torch
    from askew.train.checkpoint import write_file
    path = Path(sys.argv[1]) / "last.pt"
    write_file(path, {"x": torch.zeros(10)})
    before = path.read_bytes()
    try:
        write_file(path, {"x": torch.zeros(100_000)})
    except OSError as error:
        print(error)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["last.pt"]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small file system")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A file system of 64 KiB, seen by one process only."""
    inside = 'mount -t tmpfs -o size=64k tmpfs "$1" && shift && exec "$@"'
    line = ["unshare", "-rm", "sh", "-c", inside, "sh", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*line, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    script = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path)]
    done = subprocess.run([*line, *script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "could not be written (No space left on device): the one before it is untouched" in done.stdout


def test_an_error_that_is_not_the_disks_stays_what_it_is(tmp_path: Path) -> None:
    assert checkpoint.refusal(RuntimeError("something else")) is None
    assert checkpoint.refusal(RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos\nx")) is not None


def test_settings_that_do_not_change_the_weights_may_differ(tmp_path: Path) -> None:
    """Other scoring and other steps of the same rule; the optimizer keeps its own way of computing them."""
    model, made = parts()
    path, config = tmp_path / "last.pt", CONFIG | {"static": True, "score_every": 5}
    made["optimizer"].param_groups[0] |= {"foreach": True, "lr": torch.tensor(0.05)}
    checkpoint.save(path, model, made, Position(1, 0), Record("x", "m", config, 0), config)
    other, again = parts(seed=3)
    position, record = checkpoint.load(path, other, again, CONFIG | {"static": False, "score_every": 1})
    group = again["optimizer"].param_groups[0]
    assert position == Position(1, 0) and record.config == CONFIG | {"static": False, "score_every": 1}
    assert group["foreach"] is None and isinstance(group["lr"], float) and group["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("cut", [0, 10, 1000])
def test_a_truncated_file_is_named(tmp_path: Path, cut: int) -> None:
    model, made = parts()
    path = tmp_path / "last.pt"
    checkpoint.save(path, model, made, Position(0, 1), Record("x", "m", {}, 0), CONFIG)
    path.write_bytes(path.read_bytes()[:cut])
    before = {k: v.clone() for k, v in model.state_dict().items()}
    said = r"last\.pt cannot be read: it is empty" if cut == 0 else r"last\.pt cannot be read: damaged"
    with pytest.raises(CheckpointError, match=said) as error:
        checkpoint.load(path, model, made, CONFIG)
    assert "weights_only" not in str(error.value) and "remove it to start anew" in str(error.value)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    model, made = parts()
    path = tmp_path / "last.pt"
    checkpoint.save(path, model, made, Position(0, 1), Record("x", "m", {}, 0), CONFIG)
    whole = path.read_bytes()
    weights = next(p for p in model.parameters() if p.ndim > 1).detach().numpy().tobytes()
    place = whole.index(weights) + 2
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    with pytest.raises(CheckpointError, match=r"last\.pt cannot be read: damaged .* sum of its part .* is wrong"):
        checkpoint.load(path, model, made, CONFIG)
    with pytest.raises(ValueError, match="sum of its part"):
        read_weights(path)


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
