"""A grid of runs (methods x seeds): over all local GPUs, or over a Ray cluster. Finished runs are not done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

from askew.report.live import Status
from askew.train.checkpoint import epochs_done
from askew.train.config import decisive
from askew.train.grid_job import Failure, OnJob, Train
from askew.train.grid_local import Local, local_devices
from askew.train.grid_ray import RayCluster
from askew.train.images import (
    ImageTraining,
    digest_of,
    digests,
    load_images,
    record_folder,
    titles,
    train_images,
)
from askew.train.record import Record, load

EngineName = Literal["local", "ray"]


class GridError(RuntimeError):
    """Some runs failed, the others have finished; `failures` maps the name of each to its reason and traceback."""

    def __init__(self, failures: Mapping[str, Failure], total: int) -> None:
        self.failures = dict(failures)
        reasons = "; ".join(_together(self.failures))
        super().__init__(f"{len(self.failures)} of {total} runs failed ({reasons}); start again to go on with them")


def _together(failures: Mapping[str, Failure]) -> list[str]:
    """Each reason once, with the runs that failed for it."""
    names: dict[str, list[str]] = {}
    for name, failure in failures.items():
        names.setdefault(failure.reason, []).append(name)
    more = {reason: f" and {len(own) - 1} more" if len(own) > 1 else "" for reason, own in names.items()}
    return [f"{own[0]}{more[reason]}: {reason}" for reason, own in names.items()]


class Engine(Protocol):
    """Where jobs run: the kind of device they will find, and how they are done."""

    kind: str

    def run(self, jobs: Sequence[ImageTraining], on_status: OnJob, train: Train) -> list[Record | Failure]: ...

    def close(self) -> None: ...


def run_grid(
    jobs: Sequence[ImageTraining],
    *,
    engine: EngineName = "local",
    per_device: int = 1,
    mps: bool = False,
    devices: Sequence[str] | None = None,
    on_status: OnJob | None = None,
    train: Train = train_images,
) -> list[Record]:
    """Do all jobs and return their records, in the order of the jobs.

    A job whose record lies in its folder is not run again (the record must have the job's settings), one that was
    stopped goes on from its checkpoint. A job that fails does not stop the others; GridError then names it.

    engine      local: worker processes on this machine; ray: a Ray cluster (see grid_ray.RayCluster)
    per_device  runs that share a device at a time: a small net leaves a GPU mostly idle
    mps         runs that share a local GPU overlap there, by NVIDIA's MPS daemon, rather than take turns
    devices     local ones to use, such as cuda:0; default: all GPUs, or the CPU if there are none
    on_status   told (name of the job, where it stands): first of all jobs, at step 0 those that have to be run and
                at their end those that are finished; then as they go
    train       what does a job
    """
    if per_device < 1:
        raise ValueError(f"per_device must be 1 or more, got {per_device}")
    check_folders(jobs)
    tell = on_status or (lambda name, status: None)
    with closing(_engine(engine, jobs, per_device, mps, devices)) as team:
        placed = [replace(job, device=team.kind) for job in jobs]
        results: list[Record | Failure | None] = [finished(job) for job in placed]
        for job, record in zip(placed, results, strict=True):
            tell(job.name, _known(job, record))
        todo = [i for i, record in enumerate(results) if record is None]
        if engine == "local":
            check_data([placed[i] for i in todo])
        for i, found in zip(todo, team.run([placed[i] for i in todo], tell, train) if todo else [], strict=True):
            results[i] = found
    failures = {job.name: found for job, found in zip(placed, results, strict=True) if isinstance(found, Failure)}
    if failures:
        raise GridError(failures, len(jobs))
    return [record for record in results if isinstance(record, Record)]


def _engine(
    name: EngineName, jobs: Sequence[ImageTraining], per_device: int, mps: bool, devices: Sequence[str] | None
) -> Engine:
    if name == "local":
        return Local(devices or local_devices({job.device for job in jobs}), per_device, mps)
    if name != "ray":
        raise ValueError(f"engine must be 'local' or 'ray', got {name!r}")
    if mps:
        raise ValueError("mps is for the GPUs of this machine; on a Ray cluster its daemons are the cluster's")
    if devices is not None:
        raise ValueError("devices are local ones; a Ray cluster places the runs by itself")
    return RayCluster(per_device)


def check_folders(jobs: Sequence[ImageTraining]) -> None:
    """ValueError if two jobs would write to the same place."""
    for places in ([job.out / job.name for job in jobs], [record_file(job) for job in jobs]):
        twice = [str(place) for place, count in Counter(places).items() if count > 1]
        if twice:
            raise ValueError(f"several runs of the grid share a place: {', '.join(twice[:3])}; give them other folders")


def check_data(jobs: Sequence[ImageTraining]) -> None:
    """FileNotFoundError, once and before any run, for a data folder that is not there."""
    missing = next((job.data for job in jobs if not job.data.exists()), None)
    if missing is not None:
        raise FileNotFoundError(f"{missing}: no such folder; give the data set's with --data")


def record_file(job: ImageTraining) -> Path:
    """Where the job's record lies once it is complete."""
    return record_folder(job) / f"{Record(*titles(job), {}, job.seed, environment={}).name}.json"


def finished(job: ImageTraining) -> Record | None:
    """The job's record if it is there; ValueError, naming folder and setting, if it is another run's."""
    path = record_file(job)
    if not path.exists():
        return None
    record = load(path)
    there, aside = decisive(record.config), job.row.about.keys() if job.row else set()
    here = decisive(job.describe())
    here = {k: v for k, v in here.items() if k not in aside}  # what a record does not know of was not used
    different = sorted(name for name, value in here.items() if there.get(name) != value)
    if different:
        shown = ", ".join(f"{name}: {there.get(name)!r} there, {here[name]!r} here" for name in different[:4])
        raise ValueError(f"record {path} was made with other settings ({shown}); choose another folder or remove it")
    return record


def completed(job: ImageTraining) -> Record | None:
    """The record of a job that ended here, its last net beside it; None if there is something left to do."""
    if epochs_done(job.out / job.name / "last.pt") < job.passes:
        return None
    record = finished(job)
    same = record is not None and all(record.config.get(name) == value for name, value in digests(job).items())
    same = same and same_images(job, record)
    return record if same else None  # with another teacher of the same name, or other images: the checkpoint says so


def same_images(job: ImageTraining, record: Record | None) -> bool:
    """Whether the job would train on the images of the record, as far as can be told without decoding ImageNet."""
    known = record and record.config.get("data_digest")
    if not known or job.dataset == "imagenet" or not job.data.exists():
        return True
    return digest_of(*load_images(job)) == known


def _known(job: ImageTraining, record: Record | Failure | None) -> Status:
    """Where a job stands before anything is run."""
    if isinstance(record, Record):
        return Status(1, 1, job.passes, job.passes, accuracy=record.summary.get("accuracy"))
    return Status(0, 1, 0, job.passes)
