"""Calls of the native kernels with numpy arrays; each has its twin in reference.py.

Arrays are checked before their addresses cross over: dtype, contiguity and size are what the kernel will read.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char, c_float, c_int, c_int64, c_void_p
from functools import cache

import numpy as np

from askew.native.loader import load, logger
from askew.ship.geometry import Window
from askew.ship.reference import NO_FLOOR

ISAS = {"portable": 0, "neon": 1, "avx2": 2, "avx512": 3}
_SIGNATURES = {
    "askew_w1a1": [c_void_p] * 3,
    "askew_signs_w1a1": [c_void_p] * 3,
    "askew_float": [*[c_void_p] * 3, c_int64, c_int, *[c_void_p] * 3, c_float, c_void_p, c_int],
    "askew_lookup": [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int, *[c_void_p] * 3, c_float, c_void_p, c_int],
    "askew_int": [
        *[c_void_p] * 3,
        c_int64,
        c_int,
        c_int,
        c_float,
        c_float,
        *[c_void_p] * 2,
        c_float,
        c_void_p,
        c_int,
    ],
    "askew_sign_pack": [c_void_p, c_int64, c_int64, c_void_p, c_int],
    "askew_pool_bits": [c_void_p] * 4,
    "askew_limit_isa": [c_int],
    "askew_isa": [],
}


@cache
def library() -> ctypes.CDLL | None:
    """The native library with its signatures, or None where it was not built anew (the log says so once)."""
    found = load("infer")
    if found is None:
        return None
    if not all(hasattr(found, name) for name in _SIGNATURES):
        logger.warning(
            "askew's native library 'infer' is of other sources than this package; numpy computes, slowly. "
            "`python -m askew.native.build` builds it anew."
        )
        return None
    for name, arguments in _SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes = arguments
        function.restype = c_int if name in ("askew_isa", "askew_limit_isa") else None
    found.askew_popcount_bound.argtypes = [c_int64]
    found.askew_popcount_bound.restype = ctypes.c_uint64
    return found


def native() -> ctypes.CDLL:
    """The library; RuntimeError where there is none."""
    found = library()
    if found is None:
        raise RuntimeError("the native inference library was not built: `python -m askew.native.build` builds it")
    return found


def isa() -> str:
    """The instruction set the kernels use on this machine; 'numpy' where no library was built."""
    found = library()
    return "numpy" if found is None else {v: k for k, v in ISAS.items()}[found.askew_isa()]


@contextmanager
def limited(name: str) -> Iterator[str]:
    """Use at most this instruction set inside the block; gives the one that is in use then."""
    try:
        native().askew_limit_isa(ISAS[name])
        yield isa()
    finally:
        native().askew_limit_isa(ISAS["avx512"])


def address_of(array: np.ndarray, dtype: type, count: int) -> int:
    """The address of a contiguous array of that dtype with at least `count` elements."""
    if array.dtype != dtype or not array.flags.c_contiguous or array.size < count:
        raise TypeError(f"the kernel reads {count} contiguous {np.dtype(dtype)}, got {array.shape} of {array.dtype}")
    return _address(array)


def _address(array: np.ndarray) -> int:
    """Where the array lies. `array.ctypes.data` gives the same, but takes a microsecond, many times a layer."""
    try:
        return ctypes.addressof(c_char.from_buffer(array))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):  # read-only or empty
        return array.ctypes.data


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    """An array to be filled that starts at a multiple of 64 bytes, and its address."""
    raw = np.empty(math.prod(shape) * dtype.itemsize + 64, np.uint8)
    address = _address(raw)
    start = -address % 64
    return np.ndarray(shape, dtype, raw, start), address + start


def _blocks(outputs: int, inputs: int, bits: int) -> int:
    """Elements of a weight in lanes of 16 outputs."""
    return -(-outputs // 16) * 16 * (inputs if bits == 32 else -(-inputs * bits // 32))


def floats(
    x: np.ndarray,
    lanes: np.ndarray,
    bits: int,
    levels: np.ndarray,
    window: Window,
    scale: np.ndarray,
    bias: np.ndarray,
    floor: float = NO_FLOOR,
    threads: int = 1,
) -> np.ndarray:
    """conv of floats (B, H, W, C) with code lanes (bits 1, 2, 4) or float lanes (bits 32); few rows go by tables."""
    b, h, w, c = x.shape
    outputs, inputs = scale.size, window.kernel[0] * window.kernel[1] * c
    _, geometry, (oh, ow) = window.geometry(b, h, w, c)
    y = np.empty((b, oh, ow, outputs), np.float32)
    weights = address_of(lanes, np.float32 if bits == 32 else np.uint32, _blocks(outputs, inputs, bits))
    table = None if bits == 32 else address_of(levels, np.float32, 1 << bits)
    ends = (
        address_of(scale, np.float32, outputs),
        address_of(bias, np.float32, outputs),
        floor,
        _address(y),
        threads,
    )
    if bits < 32 and window == Window() and b * h * w <= 3:
        native().askew_lookup(
            address_of(x, np.float32, x.size), b * h * w, inputs, weights, outputs, bits, table, *ends
        )
    else:
        native().askew_float(address_of(x, np.float32, x.size), geometry, weights, outputs, bits, table, *ends)
    return y


def integers(
    x: np.ndarray,
    lanes: np.ndarray,
    bits: int,
    window: Window,
    outputs: int,
    line: tuple[float, float] = (0.0, 1.0),
    scale: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    floor: float = NO_FLOOR,
    threads: int = 1,
) -> np.ndarray:
    """conv of int8 (B, H, W, C) with byte lanes: sums of code x (int32); with a scale, floats for levels a + d code."""
    b, h, w, c = x.shape
    inputs = window.kernel[0] * window.kernel[1] * c
    _, geometry, (oh, ow) = window.geometry(b, h, w, c)
    out = np.empty((b, oh, ow, outputs), np.int32 if scale is None else np.float32)
    native().askew_int(
        address_of(x, np.int8, x.size),
        geometry,
        address_of(lanes, np.uint32, _blocks(outputs, inputs, bits)),
        outputs,
        bits,
        int(scale is None),
        *line,
        None if scale is None else address_of(scale, np.float32, outputs),
        None if bias is None else address_of(bias, np.float32, outputs),
        floor,
        _address(out),
        threads,
    )
    return out


def sign_pack(x: np.ndarray, threads: int = 1) -> np.ndarray:
    """(..., C) floats into (..., words): bit 1 where x >= 0."""
    channels = x.shape[-1]
    out = np.empty((*x.shape[:-1], -(-channels // 64)), np.uint64)
    rows = x.size // channels
    native().askew_sign_pack(address_of(x, np.float32, x.size), rows, channels, _address(out), threads)
    return out


def pool_bits(x: np.ndarray, window: Window, flip: np.ndarray | None = None) -> np.ndarray:
    """OR over the window of sign bits (B, H, W, words), then xor with flip (words)."""
    b, h, w, count = x.shape
    _, geometry, (oh, ow) = window.geometry(b, h, w, count)
    out = np.empty((b, oh, ow, count), np.uint64)
    mask = None if flip is None else address_of(flip, np.uint64, count)
    native().askew_pool_bits(address_of(x, np.uint64, x.size), geometry, mask, _address(out))
    return out
