"""Runs that end badly: killed at a random moment, or with no room on the disk. They go on as if nothing had been."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from image_kit import command_line, pictures, small_job, timeless

from askew import cli
from askew.train import checkpoint
from askew.train.images import ImageTraining, train_images
from askew.train.loop import Keeper

STEPS = 18
SCRIPT = """
    import sys
    from pathlib import Path
    import torch
    from image_kit import small_job
    from askew.train.images import train_images
    torch.set_num_threads(1)
    job = small_job(Path(sys.argv[1]), Path(sys.argv[2]), method=sys.argv[3], epochs=6)
    train_images(job, lambda status: print(status.step, flush=True))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("kill") / "data")


def killed(job: ImageTraining, folder: Path, chance: random.Random) -> list[int]:
    """Start the run in a process of its own and kill it, some time after a random step; the steps it has told of."""
    script = folder / "run.py"
    script.write_text(textwrap.dedent(SCRIPT))
    place = {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, str(script), str(job.data), str(job.out), job.method]
    with subprocess.Popen(line, env=os.environ | place, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline())]
        last = chance.randint(told[0], STEPS - 2)
        while told[-1] < last:
            told.append(int(process.stdout.readline()))
        time.sleep(chance.random() * 0.01)
        process.send_signal(signal.SIGKILL)
    return told


def weights(job: ImageTraining) -> dict[str, Any]:
    """All that the last checkpoint holds for the run to go on with, in one flat dictionary of tensors."""
    found: dict[str, Any] = {}

    def flatten(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                flatten(f"{name}/{key}", part)
        elif isinstance(value, (list, tuple)):
            for key, part in enumerate(value):
                flatten(f"{name}/{key}", part)
        else:
            found[name] = value

    payload = checkpoint.read_file(Keeper(job.out / job.name).last)
    flatten("", {k: payload[k] for k in ("model", "parts", "position", "random")})
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name], name


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize(("method", "times"), [("askew-level-first", 2), ("binaryconnect-stochastic", 1)])
def test_a_killed_run_ends_as_one_that_was_not(data: Path, tmp_path: Path, method: str, times: int) -> None:
    """Weights, moments, latents, random state and record, bit for bit."""
    job = small_job(data, tmp_path / "killed", method=method, epochs=6)
    chance = random.Random(f"{method} 5")
    starts = [killed(job, tmp_path, chance)[0] for _ in range(times)]
    (job.out / job.name / ".last.pt.left").write_bytes(b"half of a file")  # as a kill in the middle of a write leaves
    resumed, path = train_images(job)
    whole, _ = train_images(twin := replace(job, out=tmp_path / "whole"))
    assert starts[0] == 1 and starts == sorted(starts)
    assert timeless(resumed) == timeless(whole)
    same(weights(job), weights(twin))
    assert {p.name for p in path.parent.iterdir()} == {"last.pt", "best.pt", path.name}


def test_a_full_disk_leaves_the_old_checkpoint_and_the_run_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with one line that names the file; with room on the disk it goes on from where it was."""
    job = small_job(data, tmp_path / "full")
    line, last = command_line(job), Keeper(job.out / job.name).last
    room, write = [2], torch.save  # best.pt and last.pt of the first epoch

    def save(payload: Any, stream: Any) -> None:
        if not room[0]:
            stream.write(b"what still fits")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= 1
        write(payload, stream)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(SystemExit) as stop:
        cli.main(line)
    (message,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and str(last.parent) in message
    assert ".pt could not be written (No space left on device)" in message and "the run can go on" in message
    assert checkpoint.read_file(last)["position"] == [1, 0]
    assert {path.name for path in last.parent.iterdir()} == {"best.pt", "last.pt"}
    monkeypatch.undo()
    steps: list[int] = []
    resumed, _ = train_images(job, lambda status: steps.append(status.step))
    whole, _ = train_images(replace(job, out=tmp_path / "whole"))
    assert steps[0] == 4 and timeless(resumed) == timeless(whole)


def test_a_full_disk_before_the_first_checkpoint_promises_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best net of an epoch is written before the last one: it may be there alone."""
    job = small_job(data, tmp_path / "full", keep_every=3)
    room, write = [1], torch.save

    def save(payload: Any, stream: Any) -> None:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= 1
        write(payload, stream)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(OSError, match="there is none before it to go on from; make room"):
        train_images(job)
    assert [path.name for path in (job.out / job.name).iterdir()] == ["best.pt"]


def test_a_disk_without_room_for_the_record(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record's file is named; the run is complete in its checkpoint and not trained again."""
    from askew import atomic
    from askew.train import record

    job = small_job(data, tmp_path / "full", epochs=1)

    def full(path: Path, text: str) -> None:
        with atomic.replacing(path) as stream:
            stream.write(b"a bit")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record, "write_text", full)
    with pytest.raises(SystemExit) as stop:
        cli.main(command_line(job))
    (message,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and "No space left" in message and "askew-level-first-1bit-0.json" in message
    monkeypatch.undo()
    steps: list[int] = []
    _, path = train_images(job, lambda status: steps.append(status.step))
    assert steps == [] and path.exists()


@pytest.mark.parametrize("cut", [0, 500])
def test_a_damaged_checkpoint_is_named(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: int
) -> None:
    job = small_job(data, tmp_path / "damaged", epochs=1)
    train_images(job)
    last = Keeper(job.out / job.name).last
    last.write_bytes(last.read_bytes()[:cut])
    with pytest.raises(SystemExit) as stop:
        cli.main(command_line(job))
    (message,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and f"checkpoint {last} cannot be read" in message


def test_ctrl_c_says_that_the_run_can_go_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop_here(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "train_images", stop_here)
    with pytest.raises(SystemExit) as stop:
        cli.main(command_line(small_job(data, tmp_path)))
    assert stop.value.code == 130 and "goes on when the same command is started again" in capsys.readouterr().err
