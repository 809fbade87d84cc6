"""askew bench train: epochs a second and peak memory of whole training steps, every method in interleaved rounds.

The steps are those of `askew train` (batch from images on the device, forward, backward, optimizer); the pixels are
random, on which the time does not depend.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal

import numpy as np
import torch

from askew.bench import machine
from askew.data.images import ImageSet, Splits
from askew.models.resnet import Stem
from askew.report.style import look
from askew.train.image_config import ImageTraining
from askew.train.images import build_model, build_optimizer
from askew.train.recipes import Dataset
from askew.train.record import Record, writable_folder
from askew.train.source import image_sources
from askew.train.stepper import Eager, Static, Stepper

EXPERIMENT = "bench-train"
REFERENCE = "full-precision"
EPOCHS, UNDER_WAY = 1000, 700  # of an imagined run: the measured steps come when level-first has captured a part


@dataclass(frozen=True)
class Case:
    """A net and its data: side of an image, classes, images of a real epoch."""

    title: str
    dataset: Dataset
    stem: Stem | None
    side: int
    classes: int
    images: int


CASES = {
    "vgg-small": Case("VGG-small, CIFAR-10", "cifar10", None, 32, 10, 50_000),
    "resnet18-tiny": Case("ResNet-18 (7x7 stem), TinyImageNet", "tiny-imagenet", "tiny", 64, 200, 100_000),
    "resnet18-small": Case("ResNet-18 (3x3 stem), TinyImageNet", "tiny-imagenet", "small", 64, 200, 100_000),
}


@dataclass(frozen=True)
class TrainBench:
    """Time whole training steps of full precision, ASkew and the rivals."""

    cases: tuple[Literal["vgg-small", "resnet18-tiny", "resnet18-small"], ...] = ("vgg-small",)
    """Nets and data."""
    methods: tuple[str, ...] = ("binaryconnect", "proxquant", "parq", "askew", "askew-level-first")
    """Methods beside full precision."""
    rounds: int = 11
    """Interleaved rounds; every method takes `steps` steps in each."""
    steps: int = 100
    """Steps of a round."""
    batch: int = 100
    """Images a step."""
    width: int | None = None
    """Width of VGG-small's first layer (128 if not given); less on a CPU."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    out: Path = Path("results/bench-train")
    """Folder of the records."""

    def __post_init__(self) -> None:
        for name, least in (("rounds", 2), ("steps", 1), ("batch", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


def run(config: TrainBench, progress: Callable[[str], None] = lambda what: None) -> list[Record]:
    """One record a case, saved in config.out."""
    writable_folder(config.out)
    records = []
    for case in config.cases:
        records.append(measure(case, config, progress))
        records[-1].save(config.out)
    return records


def measure(name: str, config: TrainBench, progress: Callable[[str], None]) -> Record:
    """All methods on one case: memory as each is made, then times in rounds of changing order."""
    methods = [REFERENCE, *(m for m in config.methods if m != REFERENCE)]
    facts: dict[str, dict[str, Any]] = {}
    rounds: dict[str, Callable[[], None]] = {}
    for method in methods:
        progress(f"{name}: {look(method).label}")
        job = _job(name, method, config)
        made: list[Callable[[], None]] = []

        def begin(job: ImageTraining = job, made: list[Callable[[], None]] = made) -> None:
            made.append(_rounds(name, job, config))
            made[0]()

        first = machine.seconds(begin, job.where)
        _, peak = machine.memory(made[0], job.where)
        rounds[method], facts[method] = made[0], {"first_round_seconds": first, "peak_bytes": peak}
    device = _job(name, REFERENCE, config).where
    times: dict[str, list[float]] = {method: [] for method in methods}
    order = random.Random(0)
    for i in range(config.rounds):
        progress(f"{name}: round {i + 1} of {config.rounds}")
        for method in order.sample(methods, len(methods)):
            times[method].append(machine.seconds(rounds[method], device) / config.steps)
    epoch = CASES[name].images // config.batch
    for method, own in times.items():
        low, _, high = quantiles([t / r for t, r in zip(own, times[REFERENCE], strict=True)], n=4)
        facts[method] |= {
            "step_seconds": median(own),
            "epochs_per_second": 1 / (epoch * median(own)),
            "ratio": median(own) / median(times[REFERENCE]),
            "ratio_quartiles": [low, high],
        }
    about = asdict(config) | {"case": name, "device": device.type}
    return Record(EXPERIMENT, f"{name}-{device.type}", about, 0, summary=facts, extra={"seconds": times})


def _job(name: str, method: str, config: TrainBench) -> ImageTraining:
    case = CASES[name]
    return ImageTraining(
        Path(),
        case.dataset,
        method,
        epochs=EPOCHS,
        batch=config.batch,
        stem=case.stem,
        width=config.width if case.dataset == "cifar10" else None,
        device=config.device,
    )


def _rounds(name: str, job: ImageTraining, config: TrainBench) -> Callable[[], None]:
    """A call that takes the next `steps` steps of a run of this job."""
    case, device, settings = CASES[name], job.where, job.settings()
    rng = np.random.default_rng(0)
    count = config.steps * config.batch
    classes = tuple(map(str, range(case.classes)))
    pixels = rng.integers(0, 256, (count, case.side, case.side, 3), np.uint8)
    images = ImageSet(pixels, rng.integers(0, case.classes, count), classes, "random")
    train, _ = image_sources(Splits(images, images.thinned(config.batch)), config.batch, 0, device, job.padding)
    net = build_model(job, case.classes).to(device, memory_format=torch.channels_last)  # pyright: ignore
    optimizer = build_optimizer(job, net, EPOCHS * config.steps)
    scheduler = settings.scheduler(optimizer, train.images)
    optimizer.advance(UNDER_WAY * config.steps)
    kind: type[Static | Eager] = Static if settings.static else Eager
    stepper: Stepper = kind(net.train(), optimizer, scheduler, train, settings.bf16)
    epochs = iter(range(UNDER_WAY, EPOCHS))

    def take() -> None:
        for _ in stepper.steps(next(epochs), 0):
            pass

    return take
