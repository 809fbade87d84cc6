"""Products of signs with signs, by XNOR and popcount: a layer prepared once, then called with little left to do.

A small layer takes a tenth of a millisecond, and looking at a dozen arrays each time would take a tenth of that. So all
that stays the same is checked once and put into one block of memory, struct Job of native/infer_w1a1.cpp.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

import numpy as np

from askew.ship.geometry import Window
from askew.ship.kernels import address_of, aligned_empty, native
from askew.ship.reference import NO_FLOOR

INTEGERS, FLOATS, BITS = 0, 1, 2
MOST_SIZES = 16  # shapes of the input whose jobs are remembered


class Job(ctypes.Structure):
    """All the kernel needs to know but where the input and the output lie."""

    _fields_ = [
        ("geometry", c_void_p),
        ("channels", c_int64),
        ("weights", c_void_p),
        ("outputs", c_int64),
        ("threshold", c_void_p),
        ("flip", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("ldo", c_int64),
        ("floor", c_float),
        ("mode", c_int32),
        ("threads", c_int64),
    ]


class SignProduct:
    """conv of sign bits (B, H, W, words), or of the signs of floats (B, H, W, channels), with one-bit tiles: int32,
    float32 or bits (B, H', W', ..).

    channels   the signs that one tap of the window multiplies
    INTEGERS   the dot products
    FLOATS     max(scale dot + bias, floor)
    BITS       dot >= threshold (int32, one an output), then xor with flip (words)
    """

    def __init__(
        self,
        tiles: np.ndarray,
        outputs: int,
        window: Window,
        channels: int,
        mode: int = INTEGERS,
        scale: np.ndarray | None = None,
        bias: np.ndarray | None = None,
        floor: float = NO_FLOOR,
        threshold: np.ndarray | None = None,
        flip: np.ndarray | None = None,
    ) -> None:
        if mode == FLOATS and (scale is None or bias is None):
            raise ValueError("floats need a scale and a bias")
        if mode == BITS and threshold is None:
            raise ValueError("bits need thresholds")
        self.window, self.outputs, self.floor, self.channels = window, outputs, floor, channels
        self.mode, self.dtype = mode, np.dtype((np.int32, np.float32, np.uint64)[mode])
        self.tiles = tiles
        self.ends = {"threshold": threshold, "flip": flip, "scale": scale, "bias": bias}
        self.jobs: dict[tuple[tuple[int, ...], int], tuple[Job, tuple[int, ...], np.ndarray]] = {}

    def __call__(self, x: np.ndarray, threads: int = 1) -> np.ndarray:
        floats, shape = x.dtype == np.float32, x.shape
        if floats:
            if shape[3] != self.channels:
                raise ValueError(f"a layer of {self.channels} channels got {shape[3]}")
            shape = (*shape[:3], -(-shape[3] // 64))
        job, out_shape, _ = self.jobs.get((shape, threads)) or self._prepare(shape, threads)
        address = address_of(x, np.float32 if floats else np.uint64, x.size)
        out, to = aligned_empty(out_shape, self.dtype)
        (native().askew_signs_w1a1 if floats else native().askew_w1a1)(address, ctypes.byref(job), to)
        return out

    def _prepare(self, shape: tuple[int, ...], threads: int) -> tuple[Job, tuple[int, ...], np.ndarray]:
        b, h, w, count = shape
        geometry, address, (oh, ow) = self.window.geometry(b, h, w, count)
        words, taps = -(-self.outputs // 64), self.window.kernel[0] * self.window.kernel[1]
        last = words if self.mode == BITS else self.outputs
        wanted = {"threshold": (np.int32, self.outputs), "flip": (np.uint64, words)}
        ends = {
            name: None if array is None else address_of(array, *wanted.get(name, (np.float32, self.outputs)))
            for name, array in self.ends.items()
        }
        job = Job(
            geometry=address,
            channels=self.channels,
            weights=address_of(self.tiles, np.uint32, -(-self.outputs // 16) * 16 * taps * count * 2),
            outputs=self.outputs,
            ldo=last,
            floor=self.floor,
            mode=self.mode,
            threads=threads,
            **ends,
        )
        if len(self.jobs) >= MOST_SIZES:
            self.jobs.clear()
        self.jobs[shape, threads] = job, (b, oh, ow, last), geometry  # the geometry is kept alive with the job
        return self.jobs[shape, threads]
