"""The geometry of a convolution or pooling over images (batch, height, width, channels)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A window that slides over an image: kernel, stride, padding, dilation, each (vertical, horizontal)."""

    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def out(self, height: int, width: int) -> Pair:
        """The size of the output, as in torch (rounded down)."""
        (kh, kw), (sh, sw), (ph, pw), (dh, dw) = self.kernel, self.stride, self.padding, self.dilation
        size = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
        if min(size) < 1:
            raise ValueError(f"an image of {height}x{width} is too small for a window of {self.kernel}")
        return size

    @lru_cache(maxsize=1024)  # noqa: B019 - windows are small and immutable
    def geometry(self, batch: int, height: int, width: int, channels: int) -> tuple[np.ndarray, int, Pair]:
        """struct Geometry of native/infer_common.h as the kernels take it: the array, its address, the output size."""
        numbers = (batch, height, width, channels, *self.kernel, *self.stride, *self.padding, *self.dilation)
        out = self.out(height, width)
        array = np.array((*numbers, *out), np.int64)
        return array, array.ctypes.data, out

    def valid(self, size: int, axis: int) -> np.ndarray:
        """(out, kernel) of bool: which taps of each output position lie inside an image of that size on that axis."""
        out = self.out(size, size)[axis]
        k, s, p, d = (pair[axis] for pair in (self.kernel, self.stride, self.padding, self.dilation))
        position = np.arange(out)[:, None] * s - p + np.arange(k)[None, :] * d
        return (position >= 0) & (position < size)


def unfold(x: np.ndarray, window: Window) -> np.ndarray:
    """(B, H, W, C) -> (B, H', W', kernel_h kernel_w C): the taps under the window, zeros outside the image."""
    b, h, w, c = x.shape
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window.kernel, window.stride, window.padding, window.dilation
    oh, ow = window.out(h, w)
    padded = np.zeros((b, h + 2 * ph, w + 2 * pw, c), x.dtype)
    padded[:, ph : ph + h, pw : pw + w] = x
    taps = [
        padded[:, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
    return np.concatenate(taps, axis=-1) if len(taps) > 1 else np.ascontiguousarray(taps[0])
