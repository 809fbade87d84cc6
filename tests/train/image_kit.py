"""Small image runs for the tests: a folder of pictures, and settings that train on it in a second or so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from askew.train.images import ImageTraining, train_images
from askew.train.record import plain


def pictures(folder: Path, train: int = 6, test: int = 2, classes: int = 10) -> Path:
    """Classes of noise around a colour of their own, as PNG files in CIFAR-10's folder layout."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for label in range(classes):
            place = folder / split / f"class{label}"
            place.mkdir(parents=True)
            for k in range(count):
                pixels = rng.integers(0, 60, (32, 32, 3)) + 19 * label
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{k}.png")
    return folder


def small_job(data: Path, out: Path, **settings: Any) -> ImageTraining:
    """Three epochs of three steps on `pictures`."""
    usual = {"epochs": 3, "batch": 20, "width": 4, "score_every": 1, "keep_every": 1, "device": "cpu", "lr": 0.1}
    return ImageTraining(data, out=out, check_data=False, **(usual | settings))


def command_line(job: ImageTraining) -> list[str]:
    """The arguments of `askew` that make this job."""
    named = ["method", "epochs", "batch", "width", "score_every", "keep_every", "device", "lr", "seed", "out"]
    pairs = [(f"--{name.replace('_', '-')}", str(getattr(job, name))) for name in named]
    flags = ["--no-check-data", *(["--tensorboard"] if job.tensorboard else [])]
    return ["train", "--data", str(job.data), job.dataset, *[part for pair in pairs for part in pair], *flags]


def timeless(record: Any) -> dict[str, Any]:
    """What of a record does not depend on the clock or the machine."""
    metrics = {k: v for k, v in record.metrics.items() if k != "seconds"}
    summary = {k: v for k, v in record.summary.items() if "seconds" not in k}
    return plain({"metrics": metrics, "summary": summary, "extra": record.extra, "config": record.config})


def faulty(config: ImageTraining, on_status: Any = None, shelf: Any = None) -> Any:
    """train_images, but seed 1 breaks down, seed 2 takes its whole process with it."""
    if config.seed == 1:
        raise FloatingPointError("the loss is not finite")
    if config.seed == 2:
        os._exit(7)
    return train_images(config, on_status, shelf)


def endless(config: ImageTraining, on_status: Any = None, shelf: Any = None) -> Any:
    """train_images, held up in its second epoch until a signal comes: a file `stalled` in the job's folder says so."""
    import signal

    def hold(status: Any) -> None:
        if on_status is not None:
            on_status(status)
        if status.step == 5:
            (config.out / config.name / "stalled").write_text(str(os.getpid()))
            signal.alarm(60)
            signal.pause()

    return train_images(config, hold, shelf)
