"""Labelled images as users have them on disk, decoded once into a checked, memory-mapped cache.

A cache file is: a preamble (magic, lengths, checksum of the header), a JSON header (fingerprint of the source, shape,
classes, exact channel sums, checksum of the data), the pixels (N, H, W, 3) as uint8, the labels (N,) as int64. It is
written beside its final name and renamed over it, so a reader sees a whole file or none. One that does not match its
source, its length or its checksums is decoded again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import multiprocessing
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

FORMAT = 1
MAGIC = b"askewimg"
PREAMBLE = struct.Struct("<8sQQ32s")  # magic, bytes of the header, offset of the pixels, sha256 of the header
PAGE = 4096
CHUNK = 512  # images at a time: sums of squares stay within uint32, copies stay small
SUFFIXES = (".jpeg", ".jpg", ".png")

log = logging.getLogger(__name__)


class DataError(ValueError):
    """The data on disk are not what they should be; the message names the file or folder."""


class Moments(NamedTuple):
    """Exact integer sums of the raw bytes per channel, over all pixels of a set."""

    pixels: int
    total: tuple[int, ...]
    squares: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images uint8 (N, H, W, 3), usually memory-mapped and read-only, labels int64 (N,) into `classes`."""

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str
    known: Moments | None = None  # the channel sums, where a cache holds them

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[3] != 3 or not self.images.size:
            raise DataError(f"{self.name}: images are {self.images.dtype} {self.images.shape}, not uint8 (N, H, W, 3)")
        if self.labels.dtype != np.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"{self.name}: labels are {self.labels.dtype} {self.labels.shape}, not int64 {self.images.shape[:1]}"
            )
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise DataError(f"{self.name}: a label lies outside 0..{len(self.classes) - 1}")

    def __len__(self) -> int:
        return len(self.labels)

    def thinned(self, count: int) -> ImageSet:
        """About `count` images, evenly spaced over the set (all if it has fewer)."""
        step = max(1, len(self) // count)
        chosen = slice(0, step * min(count, len(self)), step)
        return ImageSet(self.images[chosen], self.labels[chosen], self.classes, self.name)

    @cached_property
    def moments(self) -> Moments:
        """The channel sums: from the cache's header, or counted now."""
        return self.known or moments(self.images)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean per channel, of pixel values in [0, 1]."""
        n, total, _ = self.moments
        return tuple(s / (255 * n) for s in total)

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation per channel over all pixels, of pixel values in [0, 1]."""
        n, total, squares = self.moments
        return tuple(math.sqrt(n * q - s * s) / (255 * n) for s, q in zip(total, squares, strict=True))


class Splits(NamedTuple):
    """The two parts of a data set."""

    train: ImageSet
    test: ImageSet


def moments(images: np.ndarray) -> Moments:
    """Exact sums and sums of squares per channel of uint8 images (N, H, W, 3)."""
    total, squares = np.zeros(3, np.uint64), np.zeros(3, np.uint64)
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK].reshape(-1, math.prod(images.shape[1:]))
        total += part.sum(0, dtype=np.uint32).reshape(-1, 3).sum(0, dtype=np.uint64)
        squares += np.square(part, dtype=np.uint32).sum(0, dtype=np.uint32).reshape(-1, 3).sum(0, dtype=np.uint64)
    return Moments(math.prod(images.shape[:3]), tuple(map(int, total)), tuple(map(int, squares)))


# Files and folders


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
    """File name -> class from the first two columns of a text file, as in TinyImageNet's val_annotations.txt."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file (it maps image names to classes)")
    pairs = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    short = next((number for number, pair in enumerate(pairs, 1) if len(pair) < 2), None)
    if short is not None:
        raise DataError(f"{path}: entry {short} is not an image name followed by its class")
    return {pair[0]: pair[1] for pair in pairs}


def fingerprint(kind: str, root: Path, files: Iterable[Found]) -> str:
    """A digest of the relative names, sizes and modification times of a split's files."""
    base = f"{root}{os.sep}"
    lines = [f"{file.path.removeprefix(base)}\t{file.size}\t{file.modified}" for file in files]
    return hashlib.sha256("\n".join([f"{FORMAT} {kind}", *lines]).encode(errors="surrogateescape")).hexdigest()


