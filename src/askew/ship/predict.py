"""askew predict: what a shipped net says of arrays or pictures. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from askew.atomic import replacing
from askew.ship.runtime import Net, load

BATCH = 64


@dataclass(frozen=True)
class Predict:
    """Run a shipped net on arrays (.npy: a batch, normalised as in training) or on pictures."""

    net: tyro.conf.Positional[Path]
    """A file that askew export wrote."""
    inputs: tyro.conf.Positional[tuple[Path, ...]]
    """Arrays (.npy) or pictures, of the size the net was trained for."""
    out: Path | None = None
    """Write the net's outputs to this .npy file."""
    threads: int | None = None
    """Threads (default: all this process may use)."""


@dataclass(frozen=True)
class Prediction:
    """One input: where it came from, its class and name, and how sure the net is (softmax of its outputs)."""

    source: str
    index: int
    label: str
    probability: float


def predict(config: Predict) -> list[Prediction]:
    """Every input in order; a ValueError says which file does not fit."""
    if not config.inputs:
        raise ValueError("predict: name at least one .npy file or picture after the net")
    net = load(config.net, config.threads)
    found: list[Prediction] = []
    outputs: list[np.ndarray] = []
    for path in config.inputs:
        x = read(path, net)
        try:
            y = np.concatenate([net(x[i : i + BATCH]) for i in range(0, len(x), BATCH)])
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
        if y.ndim != 2:
            raise ValueError(f"{config.net}: gives {y.shape[1:]} for an input; predict is for nets that give classes")
        names = [str(path)] if len(y) == 1 else [f"{path}[{i}]" for i in range(len(y))]
        found += [_prediction(name, row, net) for name, row in zip(names, y, strict=True)]
        outputs.append(y)
    if config.out is not None:
        with replacing(config.out) as stream:
            np.save(stream, np.concatenate(outputs))
    return found


def read(path: Path, net: Net) -> np.ndarray:
    """A batch from a file: an .npy array as it is (one input gets a batch of one), or a picture."""
    if path.suffix != ".npy":
        return picture(path, net)
    try:
        x = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as an array ({error})") from error
    if not x.size:
        raise ValueError(f"{path}: an empty array, of shape {x.shape}")
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        raise ValueError(f"{path}: holds NaN or infinite numbers")
    return x[None] if x.ndim == len(net.input.settings["shape"]) else x


def picture(path: Path, net: Net) -> np.ndarray:
    """A picture as the net was shown pictures: (x / 255 - mean) / std per channel, with the file's mean and std.

    A net that was trained on crops of larger pictures (resize and crop in its file) gets the middle of this one.
    """
    from PIL import Image

    from askew.data.crops import cut, shorter_side

    mean, std = (_channels(net.metadata.get(key)) for key in ("mean", "std"))
    if mean is None or std is None:
        raise ValueError(f"{path}: the net's file says no mean and std, so pictures cannot be normalised; give .npy")
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB" if mean.size == 3 else "L")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read as a picture ({error})") from error
    resize, crop = (net.metadata.get(key) for key in ("resize", "crop"))
    if isinstance(resize, int) and isinstance(crop, int) and 0 < crop <= resize:
        image = cut(shorter_side(image, resize), crop)
    pixels = np.asarray(image, np.float32)
    pixels = pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)
    return ((pixels / 255 - mean[:, None, None]) / std[:, None, None]).astype(np.float32)[None]


def _channels(value: Any) -> np.ndarray | None:
    right = isinstance(value, list) and len(value) in (1, 3) and all(isinstance(v, float) for v in value)
    return np.array(value, np.float32) if right else None


def _prediction(source: str, outputs: np.ndarray, net: Net) -> Prediction:
    index = int(outputs.argmax())
    odds = np.exp(outputs - outputs.max())
    classes = net.metadata.get("classes")
    label = str(classes[index]) if isinstance(classes, list) and index < len(classes) else str(index)
    return Prediction(source, index, label, float(odds[index] / odds.sum()))


def show(predictions: list[Prediction]) -> str:
    """One line an input."""
    return "\n".join(f"{p.source}\t{p.label}\t{p.probability:.4f}" for p in predictions)
