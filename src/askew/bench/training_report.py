"""The training benchmark's tables and figure, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from askew.bench.compare import by_machine, machine_of, ratio_text
from askew.bench.training import REFERENCE
from askew.bench.training_run import CASES
from askew.paper.present import Presentation
from askew.report.figures import styled
from askew.report.style import INK, look
from askew.report.tables import NONE, Grid
from askew.train.record import Record

LEAD = (
    "Time of whole training steps (batch, forward, backward, optimizer), as a ratio to full precision, in one process "
    "and in interleaved rounds. Ratios are taken within a round; their median and quartiles are shown."
)
MEMORY = (
    "Memory, and its ratio to full precision's: what torch's allocator holds for the run between steps (images on the "
    "device, weights, gradients, optimizer state, and the whole memory of a CUDA graph) and the peak above that within "
    "steps."
)


def _memory(fact: dict[str, Any], reference: dict[str, Any]) -> str:
    mine, full = fact["memory_bytes"], reference["memory_bytes"]
    return f"{mine / 2**20:.{0 if mine >= 100 * 2**20 else 1}f} ({mine / full:.2f})"


def _title(record: Record) -> str:
    about = record.config
    width = f", width {about['width']}" if about["width"] else ""
    return f"{CASES[about['case']].title}, batch {about['batch']}{width}"


def table(record: Record) -> Grid:
    """One row a method."""
    rows = tuple(
        (
            look(method).label,
            ratio_text(fact, 3),
            f"{1e3 * fact['step_seconds']:.3f}",
            f"{fact['epochs_per_second']:.3g}",
            f"{100 / fact['epochs_per_second']:.1f}",
            _memory(fact, record.summary[REFERENCE]),
            f"{100 * fact['diagnosis_share']:.2g}",
            f"{fact['first_round_seconds']:.1f}",
        )
        for method, fact in record.summary.items()
    )
    about = record.config
    return Grid(
        (
            "method",
            "ratio (quartiles)",
            "ms a step",
            "epochs/s",
            "100 epochs, s",
            "memory, MiB",
            "diagnosis, % of an epoch",
            "first round, s",
        ),
        rows,
        title=f"{machine_of(record)}: {_title(record)}",
        note=f"{machine_of(record)}; medians of {about['rounds']} rounds of {about['steps']} steps, with "
        f"{about['images']:,} images. {MEMORY} Diagnosis: one look at all layers, every epoch. First round: with data, "
        "net, compilation and capture.",
        keys=tuple(record.summary),
    )


def summary(records: Sequence[Record]) -> Grid:
    """The short table: one row a method; of each machine and net the time of a step and the memory."""
    order = [record for own in by_machine(records, list(CASES)).values() for record in own]
    methods = list(dict.fromkeys(method for record in order for method in record.summary))
    heads, columns, notes = [], [], []
    for record in order:
        facts = record.summary
        name = f"{CASES[record.config['case']].title}, {machine_of(record)}"
        heads += [f"{name}: step", f"{name}: MiB"]
        columns.append([ratio_text(facts[m]) if m in facts else NONE for m in methods])
        columns.append([_memory(facts[m], facts[REFERENCE]) if m in facts else NONE for m in methods])
        share = max(fact["diagnosis_share"] for fact in facts.values())
        notes.append(
            f"{name}: batch {record.config['batch']}, {record.config['rounds']} rounds of {record.config['steps']} "
            f"steps, {facts[REFERENCE]['epochs_per_second']:.3g} epochs/s in full precision, a diagnosis every epoch "
            f"takes {100 * share:.2g}% of it at most."
        )
    rows = tuple(zip([look(m).label for m in methods], *columns, strict=True))
    note = "Time of a whole training step / full precision's, median (quartiles). "
    return Grid(("method", *heads), rows, title="In short", note=note + " ".join([*notes, MEMORY]), keys=tuple(methods))


@styled
def figure(records: Sequence[Record]) -> Figure:
    """Bars of the ratios with their quartiles, one panel a machine and net."""
    heights = [0.5 + 0.22 * len(record.summary) for record in records]
    drawn = Figure(figsize=(7.2, 0.6 + sum(heights)), layout="constrained")
    panels = drawn.subplots(len(records), 1, squeeze=False, height_ratios=heights).flat
    for axes, record in zip(panels, records, strict=True):
        facts = record.summary
        axes.barh(
            [look(m).label for m in facts],
            [fact["ratio"] for fact in facts.values()],
            color=[look(m).colour for m in facts],
            height=0.65,
        )
        for i, fact in enumerate(facts.values()):
            low, high = fact["ratio_quartiles"]
            axes.plot([low, high], [i, i], color=INK, linewidth=0.9)
            at = (max(high, fact["ratio"]), i)
            axes.annotate(f"{fact['ratio']:.3f}", at, (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        most = max(fact["ratio_quartiles"][1] for fact in facts.values())
        axes.set(title=f"{_title(record)} · {machine_of(record)}", xlim=(0, 1.15 * most))
        axes.invert_yaxis()
        axes.set_xlabel(f"time of a step / {look(REFERENCE).label}")
    return drawn


def present(records: Sequence[Record]) -> Presentation:
    """The short table where there are several records, a table each, and one figure."""
    order = [record for own in by_machine(records, list(CASES)).values() for record in own]
    grids = [table(record) for record in order]
    short = [summary(order)] if len(order) > 1 else []
    caption = "Ratios to full precision."
    return Presentation("Whole training steps", LEAD, [*short, *grids], {"training": (figure(order), caption)})
