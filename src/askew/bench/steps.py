"""askew bench step: what one optimizer step costs, against torch's fused Adam, in interleaved rounds.

A sample is several steps in a row and then a wait for the device, as in training, where a step is prepared while the
device still works on the one before. One step and a wait, the latency of a single call, is measured beside it.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import nn

from askew.bench import machine
from askew.bench.compare import compared, settings
from askew.bench.contenders import CONTENDERS, REFERENCE, Params, Steps
from askew.bench.shapes import CASES, size
from askew.native import build
from askew.train.record import Record, writable_folder

EXPERIMENT = "bench-step"
ADAM_BYTES = 28  # read weight, gradient, two moments; write weight and moments
SAMPLE = 5e-3  # seconds that a sample takes at least, for the reference
FEWEST = {"cuda": 5}  # steps of a sample


@dataclass(frozen=True)
class StepBench:
    """Time one optimizer step: ASkew (fused and wrapped), torch's Adam, BinaryConnect, PARQ."""

    cases: tuple[Literal["resnet18", "resnet50", "one-50m", "one-1b"], ...] = ()
    """Parameter lists; none given: all that fit (one-1b on a GPU only)."""
    rounds: int = 15
    """Interleaved rounds; every optimizer gives one sample in each."""
    steps: int = 0
    """Steps in a row that make a sample, for every optimizer; 0: 5 ms of the reference, on a GPU at least 5."""
    warmup: int = 3
    """Steps before that are not counted."""
    only: tuple[str, ...] = ()
    """Parts of the names of the optimizers to run; none given: all. The reference always runs."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    threads: int = 0
    """CPU threads; 0: as torch has it."""
    build: bool = True
    """Also time the build of the native library."""
    cold: bool = True
    """Compile every kernel in this run: the caches on disk are empty. --no-cold: take what earlier runs left there."""
    out: Path = Path("results/bench-step")
    """Folder of the records."""

    def __post_init__(self) -> None:
        if self.rounds < 2 or self.warmup < 1 or self.steps < 0:
            raise ValueError(
                f"rounds must be at least 2, warmup 1 and steps 0, got {self.rounds}, {self.warmup} and {self.steps}"
            )


def run(config: StepBench, progress: Callable[[str], None] = lambda what: None) -> list[Record]:
    """One record a case, saved in config.out."""
    writable_folder(config.out)
    name = config.device if config.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    threads = torch.get_num_threads()
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        cases = config.cases or tuple(c for c in CASES if c != "one-1b" or device.type == "cuda")
        built = _build_seconds() if config.build else None
        records = []
        with machine.cold_caches() if config.cold else nullcontext():
            for case in cases:
                before = machine.stream(device)
                record = measure(case, config, device, progress)
                after = machine.stream(device)  # the better of two looks, around the rounds
                best = {kind: max(value, after[kind]) for kind, value in before.items()}
                record.extra |= {"stream": best, "build_seconds": built}
                record.save(config.out)
                records.append(record)
        return records
    finally:
        torch.set_num_threads(threads)


def _build_seconds() -> float | None:
    """How long the step's library takes to compile, if there is a compiler."""
    start = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            build.compile_library("step", Path(folder) / "library.so")
    except build.BuildError:
        return None
    return time.perf_counter() - start


def parameters(case: str, device: torch.device) -> Params:
    """Random weights and gradients of the case's shapes; all optimizers share them."""
    generator = torch.Generator(device).manual_seed(0)
    out = []
    for shape in CASES[case]:
        p = nn.Parameter(torch.empty(shape, device=device).uniform_(-1, 1, generator=generator))
        p.grad = torch.empty_like(p).normal_(0, 1e-2, generator=generator)
        out.append(p)
    return out


def measure(case: str, config: StepBench, device: torch.device, progress: Callable[[str], None]) -> Record:
    """All optimizers on one case: memory one after another, then times in rounds of changing order."""
    params = parameters(case, device)
    count = size(CASES[case])
    optimizers: dict[str, Steps] = {}
    facts: dict[str, dict[str, Any]] = {}
    for name, make in CONTENDERS.items():
        if name != REFERENCE and config.only and not any(part in name for part in config.only):
            continue
        progress(f"{case}: {name}")
        try:
            optimizers[name], facts[name] = _prepare(make, params, count, config.warmup, device)
        except ImportError as error:
            facts[name] = {"missing": str(error)}
        except torch.OutOfMemoryError:
            facts[name] = {"missing": "out of memory beside the others"}
    steps = config.steps or _steps_in_a_sample(optimizers[REFERENCE], device)
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    waits: dict[str, list[float]] = {name: [] for name in optimizers}
    order = random.Random(0)
    for i in range(config.rounds):
        progress(f"{case}: round {i + 1} of {config.rounds}")
        for name in order.sample(list(optimizers), len(optimizers)):
            waits[name].append(machine.seconds(optimizers[name].step, device))
            times[name].append(_in_a_row(optimizers[name], steps, device))
    for name, own in times.items():
        facts[name] |= compared(own, times[REFERENCE])
        facts[name] |= {f"wait_{key}": value for key, value in compared(waits[name], waits[REFERENCE]).items()}
        facts[name]["bytes_per_second"] = ADAM_BYTES * count / median(own)
    about = {**settings(config), "case": case, "device": str(device), "parameters": count, "tensors": len(params)}
    about["steps"] = steps
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    extra = {"load": load, "seconds": times, "wait_seconds": waits}
    return Record(EXPERIMENT, f"{case}-{device.type}", about, 0, summary=facts, extra=extra)


def _steps_in_a_sample(reference: Steps, device: torch.device) -> int:
    """So many that the reference takes SAMPLE seconds for them, and FEWEST at least; the same for all optimizers."""
    one = median(machine.seconds(reference.step, device) for _ in range(3))
    return max(FEWEST.get(device.type, 1), math.ceil(SAMPLE / max(one, 1e-6)))


def _in_a_row(optimizer: Steps, steps: int, device: torch.device) -> float:
    """Seconds a step when the device is waited for only after the last."""

    def several() -> None:
        for _ in range(steps):
            optimizer.step()

    return machine.seconds(several, device) / steps


def _prepare(
    make: Callable[[Params], Steps], params: Params, count: int, warmup: int, device: torch.device
) -> tuple[Steps, dict[str, Any]]:
    """The optimizer after its warm-up, and its memory beyond weight, gradient and Adam's two moments, in bytes each."""
    made: list[Steps] = []
    first = 0.0

    def begin() -> None:
        nonlocal first
        made.append(make(params))
        first = machine.seconds(made[0].step, device)

    stays, _ = machine.memory(begin, device)
    optimizer = made[0]
    for _ in range(warmup - 1):
        optimizer.step()
    _, rise = machine.memory(optimizer.step, device)
    return optimizer, {
        "first_step_seconds": first,
        "steady_bytes": stays / count - 8,
        "peak_bytes": rise / count,
    }
