"""A grid over a Ray cluster: the cluster places the jobs; records and statuses come back to this process."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from askew.report.live import Status
from askew.train.grid_job import Failure, OnJob, Train, attempt
from askew.train.image_config import ImageTraining
from askew.train.images import record_folder
from askew.train.record import Record, load, writable_folder
from askew.train.source import Shelf

POLL = 0.2  # seconds from one look at the cluster to the next
_shelf = Shelf()  # of this process: Ray lets one process do one job after another


class RayCluster:
    """Engine of a grid: every job is a Ray task with a GPU or 1/per_device of one (a CPU if the cluster has no GPUs).

    The cluster is the one of RAY_ADDRESS, else one that runs on this machine, else one that is started for the grid and
    ended after it. All its machines need askew and the data at the same path; checkpoints lie in the job's folder on
    the machine that runs it, so a stopped job goes on only where that folder is shared.
    """

    def __init__(self, per_device: int) -> None:
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError("Ray is not installed: pip install 'askew[ray]'") from error
        self.own = not self.ray.is_initialized()
        if self.own:
            self.ray.init(log_to_driver=False, logging_level="ERROR")
        gpus = self.ray.cluster_resources().get("GPU", 0)
        self.kind = "cuda" if gpus else "cpu"
        self.share = 1 / per_device if gpus else 0

    def run(self, jobs: Sequence[ImageTraining], on_status: OnJob, train: Train) -> list[Record | Failure]:
        ray = self.ray
        queue = importlib.import_module("ray.util.queue").Queue(actor_options={"num_cpus": 0})
        task = ray.remote(num_cpus=1, num_gpus=self.share)(_remote_job)
        pending = {task.remote(train, job, queue): i for i, job in enumerate(jobs)}
        found: dict[int, Record | Failure] = {}
        try:
            while pending:
                done, _ = ray.wait(list(pending), timeout=POLL)
                _tell(queue, on_status)
                for one in done:
                    i = pending.pop(one)
                    found[i] = result = _result(ray, one)
                    if isinstance(result, Record):
                        result.save(writable_folder(record_folder(jobs[i])))
        finally:
            for one in pending:
                ray.cancel(one, force=True)
            queue.shutdown(force=True)
        return [found[i] for i in range(len(jobs))]

    def close(self) -> None:
        """End the cluster if this grid started it."""
        if self.own:
            self.ray.shutdown()


def _remote_job(train: Train, job: ImageTraining, queue: Any) -> Record | Failure:
    """In a worker of the cluster: the record itself goes back, its file may lie on another machine."""

    def tell(status: Status) -> None:
        queue.actor.put_nowait.remote((job.name, status))

    found = attempt(train, job, tell, _shelf)
    return load(found) if isinstance(found, Path) else found


def _tell(queue: Any, on_status: OnJob) -> None:
    waiting = queue.qsize()
    for name, status in queue.get_nowait_batch(waiting) if waiting else []:
        on_status(name, status)


def _result(ray: Any, one: Any) -> Record | Failure:
    """What a task gave; a lost process or machine is a failure of its job."""
    try:
        return ray.get(one)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", str(error))
