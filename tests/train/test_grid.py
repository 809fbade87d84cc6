"""A grid of runs on this machine: the same records as the runs alone, nothing twice, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch
from image_kit import faulty, pictures, small_job, timeless

from askew.report.live import Status
from askew.train import grid_local, images, source
from askew.train.checkpoint import CheckpointError
from askew.train.grid import GridError, completed, finished, record_file, run_grid
from askew.train.grid_job import Failure, Throttled
from askew.train.grid_local import Local, local_devices
from askew.train.image_config import TableRow
from askew.train.images import train_images
from askew.train.source import Shelf


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("grid") / "data")


def never(*_: object) -> None:
    raise AssertionError("a finished job was run again")


def test_workers_give_the_records_of_the_runs_alone(data: Path, tmp_path: Path) -> None:
    """Two worker processes, three jobs; a second call runs nothing, and a lost record is made again."""
    jobs = [
        small_job(data, tmp_path / "grid", method=method, seed=seed)
        for method, seed in (("askew-level-first", 0), ("binaryconnect", 0), ("askew-level-first", 1))
    ]
    told: list[tuple[str, Status]] = []
    records = run_grid(jobs, per_device=2, on_status=lambda name, status: told.append((name, status)))
    alone = [train_images(replace(job, out=tmp_path / "alone"))[0] for job in jobs]
    for record, expected in zip(records, alone, strict=True):
        assert timeless(record) == timeless(expected)
    for job in jobs:
        steps = [status.step for name, status in told if name == job.name]
        assert steps[0] == 0 and steps == sorted(steps) and steps[-1] == 9
    told.clear()
    again = run_grid(jobs, per_device=2, on_status=lambda name, status: told.append((name, status)), train=never)
    assert again == records
    assert [(name, s.step / s.total_steps, s.accuracy) for name, s in told] == [
        (job.name, 1.0, record.summary["accuracy"]) for job, record in zip(jobs, records, strict=True)
    ]
    record_file(jobs[1]).unlink()
    assert [timeless(r) for r in run_grid(jobs)] == [timeless(r) for r in records]  # from its checkpoint, in-process


def test_runs_that_failed_for_one_reason_are_named_together() -> None:
    failures = {"a": Failure("no data"), "b": Failure("no data"), "c": Failure("no memory")}
    said = str(GridError(failures, 5))
    assert said.startswith("3 of 5 runs failed (a and 1 more: no data; c: no memory)")


def test_a_failing_job_and_a_dying_worker_do_not_stop_the_others(data: Path, tmp_path: Path) -> None:
    jobs = [small_job(data, tmp_path, seed=seed, epochs=1) for seed in (1, 2, 0, 3)]
    with pytest.raises(GridError, match=r"2 of 4 runs failed.*seed1: FloatingPointError: the loss is not") as stop:
        run_grid(jobs, per_device=2, train=faulty)
    assert set(stop.value.failures) == {jobs[0].name, jobs[1].name}
    assert "ended with status 7" in stop.value.failures[jobs[1].name].reason
    assert "in faulty" in stop.value.failures[jobs[0].name].trace
    assert finished(jobs[2]) is not None and finished(jobs[3]) is not None
    with pytest.raises(GridError, match="1 of 2 runs failed"):
        run_grid([jobs[0], jobs[2]], train=faulty)  # in this process


INTERRUPTED = """
    import sys
    from pathlib import Path
    from image_kit import endless, small_job
    from askew.train.grid import run_grid
    if __name__ == "__main__":
        jobs = [small_job(Path(sys.argv[1]), Path(sys.argv[2]), seed=seed) for seed in (0, 1)]
        run_grid(jobs, per_device=2, train=endless)
