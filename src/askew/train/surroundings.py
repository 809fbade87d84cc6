"""Environment variables for processes about to be started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def surroundings(named: Mapping[str, str]) -> Iterator[None]:
    """Inside, the environment has these variables too; afterwards it is what it was."""
    before = {name: os.environ.get(name) for name in named}
    os.environ.update(named)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
