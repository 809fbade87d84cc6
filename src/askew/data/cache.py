"""Sets of images decoded once into a checked, memory-mapped cache.

A cache file is: a preamble (magic, lengths, checksum of the header), a JSON header (fingerprint of the source, shape,
classes, exact channel sums, checksum of the data), the pixels (N, H, W, 3) as uint8, the labels (N,) as int64. It is
written beside its final name and renamed over it, so a reader sees a whole file or none. One that does not match its
source, its length or its checksums is decoded again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from askew.atomic import replacing
from askew.data.files import Found, class_folders, decode_files, found_file, image_paths, stream_digest
from askew.data.images import DataError, ImageSet, Moments, moments

FORMAT = 1
MAGIC = b"askewimg"
PREAMBLE = struct.Struct("<8sQQ32s")  # magic, bytes of the header, offset of the pixels, sha256 of the header
PAGE = 4096
ELSEWHERE = "set XDG_CACHE_HOME to a folder with room (in Python: cache=)"
log = logging.getLogger(__name__)


def fingerprint(kind: str, root: Path, files: Iterable[Found]) -> str:
    """A digest of the relative names, sizes and modification times of a split's files."""
    base = f"{root}{os.sep}"
    lines = [f"{file.path.removeprefix(base)}\t{file.size}\t{file.modified}" for file in files]
    return hashlib.sha256("\n".join([f"{FORMAT} {kind}", *lines]).encode(errors="surrogateescape")).hexdigest()


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
    folder/.askew-cache, or in the user's cache folder where that cannot be written or is full. The header, the
    fingerprint and the length are always checked, the checksum of the data when `check` is set and after writing. Of
    several processes that find no cache one decodes and the others wait for it.
    """
    places = [cache] if cache else [folder / ".askew-cache", user_cache(folder)]
    for place in places:
        if (found := _load(place / f"{name}.images", source, check)) is not None:
            return found
    while True:
        place = writable(places)
        path, places = place / f"{name}.images", places[places.index(place) + 1 :]
        try:
            with _one_writer(path):
                if (found := _load(path, source, check)) is None:
                    write_cache(path, name, source, draft())
                    found = read_cache(path, source, check=True)
            return found
        except OSError as error:
            if error.errno != errno.ENOSPC or not places:
                raise
            log.warning("%s: %s; trying %s", path, error.strerror, places[0])


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
    raise PermissionError(f"no folder for decoded images can be written: {', '.join(reasons)}; {ELSEWHERE}")


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
    """Decode a draft into the cache file `path`, atomically."""
    with replacing(path) as stream:
        _write(stream, name, source, draft)


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
        reason = f"{error.strerror}: decoded images need {size} bytes; {ELSEWHERE}"
        raise OSError(error.errno, reason) from error


def _checksum(stream: BinaryIO, offset: int) -> str:
    stream.seek(offset)
    return stream_digest(stream, "sha256")


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
