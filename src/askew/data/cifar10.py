"""CIFAR-10 from the official archives, packed or unpacked, or from a folder of images per class. Nothing is downloaded.

https://www.cs.toronto.edu/~kriz/cifar.html describes the two official versions.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from functools import cache as cached_call
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from askew.data.cache import Draft, cached, fingerprint, list_by_class, listed
from askew.data.files import check_size, found_file, stream_digest
from askew.data.images import DataError, ImageSet, Splits

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZES = (50_000, 10_000)
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE  # bytes of one image in the binary version: a label, then three planes


class Batch(NamedTuple):
    """Images (n, 32, 32, 3) and labels (n,)."""

    images: np.ndarray
    labels: np.ndarray


class Version(NamedTuple):
    """One of the two official versions: its names and checksums (of the files: as far as known), how a file is read."""

    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    read: Callable[[bytes, str], Batch]
    sums: Mapping[str, str]


def cifar10(
    folder: str | Path,
    *,
    verify: bool = True,
    sizes: tuple[int, int] | None = SIZES,
    cache: Path | None = None,
    check: bool = False,
) -> Splits:
    """CIFAR-10 from whatever `folder` holds (or is): the first that fits of

    cifar-10-batches-py, cifar-10-batches-bin (unpacked), cifar-10-python.tar.gz, cifar-10-binary.tar.gz, and
    train/CLASS/*.jpg|png with test/CLASS/*, ten classes in the order of their names. The path of an archive will do.

    Args:
        verify: compare md5 sums with the official ones: an archive's, or those of the unpacked Python version's files.
        sizes: number of training and test images that must be there; None accepts any.
        cache: where decoded images are kept (see `images.cached`); check: compare the cache's checksum too.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"{folder}: no such folder (CIFAR-10 was looked for)")
    for version in (PYTHON, BINARY):
        if (unpacked := _unpacked(folder, version)) is not None:
            return _from_files(unpacked, version, verify, sizes, cache, check)
    for version in (PYTHON, BINARY):
        archive = folder if folder.is_file() and folder.name == version.archive else folder / version.archive
        if archive.is_file():
            return _from_archive(archive, version, verify, sizes, cache, check)
    if (folder / "train").is_dir() or (folder / "test").is_dir():
        return _from_images(folder, sizes, cache, check)
    looked = [f"{v.folder}/" for v in (PYTHON, BINARY)] + [v.archive for v in (PYTHON, BINARY)]
    raise FileNotFoundError(f"{folder}: no CIFAR-10 here; looked for {', '.join(looked)} and train/CLASS/, test/CLASS/")


def _unpacked(folder: Path, version: Version) -> Path | None:
    """The unpacked version: `folder` itself or inside it."""
    for place in (folder, folder / version.folder):
        if (place / version.train[0]).is_file() or (place.name == version.folder and place.is_dir()):
            return place
    return None


def _from_files(
    folder: Path, version: Version, verify: bool, sizes: tuple[int, int] | None, cache: Path | None, check: bool
) -> Splits:
    def read(path: Path) -> Batch:
        content, official = path.read_bytes(), version.sums.get(path.name)
        batch = version.read(content, str(path))
        if verify and official:
            _check_md5(path, stream_digest(io.BytesIO(content), "md5"), official, "file")
        return batch

    def split(name: str, files: tuple[str, ...], size: int | None) -> ImageSet:
        paths = [folder / file for file in files]
        if missing := [path.name for path in paths if not path.is_file()]:
            raise FileNotFoundError(f"{folder}: {', '.join(missing)} missing")
        checked = " md5" if verify and version.sums else ""  # what was read unchecked is read again to be checked
        source = fingerprint(version.folder + checked, folder, map(found_file, paths))

        def draft() -> Draft:
            return _draft([read(path) for path in paths])

        return _sized(cached(name, folder, source, draft, cache, check), folder, size)

    train_size, test_size = sizes or (None, None)
    return Splits(split("cifar10-train", version.train, train_size), split("cifar10-test", version.test, test_size))


def _from_archive(
    archive: Path, version: Version, verify: bool, sizes: tuple[int, int] | None, cache: Path | None, check: bool
) -> Splits:
    with archive.open("rb") as stream:
        md5 = stream_digest(stream, "md5")
    if verify:
        _check_md5(archive, md5, version.md5, "archive")
    unpack = cached_call(lambda: read_archive(archive, {f"{version.folder}/{n}" for n in version.train + version.test}))

    def split(name: str, files: tuple[str, ...], size: int | None) -> ImageSet:
        def draft() -> Draft:
            members = unpack()
            return _draft([version.read(members[f"{version.folder}/{n}"], f"{archive}: {n}") for n in files])

        found = cached(name, archive.parent, f"{version.folder} md5 {md5}", draft, cache, check)
        return _sized(found, archive, size)

    train_size, test_size = sizes or (None, None)
    return Splits(split("cifar10-train", version.train, train_size), split("cifar10-test", version.test, test_size))


def _from_images(folder: Path, sizes: tuple[int, int] | None, cache: Path | None, check: bool) -> Splits:
    train, test = (list_by_class(folder / part, len(CLASSES)) for part in ("train", "test"))
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))
        raise DataError(f"{folder}: train and test hold different classes ({', '.join(odd)})")
    for part, listing, size in zip(("train", "test"), (train, test), sizes or (None, None), strict=True):
        check_size(folder / part, len(listing.files), size)
    lossy = any(not file.path.lower().endswith(".png") for file in train.files)
    name = "cifar10-jpeg" if lossy else "cifar10-png"
    return Splits(
        listed(f"{name}-train", folder, train, (SIDE, SIDE), cache=cache, check=check),
        listed(f"{name}-test", folder, test, (SIDE, SIDE), cache=cache, check=check),
    )


def _check_md5(path: Path, md5: str, official: str, kind: str) -> None:
    if md5 != official:
        raise DataError(
            f"{path}: md5 {md5}, the official {kind}'s is {official}: it is truncated or altered "
            f"({path.stat().st_size} bytes); --no-check-data (verify=False) reads it all the same"
        )


def _sized(found: ImageSet, origin: Path, size: int | None) -> ImageSet:
    check_size(origin, len(found), size)
    return found


def _draft(batches: list[Batch]) -> Draft:
    labels = np.concatenate([batch.labels for batch in batches])

    def fill(into: np.ndarray) -> None:
        np.concatenate([batch.images for batch in batches], out=into)

    return Draft((len(labels), SIDE, SIDE), labels, CLASSES, fill)


def read_archive(archive: Path, names: set[str]) -> dict[str, bytes]:
    """These members of a tar.gz, read in memory; DataError naming the archive if it breaks off or lacks one."""
    members: dict[str, bytes] = {}
    try:
        with gzip.open(archive) as packed:  # which looks at the sum at its end; tarfile's own reader does not
            with tarfile.open(fileobj=packed, mode="r|") as tar:
                for member in tar:
                    name = member.name.removeprefix("./")
                    if name in names and (stream := tar.extractfile(member)) is not None:
                        members[name] = stream.read()
            while packed.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{archive}: truncated or damaged after {len(members)} of its files ({error})") from error
    if missing := sorted(names - members.keys()):
        raise DataError(f"{archive}: lacks {', '.join(missing)}")
    return members


def _batch(planes: np.ndarray, labels: np.ndarray, origin: str) -> Batch:
    """A batch from planes (n, 3072): red, green, blue, each row by row."""
    if labels.size and (labels.min() < 0 or labels.max() >= len(CLASSES)):
        raise DataError(f"{origin}: a label lies outside 0..{len(CLASSES) - 1}")
    return Batch(planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), labels.astype(np.int64))


def read_binary(content: bytes, origin: str) -> Batch:
    """A file of the binary version: records of one label byte and 3072 pixel bytes."""
    if not content or len(content) % RECORD:
        raise DataError(f"{origin}: {len(content)} bytes, not a multiple of {RECORD}: truncated or no CIFAR-10 file")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return _batch(records[:, 1:], records[:, 0], origin)


def read_pickle(content: bytes, origin: str) -> Batch:
    """A file of the Python version: a pickled dictionary with data (n, 3072) and labels."""
    try:
        found: Any = PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise DataError(f"{origin}: not a CIFAR-10 batch ({error or type(error).__name__})") from error
    if not isinstance(found, Mapping):
        raise DataError(f"{origin}: not a CIFAR-10 batch (it holds no dictionary)")
    entries = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in found.items()}
    data, labels = entries.get("data"), entries.get("labels")
    planes = data.array if isinstance(data, PickledArray) else None
    if planes is None or planes.ndim != 2 or planes.shape[1] != RECORD - 1:
        raise DataError(f"{origin}: its data are not uint8 (n, {RECORD - 1})")
    if not isinstance(labels, list) or len(labels) != len(planes) or not all(isinstance(y, int) for y in labels):
        raise DataError(f"{origin}: its labels are not a list of {len(planes)} integers")
    return _batch(planes, np.array(labels, np.int64), origin)


class PickledArray:
    """Stands in for numpy's array while unpickling: bytes with a shape, uint8 only."""

    array: np.ndarray | None = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], PickledType, bool, bytes]) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, PickledType) or kind.code not in ("u1", b"u1"):
            raise pickle.UnpicklingError("an array that is not uint8")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class PickledType:
    """Stands in for numpy's dtype while unpickling."""

    def __init__(self, code: str | bytes = "", *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: nothing that a uint8 needs."""


def _reconstruct(*_: object) -> PickledArray:
    return PickledArray()


def _encode(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes from Python 3."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


class PlainUnpickler(pickle.Unpickler):
    """Unpickles dictionaries, lists, numbers, text, bytes and uint8 arrays. It calls nothing from outside this file."""

    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): PickledArray,
        ("numpy", "dtype"): PickledType,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for one of the few names a CIFAR-10 batch uses."""
        try:
            return self.ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a CIFAR-10 batch never does") from None


TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
PYTHON = Version(
    archive="cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    train=TRAIN,
    test=("test_batch",),
    read=read_pickle,
    sums={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)
BINARY = Version(
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    train=tuple(f"{name}.bin" for name in TRAIN),
    test=("test_batch.bin",),
    read=read_binary,
    sums={},
)
