"""The runs of a table on images: which are asked for, which are there already, and how the others are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from askew.paper.images_common import KINDS, Experiment, Kind, Settings, search_key, unnamed
from askew.report.style import look
from askew.train.checkpoint import epochs_done
from askew.train.grid import finished, run_grid
from askew.train.grid_job import OnJob
from askew.train.image_config import ImageTraining, TableRow
from askew.train.recipes import DATASETS
from askew.train.record import Record, writable_folder


@dataclass(frozen=True)
class ImageRuns:
    """Options of the commands that train on images; a run whose record is there is not made again."""

    scorings: ClassVar[int] = 20  # of a run, evenly over its epochs
    usual_epochs: ClassVar[int] = 100

    data: Path
    """Folder with the data set as its makers give it; nothing is downloaded."""
    out: Path = Path("results/images")
    """Folder for the records, tables and figures."""
    seeds: int = 5
    """Runs of each method at each kind of schedule."""
    epochs: int | None = None
    """Passes over the training images (as many as the table is of, if not given); fewer for a trial."""
    images: int | None = None
    """Use only so many training and test images; for a trial."""
    check_data: bool = True
    """Refuse a data set that lacks its official number of classes or images."""
    engine: Literal["local", "ray"] = "local"
    """Where the runs go: this machine's devices, or a Ray cluster."""
    per_device: int = 1
    """Runs that share a device."""
    mps: bool = False
    """Runs that share a GPU overlap there rather than take turns: NVIDIA's MPS daemon is started for them."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    checkpoints: Path = Path("runs")
    """Folder for checkpoints: a run that was stopped goes on."""

    def __post_init__(self) -> None:
        for name in ("seeds", "passes", "per_device"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('passes', 'epochs')} must be 1 or more, got {getattr(self, name)}")

    @property
    def passes(self) -> int:
        """Epochs of a run."""
        return self.usual_epochs if self.epochs is None else self.epochs

    def own(self) -> dict[str, Any]:
        """Settings of a run that only one command has."""
        return {}


@dataclass(frozen=True)
class ImageTable(ImageRuns):
    """Options of the commands that compare methods."""

    search_epochs: ClassVar[int] = 40

    methods: tuple[str, ...] = ()
    """Only these methods (all if not given)."""
    schedules: Literal["paper", "best", "both"] = "both"
    """The paper's learning-rate schedule, each method's best one, or both."""
    search: bool = False
    """Try the settings of each method's search instead, scored on held-out training images."""
    search_seeds: int = 1
    """Runs of each setting of a search; its score is their mean."""
    holdout: int = 5000
    """Training images held out in a search."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("holdout", "search_seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")

    @property
    def passes(self) -> int:
        """Epochs of a run; a search has its own number."""
        return self.search_epochs if self.search and self.epochs is None else super().passes


@dataclass(frozen=True)
class ImageNetTable(ImageTable):
    """Options of the tables on ImageNet, whose settings come from a table on a smaller data set."""

    seeds: int = 1
    """Runs of each row at each kind of schedule."""
    batch: int = 512
    """Images a step."""
    resize: int = 256
    """Shorter side of an image before the crop."""
    crop: int = 224
    """Side of the crop; less for a trial."""
    val_map: Path | None = None
    """Text file of labels, if val/ has no class folders."""
    workers: int = 8
    """Processes that decode images, for each run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.search:
            raise ValueError("the tables on ImageNet have no search of their own: search in cifar-w1 or tiny-low")

    def own(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("batch", "resize", "crop", "val_map", "workers")}


@dataclass(frozen=True)
class Like(ImageTable):
    """Options of the tables whose settings come from another one's search."""

    like: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.search:
            raise ValueError(f"this table has no search of its own: its settings are those of {self.like}")


@dataclass(frozen=True)
class CifarLike(Like):
    """Options of the tables on CIFAR-10 whose settings come from another one's search."""

    like: ClassVar[str] = "cifar-w1"

    width: int | None = None
    """Width of VGG-small's first layer (128 if not given); less for a trial."""

    def own(self) -> dict[str, Any]:
        return {"width": self.width}


class HasMethod(Protocol):
    @property
    def method(self) -> str: ...


R = TypeVar("R", bound=HasMethod)


def asked_for(table: str, rows: Sequence[R], config: ImageTable) -> list[R]:
    """The rows of the methods asked for, in the table's order."""
    known = list(dict.fromkeys(row.method for row in rows))
    unknown = [name for name in config.methods if name not in known]
    if unknown:
        raise ValueError(f"{table} has no method {unknown[0]!r}; it has: {', '.join(known)}")
    return [row for row in rows if not config.methods or row.method in config.methods]


def plan(experiment: Experiment, config: ImageTable) -> list[ImageTraining]:
    """The runs asked for, seed by seed, so that a table that is filled in pieces has all methods early."""
    if config.search:
        return list(search_plan(experiment, config))
    kinds: list[Kind] = ["paper", "best"] if config.schedules == "both" else [config.schedules]
    return [
        training(
            experiment,
            config,
            contender.method,
            f"{contender.method}-{kind}",
            experiment.settings(contender, kind),
            seed,
            about,
        )
        for seed in range(config.seeds)
        for kind in kinds
        for contender in asked_for(experiment.name, experiment.contenders, config)
        for about in [{"kind": kind, "settings": contender.origin(kind)}]
    ]


