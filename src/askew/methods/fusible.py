"""Elementwise mathematics as one kernel: what a method computes weight by weight, compiled where a step asks for it.

Operation by operation, a formula of twenty terms reads and writes its weights twenty times. Inside `compiled()` a
`@fusible` function is called through torch.compile, which makes one kernel of it; outside it runs as written. A CUDA
graph of a training step is taken inside (train/stepper.py), nothing else is.

Weights come in many shapes and in two memory layouts, and torch.compile would make a kernel for each (and give up after
eight). So the kernel sees flat views of the memory, of any length: one kernel for all layers. Under a scale per channel
it sees (channels, weights of one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, reduce, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from askew.core import LevelSet
from askew.core.levels import compute_dtype

P = ParamSpec("P")
R = TypeVar("R")
Backend = str | Callable[..., Any]
_backend: ContextVar[Backend | None] = ContextVar("backend", default=None)


@contextmanager
def compiled(backend: Backend = "inductor") -> Iterator[None]:
    """Inside, fusible functions are called through torch.compile; their first call there compiles them."""
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


def fusible(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of tensors, level sets and plain values that treats each weight alone, without random draws.

    Tensors are of the first one's shape, 0-d, or (channels, 1, ..): one number a channel. So is the result, which has
    the first one's memory layout. Numbers that change along the run must come as 0-d tensors; plain ones are constants
    of the kernel. What the function changes in place changes.
    """
    kernels: dict[Backend, Callable[..., Any]] = {}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling() or (backend := _backend.get()) is None:
            return function(*args, **kwargs)
        view = _view([x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)])
        if view is None:
            return function(*args, **kwargs)
        if backend not in kernels:
            kernels[backend] = torch.compile(function, backend=backend)
        shown = [view.show(x) for x in args], {name: view.show(x) for name, x in kwargs.items()}
        return view.restore(kernels[backend](*shown[0], **shown[1]))

    return call


class Tables:
    """A level set as the compiler sees it: the tables are tensors made before, not numbers to be sent to a device."""

    def __init__(self, levels: LevelSet, dtype: torch.dtype, device: torch.device) -> None:
        like = torch.empty((), dtype=dtype, device=device)
        self.values, self.gaps, self.midpoints, self.grid = levels.values, levels.gaps, levels.midpoints, levels.grid
        self._table, self._midpoint_table = levels.table(like), levels.midpoint_table(like)

    def __len__(self) -> int:
        return len(self.values)

    def table(self, like: Tensor) -> Tensor:
        return self._table.to(compute_dtype(like.dtype))

    def midpoint_table(self, like: Tensor) -> Tensor:
        return self._midpoint_table.to(compute_dtype(like.dtype))


_tables = lru_cache(maxsize=256)(Tables)


class _View:
    """How the arguments of one call are shown to its kernel: flat (size (n,)), or as rows (size (channels, n))."""

    def __init__(self, lead: Tensor, size: tuple[int, ...], dtype: torch.dtype) -> None:
        self.lead, self.size, self.dtype = lead, size, dtype

    def show(self, x: Any) -> Any:
        if isinstance(x, LevelSet):
            return _tables(x, self.dtype, self.lead.device)
        if not isinstance(x, Tensor):
            return x
        if x.ndim == 0:
            return _same_memory(x, ())
        if x.shape != self.lead.shape:
            return _same_memory(x.contiguous(), (self.size[0], 1))
        return _same_memory(_laid_as(x, self.lead), self.size)

    def restore(self, result: Any) -> Any:
        if not isinstance(result, Tensor) or result.shape != self.size:
            return result
        result = result.contiguous()
        return result.as_strided(self.lead.shape, self.lead.stride(), result.storage_offset())


def _view(tensors: list[Tensor]) -> _View | None:
    """The view of a call with these tensors; None where they cannot be shown so, or a gradient may be asked for."""
    if not tensors or any(type(t) not in (Tensor, nn.Parameter) for t in tensors):
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return None
    lead = tensors[0]
    if lead.numel() == 0 or torch.empty_like(lead, device="meta").stride() != lead.stride():
        return None
    dtype = reduce(torch.promote_types, (t.dtype for t in tensors if t.shape == lead.shape))
    others = [t for t in tensors if t.ndim and t.shape != lead.shape]
    if not others:
        return _View(lead, (lead.numel(),) if lead.ndim else (), dtype)
    channels = lead.shape[0] if lead.ndim else 0
    size = (channels, lead.numel() // max(1, channels))
    a_row_each = all(t.shape == (channels, *[1] * (lead.ndim - 1)) for t in others)
    return _View(lead, size, dtype) if a_row_each and lead.stride(0) == size[1] else None


def _laid_as(x: Tensor, lead: Tensor) -> Tensor:
    """x in the memory layout of lead (strides of dimensions of size 1 mean nothing)."""
    pairs = zip(x.shape, x.stride(), lead.stride(), strict=True)
    return (
        x if all(own == asked for n, own, asked in pairs if n > 1) else torch.empty_like(lead, dtype=x.dtype).copy_(x)
    )


def _same_memory(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """x's memory, without gaps, as a tensor of that size; no view, for the compiler would ask what it is a view of.

    The compiler is told that other sizes will come (1 is always a case of its own).
    """
    from torch._dynamo import maybe_mark_dynamic

    strides = (size[1], 1) if len(size) == 2 else (1,) * len(size)
    with torch.no_grad():
        shown = torch.empty(0, dtype=x.dtype, device=x.device)
        shown.set_(x.untyped_storage(), x.storage_offset(), size, strides)
    for dimension, n in enumerate(size):
        if n > 1:
            maybe_mark_dynamic(shown, dimension)
    return shown
