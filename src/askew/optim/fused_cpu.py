"""The fused step on the CPU: the work list as the C++ kernel's structs (native/step.h), one call for all parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from askew.core import LevelSet
from askew.optim.fused_native import JOB, RULE, TYPES, library
from askew.optim.fused_work import GroupWork, ParamWork, follow

PAIR, EVEN, TABLE = range(3)


def refusal() -> str | None:
    """Why no parameter on the CPU can take a fused step, or None."""
    return None if library() is not None else "the native library was not built"


@lru_cache(maxsize=256)
def grid(levels: LevelSet) -> tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(kind, levels, midpoints). PAIR and EVEN need a gap h that is a power of two (so that dividing by it is exact);
    EVEN also that c_1 + k h gives every level and midpoint exactly in float32. TABLE takes any levels.
    """
    c = np.array(levels.values, dtype=np.float32)
    middles = np.array(levels.midpoints, dtype=np.float32)
    if math.frexp(float(c[1] - c[0]))[0] != 0.5 or float(c[1]) - float(c[0]) != float(c[1] - c[0]):
        return TABLE, c, middles
    if len(c) == 2:
        return PAIR, c, middles
    steps = np.arange(len(c), dtype=np.float32) * (c[1] - c[0])
    exact = np.array_equal(steps, np.arange(len(c)) * (float(c[1]) - float(c[0])))
    even = exact and np.array_equal(c[0] + steps, c) and np.array_equal((c[1:] + c[:-1]) * np.float32(0.5), middles)
    return (EVEN if even else TABLE), c, middles


class Batch:
    """The parameters of a step as the kernel's jobs. It may run again while only gradients move and scalars change."""

    captured = False  # nothing here is read by a CUDA graph

    def __init__(self, works: Sequence[ParamWork], gradients: Sequence[Tensor]) -> None:
        self._rules = list(dict.fromkeys((work.position, work.clamp) for work in works))
        place = {key: i for i, key in enumerate(self._rules)}
        self._held = works, [_units(work) for work in works]
        jobs = [_job(work, place[work.position, work.clamp], s) for work, s in zip(*self._held, strict=True)]
        self._jobs = np.array(jobs, JOB)
        self._jobs["g_type"] = [TYPES[g.dtype] for g in gradients]
        self._following = [work for work in works if work.follows]
        places = [i for i, work in enumerate(works) if work.follows]
        self._shown = self._jobs[places]  # a copy: these make what the network sees, once their scales are known
        self._jobs["out"][places] = self._jobs["scale"][places] = 0

    def sound(self, gradients: Sequence[Tensor]) -> bool:
        """True if there is no NaN and no infinity in them."""
        lib = library()
        assert lib is not None, refusal()
        self._jobs["g"] = [g.data_ptr() for g in gradients]
        return not lib.askew_bad_gradients(self._jobs.ctypes.data, len(self._jobs), torch.get_num_threads())

    def run(self, groups: Sequence[GroupWork], gradients: Sequence[Tensor]) -> None:
        """One step; `gradients`: where they lie now, in the order, types and memory order of the first."""
        lib = library()
        assert lib is not None, refusal()
        self._jobs["g"] = [g.data_ptr() for g in gradients]
        rules = np.array([_rule(groups[position], clamp) for position, clamp in self._rules], RULE)
        lib.askew_step(self._jobs.ctypes.data, len(self._jobs), rules.ctypes.data, torch.get_num_threads())
        if self._following:
            follow(groups, self._following)
            lib.askew_show(self._shown.ctypes.data, len(self._shown), rules.ctypes.data, torch.get_num_threads())
        self._jobs["fresh"] = False


def _rule(work: GroupWork, clamp: bool) -> tuple[Any, ...]:
    options, lr = work.options, float(work.lr)
    kind, c, middles = (PAIR, None, None) if work.levels is None else grid(work.levels)
    gap = 0.0 if c is None else float(c[1] - c[0])
    decay = options["weight_decay"]
    decoupled = bool(options.get("decoupled_weight_decay"))
    beta1, beta2 = options.get("betas", (0.0, 0.0))
    return (
        *(0 if x is None else x.ctypes.data for x in (c, middles)),
        work.mode,
        kind,
        int(work.adam),
        0 if c is None else len(c),
        clamp,
        work.snap,
        work.forward,
        bool(options.get("nesterov")),
        gap,
        1 / gap if gap else 0.0,
        work.number,
        work.alpha,
        float(work.clip),
        1 - lr * decay if decoupled else 1.0,
        0.0 if decoupled else decay,
        *(float(beta1), float(beta2), 1 - beta1, 1 - beta2),
        options.get("eps", 0.0),
        options.get("momentum", 0.0),
        1 - options.get("dampening", 0.0),
        -lr,
        *(lr, float(beta1), float(beta2)),
    )


def _units(work: ParamWork) -> Tensor | None:
    """The scale as the kernel takes it; ones where bfloat16 has to round the levels themselves."""
    if work.scale is not None:
        return work.scale.reshape(-1).contiguous()
    return torch.ones(1) if work.w.dtype == torch.bfloat16 and work.out is None else None


def _job(work: ParamWork, rule: int, scale: Tensor | None) -> tuple[Any, ...]:
    channels = 1 if scale is None else scale.numel()
    arrays = (work.w, None, work.m, work.v, work.out, work.step, scale)
    return (
        *(0 if x is None else x.data_ptr() for x in arrays),
        work.w.numel(),
        work.w.stride(0) if channels > 1 else max(1, work.w.numel()),
        channels,
        rule,
        *(0 if x is None else TYPES[x.dtype] for x in (work.w, None, work.m, work.out)),
        work.step is not None and work.step.dtype == torch.float64,
        work.fresh,
        0.0,
        1.0,
    )
