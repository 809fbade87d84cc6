"""Files that are whole or not there: written beside their final name, flushed to disk, renamed over it."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary stream, readable and writable, whose content becomes `path` when the block ends well.

    If the block or the disk fails, the file that was at `path` before stays as it is and nothing is left beside it.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder to write to", str(path.parent))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    hold(handle)  # so that nobody takes it for one that a killed process left
    try:
        with os.fdopen(handle, "r+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            error.filename = str(path)  # a full disk names no file by itself
        raise


def hold(handle: int) -> bool:
    """Lock an open file until it is closed or the process ends; False if another one has the lock.

    A file system (or a system) without such locks gives everybody one.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def let_go(handle: int) -> None:
    """Give the lock back, also where a forked process still has the file open."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of `path` while they wrote it; what a living one is writing stays."""
    for left in path.parent.glob(f".{path.name}.*"):
        with suppress(OSError), open(left, "rb") as stream:
            if hold(stream.fileno()):
                left.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    with replacing(path) as stream:
        stream.write(text.encode("utf-8"))
