"""What a machine gives and a call takes: memory bandwidth, time, memory."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

CACHES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}  # variable -> folder


@contextmanager
def cold_caches() -> Iterator[None]:
    """Inside, the kernels' caches on disk are empty folders of their own, gone afterwards.

    Triton and torch's compiler look at these variables at every kernel that they compile; what this process has
    compiled before stays in its memory.
    """
    before = {name: os.environ.get(name) for name in CACHES}
    with tempfile.TemporaryDirectory(prefix="askew-cold-", ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(Path(folder) / place) for name, place in CACHES.items()})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def synchronise(device: torch.device) -> None:
    """Wait for the device, where it runs on its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """The wall-clock time of one call, with what it started on the device."""
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def stream(device: torch.device, size: int = 1 << 26, rounds: int = 7) -> dict[str, float]:
    """Bytes a second of a copy (8 B an element) and of an update in place (12 B), the best of some rounds."""
    a, b = torch.zeros(size, device=device), torch.ones(size, device=device)
    copy = min(seconds(lambda: a.copy_(b), device) for _ in range(rounds))
    update = min(seconds(lambda: a.add_(b), device) for _ in range(rounds))
    return {"copy": 8 * size / copy, "update": 12 * size / update}


@contextmanager
def _silent() -> Iterator[None]:
    """Without the lines that torch's profiler writes to the process's stderr, past Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def memory(call: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """(bytes that stay, bytes at the highest point) above what was in use before the call, by torch's allocators."""
    synchronise(device)
    gc.collect()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        synchronise(device)
        return torch.cuda.memory_allocated(device) - before, torch.cuda.max_memory_allocated(device) - before
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events: list[Any] = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    balance = list(accumulate((e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())), initial=0))
    return balance[-1], max(balance)


def held(device: torch.device) -> int:
    """Bytes on a GPU that cannot be used for anything else: live tensors, and of a CUDA graph its whole pool.

    A graph keeps the memory of its step for itself, also between steps, when few tensors live there. Blocks that are
    only cached for reuse do not count, so it does not matter what ran before.
    """
    gc.collect()
    synchronise(device)
    torch.cuda.empty_cache()
    number = torch.cuda.current_device() if device.index is None else device.index
    segments: list[dict[str, Any]] = [s for s in torch.cuda.memory_snapshot() if s["device"] == number]
    shared = (0, 0)
    return sum(s["allocated_size" if tuple(s["segment_pool_id"]) == shared else "total_size"] for s in segments)


def footprint(begin: Callable[[], object], again: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """(bytes that a job holds once it has begun, peak above that when it goes on), by torch's allocators."""
    if device.type != "cuda":
        stays, _ = memory(begin, device)
        return stays, memory(again, device)[1]
    before = held(device)
    begin()
    _, peak = memory(again, device)
    return held(device) - before, peak
