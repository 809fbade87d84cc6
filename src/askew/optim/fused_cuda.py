"""The fused step on CUDA devices: tables of addresses on the device, one Triton launch for what shares its scalars.

The tables (9 numbers a parameter, 2 a block of BLOCK elements) are made once. The gradients' addresses, which may be
new in every step, have a table of their own; the last few are kept, since allocators come back to the same addresses.
In a CUDA graph the learning rate (if it is a tensor), step count and schedule's value are read on the device.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from askew.optim.fused_launch import Kind, Launch, Tables
from askew.optim.fused_work import GroupWork, ParamWork, follow

BLOCK = 2048
WARPS = 8
REMEMBERED = 8  # tables of gradients' addresses
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


class Batch:
    """The parameters of a step on one device. It may run again while only gradients move and scalars change."""

    def __init__(self, works: Sequence[ParamWork], gradients: Sequence[Tensor]) -> None:
        self._works = list(works)
        self._device = works[0].w.device
        self._g_half = [g.dtype == torch.bfloat16 for g in gradients]
        self._scales = [None if work.scale is None else work.scale.reshape(-1).contiguous() for work in works]
        self._following = [work for work in works if work.follows]
        self._fresh = any(work.fresh for work in works)
        self._counts = _gather([work for work in works if _counted_by_host(work)])
        self._launches: list[Launch] = []
        self._aligned: list[bool] | None = None  # of the gradients that the launches were made for
        self._tables: dict[tuple[int, ...], Tensor] = {}
        self._awaited = False  # launches made while a graph was captured: their tables arrive in its replays only
        self._kept: list[Any] = []  # what a graph reads whenever it is replayed
        self.captured = False
        self._flag: Tensor | None = None  # raised by a bad gradient

    def sound(self, gradients: Sequence[Tensor]) -> bool:
        """True if there is no NaN and no infinity in them; one device sync."""
        with self._here():
            if self._flag is None:
                self._flag = torch.zeros((), dtype=torch.int32, device=self._device)
            table = self._addresses(tuple(map(Tensor.data_ptr, gradients)), self._capturing())
            for launch in self._launches:
                launch.look(table, self._flag)
            if self._flag.item() == 0:
                return True
            self._flag.zero_()
            return False

    def run(self, groups: Sequence[GroupWork], gradients: Sequence[Tensor]) -> None:
        """One step; `gradients`: where they lie now, in the order, types and memory order of the first."""
        with self._here():
            capturing = self._capturing()
            table = self._addresses(tuple(map(Tensor.data_ptr, gradients)), capturing)
            if capturing:
                self.captured = True
                self._kept.append((self._launches, table))
            if self._counts is not None:
                self._counts.add_(1)
            for launch in self._launches:
                launch(groups[launch.kind.position], table)
            if self._following:
                follow(groups, self._following)
                for launch in self._launches:
                    launch.show(groups[launch.kind.position])
        if self._fresh or self._awaited:  # momentum buffers are there from now on; tables that are not, are not reused
            self._fresh, self._awaited, self._aligned, self._tables = False, False, None, {}

    def _here(self) -> AbstractContextManager[Any]:
        """With this device as the current one."""
        if self._device.type != "cuda" or torch.cuda.current_device() == self._device.index:
            return nullcontext()
        return torch.cuda.device(self._device)

    def _capturing(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _addresses(self, addresses: tuple[int, ...], capturing: bool) -> Tensor:
        """The gradients' addresses on the device. What is sent while a graph is captured arrives only in its replays:
        such tables serve that graph alone.
        """
        table = self._tables.get(addresses)
        if table is None:
            aligned = [address % 16 == 0 for address in addresses]
            if aligned != self._aligned:
                self._sort(aligned)
                self._awaited = capturing
            table = _send(torch.tensor(addresses, dtype=torch.int64), self._device, self._kept)
            if not capturing:
                while len(self._tables) >= REMEMBERED:
                    del self._tables[next(iter(self._tables))]
                self._tables[addresses] = table
        return table

    def _sort(self, aligned: list[bool]) -> None:
        """Sort the parameters into launches and send their tables to the device."""
        self._aligned, self._tables = aligned, {}
        members: dict[Kind, list[int]] = {}
        arrays = [_row(work, scale) for work, scale in zip(self._works, self._scales, strict=True)]
        for i, work in enumerate(self._works):
            kind = _kind(work, arrays[i], self._fresh, self._g_half[i], aligned[i])
            members.setdefault(kind, []).append(i)
        device, kept = self._device, self._kept
        table = _send(torch.tensor(arrays, dtype=torch.int64), device, kept)
        corrections = torch.empty(2 * len(arrays), dtype=torch.float32, device=device)
        self._launches = []
        for kind, rows in members.items():
            blocks = _blocks(rows, [self._works[i].w.numel() for i in rows])
            places = _send(blocks, device, kept), _send(torch.tensor(rows, dtype=torch.int32), device, kept)
            count = self._works[rows[0]].step if kind.done is not None else None
            self._launches.append(Launch(kernels(), kind, Tables(table, corrections, *places), BLOCK, WARPS, count))


def _counted_by_host(work: ParamWork) -> bool:
    """torch keeps Adam's step count on the device only for capturable=True or fused=True."""
    return work.step is not None and work.step.device != work.w.device


def _gather(works: list[ParamWork]) -> Tensor | None:
    """Step counts on the host as parts of one array, so that one addition moves them all; each state keeps its part."""
    if not works:
        return None
    held = [work.step for work in works if work.step is not None]
    whole = held[0]._base
    if whole is not None and whole.numel() == len(held) and all(step._base is whole for step in held):
        return whole
    whole = torch.stack(held)
    for work, step in zip(works, whole.unbind(), strict=True):
        work.step = work.state["step"] = step
    return whole


def _row(work: ParamWork, scale: Tensor | None) -> list[int]:
    """The columns of fused_triton's table."""
    arrays = (work.w, work.m, work.v, work.out, None if _counted_by_host(work) else work.step, scale)
    channels = 1 if scale is None else scale.numel()
    inner = work.w.stride(0) if channels > 1 else work.w.numel()
    return [*(0 if x is None else x.data_ptr() for x in arrays), work.w.numel(), inner, channels]


def _kind(work: ParamWork, row: list[int], fresh: bool, g_half: bool, g_aligned: bool) -> Kind:
    w, m, out = (x is not None and x.dtype == torch.bfloat16 for x in (work.w, work.m, work.out))
    return Kind(
        position=work.position,
        clamp=work.clamp,
        fresh=fresh and work.fresh,
        out=work.out is not None,
        scaled=work.scale is not None,
        follows=work.follows,
        halves=(w, g_half, m, out),
        done=float(work.step) if work.step is not None and _counted_by_host(work) else None,
        aligned=g_aligned and all(address % 16 == 0 for address in row[:4]) and work.w.numel() % 16 == 0,
    )


def _blocks(rows: list[int], sizes: list[int]) -> Tensor:
    """(row, number of the block) for every block of these parameters."""
    counts = torch.tensor([-(-size // BLOCK) for size in sizes])
    numbers = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.stack([torch.tensor(rows).repeat_interleave(counts), numbers], 1).to(torch.int32)


def _send(host: Tensor, device: torch.device, kept: list[Any]) -> Tensor:
    """To the device, from pinned memory; a graph that captures this reads it again, so it is kept."""
    if device.type != "cuda":
        return host
    pinned = host.pin_memory()
    if torch.cuda.is_current_stream_capturing():
        kept.append(pinned)
    return pinned.to(device, non_blocking=True)
