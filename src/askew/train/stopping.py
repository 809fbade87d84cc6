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


def leave(number: int, frame: FrameType | None = None) -> None:
    """End the process as the signal would, but tidily: files half written are removed."""
    sys.exit(128 + number)


USUAL: dict[int, tuple[Any, ...]] = {
    signal.SIGINT: (signal.default_int_handler,),
    signal.SIGTERM: (signal.SIG_DFL, leave),
}  # what may stand for a signal before us


@dataclass
class Stop:
    """The signal that asked for the end, 0 if none has."""

    signal: int = 0

    def __bool__(self) -> bool:
        return self.signal != 0

    def end(self) -> None:
        """What the signal would have done at once."""
        if self.signal == signal.SIGTERM:
            leave(self.signal)
        raise KeyboardInterrupt


@contextmanager
def heeded(active: bool) -> Iterator[Stop]:
    """Inside, the first signal is only noted, and acts when the block ends, if not before; a second one acts at once.

    Handlers of others are left alone.
    """
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        stop.signal = number
        signal.signal(number, before[number])

    before: dict[int, Any] = {}
    if active and _in_charge():
        now = {number: signal.getsignal(number) for number in USUAL}
        before = {number: handler for number, handler in now.items() if handler in USUAL[number]}
    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
    if stop:
        stop.end()


@contextmanager
def tidily() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit where it would end the process at once."""
    usual = _in_charge() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if usual:
        signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _in_charge() -> bool:
    """Only the main thread may set handlers."""
    return threading.current_thread() is threading.main_thread()