# Decoding


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


# The cache


class Draft(NamedTuple):
    """A split about to be decoded: its shape (N, H, W), labels and classes, and what writes its pixels."""

    shape: tuple[int, int, int]
    labels: np.ndarray
    classes: tuple[str, ...]
    fill: Callable[[np.ndarray], None]


def cached(
    name: str,
    folder: Path,
    source: str,
    draft: Callable[[], Draft],
    cache: Path | None = None,
    check: bool = False,
) -> ImageSet:
    """The set from its cache file, or from `draft`, decoded and stored.

    `source` is the fingerprint of the files it is made from. The cache lies in `cache`; without it in
    folder/.askew-cache, or in the user's cache folder where that cannot be written. The header, the fingerprint and the
    length are always checked, the checksum of the data when `check` is set and after writing. Of several processes
    that find no cache one decodes and the others wait for it.
    """
    places = [cache] if cache else [folder / ".askew-cache", user_cache(folder)]
    for place in places:
        if (found := _load(place / f"{name}.images", source, check)) is not None:
            return found
    path = writable(places) / f"{name}.images"
    with _one_writer(path):
        if (found := _load(path, source, check)) is None:
            write_cache(path, name, source, draft())
            found = read_cache(path, source, check=True)
    return found


def user_cache(folder: Path) -> Path:
    """The place in the user's cache folder for the data of `folder`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "askew" / hashlib.sha256(str(folder.resolve()).encode(errors="replace")).hexdigest()[:16]


def writable(places: Sequence[Path]) -> Path:
    """The first of these folders that can be made and written; PermissionError naming them all if none can."""
    reasons = []
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                return place
        except OSError as error:
            reasons.append(f"{place} ({error.strerror or error})")
    raise PermissionError(f"no folder for decoded images can be written: {', '.join(reasons)}; choose one with cache=")


def _load(path: Path, source: str, check: bool) -> ImageSet | None:
    """The cached set, or None, with a warning, if the file cannot serve."""
    if not path.is_file():
        return None
    try:
        return read_cache(path, source, check)
    except (DataError, OSError) as error:
        log.warning("%s; decoding again", error)
        return None


def read_cache(path: Path, source: str | None = None, check: bool = False) -> ImageSet:
    """Map a cache file; DataError saying what is wrong if it is damaged or made from another `source`."""
    with path.open("rb") as stream:  # opened once: a file renamed over it meanwhile is not mixed with it
        header, offset = _read_header(stream, path)
        if source is not None and header["source"] != source:
            raise DataError(f"cache {path}: its source has changed since it was written")
        shape = tuple(header["shape"])
        labels_at = offset + math.prod(shape)
        size, expected = os.fstat(stream.fileno()).st_size, labels_at + 8 * shape[0]
        if size != expected:
            raise DataError(f"cache {path}: {size} bytes long, {expected} expected")
        if check and _checksum(stream, offset) != header["sha256"]:
            raise DataError(f"cache {path}: its checksum is wrong")
        images = np.memmap(stream, np.uint8, "r", offset, shape)
        stream.seek(labels_at)
        labels = np.frombuffer(stream.read(), "<i8").astype(np.int64)
    known = Moments(header["pixels"], tuple(header["total"]), tuple(header["squares"]))
    return ImageSet(images, labels, tuple(header["classes"]), header["name"], known)


def _read_header(stream: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """The header and the offset of the pixels; its own checksum makes every field of it trustworthy."""
    start = stream.read(PREAMBLE.size)
    if len(start) < PREAMBLE.size or not start.startswith(MAGIC):
        raise DataError(f"cache {path}: not a cache of images")
    _, length, offset, digest = PREAMBLE.unpack(start)
    text = stream.read(min(length, os.fstat(stream.fileno()).st_size))
    if _header_digest(offset, text) != digest:
        raise DataError(f"cache {path}: its header is damaged")
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise DataError(f"cache {path}: format {header['format']}, {FORMAT} expected")
    return header, offset


def _header_digest(offset: int, text: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<Q", offset) + text).digest()


def write_cache(path: Path, name: str, source: str, draft: Draft) -> None:
    """Decode a draft into a temporary file beside `path`, flush it to disk, then rename it over `path`."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "r+b") as stream:
            _write(stream, name, source, draft)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write(stream: BinaryIO, name: str, source: str, draft: Draft) -> None:
    shape = (*draft.shape, 3)
    header = {"format": FORMAT, "name": name, "source": source, "shape": shape, "classes": draft.classes}
    header |= {"decoder": f"Pillow {Image.__version__}"}
    offset = PAGE * math.ceil((PREAMBLE.size + len(json.dumps(header)) + 1024) / PAGE)  # room for sums and checksum
    labels_at = offset + math.prod(shape)
    _reserve(stream.fileno(), labels_at + 8 * shape[0])
    images = np.memmap(stream, np.uint8, "r+", offset, shape)
    draft.fill(images)
    images.flush()
    stream.seek(labels_at)
    stream.write(draft.labels.astype("<i8").tobytes())
    stream.flush()
    header |= moments(images)._asdict() | {"sha256": _checksum(stream, offset)}
    text = json.dumps(header).encode()
    stream.seek(0)
    stream.write(PREAMBLE.pack(MAGIC, len(text), offset, _header_digest(offset, text)) + text)


