"""Exact borders of zero-padded convolutions of signs: zero is not a value of {-1, +1}.

The kernel reads a tap outside the image as bits 0, which stands for -1, and counts popcount(w) there. So
dot = K_valid - 2 (count - outside), where outside is the popcount of w over the taps outside. Positions with the same
valid rows and columns form a class; `base` holds K_valid + 2 outside for each class and output.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from askew.ship.geometry import Window


@dataclass(frozen=True, eq=False)
class Border:
    """base (classes, padded outputs), and the class of each row (already times the column classes) and column."""

    base: np.ndarray
    rows: np.ndarray
    columns: np.ndarray

    def __post_init__(self) -> None:
        for array in (self.base, self.rows, self.columns):
            if array.dtype != np.int32 or not array.flags.c_contiguous:
                raise TypeError(f"a border is made of contiguous int32, got {array.dtype}")
        least, most = self.rows.min() + self.columns.min(), self.rows.max() + self.columns.max()
        if least < 0 or most >= len(self.base):
            raise ValueError("border classes reach beyond their table")

    @cached_property
    def addresses(self) -> tuple[int, int, int]:
        return self.base.ctypes.data, self.rows.ctypes.data, self.columns.ctypes.data


def ones_of(w_bits: np.ndarray, channels: int, window: Window) -> np.ndarray:
    """popcount of each tap, (outputs, kernel_h, kernel_w), of weights (outputs, kernel_h kernel_w channels) as 0, 1."""
    return w_bits.reshape(len(w_bits), *window.kernel, channels).sum(axis=3, dtype=np.int64)


def border(ones: np.ndarray, channels: int, window: Window, height: int, width: int) -> Border:
    """The border of images of that size, from the popcounts of the weights' taps."""
    outputs = len(ones)
    row_kinds, row_class = np.unique(window.valid(height, 0), axis=0, return_inverse=True)
    column_kinds, column_class = np.unique(window.valid(width, 1), axis=0, return_inverse=True)
    inside = row_kinds[:, None, :, None] & column_kinds[None, :, None, :]  # (row kinds, column kinds, kh, kw)
    outside = np.einsum("rcij,nij->rcn", ~inside, ones)
    valid = inside.sum(axis=(2, 3)) * channels
    base = np.zeros((len(row_kinds) * len(column_kinds), -(-outputs // 8) * 8), np.int32)
    base[:, :outputs] = (valid[:, :, None] + 2 * outside).reshape(-1, outputs)
    rows = row_class.ravel().astype(np.int32) * np.int32(len(column_kinds))
    return Border(base, rows, column_class.ravel().astype(np.int32))


def limits(exact: Border, thresholds: np.ndarray) -> Border:
    """The border for bits: dot >= threshold is count <= floor((base - threshold) / 2)."""
    padded = np.zeros(exact.base.shape[1], np.int64)
    padded[: len(thresholds)] = thresholds
    limit = (exact.base.astype(np.int64) - padded) // 2
    limit[:, len(thresholds) :] = -1  # never reached: padding outputs give bits 0
    return Border(np.clip(limit, -(2**31), 2**31 - 1).astype(np.int32), exact.rows, exact.columns)
