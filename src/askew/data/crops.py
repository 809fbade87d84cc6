"""Cutting pictures of any size to the size a net takes; no torch, so that shipped nets can be shown pictures too."""

from __future__ import annotations

from PIL import Image


def shorter_side(image: Image.Image, side: int) -> Image.Image:
    """Scale an image so that its shorter side is `side`, keeping its shape."""
    w, h = image.size
    size = (side, max(side, side * h // w)) if w <= h else (max(side, side * w // h), side)
    return image.resize(size, Image.Resampling.BILINEAR)


def cut(image: Image.Image, crop: int, left: int | None = None, top: int | None = None) -> Image.Image:
    """The crop x crop square there; in the middle if no place is given."""
    left = (image.width - crop) // 2 if left is None else left
    top = (image.height - crop) // 2 if top is None else top
    return image.crop((left, top, left + crop, top + crop))
