"""Ctrl-C and SIGTERM while a run is kept: it ends where it can go on from, not in the middle of a step."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@dataclass
class Stop:
    """The signal that asked for the end, 0 if none has."""

    signal: int = 0

    def __bool__(self) -> bool:
        return self.signal != 0

    def end(self) -> None:
        """What the signal would have done at once."""
        if self.signal == signal.SIGTERM:
            sys.exit(128 + signal.SIGTERM)
        raise KeyboardInterrupt


@contextmanager
def heeded(active: bool) -> Iterator[Stop]:
    """Inside, the first signal is only noted; a second one acts at once. Handlers of others are left alone."""
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        stop.signal = number
        signal.signal(number, USUAL[signal.Signals(number)])

    before: dict[signal.Signals, Any] = {}
    if active and threading.current_thread() is threading.main_thread():
        before = {number: usual for number, usual in USUAL.items() if signal.getsignal(number) == usual}
    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
