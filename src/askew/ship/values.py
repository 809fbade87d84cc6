"""What flows between the layers of a running net: floats, packed signs, or small integers with a step.

Images are (batch, height, width, channels); anything else is (batch, features) or (batch, places, features).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from askew.ship import kernels, layout
from askew.ship.geometry import Window, unfold
from askew.ship.reference import signs


@dataclass(frozen=True)
class Bits:
    """Signs packed along the channels: words (batch, height, width, words of 64 bits).

    rank is that of the array it stands for: 4 for images; (batch, features) lies as an image of one pixel, (batch,
    places, features) as one of one column.
    """

    words: np.ndarray
    channels: int
    rank: int = 4

    def plain(self, y: np.ndarray) -> np.ndarray:
        """An image of this one's size in the rank it stands for."""
        return y if self.rank == 4 else y.reshape(*y.shape[: self.rank - 1], y.shape[-1])


@dataclass(frozen=True)
class Codes:
    """Integers (int8) times a step."""

    data: np.ndarray
    step: np.float32


Value = np.ndarray | Bits | Codes


def to_floats(x: Value) -> np.ndarray:
    """The numbers themselves (float32)."""
    if isinstance(x, Bits):
        return x.plain(signs(layout.from_words(x.words, x.channels)))
    return x.data * x.step if isinstance(x, Codes) else x


def as_image(x: np.ndarray) -> np.ndarray:
    """(batch, features) as an image of one pixel, (batch, places, features) as one of one column."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:-1], *[1] * (4 - x.ndim), x.shape[-1])


def to_bits(x: np.ndarray, threads: int) -> Bits:
    """x >= 0, packed."""
    image = as_image(x)
    if kernels.library() is None:
        return Bits(layout.words((image >= 0).astype(np.uint8)), image.shape[-1], x.ndim)
    return Bits(kernels.sign_pack(np.ascontiguousarray(image), threads), image.shape[-1], x.ndim)


def quantize(x: np.ndarray, step: np.float32, low: int, high: int) -> Codes | np.ndarray:
    """clip(round(x / step), low, high), halves to even; as floats where int8 cannot hold them."""
    q = np.rint(x / step)
    np.clip(q, low, high, out=q)
    return Codes(q.astype(np.int8), step) if high <= 127 else q * step


def max_pool(x: Value, window: Window) -> Value:
    """The largest under the window; what lies outside the image does not count."""
    if isinstance(x, Bits):
        if kernels.library() is not None:
            return Bits(kernels.pool_bits(x.words, window), x.channels)
        return Bits(_largest(x.words, window, np.bitwise_or, np.uint64(0)), x.channels)
    if isinstance(x, Codes):
        return Codes(_largest(x.data, window, np.maximum, np.int8(-128)), x.step)
    return _largest(x, window, np.maximum, np.float32("-inf"))


def _largest(x: np.ndarray, window: Window, merge: np.ufunc, outside: np.generic) -> np.ndarray:
    b, h, w, c = x.shape
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window.kernel, window.stride, window.padding, window.dilation
    oh, ow = window.out(h, w)
    if ph or pw:
        padded = np.full((b, h + 2 * ph, w + 2 * pw, c), outside)
        padded[:, ph : ph + h, pw : pw + w] = x
        x = padded
    taps = (
        x[:, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    )
    out = np.array(next(taps))
    for tap in taps:
        merge(out, tap, out=out)
    return out


def avg_pool(x: np.ndarray, window: Window, count_include_pad: bool) -> np.ndarray:
    """The mean under the window; zeros outside count or do not."""
    b, h, w, c = x.shape
    area = window.kernel[0] * window.kernel[1]
    total = unfold(x, window).reshape(b, *window.out(h, w), area, c).sum(axis=3)
    if count_include_pad:
        return total / np.float32(area)
    inside = window.valid(h, 0).sum(1)[:, None] * window.valid(w, 1).sum(1)[None, :]
    return total / inside[None, :, :, None].astype(np.float32)


def flat(x: Value, channels_first: bool) -> Value:
    """(batch, features): in torch's order, channels first, or as the image lies, for a layer that expects that."""
    if isinstance(x, Bits) and not channels_first:
        b, h, w, _ = x.words.shape
        return Bits(x.words.reshape(b, 1, 1, -1), x.channels * h * w, rank=2)
    if isinstance(x, Codes) and not channels_first:
        return Codes(x.data.reshape(len(x.data), -1), x.step)
    y = to_floats(x)
    if channels_first and y.ndim == 4:
        y = np.ascontiguousarray(y.transpose(0, 3, 1, 2))
    return y.reshape(len(y), -1)
