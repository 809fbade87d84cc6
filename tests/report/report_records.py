"""Made-up records for the tests of reports."""

from __future__ import annotations

from typing import Any

from askew.train.record import Record

ENVIRONMENT = {
    "python": "3.12.1",
    "versions": {"askew": "0.1.0", "torch": "2.13.0"},
    "cpu": "a cpu",
    "commit": "abc123+",
}


def run(method: str, seed: int = 0, **fields: Any) -> Record:
    """A record with made-up surroundings."""
    plain: dict[str, Any] = {"config": {}, "environment": ENVIRONMENT, "started": "2026-01-01T00:00:00+00:00"}
    return Record(**{"experiment": "synthetic", "method": method, "seed": seed} | plain | fields)


def layer(name: str, size: int, *numbers: float | None) -> dict[str, Any]:
    names = ("feasible", "active", "distance_mean", "distance_max", "flips", "kkt")
    return {"name": name, "size": size} | dict(zip(names, numbers, strict=True))


def look() -> dict[str, Any]:
    """A diagnosis as a record holds it."""
    return {
        "step": 40,
        "kind": "capture",
        "value": 0.5,
        "layers": [layer("conv<1>.weight", 288, 0.5, 0.75, 0.125, 0.9, None, 1.5e-3)],
        "overall": layer("all", 1288, 1.0, 1.0, 0.0, 0.0, 0.0125, 0.0),
    }


def histogram(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "edges": [-1.0, 0.0, 1.0], "layers": {"conv": [30, 10], "fc": [10, 50]}}


def three_methods(seeds: int = 2) -> list[Record]:
    """Two epochs of three methods."""
    return [
        run(
            method,
            seed,
            config={"method": method, "lr": 0.01, "annealing": {"schedule": "LevelFirst", "start": 0.2}},
            metrics={
                "epoch_loss": {"step": [1, 2], "value": [1.0 + seed, 0.5]},
                "accuracy": {"step": [1, 2], "value": [90.0, 97.0 + seed]},
                "diagnosis": {"step": [1, 2], "value": [look(), look()]},
            },
            summary={"accuracy": 97.0 + seed, "bits": 1.0},
            extra={"histograms": [histogram(0), histogram(2)]},
        )
        for method in ("full-precision", "binaryconnect", "askew-level-first")
        for seed in range(seeds)
    ]
