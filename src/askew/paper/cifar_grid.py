"""The appendix's pairs of alpha and learning rate for the paper's form of ASkew on CIFAR-10; otherwise as cifar-w1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from askew.paper.image_runs import ImageRuns, complete, training
from askew.paper.images_common import KINDS, Experiment
from askew.train.grid_job import OnJob
from askew.train.record import Record

EXPERIMENT = Experiment("cifar-grid", "Alpha and learning rate of the paper's form", {"dataset": "cifar10"}, ())
PAIRS = {(0.5, 0.06): "88.51", (0.2, 0.01): "85.60", (0.2, 0.03): "88.42", (0.2, 0.05): "88.32", (0.4, 0.01): "84.50"}


@dataclass(frozen=True)
class CifarGrid(ImageRuns):
    """ASkew's alpha and learning rate on CIFAR-10: the pairs of the paper's appendix."""

    out: Path = Path("results/cifar-grid")
    """Folder for the records, tables and figures."""
    width: int | None = None
    """Width of VGG-small's first layer (128 if not given); less for a trial."""

    def own(self) -> dict[str, Any]:
        return {"width": self.width}


def key(alpha: float, lr: float) -> str:
    """Of a pair's records."""
    return f"alpha{alpha:g}-lr{lr:g}"


def run(config: CifarGrid, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all."""
    jobs = [
        training(
            EXPERIMENT,
            config,
            "askew",
            key(alpha, lr),
            {**KINDS["paper"], "alpha": alpha, "lr": lr},
            seed,
            {"kind": "paper", "settings": "paper"},
        )
        for seed in range(config.seeds)
        for alpha, lr in PAIRS
    ]
    return complete(jobs, config, on_status)
