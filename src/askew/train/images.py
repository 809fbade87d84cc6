"""One training run on images, from settings to a record: data, net, method, loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from askew.core import LevelFirst
from askew.data.cifar10 import SIZES, cifar10
from askew.data.imagenet import ImageNet
from askew.data.images import ImageSet, Splits, evenly
from askew.data.tiny_imagenet import tiny_imagenet
from askew.methods.registry import method
from askew.models.registry import model as model_named
from askew.optim import ASkew, MethodOptimizer, groups
from askew.train import low_bit
from askew.train.device import check_present
from askew.train.distributed import World, joined
from askew.train.image_config import ImageTraining as ImageTraining
from askew.train.initial import check_unseen, digest, start_from
from askew.train.lock import sole_use
from askew.train.loop import Keeper, OnStatus, fit
from askew.train.products import check_products
from askew.train.record import Record, writable_folder
from askew.train.source import Shelf, Source, image_sources
from askew.train.teacher import Objective, has_scales, labelled, taught_by
from askew.train.worker_source import imagenet_sources

KEEP_SECONDS = 120.0  # an epoch that ends so long after the last checkpoint is kept as well


def kept_images(config: ImageTraining, shelf: Shelf) -> Splits:
    """load_images, from the shelf if the last run in this process had the same."""
    key = (config.data.resolve(), config.dataset, config.images, config.holdout, config.check_data)
    return shelf.take("images", key, lambda: load_images(config))


def load_images(config: ImageTraining) -> Splits:
    """CIFAR-10 or TinyImageNet, cut to `images` of each split or with held-out images as its test set, if asked."""
    if config.dataset == "cifar10":
        sizes = SIZES if config.check_data else None
        splits = cifar10(config.data, verify=config.check_data, sizes=sizes, check=True)
    elif config.check_data:
        splits = tiny_imagenet(config.data, check=True)
    else:
        splits = tiny_imagenet(config.data, classes=None, per_class=None, test=None, check=True)
    if config.images is not None:
        splits = Splits(*(part.thinned(config.images) for part in splits))
    return splits if config.holdout is None else held_out(splits.train, config.holdout)


def held_out(train: ImageSet, count: int) -> Splits:
    """`count` images, evenly spaced over the training set, as a test set; the others are left to train on."""
    if count >= len(train):
        raise ValueError(f"holdout {count} leaves nothing of the {len(train)} training images")
    chosen = np.zeros(len(train), bool)
    chosen[evenly(len(train), count)] = True
    parts = (ImageSet(train.images[m], train.labels[m], train.classes, train.name) for m in (~chosen, chosen))
    return Splits(*parts)


class Loaded(NamedTuple):
    """The two parts of a data set as the loop takes them, and what a record says of them."""

    train: Source
    test: Source
    about: dict[str, Any]


def load_sources(config: ImageTraining, device: torch.device, world: World, shelf: Shelf) -> Loaded:
    """The data set of a run: on the device, or decoded by workers."""
    batch, rank, size = config.settings().batch_size, world.rank, world.size
    if config.dataset == "imagenet":
        train, test = imagenet_sources(
            config.data,
            batch,
            config.seed,
            device,
            resize=config.resize,
            crop=config.crop,
            val_map=config.val_map,
            classes=1000 if config.check_data else None,
            images=config.images,
            workers=config.workers,
            rank=rank,
            world=size,
        )
        return _loaded(train, test, "imagenet-train", train.data, test.data)
    splits = kept_images(config, shelf)
    pad = config.padding
    train, test = image_sources(splits, batch, config.seed, device, pad, rank=rank, world=size, shelf=shelf)
    return _loaded(train, test, splits.train.name, *splits)


def digest_of(*parts: ImageSet | ImageNet) -> str:
    """Tells the images of a run from others."""
    return "-".join(part.digest for part in parts)


def _loaded(train: Source, test: Source, name: str, *parts: ImageSet | ImageNet) -> Loaded:
    """A run goes on only with the images it began with: their digest is among its settings."""
    about = {"train_set": name, "classes": len(parts[0].classes)}
    about |= {"train_images": train.images, "test_images": test.images}
    return Loaded(train, test, about | {"data_digest": digest_of(*parts)})


def build_model(config: ImageTraining, classes: int) -> nn.Module:
    """VGG-small for CIFAR-10, ResNet-18 otherwise, unless told; initial weights by the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        net = _net(config, classes, **low_bit.model_options(config))
    return low_bit.with_activations(config, net)


def _net(config: ImageTraining, classes: int, affine: bool | None = None, **options: Any) -> nn.Module:
    options["affine"] = config.learns_norms if affine is None else affine
    return model_named(config.net, classes=classes, **config.net_options, **options)


def build_objective(config: ImageTraining, classes: int) -> Objective:
    """The labels alone, or with them the teacher that was asked for: the same net, its activations real.

    Its BatchNorm is as it was trained.
    """
    if config.teacher is None:
        return labelled
    with torch.random.fork_rng(devices=[]):
        net = _net(config, classes, affine=has_scales(config.teacher))
    teacher = taught_by(net, config.teacher, config.share, config.holdout, config.images)
    teacher.net.to(config.where, memory_format=torch.channels_last)  # pyright: ignore
    return teacher


