"""The fused step on CUDA devices: tables of addresses on the device, one Triton launch for what shares its scalars.

The tables (10 numbers a parameter, 2 a block of BLOCK elements) are made once and used again while the addresses stay
the same. In a CUDA graph the learning rate (if it is a tensor), step count and schedule's value are read on the device.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from askew.core import LevelSet
from askew.optim.fused_cpu import grid
from askew.optim.fused_work import GroupWork, ParamWork

BLOCK = 2048
WARPS = 8
COLUMNS = 10
logger = logging.getLogger("askew")


@cache
def kernels() -> Any:
    """The module with the kernel, or None; says once in the log that the slower way is taken."""
    try:
        return importlib.import_module("askew.optim.fused_triton")
    except ImportError as error:
        logger.warning("Triton is not there (%s): on CUDA the slower PyTorch form of the step is used", error)
        return None


def refusal() -> str | None:
    """Why no parameter on a CUDA device can take a fused step, or None."""
    return None if kernels() is not None else "Triton is not installed"


class Kind(NamedTuple):
    """What the parameters of one launch share."""

    position: int
    clamp: bool
    fresh: bool
    out: bool
    scaled: bool
    halves: tuple[bool, bool, bool, bool]  # w, g, m, out in bfloat16
    done: float | None  # Adam's step count if it lies on the host
    aligned: bool


class Batch:
    """The parameters of a step on one device. It may run again while only gradients move and scalars change."""

    def __init__(self, works: Sequence[ParamWork], gradients: Sequence[Tensor]) -> None:
        self._works = list(works)
        self._g_half = [g.dtype == torch.bfloat16 for g in gradients]
        self._addresses: list[int] = []
        self._scales = [None if work.scale is None else work.scale.reshape(-1).contiguous() for work in works]
        self._steps = [work.step for work in works if work.step is not None]
        self._kept: list[Any] = []
        self.captured = False
        self._fresh = any(work.fresh for work in works)

    def _upload(self, addresses: list[int]) -> None:
        """Sort the parameters into launches and send their tables to the device."""
        self._addresses = addresses
        members: dict[Kind, list[list[int]]] = {}
        for work, scale, address, half in zip(self._works, self._scales, addresses, self._g_half, strict=True):
            if work.w.numel():
                row = _row(work, scale, address)
                members.setdefault(_kind(work, row, self._fresh, half), []).append(row)
        device = self._works[0].w.device
        self._launches = [(kind, *_tables(rows, device, self._kept)) for kind, rows in members.items()]

    def run(self, groups: Sequence[GroupWork], gradients: Sequence[Tensor]) -> None:
        """One step; `gradients`: where they lie now, in the order, types and memory order of the first."""
        addresses = [g.data_ptr() for g in gradients]
        if addresses != self._addresses:
            self._upload(addresses)
        device = self._works[0].w.device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self.captured = True
            self._kept.append(self._launches)  # the graph reads these tables whenever it is replayed
        if self._steps:
            torch._foreach_add_(self._steps, 1)  # pyright: ignore[reportPrivateImportUsage]
        with torch.cuda.device(device if device.type == "cuda" else -1):
            for i, (kind, table, blocks) in enumerate(self._launches):
                if kind.done is not None:
                    kind = kind._replace(done=kind.done + 1)
                    self._launches[i] = kind, table, blocks
                _launch(groups[kind.position], kind, table, blocks)
        if self._fresh:  # momentum buffers are there from now on
            self._fresh, self._addresses = False, []


def _counted_by_host(work: ParamWork) -> bool:
    """torch keeps Adam's step count on the device only for capturable=True or fused=True."""
    return work.step is not None and work.step.device != work.w.device


def _row(work: ParamWork, scale: Tensor | None, gradient: int) -> list[int]:
    arrays = (work.m, work.v, work.out, None if _counted_by_host(work) else work.step, scale)
    channels = 1 if scale is None else scale.numel()
    inner = work.w.stride(0) if channels > 1 else work.w.numel()
    return [
        work.w.data_ptr(),
        gradient,
        *(0 if x is None else x.data_ptr() for x in arrays),
        *(work.w.numel(), inner, channels),
    ]


