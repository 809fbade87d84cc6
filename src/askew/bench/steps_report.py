"""The step benchmark's tables and figure, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from askew.bench.contenders import REFERENCE
from askew.bench.shapes import TITLES
from askew.paper.present import Presentation
from askew.report.figures import styled
from askew.report.style import INK
from askew.report.tables import NONE, Grid
from askew.train.record import Record

LEAD = (
    "Time of one optimizer step, as a ratio to torch's fused Adam on the same parameters, in one process and in "
    "interleaved rounds; several steps in a row before the device is waited for, and beside that one step and a wait. "
    "Bandwidth counts the 28 bytes a parameter that Adam must move in float32, against the better "
    "of a copy and an update in place on the same machine. Extra bytes are those beyond weight, gradient "
    "and two moments."
)


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _waited(fact: dict[str, Any]) -> str:
    return f"{fact['wait_ratio']:.2f}, {1e3 * fact['wait_seconds']:.2f}" if "wait_ratio" in fact else NONE


def table(record: Record) -> Grid:
    """One row an optimizer."""
    fastest = max(record.extra["stream"].values())
    rows = []
    for name, fact in record.summary.items():
        if "missing" in fact:
            rows.append((name, *[NONE] * 7))
            continue
        low, high = fact["ratio_quartiles"]
        rows.append(
            (
                name,
                f"{fact['ratio']:.2f} ({low:.2f}–{high:.2f})",
                f"{1e3 * fact['seconds']:.2f}",
                _waited(fact),
                f"{100 * fact['bytes_per_second'] / fastest:.0f}%",
                _number(fact["steady_bytes"], ".1f"),
                _number(fact["peak_bytes"], ".1f"),
                f"{fact['first_step_seconds']:.2f}",
            )
        )
    about, seen = record.config, record.environment
    where = seen["gpu"] if about["device"].startswith("cuda") else f"{seen['cpu']}, {seen['threads']} threads"
    built = record.extra.get("build_seconds")
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
        title=f"{TITLES[about['case']]}: {about['parameters'] / 1e6:.1f}M parameters in "
        + _count(about["tensors"], "tensor"),
        note=f"{where}; medians of {about['rounds']} rounds of {_count(about.get('steps', 1), 'step')}"
        + (f"; the native library was built in {built:.1f} s." if built else "."),
    )


@styled
def figure(records: Sequence[Record]) -> Figure:
    """Bars of the ratios, on a log axis, one panel a case."""
    drawn = Figure(figsize=(7.2, 0.6 + 2.6 * len(records)), layout="constrained")
    for axes, record in zip(drawn.subplots(len(records), 1, squeeze=False).flat, records, strict=True):
        facts = {name: fact for name, fact in record.summary.items() if "ratio" in fact}
        ratios = [fact["ratio"] for fact in facts.values()]
        colours = ["#1a7fc4" if name.startswith("ASkew") else "#7b838c" for name in facts]
        axes.barh(list(facts), ratios, color=colours, height=0.65)
        for i, ratio in enumerate(ratios):
            axes.annotate(f"{ratio:.2f}", (ratio, i), (3, 0), textcoords="offset points", va="center", fontsize=8)
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xscale="log", title=TITLES[record.config["case"]], xlim=(0.4, 2 * max(ratios)))
        axes.invert_yaxis()
        axes.set_xlabel(f"time of a step / {REFERENCE}")
    return drawn


def present(records: Sequence[Record]) -> Presentation:
    """A table a case and one figure."""
    caption = "Ratios to torch's fused Adam; blue: ASkew."
    grids = [table(record) for record in records]
    return Presentation("One optimizer step", LEAD, grids, {"steps": (figure(records), caption)})