def search_plan(experiment: Experiment, config: ImageTable) -> Iterator[ImageTraining]:
    """Runs of each tried setting, scored on held-out training images; seed by seed, so that all are tried early."""
    for seed in range(config.search_seeds):
        for contender in asked_for(experiment.name, experiment.contenders, config):
            for tried in contender.search.open:
                settings = {**KINDS["best"], **tried, "holdout": config.holdout}
                key = search_key(contender.method, tried)
                yield training(experiment, config, contender.method, key, settings, seed, {"kind": "search"}, "-search")


def training(
    experiment: Experiment,
    config: ImageRuns,
    method: str,
    key: str,
    settings: Settings,
    seed: int,
    about: dict[str, Any],
    suffix: str = "",
) -> ImageTraining:
    """One run of a row."""
    name = f"{experiment.name}{suffix}"
    named = {"affine": False, **experiment.base, **config.own(), **settings}
    own = named.pop("epochs", config.passes)
    epochs = own if config.epochs is None else config.epochs
    usual = {**unnamed(method, named.get("schedule", "cosine")), **unscaled(method, named)}
    fields = {**usual, **named, **smaller_batch(config, named)}
    return ImageTraining(
        data=config.data,
        method=method,
        seed=seed,
        epochs=epochs,
        score_every=max(1, epochs // config.scorings),
        keep_every=max(1, epochs // 4),
        keep_best=False,
        images=config.images,
        check_data=config.check_data,
        device=config.device,
        out=config.checkpoints / name,
        row=TableRow(name, key, config.out, {"key": key, "label": look(method).label} | about),
        **fields,
    )


def unscaled(method: str, named: Settings) -> Settings:
    """No scale at one bit unless a table names it, whatever the recipe of the data set has."""
    recipe = DATASETS[named["dataset"]].recipes.get(method)
    return {"scale": "none"} if recipe and recipe.scale and named.get("bits", 1) == 1 else {}


def smaller_batch(config: ImageRuns, named: Settings) -> Settings:
    """A batch of all there are, where a trial has fewer images than the batch would take."""
    usual = named.get("batch") or DATASETS[named["dataset"]].batch
    left = usual if config.images is None else config.images - (named.get("holdout") or 0)
    return {"batch": left} if 0 < left < usual else {}


def run(experiment: Experiment, config: ImageTable, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs of a table that are missing; the records of all that were asked for."""
    return complete(plan(experiment, config), config, on_status)


def checkpoint(job: ImageTraining) -> Path:
    """Where a run leaves its net."""
    return job.out / job.name / "last.pt"


def complete(jobs: Sequence[ImageTraining], config: ImageRuns, on_status: OnJob | None = None) -> list[Record]:
    """Make those of the runs that have no record yet; the records of all.

    Each run saves its record when it ends; one made on another machine is saved here too. Runs with a teacher come
    after the one that makes it.
    """
    writable_folder(config.out)
    missing = [job for job in jobs if finished(job) is None]
    if missing:
        writable_folder(config.checkpoints, "--checkpoints")
    for some in generations([*missing, *remade_teachers(jobs, missing)]):
        made = run_grid(some, engine=config.engine, per_device=config.per_device, mps=config.mps, on_status=on_status)
        for job, record in zip(some, made, strict=True):
            assert job.row is not None
            record.save(writable_folder(job.row.folder))
    records = [record for job in jobs if (record := finished(job)) is not None]
    check_same_images(records, config.out)
    return records


def check_same_images(records: Sequence[Record], folder: Path) -> None:
    """ValueError if records that should share their images do not, as far as they say which they had."""
    seen: dict[tuple[Any, ...], tuple[str, str]] = {}
    for record in records:
        said = record.config
        if digest := said.get("data_digest"):
            first = seen.setdefault((said.get("images"), said.get("holdout")), (digest, record.name))
            if first[0] != digest:
                raise ValueError(
                    f"{folder}: {first[1]} and {record.name} were trained on different images; "
                    "choose another --out for one of the data sets, or remove the records of the other"
                )


def generations(jobs: Sequence[ImageTraining]) -> Iterator[list[ImageTraining]]:
    """The jobs in turns, each job in a later one than the job that makes its teacher."""
    left = list(jobs)
    while left:
        unmade = {checkpoint(job) for job in left}
        ready = [job for job in left if job.teacher not in unmade]
        left = [job for job in left if job.teacher in unmade]
        yield ready


def remade_teachers(jobs: Sequence[ImageTraining], missing: Sequence[ImageTraining]) -> list[ImageTraining]:
    """Those of the jobs whose nets are wanted as teachers (of teachers, too) and are gone, their records being there.

    They are run once more, the record of that going beside the net.
    """
    makers, found = {checkpoint(job): job for job in jobs}, list[ImageTraining]()
    wanted = [job.teacher for job in missing]
    for path in wanted:  # which grows
        maker = makers.pop(path, None) if path else None
        if maker and maker.row and finished(maker) and epochs_done(checkpoint(maker)) < maker.passes:
            found.append(replace(maker, row=replace(maker.row, folder=maker.out / maker.name)))
            wanted.append(maker.teacher)
    return found
