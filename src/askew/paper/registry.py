"""Every experiment of the paper by its name on the command line: its options, how it runs, how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tyro

from askew.paper import (
    cifar_affine,
    cifar_affine_report,
    cifar_few,
    cifar_few_report,
    cifar_grid,
    cifar_grid_report,
    cifar_ideas,
    cifar_ideas_report,
    cifar_long,
    cifar_long_report,
    cifar_steps,
    cifar_steps_report,
    cifar_taught,
    cifar_taught_report,
    cifar_w1,
    cifar_w1_report,
    cifar_w1a1,
    cifar_w1a1_report,
    cifar_w1a1_taught,
    cifar_w1a1_taught_report,
    imagenet_low,
    imagenet_low_report,
    imagenet_w1,
    imagenet_w1_report,
    logistic,
    logistic_report,
    tiny_low,
    tiny_low_report,
    tiny_taught,
    tiny_taught_report,
    tiny_w1,
    tiny_w1_report,
    two_moons,
    two_moons_report,
    vector_field,
    vector_field_report,
)
from askew.paper.image_runs import ImageRuns
from askew.paper.present import Presentation
from askew.report.live import Status, describe
from askew.train.grid_job import OnJob
from askew.train.record import Record, load, load_all

Progress = Callable[[str], None]
PRESENT: dict[str, Callable[[Sequence[Record]], Presentation]] = {
    "vector-field": vector_field_report.present,
    "logistic": logistic_report.present,
    "two-moons": two_moons_report.present,
    "cifar-w1": cifar_w1_report.present,
    "cifar-steps": cifar_steps_report.present,
    "cifar-grid": cifar_grid_report.present,
    "cifar-ideas": cifar_ideas_report.present,
    "cifar-long": cifar_long_report.present,
    "cifar-affine": cifar_affine_report.present,
    "cifar-taught": cifar_taught_report.present,
    "cifar-few": cifar_few_report.present,
    "tiny-w1": tiny_w1_report.present,
    "tiny-taught": tiny_taught_report.present,
    "imagenet-w1": imagenet_w1_report.present,
    "tiny-low": tiny_low_report.present,
    "imagenet-low": imagenet_low_report.present,
    "cifar-w1a1": cifar_w1a1_report.present,
    "cifar-w1a1-taught": cifar_w1a1_taught_report.present,
}
Paper = (
    Annotated[vector_field.VectorField, tyro.conf.subcommand("vector-field")]
    | Annotated[logistic.LogisticRegression, tyro.conf.subcommand("logistic")]
    | Annotated[two_moons.TwoMoons, tyro.conf.subcommand("two-moons")]
    | Annotated[cifar_w1.CifarW1, tyro.conf.subcommand("cifar-w1")]
    | Annotated[cifar_steps.CifarSteps, tyro.conf.subcommand("cifar-steps")]
    | Annotated[cifar_grid.CifarGrid, tyro.conf.subcommand("cifar-grid")]
    | Annotated[cifar_ideas.CifarIdeas, tyro.conf.subcommand("cifar-ideas")]
    | Annotated[cifar_long.CifarLong, tyro.conf.subcommand("cifar-long")]
    | Annotated[cifar_affine.CifarAffine, tyro.conf.subcommand("cifar-affine")]
    | Annotated[cifar_taught.CifarTaught, tyro.conf.subcommand("cifar-taught")]
    | Annotated[cifar_few.CifarFew, tyro.conf.subcommand("cifar-few")]
    | Annotated[tiny_w1.TinyW1, tyro.conf.subcommand("tiny-w1")]
    | Annotated[tiny_taught.TinyTaught, tyro.conf.subcommand("tiny-taught")]
    | Annotated[imagenet_w1.ImageNetW1, tyro.conf.subcommand("imagenet-w1")]
    | Annotated[tiny_low.TinyLow, tyro.conf.subcommand("tiny-low")]
    | Annotated[imagenet_low.ImageNetLow, tyro.conf.subcommand("imagenet-low")]
    | Annotated[cifar_w1a1.CifarW1A1, tyro.conf.subcommand("cifar-w1a1")]
    | Annotated[cifar_w1a1_taught.CifarW1A1Taught, tyro.conf.subcommand("cifar-w1a1-taught")]
)
IMAGES: dict[type[ImageRuns], Callable[[Any, OnJob | None], list[Record]]] = {
    cifar_w1.CifarW1: cifar_w1.run,
    cifar_steps.CifarSteps: cifar_steps.run,
    cifar_grid.CifarGrid: cifar_grid.run,
    cifar_ideas.CifarIdeas: cifar_ideas.run,
    cifar_long.CifarLong: cifar_long.run,
    cifar_affine.CifarAffine: cifar_affine.run,
    cifar_taught.CifarTaught: cifar_taught.run,
    cifar_few.CifarFew: cifar_few.run,
    tiny_w1.TinyW1: tiny_w1.run,
    tiny_taught.TinyTaught: tiny_taught.run,
    imagenet_w1.ImageNetW1: imagenet_w1.run,
    tiny_low.TinyLow: tiny_low.run,
    imagenet_low.ImageNetLow: imagenet_low.run,
    cifar_w1a1.CifarW1A1: cifar_w1a1.run,
    cifar_w1a1_taught.CifarW1A1Taught: cifar_w1a1_taught.run,
}


def run(config: Paper, progress: Progress = lambda _: None, on_status: OnJob | None = None) -> list[Record]:
    """Run an experiment; the records of its folder as they were saved (of a table on images: all there are so far).

    progress is told what goes on in words; on_status, in its place, where each run of a table on images stands.
    """
    if isinstance(config, ImageRuns):
        IMAGES[type(config)](config, on_status or follow(progress))
        return load_all(config.out)
    if isinstance(config, vector_field.VectorField):
        records = [vector_field.run(config)]
    elif isinstance(config, logistic.LogisticRegression):
        records = logistic.run(config, progress)
    else:
        records = two_moons.run(config, progress)
    return [load(config.out / f"{record.name}.json") for record in records]


def follow(progress: Progress) -> OnJob:
    """Tells of many runs in one line: how many are done, and the one that spoke last."""
    done: set[str] = set()

    def tell(name: str, status: Status) -> None:
        if status.step >= status.total_steps:
            done.add(name)
        progress(f"{len(done)} runs done · {name}: {describe(status)}")

    return tell


def experiment_of(records: Sequence[Record]) -> str | None:
    """The experiment whose records (or whose search's) these are; None if it is not known here."""
    names = (record.experiment.removesuffix("-search") for record in records)
    return next((name for name in names if name in PRESENT), None)
