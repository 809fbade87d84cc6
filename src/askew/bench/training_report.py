"""The training benchmark's tables and figure, from its records."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from askew.bench.training import CASES, REFERENCE
from askew.paper.present import Presentation
from askew.report.figures import styled
from askew.report.style import INK, look
from askew.report.tables import Grid
from askew.train.record import Record

LEAD = (
    "Time of whole training steps (batch, forward, backward, optimizer), as a ratio to full precision, in one process "
    "and in interleaved rounds."
)


def table(record: Record) -> Grid:
    """One row a method."""
    rows = []
    for method, fact in record.summary.items():
        low, high = fact["ratio_quartiles"]
        rows.append(
            (
                look(method).label,
                f"{fact['ratio']:.3f} ({low:.3f}–{high:.3f})",
                f"{1e3 * fact['step_seconds']:.3f}",
                f"{fact['epochs_per_second']:.3g}",
                f"{100 / fact['epochs_per_second']:.1f}",
                f"{fact['peak_bytes'] / 2**20:.0f}",
                f"{fact['first_round_seconds']:.1f}",
            )
        )
    about, seen = record.config, record.environment
    where = seen["gpu"] if about["device"] == "cuda" else f"{seen['cpu']}, {seen['threads']} threads"
    return Grid(
        ("method", "ratio (quartiles)", "ms a step", "epochs/s", "100 epochs, s", "peak MiB", "first round, s"),
        tuple(rows),
        title=f"{CASES[about['case']].title}, batch {about['batch']}"
        + (f", width {about['width']}" if about["width"] else ""),
        note=f"{where}; medians of {about['rounds']} rounds of {about['steps']} steps. Peak: memory above what the run "
        "holds between steps. First round: with data, net, compilation and capture.",
    )


@styled
def figure(records: Sequence[Record]) -> Figure:
    """Bars of the ratios with their quartiles, one panel a case."""
    drawn = Figure(figsize=(7.2, 0.6 + 2.0 * len(records)), layout="constrained")
    for axes, record in zip(drawn.subplots(len(records), 1, squeeze=False).flat, records, strict=True):
        facts = record.summary
        ratios = [fact["ratio"] for fact in facts.values()]
        axes.barh([look(m).label for m in facts], ratios, color=[look(m).colour for m in facts], height=0.65)
        for i, ratio in enumerate(ratios):
            axes.annotate(f"{ratio:.3f}", (ratio, i), (3, 0), textcoords="offset points", va="center", fontsize=8)
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set(title=CASES[record.config["case"]].title, xlim=(0, 1.15 * max(ratios)))
        axes.invert_yaxis()
        axes.set_xlabel(f"time of a step / {look(REFERENCE).label}")
    return drawn


def present(records: Sequence[Record]) -> Presentation:
    """A table a case and one figure."""
    grids = [table(record) for record in records]
    return Presentation(
        "Whole training steps", LEAD, grids, {"training": (figure(records), "Ratios to full precision.")}
    )
