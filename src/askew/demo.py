"""The demo: one small net on handwritten digits, in full precision, with BinaryConnect and with ASkew at one bit.

Nothing is downloaded: scikit-learn carries the digits. Records and an HTML page go to one folder. Each method's
learning rate, and ASkew's alpha and start, were chosen on random quarters of the training images, not on the test ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from askew.atomic import write_text
from askew.core import LevelFirst, binary
from askew.data.digits import Split, digits
from askew.methods.askew import LevelFirstSkew
from askew.methods.base import FullPrecision
from askew.methods.binaryconnect import BinaryConnect
from askew.models.small_conv import small_conv
from askew.optim import ASkew, MethodOptimizer, groups
from askew.report import page, tables
from askew.report.live import Bars
from askew.report.runs import Run, by_method, summary_values
from askew.report.tables import Column
from askew.train.config import TrainConfig
from askew.train.loop import fit
from askew.train.record import Record, load, writable_folder
from askew.train.source import TensorSource
from askew.train.threads import one_thread

EXPERIMENT = "demo"
TITLE = "One bit a weight, on handwritten digits"
METHODS = FULL, BC, ASKEW = FullPrecision.name, BinaryConnect.name, LevelFirstSkew.name
COLUMNS = (
    Column("accuracy", "test accuracy (%)", 2),
    Column("bits", "bits per weight", 0, spread=False),
    Column("distance_mean", "mean distance", 3, spread=False),
    Column("train_seconds", "training (s)", 1, spread=False),
)


@dataclass(frozen=True)
class DemoConfig:
    """One small net on handwritten digits: full precision, BinaryConnect and ASkew at one bit, side by side."""

    out: Path = Path("runs/demo")
    """Folder for the records and the page."""
    epochs: int = 30
    """Passes over the training set, for each method."""
    seeds: int = 3
    """Runs of each method, with different initial weights and batches."""
    first_seed: int = 0
    """The first seed; the others follow it."""
    batch_size: int = 64
    """Images a step."""
    channels: int = 32
    """Width of the net; its weights grow with the square."""
    images: int | None = None
    """Use only so many training images (all of them if not given)."""
    lr_full_precision: float = 0.2
    """Adam's learning rate at the start of the full-precision runs; like the others it falls by a cosine."""
    lr_binaryconnect: float = 0.3
    """Adam's learning rate at the start of the BinaryConnect runs."""
    lr_askew: float = 0.8
    """Adam's learning rate at the start of the ASkew runs."""
    final_lr: float = 0.1
    """Learning rate at the end, as a part of the one at the start."""
    alpha: float = 0.05
    """How fast a captured weight is drawn to its level: at least alpha times the distance."""
    start: float = 0.2
    """Part of the run after which ASkew begins to capture weights."""

    def __post_init__(self) -> None:
        for name in ("epochs", "seeds", "batch_size", "channels", "images"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"demo: {name} must be 1 or more, got {value}")
        if not 0 <= self.final_lr <= 1:
            raise ValueError(f"demo: final_lr is a part of the learning rate, from 0 to 1, got {self.final_lr}")
        for method in METHODS:
            self.training(method, self.first_seed)

    def training(self, method: str, seed: int) -> TrainConfig:
        """The settings of one run."""
        lr = {FULL: self.lr_full_precision, BC: self.lr_binaryconnect, ASKEW: self.lr_askew}[method]
        constrained = method == ASKEW
        return TrainConfig(
            method=method,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=lr,
            min_lr=self.final_lr * lr,
            annealing=LevelFirst(start=self.start) if constrained else None,
            alpha=self.alpha if constrained else None,
            seed=seed,
            histogram_epochs=tuple(sorted({round(self.epochs * part) for part in (0, 0.2, 0.4, 0.7, 1)})),
        )


def run(config: DemoConfig, console: Console) -> Path:
    """Train, save the records, then present them; returns the page's path."""
    folder = writable_folder(config.out)
    data = _data(config)
    paths = []
    with one_thread(), Bars(console) as bars:
        for method in METHODS:
            bars.add(method, config.seeds)
        for method in METHODS:
            paths += _train_seeds(method, config, data, bars, folder)
    return present([load(path) for path in paths], folder, console)


def present(runs: Sequence[Run], folder: Path, console: Console) -> Path:
    """Print the tables and write folder/index.html, from records alone; returns the page's path."""
    runs = sorted(runs, key=lambda run: (METHODS.index(run.method), run.seed))
    show(runs, console)
    index = folder / "index.html"
    write_text(index, page.comparison(TITLE, lead(runs), runs, COLUMNS, note(runs)))
    console.print(f"\nRecords: {folder}/\nPage:    {index.resolve().as_uri()}", soft_wrap=True, highlight=False)
    return index


