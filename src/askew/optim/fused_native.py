"""The C++ kernel's library as Python sees it: its structs (native/step.h), its calls, its look at gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from askew.native.loader import load, logger

VERSION = 2  # of native/step.h
TYPES = {torch.float32: 0, torch.bfloat16: 1}


def _struct(**fields: str) -> np.dtype[np.void]:
    """A C struct: the names of each type, in order."""
    return np.dtype([(name, kind) for kind, names in fields.items() for name in names.split()], align=True)


RULE = _struct(
    u8="levels middles",
    i4="mode grid base count clamp snap forward nesterov",
    f4="gap inverse_gap value alpha clip keep decay beta1 beta2 rest1 rest2 epsilon momentum damped rate",
    f8="lr exact1 exact2",
)
JOB = _struct(
    u8="w g m v out count scale",
    i8="n inner channels",
    i4="rule w_type g_type m_type out_type count_type fresh",
    f4="step over_root",
)


@cache
def library() -> ctypes.CDLL | None:
    """The kernel's library with its signatures set, or None."""
    lib = load("step")
    if lib is None or not _matches(lib):
        return None
    lib.askew_step.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int]
    lib.askew_step.restype = None
    lib.askew_show.argtypes = lib.askew_step.argtypes
    lib.askew_show.restype = None
    lib.askew_bad_gradients.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    lib.askew_step_isa.argtypes = [ctypes.c_int]
    return lib


def _matches(lib: ctypes.CDLL) -> bool:
    """Was it built from the sources that belong to this file?"""
    layout = getattr(lib, "askew_step_layout", None)
    if layout is not None:
        layout.restype = ctypes.c_int64
        if layout() == 1_000_000 * VERSION + 1000 * RULE.itemsize + JOB.itemsize:
            return True
    logger.warning("askew's native library 'step' is out of date: build it anew (`python -m askew.native.build`)")
    return False


def any_bad(gradients: Sequence[Tensor]) -> bool | None:
    """Is there a NaN or an infinity? None where the kernel cannot tell: other devices, dtypes, or memory with gaps."""
    if not all(g.device.type == "cpu" and g.dtype in TYPES and type(g) is Tensor and _dense(g) for g in gradients):
        return None
    lib = library()
    if lib is None:
        return None
    jobs = np.zeros(len(gradients), JOB)
    jobs["g"] = [g.data_ptr() for g in gradients]
    jobs["n"] = [g.numel() for g in gradients]
    jobs["g_type"] = [TYPES[g.dtype] for g in gradients]
    return bool(lib.askew_bad_gradients(jobs.ctypes.data, len(jobs), torch.get_num_threads()))


def _dense(g: Tensor) -> bool:
    return g.is_contiguous() or (g.ndim == 4 and g.is_contiguous(memory_format=torch.channels_last))
