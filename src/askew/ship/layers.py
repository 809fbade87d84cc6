"""Linear and convolution layers at run time: weights laid out once for the kernel that fits what comes in.

signs x binary weights      XNOR and popcount, exact               native w1a1
integers x 1, 2, 4 bits     sums of code * x, exact                native int (levels on a line)
anything else               floats, weights decoded on the way     native float and lookup
Where no native library was built, numpy computes the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from askew.ship import kernels, layout, reference
from askew.ship.geometry import Window
from askew.ship.graph import FLOAT_BITS, Node, ShipError, Weight
from askew.ship.signs import BITS, FLOATS, SignProduct
from askew.ship.values import Bits, Codes, Value, as_image, to_floats


class Product:
    """y = max(scale (W x) + bias, floor), or the signs of W x against thresholds.

    weight     (outputs, taps, channels) in the order the input lies: taps of the window, or of a flattened image
    kind       what comes in: 'bits', 'codes' or 'floats'
    """

    def __init__(
        self,
        weight: Weight,
        arranged: np.ndarray,
        window: Window,
        kind: str,
        scale: np.ndarray,
        bias: np.ndarray,
        floor: float = reference.NO_FLOOR,
    ) -> None:
        self.outputs, taps, self.channels = arranged.shape
        self.window, self.floor = window, floor
        self.scale, self.bias = scale.astype(np.float32), bias.astype(np.float32)
        self.inputs = taps * self.channels
        self.line, self.bits, self.levels = weight.line, weight.bits, weight.table() if weight.levels else np.zeros(0)
        self.threshold: np.ndarray | None = None
        self.flip: np.ndarray | None = None
        flat = arranged.reshape(self.outputs, -1)
        native = kernels.library() is not None
        self.kind = kind
        if kind == "bits" and weight.binary:
            if native:
                self.lanes = layout.one_bit_tiles(layout.words(arranged).reshape(self.outputs, -1))
                self.signs = self._sign_product(FLOATS, self.scale, self.bias, floor)
            else:
                self.codes = flat
        elif kind == "codes" and self.line is not None and self.bits <= 4:
            if native:
                self.lanes = layout.byte_lanes(flat, self.bits)
            else:
                self.codes = flat
        else:
            self.kind = "floats"
            self._lay_floats(weight, flat, native)

    def _lay_floats(self, weight: Weight, flat: np.ndarray, native: bool) -> None:
        if native and self.bits <= 4:
            self.lanes = layout.code_lanes(flat, self.bits)
            return
        dense = flat if not weight.levels else weight.table()[flat]
        if native:
            self.bits, self.lanes = FLOAT_BITS, layout.float_lanes(dense)
        else:
            self.dense = dense

    def to_signs(self, threshold: np.ndarray, flip: np.ndarray | None) -> None:
        """Give the signs of W x against whole-number thresholds from now on (kind 'bits')."""
        self.threshold = np.ascontiguousarray(threshold, np.int32)
        if flip is not None:
            self.flip = layout.words(np.unpackbits(flip, bitorder="little", count=self.outputs))
        if kernels.library() is not None:
            self.signs = self._sign_product(BITS, threshold=self.threshold, flip=self.flip)

    def _sign_product(self, mode: int, *ends: Any, **more: Any) -> SignProduct:
        return SignProduct(self.lanes, self.outputs, self.window, self._per_tap, mode, *ends, **more)

    def __call__(self, x: Value, threads: int) -> Value:
        if self.kind == "bits" and not isinstance(x, Codes):
            return self._signs(x, threads)
        if self.kind == "codes" and isinstance(x, Codes):
            return self._integers(x, threads)
        return self._floats(to_floats(x), threads)

    @property
    def _per_tap(self) -> int:
        """Channels that one tap of the window multiplies; all features for a linear layer."""
        return self.inputs // (self.window.kernel[0] * self.window.kernel[1])

    def _signs(self, x: Bits | np.ndarray, threads: int) -> Value:
        """Of packed signs, or of the signs of floats (with the native library)."""
        if isinstance(x, np.ndarray):
            image = np.ascontiguousarray(as_image(x), np.float32)
            return self._ended(self.signs(image, threads), x.ndim)
        if x.channels * self.window.kernel[0] * self.window.kernel[1] != self.inputs:
            raise ShipError(f"a layer of {self.inputs} inputs got {x.channels} channels")
        if kernels.library() is None:
            return self._signs_in_numpy(x)
        return self._ended(self.signs(x.words, threads), x.rank)

    def _ended(self, y: np.ndarray, rank: int) -> Value:
        made = Bits(y, self.outputs, rank)
        return made.plain(y) if self.threshold is None else made

    def _signs_in_numpy(self, x: Bits) -> Value:
        if self.channels != x.channels:  # a flattened image: each pixel has its own words
            pixels = x.words.reshape(len(x.words), x.channels // self.channels, -1)
            bits = layout.from_words(pixels, self.channels).reshape(len(pixels), 1, 1, -1)
        else:
            bits = layout.from_words(x.words, x.channels)
        dots = reference.one_bit(bits, self.codes, self.window)
        if self.threshold is None:
            return x.plain(reference.finish(dots, self.scale, self.bias, self.floor))
        words = layout.words((dots >= self.threshold).astype(np.uint8))
        return Bits(words if self.flip is None else words ^ self.flip, self.outputs, x.rank)

    def _integers(self, x: Codes, threads: int) -> np.ndarray:
        assert self.line is not None
        image = self._image(x.data)
        scale = self.scale * x.step
        if kernels.library() is None:
            sums = reference.integer(image, self.codes, self.window).astype(np.float32)
            inside = reference.integer(image, np.ones((1, self.inputs), np.int8), self.window)
            z = np.float32(self.line[1]) * sums + np.float32(self.line[0]) * inside
            return self._shaped(reference.finish(z, scale, self.bias, self.floor), x.data)
        args = (self.line, scale, self.bias, self.floor, threads)
        return self._shaped(kernels.integers(image, self.lanes, self.bits, self.window, self.outputs, *args), x.data)

    def _floats(self, x: np.ndarray, threads: int) -> np.ndarray:
        image = self._image(x)
        if kernels.library() is None:
            total = reference.product(image, self.dense, self.window)
            return self._shaped(reference.finish(total, self.scale, self.bias, self.floor), x)
        args = (self.scale, self.bias, self.floor, threads)
        return self._shaped(kernels.floats(image, self.lanes, self.bits, self.levels, self.window, *args), x)

    def _image(self, x: np.ndarray) -> np.ndarray:
        image = np.ascontiguousarray(x if x.ndim == 4 else x.reshape(-1, 1, 1, x.shape[-1]))
        if image.shape[-1] * self.window.kernel[0] * self.window.kernel[1] != self.inputs:
            raise ShipError(f"a layer of {self.inputs} inputs got {image.shape[-1]} channels")
        return image

    def _shaped(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        return y if x.ndim == 4 else y.reshape(*x.shape[:-1], self.outputs)


class Groups:
    """A convolution in groups: each its own product over its share of the channels."""

    def __init__(self, parts: list[Product]) -> None:
        self.parts = parts

    def __call__(self, x: Value, threads: int) -> np.ndarray:
        share = self.parts[0].channels
        whole = x if isinstance(x, Codes) and self.parts[0].kind == "codes" else to_floats(x)
        out = []
        for i, part in enumerate(self.parts):
            here = slice(i * share, (i + 1) * share)
            piece = Codes(whole.data[..., here], whole.step) if isinstance(whole, Codes) else whole[..., here]
            out.append(to_floats(part(piece, threads)))
        return np.concatenate(out, axis=-1)


def layer(node: Node, kind: str, flattened: tuple[int, bool] | None, floor: float) -> Product | Groups:
    """The layer of a conv2d or linear node.

    flattened: what was flattened before it, if anything: its channels, and whether it was an image (in torch's order
    channels come first then, in ours last).
    """
    assert node.weight is not None
    weight = node.weight
    values = weight.codes() if weight.levels else weight.data.reshape(weight.shape)
    scale, bias = node.array("scale", weight.shape[0], 1.0), node.array("bias", weight.shape[0], 0.0)
    if node.op == "linear":
        c, image = flattened or (weight.shape[1], False)
        arranged = values.reshape(weight.shape[0], *((c, -1) if image else (-1, c)))
        arranged = arranged.transpose(0, 2, 1) if image else arranged
        return Product(weight, np.ascontiguousarray(arranged), Window(), kind, scale, bias, floor)
    s = node.settings
    window = Window(weight.shape[2:], s["stride"], s["padding"], s["dilation"])  # pyright: ignore[reportArgumentType]
    arranged = np.ascontiguousarray(values.transpose(0, 2, 3, 1)).reshape(weight.shape[0], -1, weight.shape[1])
    if s["groups"] == 1:
        return Product(weight, arranged, window, kind, scale, bias, floor)
    kind = "floats" if kind == "bits" else kind
    size = weight.shape[0] // s["groups"]
    return Groups(
        [
            Product(weight, arranged[i : i + size], window, kind, scale[i : i + size], bias[i : i + size], floor)
            for i in range(0, weight.shape[0], size)
        ]
    )
