"""The MPS daemon of a grid, with a stand-in for NVIDIA's program: when it is started, what workers see, how it ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from image_kit import pictures, small_job

from askew.train import mps
from askew.train.grid import run_grid
from askew.train.grid_local import Local
from askew.train.mps import CONTROL, LOGS, PIPES, SHARE, VISIBLE, MpsError, overlapping

DAEMON = """#!/bin/sh
# notes how it was called; "-d" leaves a log where the real one does, "quit" comes on standard input
echo "$1 pipes=$CUDA_MPS_PIPE_DIRECTORY visible=$CUDA_VISIBLE_DEVICES" >> {told}
if [ "$1" = -d ]; then echo "Starting control daemon" > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit {status}; fi
cat >> {told}
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0, probe: str = "") -> Path:
    """A program of that name first on the path; the file it tells of its calls in."""
    told = folder / "told"
    program = folder / "bin" / CONTROL
    program.parent.mkdir()
    program.write_text(DAEMON.format(told=told, status=status))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name in (PIPES, LOGS, SHARE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mps, "PROBE", probe)
    return told


def test_a_daemon_of_its_own_from_start_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = f"import os, sys; sys.exit(os.environ['{SHARE}'] != '25' or not os.path.isdir(os.environ['{PIPES}']))"
    told = stand_in(tmp_path, monkeypatch, probe=seen)
    monkeypatch.setenv(VISIBLE, "2,3")
    with overlapping(4):
        folder = os.environ[PIPES]
        assert (os.environ[LOGS], os.environ[SHARE]) == (folder, "25") and Path(folder).is_dir()
        assert told.read_text() == f"-d pipes={folder} visible=\n"  # all GPUs, whatever we see of them
    assert told.read_text().splitlines()[1:] == [f" pipes={folder} visible=2,3", "quit"]
    assert not {PIPES, LOGS, SHARE} & os.environ.keys() and not Path(folder).exists()


@pytest.mark.parametrize(("runs", "share"), [(2, "50"), (3, "50"), (4, "25"), (8, "25"), (16, "25")])
def test_runs_have_parts_on_which_products_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, share: str
) -> None:
    stand_in(tmp_path, monkeypatch)
    with overlapping(runs):
        assert os.environ[SHARE] == share


def test_it_ends_with_what_fails_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = stand_in(tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt), overlapping(2):
        raise KeyboardInterrupt
    assert told.read_text().endswith("quit\n") and PIPES not in os.environ


def test_a_daemon_that_is_named_serves_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = stand_in(tmp_path, monkeypatch)
    monkeypatch.setenv(PIPES, "/somewhere")
    monkeypatch.setenv(SHARE, "40")
    with overlapping(4):
        assert (os.environ[PIPES], os.environ[SHARE]) == ("/somewhere", "40")
    assert not told.exists() and os.environ[SHARE] == "40"


def test_what_goes_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    told = stand_in(tmp_path / "a", monkeypatch, probe="raise SystemExit(5)")
    with pytest.raises(MpsError, match=r"no GPU .*CUDA error 5 \(Starting control daemon\); leave out --mps"):
        overlapping(2).__enter__()
    assert told.read_text().endswith("quit\n")
    (tmp_path / "b").mkdir()
    stand_in(tmp_path / "b", monkeypatch, status=3)
    with pytest.raises(MpsError, match="did not start: status 3; leave out --mps"):
        overlapping(2).__enter__()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpsError, match="is not on the path: it comes with NVIDIA's driver"):
        overlapping(2).__enter__()
    assert not {PIPES, SHARE} & os.environ.keys()


def test_where_there_is_nothing_to_share(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mps lets several runs share an NVIDIA GPU"):
        Local(["cpu"], 2, mps=True)
    with pytest.raises(ValueError, match="mps lets several runs share an NVIDIA GPU"):
        Local(["cuda:0"], 1, mps=True)
    job = small_job(tmp_path, tmp_path)
    with pytest.raises(ValueError, match="mps is for the GPUs of this machine"):
        run_grid([job], engine="ray", per_device=2, mps=True)


@pytest.mark.cuda
def test_runs_overlap_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the real daemon; the same nets as one after another."""
    for name in (PIPES, LOGS, SHARE):
        monkeypatch.delenv(name, raising=False)
    data = pictures(tmp_path / "data")
    jobs = [small_job(data, tmp_path / "together", seed=seed, device="cuda") for seed in (0, 1)]
    alone = [small_job(data, tmp_path / "alone", seed=seed, device="cuda") for seed in (0, 1)]
    together = run_grid(jobs, per_device=2, mps=True)
    for record, other in zip(together, run_grid(alone), strict=True):
        assert record.summary["weights"] == other.summary["weights"] and record.summary["distance_max"] == 0
    assert torch.cuda.is_available() and PIPES not in os.environ
