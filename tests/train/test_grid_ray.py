"""A grid over a Ray cluster: a local one of two CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from image_kit import faulty, pictures, small_job, timeless

from askew.report.live import Status
from askew.train import grid_ray
from askew.train.grid import GridError, finished, record_file, run_grid
from askew.train.images import train_images
from askew.train.record import load


@pytest.fixture
def cluster() -> Iterator[None]:
    """The workers find this folder's modules and use one thread each."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    variables = {"PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        object_store_memory=100 * 1024**2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": variables},
    )
    yield
    ray.shutdown()


def test_the_cluster_gives_the_records_of_the_runs_alone(cluster: None, tmp_path: Path) -> None:
    """Two jobs on two CPUs and one that fails; the second call runs nothing."""
    data = pictures(tmp_path / "data")
    jobs = [small_job(data, tmp_path / "grid", seed=seed) for seed in (0, 3)]
    told: list[tuple[str, Status]] = []
    broken = small_job(data, tmp_path / "grid", seed=1)
    with pytest.raises(GridError, match=r"1 of 3 runs failed.*seed1: FloatingPointError"):
        run_grid([*jobs, broken], engine="ray", on_status=lambda *what: told.append(what), train=faulty)
    records = [finished(job) for job in jobs]
    for job, record in zip(jobs, records, strict=True):
        expected, _ = train_images(replace(job, out=tmp_path / "alone"))
        assert record is not None and timeless(record) == timeless(expected)
        assert record == load(record_file(job))
        steps = [status.step for name, status in told if name == job.name]
        assert steps and steps == sorted(steps)
    assert run_grid(jobs, engine="ray", train=faulty) == records


def test_devices_are_the_clusters_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="places the runs by itself"):
        run_grid([small_job(tmp_path, tmp_path)], engine="ray", devices=["cpu"])


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(grid_ray.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"askew\[ray\]"):
        run_grid([small_job(tmp_path, tmp_path)], engine="ray")
