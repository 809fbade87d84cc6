"""One run of the training benchmark: the net, data and steps of `askew train`, on random pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from askew.data.images import ImageSet, Splits
from askew.models.resnet import Stem
from askew.optim import MethodOptimizer
from askew.train.image_config import ImageTraining
from askew.train.images import build_model, build_optimizer
from askew.train.recipes import Dataset
from askew.train.source import image_sources
from askew.train.stepper import Eager, Static, Stepper, loss_of
from askew.train.teacher import labelled

EPOCHS, UNDER_WAY = 1000, 700  # of an imagined run: the measured steps come when level-first has captured a part
MANY = 100_000

CaseName = Literal["vgg-small", "vgg-small-signs", "resnet18-tiny", "resnet18-tiny-4", "resnet18-small"]


@dataclass(frozen=True)
class Case:
    """A net and its data: side of an image, classes, images of a real epoch, bits of activations (None: real)."""

    title: str
    dataset: Dataset
    stem: Stem | None
    side: int
    classes: int
    images: int
    activation_bits: int | None = None

    def job(self, method: str, batch: int, width: int | None, device: str) -> ImageTraining:
        """The settings of `askew train` for this case."""
        return ImageTraining(
            Path(),
            self.dataset,
            method,
            epochs=EPOCHS,
            batch=batch,
            stem=self.stem,
            width=width if self.dataset == "cifar10" else None,
            device=device,
            activation_bits=self.activation_bits,
        )


CASES: dict[CaseName, Case] = {
    "vgg-small": Case("VGG-small, CIFAR-10", "cifar10", None, 32, 10, 50_000),
    "vgg-small-signs": Case("VGG-small with signs, CIFAR-10", "cifar10", None, 32, 10, 50_000, 1),
    "resnet18-tiny": Case("ResNet-18 (7x7 stem), TinyImageNet", "tiny-imagenet", "tiny", 64, 200, 100_000),
    "resnet18-tiny-4": Case("ResNet-18 (7x7 stem), 4-bit activations", "tiny-imagenet", "tiny", 64, 200, 100_000, 4),
    "resnet18-small": Case("ResNet-18 (3x3 stem), TinyImageNet", "tiny-imagenet", "small", 64, 200, 100_000),
}


@dataclass(frozen=True)
class Run:
    """A run under way: `take` takes its next round of steps."""

    take: Callable[[], None]
    optimizer: MethodOptimizer


def start(case: Case, job: ImageTraining, steps: int, batch: int) -> Run:
    """A run of this job whose epochs are rounds of `steps` steps, most of it done."""
    device, settings = job.where, job.settings()
    train, _ = image_sources(_random_images(case, steps * batch, batch), batch, 0, device, job.padding)
    net = build_model(job, case.classes).to(device, memory_format=torch.channels_last)  # pyright: ignore
    optimizer = build_optimizer(job, net, EPOCHS * steps)
    scheduler = settings.scheduler(optimizer, train.images)
    optimizer.advance(UNDER_WAY * steps)
    if settings.static:
        _let_compile()
    kind: type[Static | Eager] = Static if settings.static else Eager
    stepper: Stepper = kind(loss_of(net.train(), labelled), optimizer, scheduler, train, settings.bf16)
    epochs = iter(range(UNDER_WAY, EPOCHS))

    def take() -> None:
        for _ in stepper.steps(next(epochs), 0):
            pass

    return Run(take, optimizer)


def _random_images(case: Case, count: int, test: int) -> Splits:
    rng = np.random.default_rng(0)
    classes = tuple(map(str, range(case.classes)))
    pixels = rng.integers(0, 256, (count, case.side, case.side, 3), np.uint8)
    images = ImageSet(pixels, rng.integers(0, case.classes, count), classes, "random")
    return Splits(images, images.thinned(test))


def _let_compile() -> None:
    """torch.compile gives up on a function after eight nets and would run the ninth method uncompiled."""
    from torch._dynamo import config

    config.recompile_limit = config.accumulated_recompile_limit = MANY
