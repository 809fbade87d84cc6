"""The paper's form of ASkew along its run, from records: accuracy at marked epochs, losses, weight histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from askew.paper.images_common import MISSING, STEPS, Kind
from askew.paper.images_rows import Rows
from askew.report import image_figures
from askew.report.runs import stat
from askew.report.tables import NONE, Grid, cell
from askew.train.record import Record

Drawn = tuple[Figure, str]
PAPER_EPSILON = {50: "0.88", 65: "0.15", 90: "0.006"}


def steps_table(runs: Sequence[Record], steps: Mapping[int, str]) -> Grid:
    """Accuracy of the snapped net at the paper's epochs, the paper's value beside ours."""
    lines = []
    for epoch, value in steps.items():
        found = [(at(run, "accuracy", epoch), at(run, "diagnosis", epoch)) for run in runs]
        scores = [float(accuracy) for accuracy, _ in found if accuracy is not None]
        epsilon = next((look["value"] for _, look in found if look is not None), None)
        shown = NONE if epsilon is None else f"{epsilon:.2g}"
        lines.append(
            (
                str(epoch),
                PAPER_EPSILON[epoch],
                shown,
                value,
                cell(stat(scores), 2) if scores else MISSING,
                str(len(scores)),
            )
        )
    return Grid(
        ("epoch (of 100)", "epsilon, paper", "epsilon, ours", "paper", "ours", "n"),
        tuple(lines),
        "The paper's form while epsilon falls: test accuracy (%) of the snapped net",
        "After that epoch of the runs at the paper's schedule, BatchNorm re-estimated; epsilon at that moment.",
        ("askew",) * len(lines),
    )


def at(run: Record, metric: str, epoch: int) -> Any:
    """A value logged after an epoch, counted as of 100; None if there is none."""
    series = run.metrics.get(metric, {"step": [], "value": []})
    here = round(epoch * run.config["epochs"] / 100)
    return next((v for s, v in zip(series["step"], series["value"], strict=True) if s == here), None)


def marks(runs: Sequence[Record]) -> dict[int, str]:
    """The paper's epochs with epsilon there, of runs of its form; nothing without such runs."""
    if not runs:
        return {}
    found = {epoch: at(runs[0], "diagnosis", epoch) for epoch in STEPS}
    epochs = runs[0].config["epochs"]
    return {
        round(epoch * epochs / 100): "" if look is None else f"$\\epsilon$ = {look['value']:.2g}"
        for epoch, look in found.items()
    }


def at_kind(rows: Rows, kind: Kind) -> dict[str, list[Record]]:
    """The runs of each method at a kind of schedule, where there are any."""
    return {method: own for (method, at_), own in rows.items() if at_ == kind and own}


def loss_figure(rows: Rows, kind: Kind) -> Drawn:
    """Training loss by epoch; at the paper's schedule with its marks."""
    shown = marks(rows["askew", "paper"]) if kind == "paper" else {}
    text = "; dotted: 50, 65 and 90% of the run and epsilon of the paper's form there" if shown else ""
    return (
        image_figures.epoch_curves(at_kind(rows, kind), "epoch_loss", "training loss (epoch mean)", shown),
        f"Training loss at {_name(kind)}, mean over seeds with its range{text}.",
    )


def accuracy_figure(rows: Rows, kind: Kind) -> Drawn:
    """Accuracy of the snapped net by epoch."""
    return (
        image_figures.epoch_curves(at_kind(rows, kind), "accuracy", "test accuracy (%), snapped", later=True),
        f"Accuracy of the snapped net (BatchNorm re-estimated) at {_name(kind)}, mean over seeds with its range.",
    )


def histogram_figure(rows: Rows) -> Drawn:
    """Weights at the paper's epochs: its form at its schedule, level-first at its best one."""
    shown = {"askew": rows["askew", "paper"], "askew-level-first": rows["askew-level-first", "best"]}
    return (
        image_figures.histogram_rows({method: own for method, own in shown.items() if own}),
        "Weights at 20, 39, 55 and 99% of the run and at its end: the first layer (as in the paper) and all layers.",
    )


def _name(kind: Kind) -> str:
    return "the paper's schedule" if kind == "paper" else "each method's best schedule"
