"""What a report may ask of run records: their shape, and their numbers gathered by method."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Run(Protocol):
    """A run record as train/record.py writes it; reports read these fields and nothing else."""

    experiment: str
    method: str
    config: dict[str, Any]
    seed: int
    metrics: dict[str, dict[str, list[Any]]]
    summary: dict[str, Any]
    extra: dict[str, Any]
    environment: dict[str, Any]
    started: str


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation over n values; std is None for a single one."""

    mean: float
    std: float | None
    n: int

    def text(self, decimals: int = 2) -> str:
        """'98.81 ± 0.30', or '98.81' for one value."""
        mean = f"{self.mean:.{decimals}f}"
        return mean if self.std is None else f"{mean} ± {self.std:.{decimals}f}"


def stat(values: Sequence[float]) -> Stat | None:
    """None when there is nothing to average."""
    if not values:
        return None
    return Stat(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def so_far(count: int) -> str:
    """'1 run so far', '2 runs so far'."""
    return f"{count} run{'' if count == 1 else 's'} so far"


def apart(a: Stat, b: Stat) -> str:
    """How far two means lie apart, and how far to trust it: '0.40 points (standard error 0.10)'.

    The standard error of the difference is sqrt(s_a^2 / n_a + s_b^2 / n_b); chance may explain what is below two of it.
    """
    by = abs(a.mean - b.mean)
    if a.std is None or b.std is None:
        return f"{by:.2f} points (one seed)"
    error = (a.std**2 / a.n + b.std**2 / b.n) ** 0.5
    return f"{by:.2f} points (standard error {error:.2f}{': chance may explain it' if by < 2 * error else ''})"


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs of each method, in the order in which methods first appear."""
    out: dict[str, list[Run]] = {}
    for run in runs:
        out.setdefault(run.method, []).append(run)
    return out


def summary_values(runs: Iterable[Run], key: str) -> list[float]:
    """The known values of one summary number; a run of many repeats gives one value a repeat."""
    out: list[float] = []
    for run in runs:
        value = run.summary.get(key)
        out += [float(v) for v in (value if isinstance(value, list) else [value]) if v is not None]
    return out


def mean_series(runs: Sequence[Run], metric: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """(steps, mean, lowest, highest) of a metric over runs, at the steps that all of them logged."""
    tables = [
        dict(zip(run.metrics[metric]["step"], run.metrics[metric]["value"], strict=True))
        for run in runs
        if metric in run.metrics
    ]
    if not tables:
        return [], [], [], []
    common = [s for s in sorted(set.intersection(*(set(t) for t in tables))) if all(t[s] is not None for t in tables)]
    columns = [[float(t[s]) for t in tables] for s in common]
    return (
        [float(s) for s in common],
        [statistics.fmean(c) for c in columns],
        [min(c) for c in columns],
        [max(c) for c in columns],
    )


def looks(run: Run, field: str) -> tuple[list[float], list[float]]:
    """(epochs, values) of one number of the diagnosis over all layers, where it is known."""
    series = run.metrics.get("diagnosis", {"step": [], "value": []})
    pairs = [(s, v["overall"][field]) for s, v in zip(series["step"], series["value"], strict=True)]
    known = [(float(s), float(v)) for s, v in pairs if v is not None]
    return [s for s, _ in known], [v for _, v in known]


def unique(values: Iterable[Any]) -> list[Any]:
    """Distinct values in order of appearance (unhashable ones too)."""
    out: list[Any] = []
    for value in values:
        if value not in out:
            out.append(value)
    return out
