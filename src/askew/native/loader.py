"""Finding a native library: once a process, or the reason why there is none."""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path

from askew.native.build import HERE, SUFFIX

logger = logging.getLogger("askew")


def find(name: str, folder: Path = HERE) -> Path | None:
    """The compiled library of that name beside this file, if the build made one; the newest if there are several."""
    built = sorted(folder.glob(f"_{name}.*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    return built[-1] if built else None


@cache
def load(name: str) -> ctypes.CDLL | None:
    """The library, or None: then it says once, in the log, that the slower way is taken and how to get the other.

    The environment variable ASKEW_NATIVE=0 turns native code off.
    """
    if os.environ.get("ASKEW_NATIVE", "1") == "0":
        return None
    path = find(name)
    try:
        if path is not None:
            return ctypes.CDLL(str(path))
        reason = "it was not built"
    except OSError as error:
        reason = str(error)
    logger.warning(
        "askew's native library %r is not there (%s); the slower form is used. "
        "`python -m askew.native.build` builds it if there is a C++ compiler.",
        name,
        reason,
    )
    return None
