"""askew export: a finished training run into a file that needs no torch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import nn

from askew.optim import MethodOptimizer, snapped
from askew.ship.export import Exported, export
from askew.train.checkpoint import CheckpointError, read_file
from askew.train.distributed import World
from askew.train.evaluate import reestimate_batchnorm
from askew.train.images import ImageTraining, build_model, build_optimizer, digest_of, load_images, load_sources
from askew.train.loop import last_value
from askew.train.record import Record
from askew.train.source import Shelf, Source, image_sources
from askew.train.worker_source import WorkerSource

# what of a run's settings decides its net and its levels; the optimizer's state brings the rest
DECISIVE = ("method", "bits", "activation_bits", "form", "per", "scale", "sign_gradient", "seed", "skip")
BATCH, IMAGES = 500, 20000


@dataclass(frozen=True)
class Export:
    """Write a trained net as one small file: packed weights, BatchNorm folded in, no torch needed to run it."""

    run: tyro.conf.Positional[Path]
    """Folder of the training run, or one of its checkpoints (last.pt is taken from a folder)."""
    out: tyro.conf.Positional[Path]
    """The file to write."""
    data: Path | None = None
    """The run's data: BatchNorm is re-estimated on its training images, their mean and std go into the file."""
    onnx: Path | None = None
    """Write an ONNX file too (needs the package onnx)."""
    torchao: Path | None = None
    """Write the model's state dict too, its Linear weights as torchao tensors (needs the package torchao)."""
    images: int | None = None
    """Training images for BatchNorm (20,000 if not given); with --data."""
    wide: bool = False
    """Store 17 levels in 8 bits a weight (5 in 4), twice the bits of one level less; an error without it."""

    def __post_init__(self) -> None:
        if self.images is not None and (self.data is None or self.images < 1):
            raise ValueError(f"images, 1 or more, are taken from --data: got {self.images} with --data {self.data}")


def export_run(config: Export) -> Exported:
    """Rebuild the run's net and optimizer from a checkpoint and export them."""
    path = config.run / "last.pt" if config.run.is_dir() else config.run
    if not path.exists():
        raise CheckpointError(f"{config.run}: no training run and no checkpoint there")
    payload = read_file(path)
    record = Record(**json.loads(payload["record"]))
    job = settings_of(record, config.data)
    model = build_model(job, int(record.config["classes"]))
    optimizer = build_optimizer(job, model, total_steps=1)
    model.load_state_dict(payload["model"])
    optimizer.load_state_dict(payload["parts"]["optimizer"])
    about: dict[str, Any] = {"run": record.config.get("train_set"), "accuracy": last_value(record, "accuracy")}
    if config.data is not None:
        about |= prepare(job, model, optimizer, config.images or IMAGES, record.config.get("data_digest"))
    more: dict[str, Any] = {"onnx": config.onnx, "torchao": config.torchao, "wide": config.wide}
    return export(model.eval(), optimizer, config.out, record=record.name, about=about, **more)


def settings_of(record: Record, data: Path | None) -> ImageTraining:
    """The run's settings as far as they decide its net and the images it has seen."""
    kept = {name: record.config[name] for name in DECISIVE if record.config.get(name) is not None}
    kept["skip"], kept["affine"] = tuple(kept.get("skip", ())), bool(record.config.get("affine"))
    if (record.config.get("annealing") or {}).get("stagger"):
        kept["stagger"] = record.config["annealing"]["stagger"]  # a group for each layer
    shown = ("resize", "crop", "images") if record.config["dataset"] == "imagenet" else ("pad", "images", "holdout")
    kept |= {name: record.config[name] for name in shown if record.config.get(name) is not None}
    if record.config["dataset"] == "imagenet":
        kept["workers"] = min(8, os.cpu_count() or 1)
    net = {name: record.config[name] for name in ("model", "width", "stem") if record.config.get(name) is not None}
    options = record.config.get("options")  # none at all ({}) are others than those of `askew train` (None)
    return ImageTraining(
        data or Path(),
        dataset=record.config["dataset"],
        device="cpu",
        check_data=False,
        options=options,
        **net,
        **kept,
    )


def prepare(
    job: ImageTraining, model: nn.Module, optimizer: MethodOptimizer, images: int, digest: str | None
) -> dict[str, Any]:
    """Re-estimate BatchNorm on training images at the snapped weights; returns what pictures need to be shown to it.

    digest: of the images that the run was trained and scored on, as far as its record says; others are an error.
    """
    train, about = training_images(job, digest)
    taken = []
    for batch in train.seen(BATCH):
        taken.append(batch)
        if len(taken) * BATCH >= images:
            break
    with snapped(optimizer):
        reestimate_batchnorm(model, taken)
    return about


def training_images(job: ImageTraining, digest: str | None) -> tuple[Source, dict[str, Any]]:
    """The run's training images, and what a picture has to go through to be like them."""
    cpu = torch.device("cpu")
    if job.dataset == "imagenet":
        source, _, loaded = load_sources(job, cpu, World(), Shelf())
        check_images(job, loaded["data_digest"], digest)
        assert isinstance(source, WorkerSource)
        shown = {"mean": source.mean.tolist(), "std": source.std.tolist(), "classes": list(source.data.classes)}
        return source, shown | {"resize": job.resize, "crop": job.crop}
    splits = load_images(job)
    check_images(job, digest_of(*splits), digest)
    train, _ = image_sources(splits, min(BATCH, len(splits.train)), job.seed, cpu, job.padding)
    mean, std = [float(v) for v in splits.train.mean], [float(v) for v in splits.train.std]
    return train, {"mean": mean, "std": std, "classes": list(splits.train.classes)}


def check_images(job: ImageTraining, found: str, digest: str | None) -> None:
    """ValueError for other images than the run's."""
    if digest is not None and found != digest:
        raise ValueError(f"{job.data}: holds other images than the run was trained on; give the run's own with --data")
