"""Runs that overlap on one NVIDIA GPU: the driver's MPS daemon, started for a grid and ended with it.

Without it the processes on a GPU take turns; with it their kernels run side by side, each process on a share of the
multiprocessors. The daemon is one of our own, in a folder of its own: others on the machine are not touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which

from askew.train.surroundings import surroundings

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARES = {
    2: "50",
    3: "50",
}  # percent of a GPU that each of so many processes may use; a third is not safe (products.py)
LEAST = "25"  # of more of them: many small ones leave gaps for each other
PATIENCE = 60.0  # seconds for the daemon to start, to serve a first process, and to end
PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
raise SystemExit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
"""  # a process that touches the first GPU; its status is CUDA's error


class MpsError(OSError):
    """The daemon is not there, or does not do what it should."""


@contextmanager
def overlapping(per_device: int) -> Iterator[None]:
    """Processes started inside share their GPUs through MPS: 2 or 3 with half of one each, more with a quarter.

    With a daemon that the surroundings name (CUDA_MPS_PIPE_DIRECTORY) that one serves them, and only the share is set.
    """
    share = {SHARE: os.environ.get(SHARE) or SHARES.get(per_device, LEAST)}
    if os.environ.get(PIPES):
        with surroundings(share):
            yield
        return
    if which(CONTROL) is None:
        raise MpsError(f"{CONTROL} is not on the path: it comes with NVIDIA's driver; leave out --mps to take turns")
    with tempfile.TemporaryDirectory(prefix="askew-mps-") as folder:
        named = {PIPES: folder, LOGS: folder}
        _start(named, Path(folder))
        try:
            _try_out(named | share, Path(folder))
            with surroundings(named | share):
                yield
        finally:
            _quit(named)


def _start(named: dict[str, str], folder: Path) -> None:
    """The daemon sees all GPUs, so that the numbers in a client's CUDA_VISIBLE_DEVICES mean what they always do.

    It speaks to a file: a pipe would stay open as long as it lives.
    """
    env = {k: v for k, v in os.environ.items() if k != VISIBLE} | named
    spoken = folder / "start.txt"
    try:
        with spoken.open("w") as out:
            done = subprocess.run(
                [CONTROL, "-d"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=PATIENCE,
            )
    except subprocess.TimeoutExpired as error:
        raise MpsError(f"{CONTROL} did not start within {PATIENCE:.0f} s; leave out --mps to take turns") from error
    if done.returncode:
        said = spoken.read_text().strip() or f"status {done.returncode}"
        raise MpsError(f"{CONTROL} did not start: {said}; leave out --mps to take turns")


def _try_out(named: Mapping[str, str], folder: Path) -> None:
    """MpsError if a process cannot reach a GPU through the daemon, with the last thing that its log says."""
    try:
        done = subprocess.run([sys.executable, "-c", PROBE], env={**os.environ, **named}, timeout=PATIENCE)
        said = f"CUDA error {done.returncode}"
    except subprocess.TimeoutExpired:
        done, said = None, f"no answer within {PATIENCE:.0f} s"
    if done is None or done.returncode:
        logged = [line for log in sorted(folder.glob("*.log")) for line in log.read_text(errors="replace").splitlines()]
        last = f" ({logged[-1]})" if logged else ""
        raise MpsError(f"no GPU is reached through MPS: {said}{last}; leave out --mps to take turns")


def _quit(named: Mapping[str, str]) -> None:
    with suppress(OSError, subprocess.SubprocessError):  # one that has ended by itself
        subprocess.run(
            [CONTROL], input="quit\n", env={**os.environ, **named}, capture_output=True, text=True, timeout=PATIENCE
        )