"""


def alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def heeds_interrupts() -> None:
    """A shell's background jobs ignore Ctrl-C, and so does what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_grid_leaves_no_workers_and_goes_on(data: Path, tmp_path: Path, number: int) -> None:
    """Ctrl-C or a scheduler's end of time: the workers keep their runs and end."""
    script = tmp_path / "grid.py"
    script.write_text(textwrap.dedent(INTERRUPTED))
    place = {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(script), str(data), str(tmp_path / "grid")],
        env=os.environ | place,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds_interrupts,
    )
    jobs = [small_job(data, tmp_path / "grid", seed=seed) for seed in (0, 1)]
    stalled = [job.out / job.name / "stalled" for job in jobs]
    limit = time.monotonic() + 60
    while not all(path.exists() and path.read_text() for path in stalled) and time.monotonic() < limit:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    workers = [int(path.read_text()) for path in stalled]
    process.send_signal(number)
    _, complaint = process.communicate(timeout=50)
    assert "KeyboardInterrupt" in complaint if number == signal.SIGINT else process.returncode == 143
    assert not any(alive(pid) for pid in workers)
    whole = [train_images(replace(job, out=tmp_path / "whole"))[0] for job in jobs]
    for path in stalled:
        path.unlink()
    seen: list[int] = []
    resumed = run_grid(jobs, on_status=lambda name, status: seen.append(status.step))
    assert seen[:3] == [0, 0, 6]  # after the step in which it was stopped
    assert [timeless(record) for record in resumed] == [timeless(record) for record in whole]


def test_a_worker_ends_with_its_leader(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> None:
    """The leader is gone: while the worker waits for a job, and at the next word of a job under way."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    ours, theirs = Pipe()
    ours.close()
    grid_local._serve(theirs, never, 1)
    ours, theirs = Pipe()
    steps: list[int] = []

    def train(config: object, on_status: Any, shelf: object) -> None:
        ours.close()
        for step in (1, 2):
            steps.append(step)
            on_status(Status(step, 2, 1, 1))

    ours.send(small_job(data, tmp_path))
    grid_local._serve(theirs, train, 1)  # pyright: ignore[reportArgumentType]
    assert steps == [1]


def test_a_record_from_before_a_setting_serves_only_runs_without_it(data: Path, tmp_path: Path) -> None:
    job = small_job(data, tmp_path, epochs=1)
    run_grid([job])
    path = record_file(job)
    content = json.loads(path.read_text())
    del content["config"]["affine"], content["config"]["affine_rate"]
    path.write_text(json.dumps(content))
    assert finished(job) is not None
    with pytest.raises(ValueError, match=r"other settings \(affine: None there, True here"):
        finished(replace(job, affine=True))


def test_a_record_with_other_settings_is_refused(data: Path, tmp_path: Path) -> None:
    job = small_job(data, tmp_path, epochs=1)
    run_grid([job])
    with pytest.raises(ValueError, match=r"was made with other settings \(lr: 0.1 there, 0.2 here\)") as stop:
        run_grid([replace(job, lr=0.2)], train=never)
    assert str(record_file(job)) in str(stop.value)
    text = record_file(job).read_text()
    moved = json.loads(text)
    moved["config"] |= {"device": "cuda", "bf16": True}  # made elsewhere: the same experiment
    record_file(job).write_text(json.dumps(moved))
    assert run_grid([job], train=never)[0].config["device"] == "cuda"
    record_file(job).write_text(text[:50])
    with pytest.raises(ValueError, match=r"json: cannot be read"):
        run_grid([job], train=never)


def test_rows_of_a_table_have_their_records_in_its_folder(data: Path, tmp_path: Path) -> None:
    row = TableRow("cifar-w1", "askew-best", tmp_path / "results", {"label": "ASkew"})
    job = small_job(data, tmp_path / "runs", epochs=1, row=row)
    (record,) = run_grid([job])
    assert record_file(job) == tmp_path / "results" / "cifar-w1-askew-best-0.json"
    assert record_file(job).exists() and record.method == "askew-best"
    renamed = replace(job, row=replace(row, about={"label": "level-first"}))
    assert run_grid([renamed], train=never) == [record]


def test_mistakes_are_named(data: Path, tmp_path: Path) -> None:
    job = small_job(data, tmp_path)
    with pytest.raises(ValueError, match=r"share a place: .*seed0"):
        run_grid([job, replace(job, lr=0.2)])
    with pytest.raises(ValueError, match="per_device"):
        run_grid([job], per_device=0)
    with pytest.raises(ValueError, match="engine must be"):
        run_grid([job], engine="slurm")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="of one kind"):
        run_grid([job], devices=["cpu", "cuda:0"])
    with pytest.raises(ValueError, match="different devices"):
        run_grid([job, replace(job, seed=1, device="cuda")])


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """All GPUs by default; the first jobs go one to each before any GPU gets a second."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert local_devices({"auto"}) == local_devices({"cuda"}) == ["cuda:0", "cuda:1"]
    assert local_devices({"cpu"}) == ["cpu"] and local_devices({"cuda:1"}) == ["cuda:1"]
    assert Local(["cuda:0", "cuda:1"], 2).places == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert Local(["cuda:0", "cuda:1"], 2).kind == "cuda"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert local_devices({"auto"}) == ["cpu"]


@pytest.mark.parametrize(("before", "expected"), [(None, "1"), ("4,6", "6"), ("GPU-a,GPU-b", "GPU-b")])
def test_a_worker_sees_its_gpu_alone(monkeypatch: pytest.MonkeyPatch, before: str | None, expected: str) -> None:
    name = grid_local.VISIBLE
    if before is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, before)
    with grid_local._visible("cuda:1"):
        assert os.environ[name] == expected
    with grid_local._visible("cpu"):
        assert os.environ.get(name) == before
    assert os.environ.get(name) == before


