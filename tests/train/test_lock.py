"""One process at a time in a run's folder, and files half written that are left alone while somebody writes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from image_kit import command_line, pictures, small_job

from askew import cli
from askew.atomic import replacing
from askew.train.lock import NAME, UnderWayError, sole_use
from askew.train.loop import Keeper

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
HOLDS = """
    import sys, time
    from pathlib import Path
    from askew.train.lock import sole_use
    with sole_use(Path(sys.argv[1])):
        print("holds", flush=True)
        time.sleep(60)
"""


def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    with sole_use(tmp_path):
        with (
            pytest.raises(UnderWayError, match=rf"under way in {tmp_path} \(pid {os.getpid()}, host "),
            sole_use(tmp_path),
        ):
            pass
        assert (tmp_path / NAME).exists()
    assert not list(tmp_path.iterdir())
    with sole_use(tmp_path):
        pass


def test_a_second_command_is_told_and_a_killed_one_leaves_no_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job(pictures(tmp_path / "data"), tmp_path / "runs", epochs=1)
    folder = job.out / job.name
    folder.mkdir(parents=True)
    line = [sys.executable, "-c", textwrap.dedent(HOLDS), str(folder)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "holds\n"
        with pytest.raises(SystemExit) as stop:
            cli.main(command_line(job))
        (message,) = capsys.readouterr().err.splitlines()
        process.send_signal(signal.SIGKILL)
    assert stop.value.code == 2 and f"a run is under way in {folder} (pid {process.pid}, host " in message
    assert (folder / NAME).exists()
    cli.main(command_line(job))
    assert not (folder / NAME).exists() and (folder / "last.pt").exists()


def test_a_sweep_leaves_what_is_being_written(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    (tmp_path / ".last.pt.left").write_bytes(b"half of a file")
    with replacing(keeper.last) as stream:
        stream.write(b"whole")
        keeper.sweep()
        assert len(list(tmp_path.iterdir())) == 1
    assert keeper.last.read_bytes() == b"whole" and [p.name for p in tmp_path.iterdir()] == ["last.pt"]
