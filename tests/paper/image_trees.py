"""Small trees of images in the layouts of the data sets, and records of runs that were never made."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from askew.train.image_config import ImageTraining
from askew.train.images import titles
from askew.train.record import Record


def noise(rng: np.random.Generator, label: int, side: int) -> np.ndarray:
    """A class has a brightness of its own."""
    return (rng.integers(0, 60, (side, side, 3)) + 19 * label).astype(np.uint8)


def cifar_archive(folder: Path, train: int = 100, test: int = 20) -> Path:
    """The unpacked python version of CIFAR-10."""
    rng = np.random.default_rng(0)
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for name, count in [*((f"data_batch_{i}", train // 5) for i in range(1, 6)), ("test_batch", test)]:
        labels = [int(i) for i in np.arange(count) % 10]
        pixels = np.stack([noise(rng, label, 32).transpose(2, 0, 1).reshape(-1) for label in labels])
        (place / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}))
    names = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]
    (place / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}))
    return folder


def tiny_tree(folder: Path, classes: int = 7, each: int = 4) -> Path:
    """TinyImageNet's layout: PNG content under the official names."""
    rng, root = np.random.default_rng(0), folder / "tiny-imagenet-200"
    wnids = [f"n{c:02d}" for c in range(classes)]
    (root / "val" / "images").mkdir(parents=True)
    lines = []
    for c, wnid in enumerate(wnids):
        place = root / "train" / wnid / "images"
        place.mkdir(parents=True)
        for i in range(each):
            Image.fromarray(noise(rng, c, 64)).save(place / f"{wnid}_{i}.JPEG", "png")
        Image.fromarray(noise(rng, c, 64)).save(root / "val" / "images" / f"val_{c}.JPEG", "png")
        lines.append(f"val_{c}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (root / "words.txt").write_text("")
    return folder


def imagenet_tree(folder: Path, classes: int = 6, train: int = 4, val: int = 2) -> Path:
    """ImageNet's layout with images of 20 pixels or a little more."""
    rng = np.random.default_rng(0)
    for split, each in (("train", train), ("val", val)):
        for c in range(classes):
            place = folder / split / f"n{c:02d}"
            place.mkdir(parents=True)
            for i in range(each):
                image = Image.fromarray(noise(rng, c, 24)).crop((0, 0, 20 + i, 24))
                image.save(place / f"{split}_{c}_{i}.JPEG", "png")
    return folder


def made_up(job: ImageTraining, accuracy: float) -> Record:
    """The record that a run would have left, with this accuracy at every scoring."""
    described = job.describe() | {"train_set": "made-up", "classes": 10, "train_images": 100, "test_images": 20}
    record = Record(*titles(job), described, job.seed, environment={"commit": "none", "versions": {}})
    for epoch in range(1, job.epochs + 1):
        record.log(epoch, epoch_loss=2.0 / epoch)
        if epoch % job.score_every == 0:
            look = {"step": 0, "kind": "epsilon", "value": 0.5, "layers": [], "overall": {}}
            record.log(epoch, accuracy=accuracy, test_loss=1.0, top5=accuracy + 1, diagnosis=look)
    record.summary |= {"accuracy": accuracy, "top5": accuracy + 1}
    edges, layers = [-1.0, 0.0, 1.0], {"first": [3, 1], "others": [10, 30]}
    record.extra["histograms"] = [{"epoch": job.epochs, "edges": edges, "layers": layers}]
    return record


class FakeGrid:
    """In place of run_grid: makes records up, by (method, kind, seed), and remembers what it was asked for."""

    def __init__(self, accuracies: dict[tuple[str, str, int], float] | None = None) -> None:
        self.accuracies = accuracies or {}
        self.asked: list[ImageTraining] = []

    def __call__(self, jobs: Sequence[ImageTraining], **options: Any) -> list[Record]:
        self.asked += jobs
        out = []
        for job in jobs:
            assert job.row is not None
            place = (job.method, job.row.about["kind"], job.seed)
            out.append(made_up(job, self.accuracies.get(place, 50.0)))
        return out