def test_a_data_set_is_read_and_uploaded_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, uploads = [], []
    read, upload = images.cifar10, source.DeviceData
    monkeypatch.setattr(images, "cifar10", lambda *a, **k: reads.append(a) or read(*a, **k))
    monkeypatch.setattr(source, "DeviceData", lambda *a, **k: uploads.append(a) or upload(*a, **k))
    jobs = [small_job(data, tmp_path, seed=seed, epochs=1) for seed in (0, 1)]
    run_grid([*jobs, small_job(data, tmp_path, seed=2, epochs=1, images=40)])
    assert len(reads) == 2 and len(uploads) == 4  # of each split, for the first two jobs together and the third


def test_the_shelf_lets_go_of_the_old_before_the_new_comes() -> None:
    shelf = Shelf()
    assert shelf.take("a", 1, lambda: "x") == "x" == shelf.take("a", 1, lambda: "other")
    held: list[bool] = []
    shelf.take("a", 2, lambda: held.append("a" in shelf._held))
    assert held == [False]


def test_statuses_come_now_and_then_and_the_last_always() -> None:
    seen: list[int] = []
    tell = Throttled(lambda status: seen.append(status.step), seconds=1000)
    for step in range(1, 11):
        tell(Status(step, 10, 1, 1))
    assert seen == [1, 10]


@pytest.mark.cuda
def test_runs_share_a_gpu(data: Path, tmp_path: Path) -> None:
    jobs = [small_job(data, tmp_path, seed=seed, device="cuda") for seed in range(3)]
    records = run_grid(jobs, per_device=2)
    assert [record.seed for record in records] == [0, 1, 2]
    assert all(r.config["device"] == "cuda" and r.summary["distance_max"] == 0 for r in records)


def test_a_data_folder_that_is_not_there_is_said_once_before_any_run(tmp_path: Path) -> None:
    jobs = [small_job(tmp_path / "nope", tmp_path / "runs", seed=seed) for seed in range(3)]
    with pytest.raises(FileNotFoundError, match=r"nope: no such folder; give the data set's with --data"):
        run_grid(jobs, devices=["cpu"])
    assert not (tmp_path / "runs").exists()


def test_a_run_with_another_file_of_the_same_name_is_not_complete(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures")
    makers = [small_job(data, tmp_path / f"teacher{i}", method="full-precision", epochs=1, seed=i) for i in (0, 1)]
    for maker in makers:
        train_images(maker)
    job, other = (
        small_job(data, tmp_path / "run", epochs=1, teacher=maker.out / maker.name / "last.pt") for maker in makers
    )
    assert completed(job) is None
    record, _ = train_images(job)
    there = completed(job)
    assert there is not None and timeless(there) == timeless(record)
    assert completed(other) is None


def test_a_run_on_other_images_is_not_complete(tmp_path: Path) -> None:
    """Where the data set is gone there is nothing to compare with: the record stands."""
    data, others = pictures(tmp_path / "pictures"), pictures(tmp_path / "others", train=5)
    job = small_job(data, tmp_path / "run", epochs=1)
    train_images(job)
    assert completed(job) is not None and completed(replace(job, data=others)) is None
    with pytest.raises(CheckpointError, match="data_digest"):
        train_images(replace(job, data=others))
    assert completed(replace(job, data=tmp_path / "nowhere")) is not None
