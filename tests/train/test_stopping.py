"""Ctrl-C and SIGTERM: the run ends where it can go on from, and goes on bit for bit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from image_kit import pictures, small_job, timeless

from askew.report.live import Status
from askew.train.checkpoint import read_file
from askew.train.images import train_images
from askew.train.stopping import USUAL, heeded, leave

ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """A shell's background jobs ignore Ctrl-C."""
    before = {number: signal.signal(number, usual[0]) for number, usual in USUAL.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("pictures"))


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize(("static", "at", "position"), [(False, 4, [1, 1]), (True, 4, [2, 0]), (False, 9, [3, 0])])
def test_a_run_that_is_stopped_goes_on_from_there(data, tmp_path, number, static, at, position) -> None:
    """Three epochs of three steps, no checkpoint before the end; the signal comes in step 4, or in the last one."""
    job = small_job(data, tmp_path / "stopped", keep_every=100, static=static)
    whole, _ = train_images(replace(job, out=tmp_path / "whole"))

    told: list[int] = []

    def stop(status: Status) -> None:
        told.append(status.step)
        if told.count(at) == 1 and status.step == at:  # of an epoch's last step one is told twice
            signal.raise_signal(number)

    with pytest.raises(ENDS[number]) as ended:
        train_images(job, stop)
    assert number == signal.SIGINT or ended.value.code == 143
    assert read_file(job.out / job.name / "last.pt")["position"] == position
    resumed, _ = train_images(job)
    assert timeless(resumed) == timeless(whole)


def test_a_second_signal_acts_at_once_and_handlers_come_back() -> None:
    before = {number: signal.getsignal(number) for number in ENDS}
    seen: list[int] = []

    def twice() -> None:
        with heeded(True) as stop:
            seen.append(stop.signal)
            signal.raise_signal(signal.SIGINT)
            seen.append(stop.signal)
            signal.raise_signal(signal.SIGINT)
            seen.append(-1)

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert seen == [0, signal.SIGINT]
    assert {number: signal.getsignal(number) for number in ENDS} == before


def test_a_worker_of_a_grid_ends_tidily() -> None:
    """What it was asked within a run it does at the run's end, though the run was just over; no further job begins."""
    signal.signal(signal.SIGTERM, leave)
    over: list[bool] = []

    def once() -> None:
        with heeded(True) as stop:
            signal.raise_signal(signal.SIGTERM)
            over.append(bool(stop))

    with pytest.raises(SystemExit) as ended:
        once()
    assert over == [True]
    assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is leave


def test_others_handlers_and_threads_are_left_alone() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with heeded(True) as stop:
            signal.raise_signal(signal.SIGTERM)
            assert heard == [signal.SIGTERM] and not stop
    finally:
        signal.signal(signal.SIGTERM, before)
    with heeded(False):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def inside() -> None:
        with heeded(True) as stop:
            heard.append(bool(stop))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert heard == [signal.SIGTERM, False]
