"""askew bench train: epochs a second and memory of whole training steps, every method in interleaved rounds.

The steps are those of `askew train` (batch from images on the device, forward, backward, optimizer); the pixels are
random, on which the time does not depend.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from askew.bench import machine
from askew.bench.compare import compared, settings
from askew.bench.training_run import CASES, CaseName, Run, start
from askew.optim import MethodOptimizer, diagnose
from askew.report.style import look
from askew.train.image_config import ImageTraining
from askew.train.record import Record, writable_folder

EXPERIMENT = "bench-train"
REFERENCE = "full-precision"
OURS = ("askew-level-first", "askew-level-first-reversible")
ONE_BIT = ("binaryconnect", "md-tanh", "proxquant", "projected", "adaste", "parq", "askew", *OURS)
LOOKS = 7  # diagnoses that are timed


@dataclass(frozen=True)
class TrainBench:
    """Time whole training steps of full precision, ASkew and the rivals."""

    cases: tuple[CaseName, ...] = ("vgg-small",)
    """Nets and data."""
    methods: tuple[str, ...] = ONE_BIT
    """Methods beside full precision."""
    rounds: int = 11
    """Interleaved rounds; every method takes `steps` steps in each."""
    steps: int = 100
    """Steps of a round."""
    batch: int = 100
    """Images a step."""
    width: int | None = None
    """Width of VGG-small's first layer (128 if not given); less on a CPU."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    out: Path = Path("results/bench-train")
    """Folder of the records."""

    def __post_init__(self) -> None:
        for name, least in (("rounds", 2), ("steps", 1), ("batch", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


def run(config: TrainBench, progress: Callable[[str], None] = lambda what: None) -> list[Record]:
    """One record a case, saved in config.out."""
    writable_folder(config.out)
    records = []
    for case in config.cases:
        records.append(measure(case, config, progress))
        records[-1].save(config.out)
    return records


def measure(name: CaseName, config: TrainBench, progress: Callable[[str], None]) -> Record:
    """All methods on one case: memory as each is made, times in rounds of changing order, then diagnoses."""
    case = CASES[name]
    methods = [REFERENCE, *(m for m in config.methods if m != REFERENCE)]
    jobs = {method: case.job(method, config.batch, config.width, config.device) for method in methods}
    device = jobs[REFERENCE].where
    facts: dict[str, dict[str, Any]] = {}
    runs: dict[str, Run] = {}
    for method, job in jobs.items():
        progress(f"{name}: {look(method).label}")
        runs[method], facts[method] = _prepare(name, job, config)
    times: dict[str, list[float]] = {method: [] for method in methods}
    order = random.Random(0)
    for i in range(config.rounds):
        progress(f"{name}: round {i + 1} of {config.rounds}")
        for method in order.sample(methods, len(methods)):
            times[method].append(machine.seconds(runs[method].take, device) / config.steps)
    for method, own in times.items():
        seen = compared(own, times[REFERENCE])
        epoch = case.images // config.batch * seen["seconds"]
        look_seconds = _diagnosis_seconds(runs[method].optimizer, device)
        facts[method] |= {
            "step_seconds": seen.pop("seconds"),
            **seen,
            "epochs_per_second": 1 / epoch,
            "diagnosis_seconds": look_seconds,
            "diagnosis_share": look_seconds / epoch,
        }
    about = settings(config) | {"case": name, "device": device.type, "images": config.steps * config.batch}
    return Record(EXPERIMENT, f"{name}-{device.type}", about, 0, summary=facts, extra={"seconds": times})


def _prepare(name: CaseName, job: ImageTraining, config: TrainBench) -> tuple[Run, dict[str, Any]]:
    """The run after two rounds, how long the first took (on a CPU: watched by the profiler), and the run's memory."""
    made: list[Run] = []
    first = 0.0

    def first_round() -> None:
        made.append(start(CASES[name], job, config.steps, config.batch))
        made[0].take()

    def begin() -> None:
        nonlocal first
        first = machine.seconds(first_round, job.where)

    held, peak = machine.footprint(begin, lambda: made[0].take(), job.where)
    facts = {"held_bytes": held, "peak_bytes": peak, "memory_bytes": held + peak, "first_round_seconds": first}
    return made[0], facts


def _diagnosis_seconds(optimizer: MethodOptimizer, device: torch.device) -> float:
    """The median time of one look at all layers; the first has none before it to compare with and does not count."""
    diagnose(optimizer)
    return median(machine.seconds(lambda: diagnose(optimizer), device) for _ in range(LOOKS))
