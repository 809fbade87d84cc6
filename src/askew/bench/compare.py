"""Times side by side: ratios round by round, and records by the machine that they were made on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median, quantiles
from typing import Any

from askew.train.record import Record


def compared(own: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Median time, and median and quartiles of the ratios to the reference, each taken within one round.

    Two times of one round lie close together, so what slows the whole machine for a while drops out of their ratio.
    """
    low, middle, high = quantiles([t / r for t, r in zip(own, reference, strict=True)], n=4)
    return {"seconds": median(own), "ratio": middle, "ratio_quartiles": [low, high]}


def ratio_text(fact: dict[str, Any], digits: int = 2) -> str:
    """'1.02 (0.94–1.06)'."""
    low, high = fact["ratio_quartiles"]
    return f"{fact['ratio']:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def settings(config: Any) -> dict[str, Any]:
    """A benchmark's settings as its record keeps them: not where the files lie."""
    return {name: value for name, value in asdict(config).items() if name != "out"}


def on_gpu(record: Record) -> bool:
    """Whether the record is of a GPU; the machine that has one may make records of its CPU as well."""
    return str(record.config["device"]).startswith("cuda")


def machine_of(record: Record) -> str:
    """The GPU, or the CPU with its threads."""
    seen = record.environment
    if on_gpu(record):
        return str(seen["gpu"])
    count = seen["threads"]
    return f"{seen['cpu']}, {count} thread" + ("" if count == 1 else "s")


def by_machine(records: Sequence[Record], cases: Sequence[str]) -> dict[str, list[Record]]:
    """The records of each machine, GPUs first, in the order of the cases."""
    order = sorted(records, key=lambda r: (not on_gpu(r), machine_of(r), list(cases).index(r.config["case"])))
    out: dict[str, list[Record]] = {}
    for record in order:
        out.setdefault(machine_of(record), []).append(record)
    return out
