"""The step benchmark's tables and figure, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from askew.bench.compare import by_machine, compared, machine_of, ratio_text
from askew.bench.contenders import REFERENCE
from askew.bench.shapes import CASES, TITLES
from askew.bench.steps_figure import figure
from askew.paper.present import Presentation
from askew.report.tables import NONE, Grid
from askew.train.record import Record

LEAD = (
    "Time of one optimizer step, as a ratio to torch's fused Adam on the same parameters, in one process and in "
    "interleaved rounds; several steps in a row before the device is waited for, and beside that one step and a wait. "
    "Ratios are taken within a round; their median and quartiles are shown. "
    "Bandwidth counts the 28 bytes a parameter that Adam must move in float32, against the best "
    "of all copies and updates in place (of 256 MiB) seen on the same machine; a cache or a longer run over memory can "
    "go above it. Extra bytes are those beyond weight, gradient and two moments."
)
COLD = (
    " First step, cold: the kernels' caches on disk were empty when the run began, so each kernel is compiled by the "
    "first optimizer of the run that needs it."
)
OURS = "ASkew, level-first"
SHORT = (OURS, "ASkew, paper form", "BinaryConnect", "PARQ, hard", "PARQ")  # columns of the short table


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def facts_of(record: Record) -> dict[str, dict[str, Any]]:
    """The record's numbers, with the ratios of its rounds; of an optimizer that could not run, nothing."""
    out: dict[str, dict[str, Any]] = {}
    for name, fact in record.summary.items():
        out[name] = {}
        if "missing" not in fact:
            times, waits = record.extra["seconds"], record.extra["wait_seconds"]
            waited = compared(waits[name], waits[REFERENCE])
            again = compared(times[name], times[REFERENCE]) | {f"wait_{key}": value for key, value in waited.items()}
            out[name] = fact | again
    return out


def lacking(records: Sequence[Record]) -> str:
    """A sentence on the optimizers that could not run, and why; empty if all could."""
    facts = [(TITLES[r.config["case"]], *found) for r in records for found in r.summary.items()]
    lost = [f"{name} on {case} ({fact['missing']})" for case, name, fact in facts if "missing" in fact]
    return f" Not measured: {', '.join(lost)}." if lost else ""


def bandwidth(records: Sequence[Record]) -> float:
    """Bytes a second of the best copy or update in place that these records saw."""
    return max(max(record.extra["stream"].values()) for record in records)


def table(record: Record, fastest: float) -> Grid:
    """One row an optimizer; fastest: the machine's bandwidth."""
    rows = []
    for name, fact in facts_of(record).items():
        if not fact:
            rows.append((name, *[NONE] * 7))
            continue
        rows.append(
            (
                name,
                ratio_text(fact),
                f"{1e3 * fact['seconds']:.2f}",
                f"{fact['wait_ratio']:.2f}, {1e3 * fact['wait_seconds']:.2f}",
                f"{100 * fact['bytes_per_second'] / fastest:.0f}%",
                f"{fact['steady_bytes']:.1f}",
                f"{fact['peak_bytes']:.1f}",
                f"{fact['first_step_seconds']:.2f}",
            )
        )
    about, built = record.config, record.extra.get("build_seconds")
    return Grid(
        (
            "optimizer",
            "ratio (quartiles)",
            "ms",
            "ratio, ms: one step and wait",
            "of bandwidth",
            "extra B",
            "extra B, peak",
            "first step, s",
        ),
        tuple(rows),
        title=f"{machine_of(record)}: {TITLES[about['case']]}, {about['parameters'] / 1e6:.4g}M parameters in "
        + _count(about["tensors"], "tensor"),
        note=f"{machine_of(record)}; medians of {about['rounds']} rounds of {_count(about['steps'], 'step')}; "
        f"bandwidth {fastest / 1e9:.0f} GB/s"
        + (f"; the native library was built in {built:.1f} s." if built else ".")
        + (COLD if about.get("cold") else "")
        + lacking([record]),
    )


def _short(fact: dict[str, Any] | None) -> str:
    return ratio_text(fact, 2 if fact["ratio"] < 10 else 1) if fact else NONE


def summary(records: Sequence[Record]) -> Grid:
    """The short table: one row a machine and case, the ratios of the main optimizers, our share of the bandwidth."""
    rows, notes = [], []
    for machine, own in by_machine(records, list(CASES)).items():
        fastest = bandwidth(own)
        rounds = sorted({record.config["rounds"] for record in own})
        notes.append(f"{machine}: {' or '.join(map(str, rounds))} rounds, {fastest / 1e9:.0f} GB/s")
        for record in own:
            facts = facts_of(record)
            ratios = [_short(facts.get(name)) for name in SHORT]
            ours = facts.get(OURS)
            waited = f"{ours['wait_ratio']:.2f}" if ours else NONE
            shares = [f"{100 * f['bytes_per_second'] / fastest:.0f}%" for f in (ours, facts[REFERENCE]) if f]
            rows.append((machine, TITLES[record.config["case"]], *ratios, waited, " / ".join(shares)))
    return Grid(
        ("machine", "parameters", *SHORT, "one step and wait", "of bandwidth"),
        tuple(rows),
        title="In short",
        note=f"Time of a step / {REFERENCE}, several steps in a row: median of the rounds (quartiles). One step and "
        f"wait: the same ratio of {OURS}, when the device is waited for after each step. Of bandwidth: {OURS} / "
        f"{REFERENCE}. " + "; ".join(notes) + "." + lacking(records),
        text_columns=2,
    )


def present(records: Sequence[Record]) -> Presentation:
    """The short table, a table a machine and case, and one figure."""
    machines = by_machine(records, list(CASES))
    grids = [table(record, bandwidth(own)) for own in machines.values() for record in own]
    caption = "Ratios to torch's fused Adam, a column of panels for each machine; blue: ASkew."
    drawn = figure({name: {r.config["case"]: facts_of(r) for r in own} for name, own in machines.items()})
    return Presentation("One optimizer step", LEAD, [summary(records), *grids], {"steps": (drawn, caption)})
