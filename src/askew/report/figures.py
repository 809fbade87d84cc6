"""Figures from run records: matplotlib Figure objects in one style, without pyplot or any global state."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from askew.report.runs import Run, by_method, looks, mean_series, summary_values
from askew.report.style import INK, LIGHT_GROUND, OTHER, RC, Look, look

P = ParamSpec("P")
FLOOR = 0.01  # per cent: where the histograms' log axis begins


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in the house style and leave matplotlib's settings as they were."""

    @wraps(draw)
    def inner(*arguments: P.args, **options: P.kwargs) -> Figure:
        with mpl.rc_context(RC):
            return draw(*arguments, **options)

    return inner


@dataclass(frozen=True)
class Curve:
    """What a panel of curves shows: a metric of the records, its axis label with unit, and the kind of axis."""

    metric: str
    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None


def draw_line(axes: Axes, style: Look, steps: Sequence[float], values: Sequence[float]) -> None:
    """A method's curve; one point makes no line and gets the method's marker."""
    alone = style.marker if len(steps) == 1 else None
    axes.plot(steps, values, color=style.colour, linestyle=style.line, label=style.label, marker=alone)


@styled
def curves(runs: Sequence[Run], curve: Curve, size: tuple[float, float] = (4.6, 3.0)) -> Figure:
    """One line a method: the mean over seeds, with a band from the lowest to the highest."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for method, own in by_method(runs).items():
        steps, mean, low, high = mean_series(own, curve.metric)
        style = look(method)
        draw_line(axes, style, steps, mean)
        if len(own) > 1:
            axes.fill_between(steps, low, high, color=style.colour, alpha=0.18, linewidth=0)
    axes.set(xlabel="epoch", ylabel=curve.label)
    if curve.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=_ticks(*axes.dataLim.intervaly), numticks=15))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: ""))
    axes.set_ylim(curve.low, curve.high)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(handlelength=2.6)
    return figure


def _ticks(low: float, high: float) -> tuple[float, ...]:
    """Numbers of a decade to be named on a logarithmic axis: the fewer, the longer it is."""
    decades = math.log10(high / low) if 0 < low < high else 0.0
    return (1, 1.5, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 4 else (1,)


@styled
def accuracies(runs: Sequence[Run], key: str, label: str, width: float = 4.6) -> Figure:
    """A strip a method: every seed's value as a dot, the mean as a bar."""
    groups = by_method(runs)
    figure = Figure(figsize=(width, 0.9 + 0.42 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for place, (method, own) in enumerate(groups.items()):
        style, values = look(method), summary_values(own, key)
        axes.scatter(values, _spread(values, place), color=style.colour, marker=style.marker, s=26, alpha=0.75, lw=0)
        if values:
            mean = sum(values) / len(values)
            axes.plot([mean, mean], [place - 0.3, place + 0.3], color=style.colour, linewidth=2)
    axes.set_yticks(range(len(groups)), [look(m).label for m in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(label)
    axes.margins(x=0.12)
    if label.endswith("(%)"):
        axes.set_xlim(max(0.0, axes.get_xlim()[0]), min(100.4, axes.get_xlim()[1]))
    return figure


def _spread(values: Sequence[float], place: float) -> list[float]:
    """Heights that keep equal values from hiding one another."""
    seen: dict[float, int] = {}
    out = []
    for value in values:
        count = seen[value] = seen.get(value, 0) + 1
        out.append(place + 0.11 * (count // 2) * (-1) ** count)
    return out


@styled
def arrival(run: Run, size: tuple[float, float] = (4.6, 2.8)) -> Figure:
    """How one ASkew run meets its constraint: the active and the feasible part of the weights, epoch by epoch."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    capture = run.metrics["diagnosis"]["value"][-1]["kind"] == "capture"
    lines = (
        ("active", "captured" if capture else "active", OTHER.colour, (0, (5, 2))),
        ("feasible", "on a level" if capture else "feasible", look(run.method).colour, "-"),
    )
    for field, label, colour, line in lines:
        epochs, values = looks(run, field)
        axes.plot(epochs, [100 * v for v in values], color=colour, linestyle=line, label=label)
    axes.set(xlabel="epoch", ylabel="share of weights (%)", ylim=(0, 103))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(handlelength=2.6)
    return figure


@styled
def weight_histograms(runs: Sequence[Run], size: tuple[float, float] | None = None) -> Figure:
    """One method's weights over time, epoch under epoch, all layers and seeds pooled; shares on a log axis."""
    pooled = _pooled(runs)
    figure = Figure(figsize=size or (3.3, 0.9 + 0.72 * max(1, len(pooled))), layout="constrained")
    if not pooled:
        return figure
    style = look(runs[0].method)
    column: list[Axes] = list(figure.subplots(len(pooled), 1, sharex=True, sharey=True, squeeze=False)[:, 0])
    for axes, (epoch, (edges, shares)) in zip(column, pooled.items(), strict=True):
        axes.stairs([max(s, FLOOR) for s in shares], edges, fill=True, baseline=FLOOR, color=style.colour, alpha=0.85)
        axes.set_title(f"epoch {epoch}", fontsize=8, pad=2)
        axes.set(yscale="log", ylim=(FLOOR, 100), yticks=[0.1, 10], xlim=(edges[0], edges[-1]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.yaxis.set_minor_locator(LogLocator(subs=(1,)))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: ""))
    figure.supylabel("share of weights (%), log scale", fontsize=9)
    column[-1].set_xlabel("weight (level units)")
    return figure


def _pooled(runs: Sequence[Run]) -> dict[int, tuple[list[float], list[float]]]:
    """epoch -> (edges, shares in per cent) over all layers and runs."""
    counts: dict[int, list[int]] = {}
    edges: dict[int, list[float]] = {}
    for run in runs:
        for entry in run.extra.get("histograms", []):
            epoch = entry["epoch"]
            if edges.setdefault(epoch, entry["edges"]) != entry["edges"]:
                raise ValueError(f"histograms of {run.method} at epoch {epoch} have different bins")
            for layer in entry["layers"].values():
                counts[epoch] = [a + b for a, b in zip(counts.get(epoch, [0] * len(layer)), layer, strict=True)]
    return {e: (edges[e], [100 * c / max(1, sum(counts[e])) for c in counts[e]]) for e in sorted(counts)}


def svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element for an HTML page: text in the page's font and colour, ids that start with `name`."""
    stream = io.StringIO()
    with mpl.rc_context(RC):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'<svg ([^>]*?)width="[^"]*" ?', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*" ?', r"<svg \1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace(INK, "currentColor").strip()


def save(figure: Figure, path: Any, dpi: int = 150) -> None:
    """Write the figure to a file (PNG, PDF, SVG by its suffix) on a white ground."""
    with mpl.rc_context(RC):
        figure.savefig(path, dpi=dpi, facecolor=LIGHT_GROUND)