def _kind(work: ParamWork, row: list[int], fresh: bool, g_half: bool) -> Kind:
    w, m, out = (x is not None and x.dtype == torch.bfloat16 for x in (work.w, work.m, work.out))
    return Kind(
        position=work.position,
        clamp=work.clamp,
        fresh=fresh and work.fresh,
        out=work.out is not None,
        scaled=work.scale is not None,
        halves=(w, g_half, m, out),
        done=float(work.step) if work.step is not None and _counted_by_host(work) else None,
        aligned=all(address % 16 == 0 for address in row[:5]) and work.w.numel() % 16 == 0,
    )


def _tables(rows: list[list[int]], device: torch.device, kept: list[Any]) -> tuple[Tensor, Tensor]:
    """(addresses, blocks) on the device; sent from pinned memory, which a graph that captures this may read again."""
    blocks = torch.cat(
        [
            torch.stack([torch.full((n,), i, dtype=torch.int32), torch.arange(n, dtype=torch.int32)], 1)
            for i, n in enumerate(-(-row[7] // BLOCK) for row in rows)
        ]
    )
    host = [torch.tensor(rows, dtype=torch.int64), blocks]
    if device.type != "cuda":
        return host[0], host[1]
    pinned = [t.pin_memory() for t in host]
    if torch.cuda.is_current_stream_capturing():
        kept.append(pinned)
    table, places = (t.to(device, non_blocking=True) for t in pinned)
    return table, places


def _levels(levels: LevelSet | None, like: Tensor) -> tuple[int, float, Tensor, Tensor]:
    """(grid, gap, levels, midpoints) with both tables on the device; core keeps them."""
    if levels is None:
        return 0, 1.0, like, like
    kind, c, _ = grid(levels)
    single = torch.empty(0, dtype=torch.float32, device=like.device)
    return kind, float(c[1] - c[0]), levels.table(single), levels.midpoint_table(single)


def _launch(work: GroupWork, kind: Kind, table: Tensor, blocks: Tensor) -> None:
    options = work.options
    which, gap, levels, middles = _levels(work.levels, table)
    lr_there = isinstance(work.lr, Tensor) and work.lr.device == table.device and table.device.type == "cuda"
    clip_there = isinstance(work.clip, Tensor) and work.clip.device == table.device and table.device.type == "cuda"
    lr = 1.0 if lr_there else float(work.lr)
    beta1, beta2 = (float(beta) for beta in options.get("betas", (0.5, 0.5)))
    step, over_root = 0.0, 1.0
    if kind.done is not None:
        step, over_root = -lr / (1 - beta1**kind.done), 1 / math.sqrt(1 - beta2**kind.done)
    update = 2 if work.adam else int(options["momentum"] != 0)
    kernels().step_kernel[(len(blocks),)](
        blocks, table, levels, middles,
        table if work.value is None else work.value,
        work.lr if lr_there else table,
        work.clip if clip_there else table,
        gap, 1 / gap, float(work.alpha), 0.0 if clip_there else float(work.clip), lr, float(options["weight_decay"]),
        beta1, beta2, 1 - beta1, 1 - beta2,
        math.log(beta1) if beta1 else -1e30, math.log(beta2) if beta2 else -1e30,
        float(options.get("eps", 0.0)), float(options.get("momentum", 0.0)), 1 - float(options.get("dampening", 0.0)),
        step, over_root,
        MODE=work.mode, GRID=which, K=0 if work.levels is None else len(work.levels), UPDATE=update,
        SCALED=kind.scaled, CLAMP=kind.clamp, SNAP=work.snap, FORWARD=work.forward, OUT=kind.out, FRESH=kind.fresh,
        NESTEROV=bool(options.get("nesterov")), DECOUPLED=bool(options.get("decoupled_weight_decay")),
        SMALL=1 - beta1 < 0.5, COUNTED=work.adam and kind.done is None, LR_THERE=lr_there, CLIP_THERE=clip_there,
        W_HALF=kind.halves[0], G_HALF=kind.halves[1], M_HALF=kind.halves[2], OUT_HALF=kind.halves[3],
        ALIGNED=kind.aligned, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
