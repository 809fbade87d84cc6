"""One launch of the Triton step: its arguments, made anew only when an option changes, and a short way to call it.

Triton's own call looks at every argument to find the compiled kernel. Between steps only the gradients' table and two
numbers change, none of which the choice depends on; so the kernel that the first call returns is called directly.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from askew.core import LevelSet
from askew.optim.fused_cpu import grid
from askew.optim.fused_work import GroupWork

DIRECT = True  # call compiled kernels past Triton's look at the arguments
GRADIENTS, STEP = 2, 22  # where the arguments stand that change from step to step; over_root is the one after STEP


class Kind(NamedTuple):
    """What the parameters of one launch share."""

    position: int
    clamp: bool
    fresh: bool
    out: bool
    scaled: bool
    follows: bool  # the scale is not known before the step: what goes to `out` is made by a launch of its own
    halves: tuple[bool, bool, bool, bool]  # w, g, m, out in bfloat16
    done: float | None  # Adam's step count if it lies on the host
    aligned: bool


class Tables(NamedTuple):
    """On the device: the arrays of all parameters, their bias corrections, this launch's blocks and its parameters."""

    arrays: Tensor
    corrections: Tensor
    blocks: Tensor
    rows: Tensor


class Call:
    """A kernel with its grid: the first call compiles or finds it by all arguments, the next go to it directly."""

    def __init__(self, kernel: Any, programs: int) -> None:
        self._kernel, self._grid = kernel, (programs, 1, 1)
        self._direct: Any = None
        self._choice: Any = None

    def __call__(self, arguments: list[Any], constants: dict[str, Any], warps: int, same: bool) -> None:
        """same: nothing that the choice of the kernel may depend on has changed since the last call."""
        if same and self._direct is not None:
            self._direct(*arguments, *constants.values())
            return
        choice = [(a.dtype, a.data_ptr() % 16) for a in arguments if isinstance(a, Tensor)], constants, warps
        if self._direct is not None and choice == self._choice:
            self._direct(*arguments, *constants.values())
            return
        compiled = self._kernel[self._grid](*arguments, **constants, num_warps=warps)
        self._direct = compiled[self._grid] if DIRECT and hasattr(compiled, "packed_metadata") else None
        self._choice = choice


class Launch:
    """What one launch of step_kernel treats; where step counts live on the device, count_kernel goes before it."""

    def __init__(self, kernels: Any, kind: Kind, tables: Tables, block: int, warps: int, count: Tensor | None) -> None:
        self.kind, self.tables = kind, tables
        self._done = count  # on the host, of one of the parameters: they all have the same
        self._block, self._warps = block, warps
        self._made_for: GroupWork | None = None
        self._step = Call(kernels.step_kernel, len(tables.blocks))
        self._count = Call(kernels.count_kernel, len(tables.rows))
        self._bad = Call(kernels.bad_kernel, len(tables.blocks))
        self._show = Call(kernels.show_kernel, len(tables.blocks))
        self._some = len(tables.blocks) > 0

    def __call__(self, work: GroupWork, gradients: Tensor) -> None:
        """gradients: their addresses. Step counts on the host have this step in them already."""
        same = work is self._made_for
        if not same:
            self._make(work)
        if self._constants["COUNTED"]:
            self._count(self._counting, {"LR_THERE": self._constants["LR_THERE"]}, 1, same)
        if not self._some:
            return
        if self._done is not None:
            done = self._done.item()
            self._arguments[STEP] = -self._lr / (1 - self._betas[0] ** done)
            self._arguments[STEP + 1] = 1 / math.sqrt(1 - self._betas[1] ** done)
        self._arguments[GRADIENTS] = gradients
        self._step(self._arguments, self._constants, self._warps, same)

    def show(self, work: GroupWork) -> None:
        """After the step and once scales have followed it: what the network computes with."""
        if self.kind.follows and self._some:
            self._show(self._showing, self._show_constants, self._warps, False)

    def look(self, gradients: Tensor, flag: Tensor) -> None:
        """Raise the flag if a gradient holds NaN or infinity."""
        if self._some:
            constants = {"G_HALF": self.kind.halves[1], "ALIGNED": self.kind.aligned, "BLOCK": self._block}
            self._bad([self.tables.blocks, self.tables.arrays, gradients, flag], constants, self._warps, True)

    def _make(self, work: GroupWork) -> None:
        """The arguments under these options; GroupWork is made anew whenever one may have changed."""
        options, kind, table = work.options, self.kind, self.tables.arrays
        which, gap, levels, middles = _levels(work.levels, table)
        lr_there, clip_there = (isinstance(x, Tensor) and x.is_cuda and table.is_cuda for x in (work.lr, work.clip))
        lr = self._lr = 1.0 if lr_there else float(work.lr)
        beta1, beta2 = self._betas = tuple(float(beta) for beta in options.get("betas", (0.5, 0.5)))
        lr_at = work.lr if lr_there else table
        self._arguments: list[Any] = [
            self.tables.blocks, table, table, self.tables.corrections, levels, middles,
            table if work.value is None else work.value, lr_at, work.clip if clip_there else table,
            gap, 1 / gap, float(work.alpha), 0.0 if clip_there else float(work.clip), lr,
            float(options["weight_decay"]), beta1, beta2, 1 - beta1, 1 - beta2, float(options.get("eps", 0.0)),
            float(options.get("momentum", 0.0)), 1 - float(options.get("dampening", 0.0)), 0.0, 1.0,
        ]  # fmt: skip
        self._constants = {
            "MODE": work.mode, "GRID": which, "K": 0 if work.levels is None else len(work.levels),
            "UPDATE": 2 if work.adam else int(options["momentum"] != 0),
            "SCALED": kind.scaled and not kind.follows, "CLAMP": kind.clamp, "SNAP": work.snap,
            "FORWARD": work.forward, "OUT": kind.out and not kind.follows,
            "FRESH": kind.fresh, "NESTEROV": bool(options.get("nesterov")),
            "DECOUPLED": bool(options.get("decoupled_weight_decay")), "SMALL": 1 - beta1 < 0.5,
            "COUNTED": work.adam and kind.done is None, "LR_THERE": lr_there, "CLIP_THERE": clip_there,
            "W_HALF": kind.halves[0], "G_HALF": kind.halves[1], "M_HALF": kind.halves[2], "OUT_HALF": kind.halves[3],
            "ALIGNED": kind.aligned, "BLOCK": self._block,
        }  # fmt: skip
        logs = (math.log(beta) if beta else -1e30 for beta in (beta1, beta2))
        self._counting: list[Any] = [self.tables.rows, table, self.tables.corrections, lr_at, lr, *logs]
        self._showing: list[Any] = [self.tables.blocks, table, levels, middles, self._arguments[6], gap, 1 / gap]
        names = ("GRID", "K", "FORWARD", "W_HALF", "OUT_HALF", "ALIGNED", "BLOCK")
        self._show_constants = {name: self._constants[name] for name in names}
        self._made_for = work


def _levels(levels: LevelSet | None, like: Tensor) -> tuple[int, float, Tensor, Tensor]:
    """(grid, gap, levels, midpoints) with both tables on the device; core keeps them."""
    if levels is None:
        return 0, 1.0, like, like
    kind, c, _ = grid(levels)
    single = torch.empty(0, dtype=torch.float32, device=like.device)
    return kind, float(c[1] - c[0]), levels.table(single), levels.midpoint_table(single)
