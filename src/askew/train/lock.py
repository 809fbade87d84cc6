"""One process at a time in a run's folder: an advisory lock that ends with its process, however that ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from askew.atomic import hold, let_go

NAME = ".running"  # in the folder while a run is under way: pid and host of its process


class UnderWayError(OSError):
    """Another process runs in the folder; the message names it."""


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """The folder for this process alone; UnderWayError if another one has it.

    A killed process leaves the file but no lock. Where the file system has no locks there is none here either.
    """
    path = folder / NAME
    handle = _take(path)
    try:
        with suppress(OSError):  # a full disk: the lock holds without a name
            os.truncate(handle, 0)
            os.write(handle, f"pid {os.getpid()}, host {socket.gethostname()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock goes: the next process makes a file of its own
        let_go(handle)
        os.close(handle)


def _take(path: Path) -> int:
    """The locked file; taken anew if its last owner removed it meanwhile."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not hold(handle):
            who = os.read(handle, 200).decode(errors="replace") or "another process"
            os.close(handle)
            raise UnderWayError(
                f"a run is under way in {path.parent} ({who}): wait for its end, or choose another --out"
            )
        if _is_at(handle, path):
            return handle
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Is the open file still the one of that name?"""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
