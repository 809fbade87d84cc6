"""A grid on this machine: worker processes, each with a device or a share of one, take one job after another."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from askew.report.live import Status
from askew.train.device import check_present, device_named
from askew.train.grid_job import Failure, OnJob, Train, attempt
from askew.train.image_config import ImageTraining
from askew.train.mps import VISIBLE, overlapping
from askew.train.record import Record, load
from askew.train.source import Shelf
from askew.train.stopping import leave, tidily
from askew.train.surroundings import surroundings

PATIENCE = 20.0  # seconds a worker has to end by itself, and to keep its run


class Local:
    """Engine of a grid: `per_device` workers on each of these devices of one kind.

    One worker on the CPU is this process itself. A worker that dies takes its job with it and is replaced.
    mps: workers on one GPU overlap there (see mps.py) rather than take turns.
    """

    def __init__(self, devices: Sequence[str], per_device: int, mps: bool = False) -> None:
        kinds = {torch.device(device).type for device in devices}
        if len(kinds) != 1:
            raise ValueError(f"the devices of a grid must be of one kind, got {list(devices)}")
        self.kind = kinds.pop()
        if mps and (self.kind != "cuda" or per_device == 1):
            raise ValueError("mps lets several runs share an NVIDIA GPU: give it with per_device 2 or more, on GPUs")
        self.sharing = overlapping(per_device) if mps else nullcontext()
        self.places = [device for _ in range(per_device) for device in devices]

    def run(self, jobs: Sequence[ImageTraining], on_status: OnJob, train: Train) -> list[Record | Failure]:
        places = self.places[: len(jobs)]
        if places == ["cpu"]:
            found = _one_after_another(jobs, on_status, train)
        else:
            with tidily(), self.sharing:
                found = _Team(jobs, places, on_status, train).work()
        return [load(path) if isinstance(path, Path) else path for path in found]

    def close(self) -> None:
        """Nothing is left to end: `run` ends its workers."""


def local_devices(asked: set[str]) -> list[str]:
    """The devices for jobs that ask for these: all GPUs for auto and cuda (the CPU for auto if there are none)."""
    if len(asked) > 1:
        raise ValueError(f"jobs ask for different devices ({', '.join(sorted(asked))}): say which with devices=")
    device = next(iter(asked), "auto")
    check_present(device_named(device))
    if device not in ("auto", "cuda"):
        return [device]
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return gpus or ["cpu"]


def _one_after_another(jobs: Sequence[ImageTraining], on_status: OnJob, train: Train) -> list[Path | Failure]:
    shelf = Shelf()

    def tell(job: ImageTraining) -> Callable[[Status], None]:
        return lambda status: on_status(job.name, status)

    return [attempt(train, job, tell(job), shelf) for job in jobs]


class _Team:
    """The workers and what each of them does."""

    def __init__(self, jobs: Sequence[ImageTraining], places: Sequence[str], on_status: OnJob, train: Train) -> None:
        self.jobs, self.on_status, self.train = jobs, on_status, train
        self.waiting = deque(range(len(jobs)))
        self.found: dict[int, Path | Failure] = {}
        self.threads = max(1, _usable_cores() // len(places))
        self.places = places
        self.busy: dict[Connection, tuple[_Worker, int]] = {}

    def work(self) -> list[Path | Failure]:
        """Do all jobs; whatever stops this (Ctrl-C and SIGTERM too) ends the workers, which keep their runs."""
        idle: list[_Worker] = []
        try:
            for place in self.places:
                self._give(_Worker(place, self.train, self.threads))
            while self.busy:
                for line in wait(list(self.busy)):
                    assert isinstance(line, Connection)
                    idle += self._hear(line)
        except BaseException:
            for worker, _ in self.busy.values():
                worker.stop()  # all at once: each is waited for below
            raise
        finally:
            for worker in [*idle, *(worker for worker, _ in self.busy.values())]:
                worker.leave()
        return [self.found[i] for i in range(len(self.jobs))]

    def _give(self, worker: _Worker) -> None:
        """The next job for a free worker."""
        job = self.waiting.popleft()
        worker.send(self.jobs[job])
        self.busy[worker.line] = worker, job

    def _hear(self, line: Connection) -> list[_Worker]:
        """A message, or a worker's end; returns the worker if nothing is left for it to do."""
        worker, job = self.busy[line]
        try:
            message = line.recv()
        except (EOFError, OSError):
            message = Failure(f"its process ended with status {worker.ended()}")
        if isinstance(message, Status):
            self.on_status(self.jobs[job].name, message)
            return []
        del self.busy[line]
        self.found[job] = message
        if not self.waiting:
            return [worker]
        if not worker.process.is_alive():
            worker = _Worker(worker.place, self.train, self.threads)
        self._give(worker)
        return []


class _Worker:
    """A process of its own that sees one GPU only, if its place is one."""

    def __init__(self, place: str, train: Train, threads: int) -> None:
        context = get_context("spawn")
        self.place = place
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, train, threads), name=f"askew {place}")
        with _visible(place):
            self.process.start()
        theirs.close()

    def send(self, message: ImageTraining | None) -> None:
        with suppress(OSError):  # it has ended: its line says so when it is read
            self.line.send(message)

    def ended(self) -> int | None:
        self.process.join(PATIENCE)
        return self.process.exitcode

    def stop(self) -> None:
        self.process.terminate()

    def leave(self) -> None:
        """Let it end, or make it."""
        self.send(None)
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.line.close()


def _serve(line: Connection, train: Train, threads: int) -> None:
    """A worker's life: jobs come over the line, statuses and results go back; it ends with the line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that leads
    signal.signal(signal.SIGTERM, leave)  # within a run: after the step under way, which is kept
    torch.set_num_threads(threads)
    shelf = Shelf()
    try:
        while (job := line.recv()) is not None:
            line.send(attempt(train, job, line.send, shelf))
    except (EOFError, OSError):
        return  # the leading process is gone


@contextmanager
def _visible(place: str) -> Iterator[None]:
    """Processes started inside see the one GPU of `place` and call it cuda:0; no other device is touched by them."""
    device = torch.device(place)
    if device.type != "cuda":
        yield
        return
    before, index = os.environ.get(VISIBLE), device.index or 0
    with surroundings({VISIBLE: before.split(",")[index] if before else str(index)}):
        yield


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