def show(runs: Sequence[Run], console: Console) -> None:
    """The results and ASkew's diagnosis, in the terminal."""
    console.print()
    console.print(tables.overview(runs, COLUMNS, note=note(runs)).fitted(console.width))
    console.print()
    console.print(tables.diagnosis(by_method(runs)[ASKEW][0]).fitted(console.width))
    console.print()
    console.print(verdict(runs), highlight=False)


def verdict(runs: Sequence[Run]) -> str:
    """The outcome in a sentence, whichever way it went."""
    means = {method: statistics.fmean(summary_values(own, "accuracy")) for method, own in by_method(runs).items()}
    gap = means[ASKEW] - means[FULL]
    place = "level with" if abs(gap) < 0.005 else f"{abs(gap):.2f} points {'above' if gap > 0 else 'below'}"
    seeds = len(by_method(runs)[ASKEW])
    return (
        f"With one bit a weight, ASkew's net scores {means[ASKEW]:.2f}% on the test images, {place} its "
        f"full-precision twin at {means[FULL]:.2f}% (BinaryConnect: {means[BC]:.2f}%; "
        f"{'mean over ' + str(seeds) + ' seeds' if seeds > 1 else 'one seed'})."
    )


def lead(runs: Sequence[Run]) -> str:
    """What the page shows, in a paragraph."""
    first = runs[0]
    return (
        f"The same small convolutional net, {first.summary['weights']:,} weights, learns to read handwritten digits "
        "of 8 by 8 pixels in three ways: in full precision; with BinaryConnect, which computes with the signs of "
        "hidden real weights; and with ASkew, which draws every weight to −1 or +1 as a constraint while it trains, so "
        f"that nothing is left to round at the end. It learns from {first.config['train_images']:,} images and is "
        f"scored on {first.config['test_images']:,} others. {verdict(runs)}"
    )


def note(runs: Sequence[Run]) -> str:
    """What the numbers of the table mean."""
    test = runs[0].config["test_images"]
    return (
        f"Mean ± sample standard deviation over n seeds; {test} test images, so one image is {100 / test:.2f} points. "
        "Scored with the weights on their levels and BatchNorm re-estimated on the training images. Distance: how far "
        "the weights that the optimizer moves lie from −1 or +1 at the end. Training: steps only, without the scoring."
    )


def _data(config: DemoConfig) -> Split:
    data = digits()
    return data._replace(train_x=data.train_x[: config.images], train_y=data.train_y[: config.images])


def _train_seeds(method: str, config: DemoConfig, data: Split, bars: Bars, folder: Path) -> Iterator[Path]:
    """One run a seed; each record is saved as soon as its run is over."""
    scores = []
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        record = train(config.training(method, seed), config.channels, data, bars)
        scores.append(record.summary["accuracy"])
        bars.finish(method, f"accuracy {statistics.fmean(scores):.2f}%, {len(scores)} of {config.seeds} seeds")
        yield record.save(folder)


def train(settings: TrainConfig, channels: int, data: Split, bars: Bars) -> Record:
    """One run."""
    model = _net(settings.seed, channels)
    optimizer = _optimizer(model, settings, settings.total_steps(len(data.train_y)))
    described = settings.describe() | {
        "data": "scikit-learn digits",
        "train_images": len(data.train_y),
        "test_images": len(data.test_y),
        "channels": channels,
        "initial_weights": "uniform on [-1, 1]",
        "optimizer": type(optimizer.base).__name__,
    }
    record = Record(EXPERIMENT, settings.method, described, settings.seed)
    return fit(
        model,
        optimizer,
        settings.scheduler(optimizer, len(data.train_y)),
        TensorSource((data.train_x, data.train_y), settings.batch_size, settings.seed),
        TensorSource((data.test_x, data.test_y), settings.batch_size, settings.seed),
        settings,
        record,
        lambda status: bars.show(settings.method, status),
    )


def _net(seed: int, channels: int) -> nn.Module:
    """The net of a seed, the same for every method, its weights spread evenly over the levels' range.

    BatchNorm follows every layer, so the net does not feel the size of its weights; spread out, they have less far to
    go to a level than from torch's small initial values.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = small_conv(channels)
        for weight in model.parameters():
            nn.init.uniform_(weight, -1.0, 1.0)
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] # half the time on a CPU


def _optimizer(model: nn.Module, settings: TrainConfig, total_steps: int) -> MethodOptimizer:
    base = torch.optim.Adam(groups(model, levels=binary()), lr=settings.lr)
    if settings.method == ASKEW:
        return ASkew(base, settings.annealing, alpha=settings.alpha, total_steps=total_steps)
    return MethodOptimizer(
        base, FullPrecision() if settings.method == FULL else BinaryConnect(), total_steps=total_steps
    )
