"""Image files and folders as users have them: found, named in errors, decoded in parallel."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from askew.data.images import CHUNK, DataError

SUFFIXES = (".jpeg", ".jpg", ".png")


class Found(NamedTuple):
    """A file with what its fingerprint needs; the path is text, since a million Path objects take seconds."""

    path: str
    size: int
    modified: int


def existing_folder(folder: Path, what: str) -> Path:
    """The folder; FileNotFoundError with `what` was expected there if it is missing."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder ({what})")
    return folder


def class_folders(folder: Path, count: int | None = None) -> list[Path]:
    """The subfolders of `folder` in the order of their names; DataError unless there are `count` of them, if given."""
    existing_folder(folder, "one subfolder per class was looked for")
    found = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found or (count is not None and len(found) != count):
        raise DataError(f"{folder}: holds {len(found)} class folders, {count or 'at least one'} expected")
    return found


def image_paths(folder: Path) -> list[str]:
    """The image files of one folder by name; DataError if there are none."""
    existing_folder(folder, "images were looked for")
    names = [name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    if not names:
        raise DataError(f"{folder}: holds no images ({', '.join(SUFFIXES)})")
    return [os.path.join(folder, name) for name in sorted(names)]


def found_file(path: Path | str) -> Found:
    """Size and time of one file."""
    stat = os.stat(path)
    return Found(str(path), stat.st_size, stat.st_mtime_ns)


def read_annotations(path: Path) -> dict[str, str]:
    """File name -> class from the first two columns of a text file, as in TinyImageNet's val_annotations.txt.

    Commas serve as spaces do. A first line that begins with ImageId is a head, and names then lack their .JPEG: so is
    ImageNet's LOC_val_solution.csv.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file (it maps image names to classes)")
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.replace(",", " ").split() for line in lines if line.strip()]
    if pairs and pairs[0][0] == "ImageId":
        pairs = [[f"{pair[0]}.JPEG", *pair[1:]] for pair in pairs[1:]]
    short = next((number for number, pair in enumerate(pairs, 1) if len(pair) < 2), None)
    if short is not None:
        raise DataError(
            f"{path}: entry {short} is not an image name followed by its class (a folder's name, no number)"
        )
    return {pair[0]: pair[1] for pair in pairs}


def decode(path: Path | str) -> Image.Image:
    """One image as RGB; DataError naming the file if it cannot be read to its end."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except Exception as error:  # Pillow's plugins raise what they meet: OSError, SyntaxError, struct.error, ...
        raise DataError(f"{path}: not a readable image ({error})") from error


def decode_sized(path: Path | str, size: tuple[int, int]) -> np.ndarray:
    """One image as uint8 (H, W, 3); DataError naming the file if it has another size (height, width)."""
    image = decode(path)
    if (image.height, image.width) != size:
        raise DataError(f"{path}: {image.height}x{image.width} pixels, {size[0]}x{size[1]} expected")
    return np.asarray(image)


def decode_files(files: Sequence[str], into: np.ndarray, workers: int | None = None) -> None:
    """Decode into[i] from files[i]; every image must have the size of into[i].

    A memory-mapped `into` is filled by several processes where they can be forked: small images spend their time
    in Python, so threads gain nothing. The children use only Pillow and numpy.
    """
    workers = min(workers or _usable_cores(), math.ceil(len(files) / CHUNK))
    parts = [range(start, min(start + CHUNK, len(files))) for start in range(0, len(files), CHUNK)]
    if workers < 2 or sys.platform != "linux" or not isinstance(into, np.memmap):
        for part in parts:
            _decode_part(files, into, part)
        return
    Image.init()  # import the plugins here: a forked child should not wait for an import lock
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, _inherit, (files, into)) as pool:
        for _ in pool.map(_decode_inherited, parts):
            pass


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _decode_part(files: Sequence[str], into: np.ndarray, part: range) -> None:
    for i in part:
        into[i] = decode_sized(files[i], into.shape[1:3])


_inherited: tuple[Sequence[str], np.ndarray] | None = None


def _inherit(files: Sequence[str], into: np.ndarray) -> None:
    """In a forked child: keep the shared mapping and the list, which are inherited and never pickled."""
    global _inherited
    _inherited = (files, into)


def _decode_inherited(part: range) -> None:
    assert _inherited is not None
    _decode_part(*_inherited, part)


def labels_by_name(paths: Sequence[str], names: Mapping[str, str], classes: Sequence[str], origin: Path) -> np.ndarray:
    """Labels of files by a map from file name to class; DataError naming a file or class that only one side knows."""
    present = [os.path.basename(path) for path in paths]
    if odd := sorted(names.keys() ^ present):
        which = "is annotated but missing" if odd[0] in names else "has no annotation"
        raise DataError(f"{origin}: {odd[0]} {which} ({len(odd)} files in all)")
    if unknown := sorted(set(names.values()) - set(classes)):
        raise DataError(f"{origin}: its annotations name {unknown[0]}, which is not among the training classes")
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index[names[name]] for name in present], np.int64)


def check_size(what: Path, found: int, expected: int | None) -> None:
    """DataError unless a split holds the number of images it should."""
    if expected is not None and found != expected:
        raise DataError(f"{what}: holds {found} images, {expected} expected")


def stream_digest(stream: BinaryIO, algorithm: str) -> str:
    """Hex digest of the rest of a binary stream."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()