def _reserve(handle: int, size: int) -> None:
    """Take the disk space now: a full disk is an error here, and a crash (SIGBUS) when met through a mapping."""
    try:
        os.posix_fallocate(handle, 0, size) if hasattr(os, "posix_fallocate") else os.truncate(handle, size)
    except OSError as error:
        reason = f"{error.strerror}: decoded images need {size} bytes; choose another place with cache="
        raise OSError(error.errno, reason) from error


def _checksum(stream: BinaryIO, offset: int) -> str:
    stream.seek(offset)
    return stream_digest(stream, "sha256")


def stream_digest(stream: BinaryIO, algorithm: str) -> str:
    """Hex digest of the rest of a binary stream."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


@contextmanager
def _one_writer(path: Path) -> Iterator[None]:
    """Hold path.lock, waiting for another holder; without effect where files cannot be locked.

    It only saves work: writers that do not wait for each other each rename a whole file into place.
    """
    with Path(f"{path}.lock").open("w") as stream:
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX)
        except (ImportError, OSError) as error:
            log.info("%s: no lock (%s)", path, error)
        yield


# Folders of images, one per class


class Listing(NamedTuple):
    """The files of a split with their labels, not yet read."""

    files: list[Found]
    labels: np.ndarray
    classes: tuple[str, ...]


def list_by_class(folder: Path, count: int | None = None, inside: str = "") -> Listing:
    """folder/CLASS/inside/*.jpg|jpeg|png, classes and files in the order of their names."""
    folders = class_folders(folder, count)
    files = [list(map(found_file, image_paths(f / inside if inside else f))) for f in folders]
    labels = np.repeat(np.arange(len(folders), dtype=np.int64), [len(part) for part in files])
    return Listing([file for part in files for file in part], labels, tuple(f.name for f in folders))


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


def listed(
    name: str,
    root: Path,
    listing: Listing,
    size: tuple[int, int],
    extra: Sequence[Path] = (),
    cache: Path | None = None,
    check: bool = False,
) -> ImageSet:
    """The set of listed files, every image `size` (height, width); `extra` files join the fingerprint."""
    source = fingerprint(f"files {size}", root, [*listing.files, *map(found_file, extra)])

    def draft() -> Draft:
        paths = [file.path for file in listing.files]
        return Draft((len(paths), *size), listing.labels, listing.classes, lambda into: decode_files(paths, into))

    return cached(name, root, source, draft, cache, check)
