"""The kernels once more in numpy: obviously right, and what runs where no native library was built.

Images are (batch, height, width, channels); weights (outputs, kernel_h kernel_w channels), in levels without scale.
"""

from __future__ import annotations

import numpy as np

from askew.ship.geometry import Window, unfold

NO_FLOOR = float("-inf")


def signs(bits: np.ndarray) -> np.ndarray:
    """0, 1 -> -1, +1 (float32)."""
    return bits.astype(np.float32) * 2 - 1


def finish(total: np.ndarray, scale: np.ndarray, bias: np.ndarray, floor: float) -> np.ndarray:
    """max(scale total + bias, floor) in float32."""
    y = (total * scale + bias).astype(np.float32)
    return y if floor == NO_FLOOR else np.maximum(y, np.float32(floor))


def one_bit(x_bits: np.ndarray, w_bits: np.ndarray, window: Window) -> np.ndarray:
    """conv of signs with signs, zeros outside the image: exact integers (int32)."""
    x = unfold(signs(x_bits), window)  # the zeros of the border stay zeros: they are not a sign
    return np.rint(x @ signs(w_bits).T).astype(np.int32)


def product(x: np.ndarray, weight: np.ndarray, window: Window) -> np.ndarray:
    """conv of floats with weights in float32."""
    return unfold(x, window) @ weight.T


def integer(x: np.ndarray, codes: np.ndarray, window: Window) -> np.ndarray:
    """conv of int8 with codes: exact integers (int32)."""
    return (unfold(x, window).astype(np.int64) @ codes.T.astype(np.int64)).astype(np.int32)


def pool_bits(x: np.ndarray, window: Window) -> np.ndarray:
    """OR over the window of bits (B, H, W, C) as 0 and 1; outside counts as 0."""
    b, h, w, c = x.shape
    taps = unfold(x, window).reshape(b, *window.out(h, w), -1, c)
    return taps.max(axis=3)
