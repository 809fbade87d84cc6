"""What the tests with two processes share: starting them once, their results, and a comparison in depth."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RANKS = 2


def brought_back(work: Callable[[int, Path], None], folder: Path) -> list[dict[str, Any]]:
    """Each process's results, folder/RANK.pt; of pytest-xdist's workers the first to come starts them, others wait."""
    done = folder / "done"
    try:
        folder.mkdir()
    except FileExistsError:
        limit = time.monotonic() + 300
        while not done.exists() and time.monotonic() < limit:
            time.sleep(0.2)
    else:
        try:
            torch.multiprocessing.spawn(work, (folder,), nprocs=RANKS)
        finally:
            done.touch()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


def all_done(tasks: Mapping[str, Callable[[int, Path], Any]], rank: int, folder: Path) -> None:
    """Do all tasks in this process of the two; one that fails leaves its traceback in place of its result."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    out: dict[str, Any] = {}
    for name, task in tasks.items():
        try:
            out[name] = task(rank, folder)
        except Exception:
            out[name] = traceback.format_exc()
        torch.save(out, folder / f"{rank}.pt")
    dist.barrier()  # gloo ends the process ("terminate called ...") if one leaves while the other still talks to it
    dist.destroy_process_group()


def result(brought: list[dict[str, Any]], name: str) -> list[Any]:
    """Both processes' results of a task; a traceback in its place fails the test."""
    got = [here[name] for here in brought]
    for rank, one in enumerate(got):
        assert not isinstance(one, str), f"process {rank}:\n{one}"
    return got


def close(a: Any, b: Any, tolerance: float, path: str = "") -> None:
    """Equal structure; numbers and tensors within the tolerance."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for k in a:
            close(a[k], b[k], tolerance, f"{path}/{k}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            close(x, y, tolerance, f"{path}/{i}")
    elif a is None or isinstance(a, str):
        assert a == b, path
    else:
        x, y = torch.as_tensor(a), torch.as_tensor(b)
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{path}: {m}")
