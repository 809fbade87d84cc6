"""The figures of the paper's small experiments, from their records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from askew.report.figures import styled
from askew.report.runs import Run
from askew.report.style import INK, look

BORDER, FREE = "#1a7fc4", "#0a9270"


@styled
def vector_field(run: Run) -> Figure:
    """Velocities on the plane, one panel an alpha; the feasible set's border and both minimisers are marked."""
    panels = run.extra["panels"]
    figure = Figure(figsize=(3.9 * len(panels), 4.0), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _field(axes, panel, run)
    return figure


def _field(axes: Axes, panel: dict[str, Any], run: Run) -> None:
    w1, w2, v1, v2 = (list(column) for column in zip(*panel["rows"], strict=True))
    length = [max(1e-9, (a * a + b * b) ** 0.5) for a, b in zip(v1, v2, strict=True)]
    cut = sorted(length)[int(0.9 * len(length))]  # the longest arrows, near midpoints, would hide all others
    shown = [min(1.0, cut / one) for one in length]
    axes.quiver(
        w1,
        w2,
        [a * s for a, s in zip(v1, shown, strict=True)],
        [b * s for b, s in zip(v2, shown, strict=True)],
        color=INK,
        alpha=0.75,
        angles="xy",
        width=0.0035,
    )
    root = run.config["epsilon"] ** 0.5
    inner, outer = max(0.0, 1 - root) ** 0.5, (1 + root) ** 0.5
    for x in (-outer, inner):
        for y in (-outer, inner):
            width = outer - inner
            axes.add_patch(_box(x, y, width))
    axes.plot(*run.extra["free_minimum"], "o", color=FREE, markersize=8, label="minimiser without constraint")
    axes.plot(*run.extra["constrained_minimum"], "o", color=BORDER, markersize=8, label="minimiser with constraint")
    extent = run.config["extent"]
    axes.set(xlim=(-extent, extent), ylim=(-extent, extent), aspect="equal", xlabel="$w^1$", ylabel="$w^2$")
    axes.set_title(f"$\\epsilon$ = {run.config['epsilon']:g}, $\\alpha$ = {panel['alpha']:g}")
    axes.grid(visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=1)


def _box(x: float, y: float, width: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, width, fill=False, edgecolor=BORDER, linewidth=1.6)


@styled
def step_losses(runs: Sequence[Run], metric: str, title: str = "", window: int = 1) -> Figure:
    """Training loss by iteration (a mean over `window` of them), one line a run, named as in its config.

    Full precision is drawn broad, so that it shows under a line that lies on it.
    """
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.subplots()
    values: list[float] = []
    for run in runs:
        series, style = run.metrics[metric], look(run.config["method"])
        losses = _rolling(series["value"], window)
        axes.plot(
            series["step"][window - 1 :],
            losses,
            color=style.colour,
            linewidth=3.5 if run.config["method"] == "full-precision" else 1.0,
            linestyle="-" if run.config["settings"] != "ours" else "--",
            label=run.config["label"],
            alpha=0.85,
        )
        values += losses
    label = "training loss (batch)" if window == 1 else f"training loss (mean of {window} batches)"
    axes.set(xlabel="iteration", ylabel=label, title=title)
    axes.set_ylim(min(values) * 0.98, None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(handlelength=2.2)
    return figure


def _rolling(values: Sequence[float], window: int) -> list[float]:
    """Means over the last `window` values; window - 1 fewer than there are values."""
    sums = [0.0, *accumulate(values)]
    return [(b - a) / window for a, b in zip(sums, sums[window:], strict=False)]


@styled
def pattern_histogram(run: Run) -> Figure:
    """How many of the enumerated sign patterns reach which test accuracy."""
    accuracy = [100 * a for a in run.extra["test_accuracy"]]
    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    axes = figure.subplots()
    axes.hist(accuracy, bins=40, color=look("exhaustive").colour)
    axes.set(xlabel="test accuracy (%)", ylabel="sign patterns", title=f"all {len(accuracy)} patterns")
    return figure


@styled
def strips(runs: Sequence[Run], key: str, label: str, reference: float | None = None) -> Figure:
    """Every repeat of every method as a dot, the mean as a bar, a reference as a line."""
    figure = Figure(figsize=(6.2, 0.8 + 0.3 * len(runs)), layout="constrained")
    axes = figure.subplots()
    for place, run in enumerate(runs):
        style, values = look(run.config["method"]), run.summary[key]
        n = len(values)
        heights = [place + 0.5 * ((i % 25) / 24 - 0.5) for i in range(n)]
        axes.scatter(values, heights, s=9, color=style.colour, alpha=0.55, linewidths=0)
        mean = sum(values) / n
        axes.plot([mean, mean], [place - 0.38, place + 0.38], color=INK, linewidth=1.6)
    if reference is not None:
        axes.axvline(reference, color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(runs)), [run.config["label"] for run in runs])
    axes.set_ylim(len(runs) - 0.4, -0.6)
    axes.set_xlabel(label)
    axes.grid(visible=False, axis="y")
    return figure