def _vectors_slower(chosen: list[dict[str, Any]], lr: float) -> list[dict[str, Any]]:
    """The groups with BatchNorm's scales and biases in one of their own at that learning rate."""
    out = []
    for group in chosen:
        vectors = [] if group["levels"] is not None else [(n, p) for n, p in group["params"] if p.ndim == 1]
        names = {n for n, _ in vectors}
        others = [(n, p) for n, p in group["params"] if n not in names]
        out += [{**group, "params": others}] if others else []
        out += [{**group, "params": vectors, "lr": lr, "weight_decay": 0.0}] if vectors else []
    return out


def build_optimizer(config: ImageTraining, net: nn.Module, total_steps: int) -> MethodOptimizer:
    """The method around Adam, or AdamW where weights decay; BatchNorm's scales and biases do not."""
    settings = config.settings()
    per = config.per or "tensor"
    in_turn = isinstance(settings.annealing, LevelFirst) and settings.annealing.stagger > 0
    chosen = groups(net, levels=config.levels, skip=config.skip, in_turn=in_turn)
    if config.vector_rate is not None:
        chosen = _vectors_slower(chosen, config.vector_rate * settings.lr)
    cuda = config.where.type == "cuda"
    decay = config.recipe.weight_decay
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    base = kind(chosen, lr=settings.lr, weight_decay=decay, fused=cuda, capturable=cuda and settings.static)
    if settings.annealing is not None:
        return ASkew(
            base,
            settings.annealing,
            alpha=settings.alpha,
            clip=1.0 if config.bits == 1 else "quarter",
            clamp=True,
            scale=low_bit.scale(config),
            per=per,
            total_steps=total_steps,
            average=config.recipe.average,
        )
    made = method(config.method, **config.recipe.options)
    scale, mean = low_bit.scale(config, made), config.recipe.average
    return MethodOptimizer(base, made, scale=scale, per=per, total_steps=total_steps, average=mean)


def digests(config: ImageTraining) -> dict[str, str]:
    """Which files a run starts from and learns from, whatever their names."""
    named = {"init_digest": config.init, "teacher_digest": config.teacher}
    return {name: digest(path) for name, path in named.items() if path is not None}


def titles(config: ImageTraining) -> tuple[str, str]:
    """(experiment, method) as the run's record has them."""
    if config.row is not None:
        return config.row.experiment, config.row.key
    return config.dataset, f"{config.method}-{config.width_name}"


def record_folder(config: ImageTraining) -> Path:
    """Where the record lies once the run is complete."""
    return config.row.folder if config.row else config.out / config.name


def train_images(
    config: ImageTraining, on_status: OnStatus | None = None, shelf: Shelf | None = None
) -> tuple[Record, Path]:
    """Run (or go on with) the training; returns the record and its file.

    Under torchrun every process runs its part (see distributed.py) and returns the same; the first one writes.
    shelf: where a process that does several runs keeps the data set from one to the next.
    """
    check_present(config.where)
    with joined(config.where) as world:
        return _train(config, on_status, world, shelf or Shelf())


def check_batch(config: ImageTraining, images: int) -> None:
    """ValueError for a training set of no batch, and for one smaller than the batch that was asked for."""
    if images < 2:
        raise ValueError(f"{images} training image: BatchNorm needs 2 or more; give more --images or less --holdout")
    if config.batch == 1:
        raise ValueError("batch 1: BatchNorm needs 2 images or more a step")
    if config.batch is not None and config.batch > images:
        raise ValueError(f"batch {config.batch} is larger than the {images} training images: give a smaller --batch")


def _train(config: ImageTraining, on_status: OnStatus | None, world: World, shelf: Shelf) -> tuple[Record, Path]:
    """The run in its folder, which the first process keeps for it alone."""
    folder, records = config.out / config.name, record_folder(config)
    if not world.first:
        return _train_in(folder, records, config, on_status, world, shelf)
    writable_folder(records)
    writable_folder(folder, "--checkpoints" if config.row else "--out")
    with sole_use(folder):
        return _train_in(folder, records, config, on_status, world, shelf)


def _train_in(
    folder: Path, records: Path, config: ImageTraining, on_status: OnStatus | None, world: World, shelf: Shelf
) -> tuple[Record, Path]:
    """Data, net, optimizer, loop; checkpoints go to `folder`, the record to `records`."""
    settings, device = config.settings(), config.where
    train, test, about = load_sources(config, device, world, shelf)
    classes = about["classes"]
    check_batch(config, train.images)
    net = build_model(config, classes)
    started = None
    if config.init is not None:
        check_unseen(config.init, config.holdout, config.images)
        unscaled = config.bits == 1 and low_bit.scale(config) == "none" and config.method != "full-precision"
        started = start_from(net, config.init, spread_weights=unscaled)
    net = net.to(device, memory_format=torch.channels_last)  # pyright: ignore
    check_products(net, (settings.batch_size // world.size, settings.score_batch_size), settings.bf16, device)
    torch.manual_seed(config.seed)  # methods that draw at random do so from torch's generator, from now on
    optimizer = build_optimizer(config, net, config.passes * train.steps())
    record = Record(*titles(config), config.describe() | about | digests(config), config.seed)
    record.environment["processes"] = world.size
    if started is not None:
        record.extra["init"] = started
    scheduler = settings.scheduler(optimizer, train.images)
    keeper = Keeper(
        folder,
        every_epochs=config.keep_every,
        every_steps=config.keep_steps,
        every_seconds=KEEP_SECONDS,
        tensorboard=config.tensorboard,
        keep_best=config.keep_best,
    )
    objective = build_objective(config, classes)
    record = fit(net, optimizer, scheduler, train, test, settings, record, on_status, keeper, objective)
    return record, record.save(records) if world.first else records / f"{record.name}.json"
