"""The logistic-regression table and figures, from records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from askew.paper.logistic import ENTRIES, SETTINGS
from askew.paper.present import Presentation
from askew.report import paper_figures
from askew.report.runs import stat
from askew.report.tables import Grid, cell
from askew.train.record import Record

LEAD = (
    "Logistic regression in ten dimensions whose true weights are a vertex of the hypercube; 6000 examples, SGD with "
    "learning rate 1. The paper prints curves only: ASkew on top of full precision, straight-through methods above it."
)


def present(records: Sequence[Record]) -> Presentation:
    """A table and a figure per setting, and verdicts."""
    tables, figures, verdicts = [], {}, []
    order = [entry.key for entry in ENTRIES]
    for setting, (batch, epochs) in SETTINGS.items():
        runs = [r for key in order for r in records if (r.config["setting"], r.config["key"]) == (setting, key)]
        title = f"batch {batch}, {epochs} epochs"
        tables.append(_table(runs, title))
        figure = paper_figures.step_losses(runs, "batch_loss_first", title)
        figures[f"losses-{setting}"] = (figure, f"Training loss of the first repeat by iteration, {title}.")
        verdicts.append(_verdict({r.config["key"]: r for r in runs}, title))
    return Presentation("Logistic regression", LEAD, tables, figures, verdicts)


def excess(run: Record, full: Record, key: str) -> list[float]:
    """Final training loss over full precision's on the same problem, minus one, in per cent, repeat by repeat."""
    pairs = zip(run.summary[key], full.summary["train_loss"], strict=True)
    return [100 * (ours / theirs - 1) for ours, theirs in pairs]


def _table(runs: list[Record], title: str) -> Grid:
    full = next(r for r in runs if r.config["key"] == "fp")
    rows = []
    for run in runs:
        signs = 100 * statistics.fmean(run.summary["right_signs"])
        rows.append(
            (
                run.config["label"],
                cell(stat(run.summary["train_loss"]), 4),
                cell(stat(excess(run, full, "train_loss")), 2),
                cell(stat(excess(run, full, "snapped_train_loss")), 2),
                f"{signs:.1f}%",
                str(run.config["repeats"]),
            )
        )
    heads = ("method", "training loss", "over full precision (%)", "snapped, over it (%)", "right signs", "n")
    note = (
        "Loss over the whole training set at the end, at the weights the network computes with and at the snapped "
        "ones; mean ± sample standard deviation over n problems; excess over full precision on the same problem. The "
        "paper prints no numbers here."
    )
    return Grid(heads, tuple(rows), title, note, tuple(r.config["method"] for r in runs))


def _verdict(runs: dict[str, Record], title: str) -> str:
    """At the weights the nets compute with, as the paper draws them, and at the snapped ones, where they are alike."""
    full, both = runs["fp"], [runs[key] for key in ("askew", "bc")]
    ours, bc = (statistics.fmean(excess(run, full, "train_loss")) for run in both)
    ours_snapped, bc_snapped = (statistics.fmean(excess(run, full, "snapped_train_loss")) for run in both)
    place = "within" if ours <= 2 else "NOT within"
    return (
        f"{title}: ASkew ends {ours:.2f}% over full precision ({place} 2%), stochastic BinaryConnect {bc:.2f}% "
        f"({'above' if bc > ours else 'NOT above'} ASkew): one at real weights, the other at signs drawn at random. "
        f"With snapped weights it is {ours_snapped:.2f}% and {bc_snapped:.2f}%."
    )
