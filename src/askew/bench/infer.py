"""askew bench infer: packed layers and nets against torch and onnxruntime, ratios in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from askew.bench.infer_layers import BOUND_ROUNDS, Case, bound_work, layers
from askew.bench.infer_nets import NETS, net_case, temporary
from askew.bench.infer_timing import race
from askew.ship import kernels
from askew.train.record import Record, plain, versions, writable_folder

EXPERIMENT = "bench-infer"
BOUND = "xor+popcount bound"


@dataclass(frozen=True)
class InferBench:
    """Time packed inference against torch and onnxruntime, layers and whole nets; write a record."""

    out: Path = Path("results/bench-infer")
    """Folder for the record, table and figure."""
    threads: int = 1
    """Threads, for every contestant alike."""
    rounds: int = 15
    """Rounds; each times every contestant once."""
    batches: tuple[int, ...] = (1, 32)
    """Batch sizes of convolutions and nets."""
    only: str | None = None
    """Only cases whose name or kind holds this text."""
    compiled: bool = True
    """Have torch.compile among the rivals of whole nets (it takes a while to compile)."""

    def __post_init__(self) -> None:
        if self.threads < 1 or self.rounds < 1 or not self.batches or min(self.batches) < 1:
            raise ValueError("bench infer: threads, rounds and batches must be 1 or more")


def run(config: InferBench, progress: Callable[[str], None] = lambda what: None) -> Record:
    """All cases; the record's extra['cases'] holds a timing for every contestant."""
    writable_folder(config.out)
    torch.set_num_threads(config.threads)
    record = Record(EXPERIMENT, f"threads{config.threads}", plain(asdict(config) | {"engine": kernels.isa()}), 0)
    record.environment["versions"] |= versions("onnx", "onnxruntime")
    rows = []
    for case in layers(config.threads, config.batches):
        if wanted(config, case.name, case.kind):
            progress(f"{case.kind} {case.name}")
            rows.append(measure(case, config.rounds))
    for name in NETS:
        for batch in config.batches:
            if wanted(config, f"{name}, batch {batch}", "net"):
                progress(f"{name}, batch {batch}")
                with temporary() as folder:
                    case = net_case(name, batch, config.threads, config.compiled, Path(folder))
                    rows.append(measure(case, config.rounds))
    if not rows:
        raise ValueError(f"bench infer: no case holds {config.only!r}")
    record.extra["cases"] = plain(rows)
    record.save(config.out)
    return record


def wanted(config: InferBench, *names: str) -> bool:
    return config.only is None or any(config.only in name for name in names)


def measure(case: Case, rounds: int) -> dict[str, object]:
    """One case: every contestant's timing, and for sign products the part of the machine's bound that was reached."""
    contestants = dict(case.contestants)
    if case.vectors is not None and kernels.isa() == "avx512":
        contestants[BOUND] = bound_work()
    timings = race(contestants, rounds)
    about = dict(case.about)
    if BOUND in timings and case.vectors is not None:
        about["of_bound"] = timings.pop(BOUND).times * case.vectors / (16 * BOUND_ROUNDS)
    return {
        "name": case.name,
        "kind": case.kind,
        "timings": {name: timing.plain() for name, timing in timings.items()},
        "about": about,
    }
