"""One training run on images, from settings to a record: data, net, method, loop."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import nn
from torch.optim import Optimizer

from askew.core import Annealing, Exponential, LevelFirst, LevelSet, binary, uniform
from askew.data.cifar10 import cifar10
from askew.data.images import Splits
from askew.data.tiny_imagenet import tiny_imagenet
from askew.methods.registry import METHODS, method
from askew.models.registry import model as model_named
from askew.optim import ASkew, MethodOptimizer, groups
from askew.train.config import Schedule, TrainConfig
from askew.train.loop import Keeper, OnStatus, fit
from askew.train.record import Record, plain, writable_folder
from askew.train.source import image_sources

Dataset = Literal["cifar10", "tiny-imagenet"]
ANNEALINGS: dict[str, Annealing] = {"askew": Exponential(), "askew-level-first": LevelFirst()}
RATES = {"full-precision": 0.01, "askew": 0.06}  # learning rates of Adam; the others' default is below
DEFAULT_RATE = 0.03


@dataclass(frozen=True)
class ImageTraining:
    """Train a network on images and keep what is needed to trust, resume and repeat the run."""

    data: Path
    """Folder with the data set as its makers give it; nothing is downloaded."""
    dataset: tyro.conf.Positional[Dataset] = "cifar10"
    """Which data set."""
    method: str = "askew-level-first"
    """full-precision, askew-level-first, askew, or a rival: binaryconnect, proxquant, parq, ..."""
    bits: int = 1
    """Bits a weight: 1 is {-1, +1}, 2 to 8 the integers of that width with a SAWB scale a layer."""
    epochs: int = 100
    """Passes over the training images."""
    batch: int = 100
    """Images a step."""
    lr: float | None = None
    """Adam's learning rate at the start (default: the method's own)."""
    min_lr: float = 0.001
    """Adam's learning rate at the end of a cosine."""
    schedule: Schedule = "cosine"
    """How the learning rate falls."""
    alpha: float | None = None
    """ASkew's alpha (default: the schedule's own)."""
    start: float = 0.5
    """Part of the run after which ASkew begins to tighten."""
    seed: int = 0
    """Seed of initial weights, order and augmentation."""
    width: int = 128
    """Width of VGG-small's first layer (CIFAR-10)."""
    skip: tuple[str, ...] = ()
    """Layers left in full precision, by name or pattern, such as head.linear."""
    score_every: int = 10
    """Epochs from one scoring of the snapped net to the next."""
    images: int | None = None
    """Use only so many training and test images (all if not given)."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    out: Path = Path("runs/train")
    """Folder for record and checkpoints; a run that was stopped there goes on."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"no method named {self.method!r}; known: {', '.join(METHODS)}")
        if not 1 <= self.bits <= 8:
            raise ValueError(f"bits must lie in 1..8, got {self.bits}")
        self.settings()

    @property
    def levels(self) -> LevelSet:
        return binary() if self.bits == 1 else uniform(self.bits)

    @property
    def name(self) -> str:
        """Of the run's folder: what tells it from its neighbours."""
        return f"{self.dataset}-{self.method}-{self.bits}bit-seed{self.seed}"

    def settings(self) -> TrainConfig:
        """The loop's part of the settings."""
        annealing = ANNEALINGS.get(self.method)
        if isinstance(annealing, LevelFirst):
            annealing = LevelFirst(start=self.start)
        elif isinstance(annealing, Exponential):
            annealing = Exponential(start=self.start, period=1 / self.epochs)
        lr = RATES.get(self.method, DEFAULT_RATE) if self.lr is None else self.lr
        return TrainConfig(
            method=self.method,
            epochs=self.epochs,
            batch_size=self.batch,
            lr=lr,
            schedule=self.schedule,
            min_lr=min(self.min_lr, lr),
            annealing=annealing,
            alpha=self.alpha if annealing else None,
            seed=self.seed,
            histogram_epochs=tuple(sorted({e for e in (20, 39, 55, 99) if e < self.epochs} | {self.epochs})),
            score_every=self.score_every,
            score_batch_size=1000,
            batchnorm_images=20000,
            bf16=self.where.type == "cuda",
        )

    @property
    def where(self) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def describe(self) -> dict[str, Any]:
        """Plain values that decide the outcome (not where the files lie)."""
        own = {k: v for k, v in asdict(self).items() if k not in ("data", "out", "device")}
        return plain(own | self.settings().describe() | {"device": self.where.type})


def load_images(config: ImageTraining) -> Splits:
    """The data set, cut to `images` of each split if asked."""
    splits = cifar10(config.data) if config.dataset == "cifar10" else tiny_imagenet(config.data)
    return splits if config.images is None else Splits(*(part.thinned(config.images) for part in splits))


def build_model(config: ImageTraining, classes: int) -> nn.Module:
    """VGG-small for CIFAR-10, ResNet-18 with a 7x7 stem for TinyImageNet; initial weights by the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.dataset == "cifar10":
            return model_named("vgg-small", classes=classes, width=config.width)
        return model_named("resnet18", classes=classes, stem="tiny")


def build_optimizer(config: ImageTraining, net: nn.Module, total_steps: int) -> MethodOptimizer:
    """The method around Adam."""
    settings = config.settings()
    scale = "none" if config.bits == 1 else "sawb"
    chosen = groups(net, levels=config.levels, skip=config.skip)
    base: Optimizer = torch.optim.Adam(chosen, lr=settings.lr)
    if settings.annealing is not None:
        return ASkew(
            base,
            settings.annealing,
            alpha=config.alpha,
            clamp=True,
            scale=scale,
            total_steps=total_steps,
        )
    return MethodOptimizer(base, method(config.method), scale=scale, total_steps=total_steps)


def train_images(config: ImageTraining, on_status: OnStatus | None = None) -> tuple[Record, Path]:
    """Run (or go on with) the training; returns the record and its file."""
    folder = writable_folder(config.out / config.name)
    settings, device = config.settings(), config.where
    splits = load_images(config)
    train, test = image_sources(splits, config.batch, config.seed, device, pad=4 if config.dataset == "cifar10" else 0)
    net = build_model(config, len(splits.train.classes)).to(device, memory_format=torch.channels_last)  # pyright: ignore
    torch.manual_seed(config.seed)  # methods that draw at random do so from torch's generator, from now on
    optimizer = build_optimizer(config, net, config.epochs * train.steps())
    described = config.describe() | {"train_set": splits.train.name, "train_images": train.images}
    record = Record(config.dataset, f"{config.method}-{config.bits}bit", described, config.seed)
    scheduler = settings.scheduler(optimizer, train.images)
    record = fit(net, optimizer, scheduler, train, test, settings, record, on_status, Keeper(folder))
    return record, record.save(folder)
