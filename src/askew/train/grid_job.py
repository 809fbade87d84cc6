"""One job of a grid as a worker does it: a run, its status now and then, and what became of it."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from askew.report.live import Status
from askew.train.image_config import ImageTraining
from askew.train.record import Record
from askew.train.source import Shelf

OnJob = Callable[[str, Status], None]
MANY = 100_000


class Train(Protocol):
    """What does a job: images.train_images."""

    def __call__(
        self, config: ImageTraining, on_status: Callable[[Status], None] | None, shelf: Shelf | None, /
    ) -> tuple[Record, Path]: ...


@dataclass(frozen=True)
class Failure:
    """Why a job has no record."""

    reason: str
    trace: str = ""


class Throttled:
    """Passes on a status every so many seconds, and the last one of a run always."""

    def __init__(self, tell: Callable[[Status], None], seconds: float = 0.2) -> None:
        self.tell, self.seconds, self.last = tell, seconds, -1e9

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if now - self.last >= self.seconds or status.step >= status.total_steps:
            self.last = now
            self.tell(status)


def attempt(train: Train, job: ImageTraining, tell: Callable[[Status], None], shelf: Shelf) -> Path | Failure:
    """The job's record file, or why there is none; either way the device is left free for the next job."""
    try:
        return train(job, Throttled(tell), shelf)[1]
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())
    finally:
        _make_room()


def _make_room() -> None:
    """For the next job of this process: memory on the device, and leave to compile its own net.

    torch.compile gives up on a function after eight nets (recompile_limit) and would run the ninth uncompiled.
    """
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.config.recompile_limit = dynamo.config.accumulated_recompile_limit = MANY
