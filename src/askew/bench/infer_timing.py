"""Interleaved timing: every round times all contestants one after the other, so that noise hits them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

Work = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds a call: median and quartiles over the rounds; `times` how many times faster the first contestant is.

    The ratio is taken within each round, then its median and quartiles over the rounds.
    """

    seconds: float
    low: float
    high: float
    times: float
    times_low: float
    times_high: float

    def plain(self) -> dict[str, float]:
        return asdict(self)


def race(contestants: Mapping[str, Work], rounds: int = 15, least: float = 0.005) -> dict[str, Timing]:
    """Time all contestants against the first; a sample is at least `least` seconds long, after an untimed call."""
    repeats = {name: _repeats(work, least) for name, work in contestants.items()}
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            work()  # brings its data into the cache, as in a loop of its own
            start = time.perf_counter()
            for _ in range(repeats[name]):
                work()
            samples[name].append((time.perf_counter() - start) / repeats[name])
    ours = samples[next(iter(contestants))]
    return {name: _timing(taken, ours) for name, taken in samples.items()}


def _repeats(work: Work, least: float) -> int:
    work()
    start = time.perf_counter()
    work()
    return max(1, round(least / max(1e-7, time.perf_counter() - start)))


def _timing(taken: list[float], ours: list[float]) -> Timing:
    ratios = [theirs / own for theirs, own in zip(taken, ours, strict=True)]
    return Timing(median(taken), *_quartiles(taken), median(ratios), *_quartiles(ratios))


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    found = quantiles(values, n=4, method="inclusive")
    return found[0], found[2]
