"""Figures of the runs on images: losses with marks, accuracy by epoch, weight histograms in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from askew.report.figures import FLOOR, draw_line, styled
from askew.report.runs import Run, mean_series
from askew.report.style import INK, look

Groups = Mapping[str, Sequence[Run]]  # runs of each method


@styled
def epoch_curves(
    groups: Groups, metric: str, label: str, marks: Mapping[int, str] | None = None, later: bool = False
) -> Figure:
    """One line a method: the mean over seeds, with a band from the lowest to the highest; marks: epoch -> words.

    later: the axis has room for what the second half of the runs shows, no more.
    """
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    late: list[list[float]] = []
    for method, runs in groups.items():
        steps, mean, low, high = mean_series(runs, metric)
        late.append([v for s, v in zip(steps, mean, strict=True) if s >= steps[-1] / 2])
        style = look(method)
        draw_line(axes, style, steps, mean)
        axes.fill_between(steps, low, high, color=style.colour, alpha=0.18, linewidth=0)
    for epoch, words in (marks or {}).items():
        axes.axvline(epoch, color=INK, linewidth=0.8, linestyle=":")
        place = axes.get_xaxis_transform()
        axes.text(epoch, 1.0, words, transform=place, ha="center", va="bottom", fontsize=7)
    axes.set(xlabel="epoch", ylabel=label)
    if later:
        axes.set_ylim(*_padded([v for line in late for v in line]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(handlelength=2.6, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _padded(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest value and a tenth of that more on either side."""
    low, high = min(values), max(values)
    room = 0.1 * max(high - low, 1e-9)
    return low - room, high + room


@styled
def histogram_rows(groups: Groups) -> Figure:
    """A row a method, a column an epoch: the weights of the first layer (filled) and of all layers (line), log axis."""
    rows = {method: _shares(runs) for method, runs in groups.items()}
    epochs = sorted(set().union(*(found.keys() for found in rows.values())))
    figure = Figure(figsize=(1.2 + 1.75 * max(1, len(epochs)), 0.8 + 1.35 * max(1, len(rows))), layout="constrained")
    if not epochs:
        return figure
    grid = figure.subplots(len(rows), len(epochs), sharex=True, sharey=True, squeeze=False)
    for line, (method, found) in zip(grid, rows.items(), strict=True):
        for axes, epoch in zip(line, epochs, strict=True):
            if epoch in found:
                _panel(axes, method, *found[epoch])
            axes.set_title(f"epoch {epoch}", fontsize=8, pad=2)
        line[0].set_ylabel(look(method).label, fontsize=8)
    known = next(axes for line in grid for axes in line if axes.get_legend_handles_labels()[0])
    figure.legend(*known.get_legend_handles_labels(), handlelength=1.2, fontsize=7, loc="outside upper right", ncols=2)
    figure.supxlabel("weight (level units)", fontsize=9)
    figure.supylabel("share of weights (%), log scale", fontsize=9)
    return figure


def _panel(axes: Axes, method: str, edges: Sequence[float], first: Sequence[float], whole: Sequence[float]) -> None:
    colour = look(method).colour
    axes.stairs(
        [max(s, FLOOR) for s in first], edges, fill=True, baseline=FLOOR, color=colour, alpha=0.55, label="first layer"
    )
    axes.stairs([max(s, FLOOR) for s in whole], edges, baseline=FLOOR, color=INK, linewidth=0.8, label="all layers")
    axes.set(yscale="log", ylim=(FLOOR, 100), yticks=[0.1, 10], xlim=(edges[0], edges[-1]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.yaxis.set_minor_locator(LogLocator(subs=(1,)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: ""))


def _shares(runs: Sequence[Run]) -> dict[int, tuple[list[float], list[float], list[float]]]:
    """epoch -> (edges, shares of the first layer, shares of all layers) in per cent, over the runs."""
    edges: dict[int, list[float]] = {}
    first: dict[int, list[int]] = {}
    whole: dict[int, list[int]] = {}
    for run in runs:
        for entry in run.extra.get("histograms", []):
            epoch, layers = entry["epoch"], list(entry["layers"].values())
            if edges.setdefault(epoch, entry["edges"]) != entry["edges"]:
                raise ValueError(f"histograms of {run.method} at epoch {epoch} have different bins")
            first[epoch] = _added(first.get(epoch), layers[:1])
            whole[epoch] = _added(whole.get(epoch), layers)
    return {e: (edges[e], _per_cent(first[e]), _per_cent(whole[e])) for e in sorted(edges)}


def _added(sums: list[int] | None, layers: Sequence[list[int]]) -> list[int]:
    columns = zip(*([sums] if sums else []), *layers, strict=True)
    return [sum(column) for column in columns]


def _per_cent(counts: Sequence[int]) -> list[float]:
    return [100 * count / max(1, sum(counts)) for count in counts]
