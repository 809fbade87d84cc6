"""The step benchmark's figure: bars of ratios, cases below one another, machines side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from askew.bench.contenders import CONTENDERS, REFERENCE
from askew.bench.shapes import CASES, TITLES
from askew.report.figures import styled
from askew.report.style import INK, look

Facts = Mapping[str, Mapping[str, Any]]  # an optimizer's numbers by its name


@styled
def figure(machines: Mapping[str, Mapping[str, Facts]]) -> Figure:
    """Bars of the ratios with their quartiles, on a log axis; a row of panels a case, a column a machine."""
    shown = [case for case in CASES if any(case in own for own in machines.values())]
    ran = {name for own in machines.values() for facts in own.values() for name in facts}
    places = {name: i for i, name in enumerate(name for name in CONTENDERS if name in ran)}
    drawn = Figure(figsize=(4.0 + 3.2 * len(machines), 0.8 + 2.3 * len(shown)), layout="constrained")
    panels = drawn.subplots(len(shown), len(machines), squeeze=False, sharey=True, sharex="col")
    for column, (machine, own) in enumerate(machines.items()):
        present = [case for case in shown if case in own]
        for axes, case in zip(panels[:, column], shown, strict=True):
            if case not in own:
                axes.set_visible(False)
                continue
            _bars(axes, own[case], places)
            axes.set_title(f"{TITLES[case]} · {machine}")
            if case == present[-1]:
                axes.set_xlabel(f"time of a step / {REFERENCE}")
                axes.tick_params(labelbottom=True)
    panels[0, 0].set_ylim(len(places) - 0.4, -0.6)
    return drawn


def _bars(axes: Axes, facts: Facts, places: Mapping[str, int]) -> None:
    """One bar an optimizer, at its place on the axis that all panels share."""
    known = {name: fact for name, fact in facts.items() if fact and name in places}
    own, other = look("askew-level-first").colour, look("full-precision").colour
    for name, fact in known.items():
        ratio, (low, high) = fact["ratio"], fact["ratio_quartiles"]
        axes.barh(places[name], ratio, color=own if name.startswith("ASkew") else other, height=0.65)
        axes.plot([low, high], [places[name]] * 2, color=INK, linewidth=0.9)
        beside = (max(high, 1), places[name])  # right of the dotted line as well
        axes.annotate(f"{ratio:.2f}", beside, (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yticks=list(places.values()), yticklabels=list(places))
    highest = max(fact["ratio_quartiles"][1] for fact in known.values())
    axes.set_xlim(min(0.3, axes.get_xlim()[0]), max(axes.get_xlim()[1], 3 * highest))
    axes.xaxis.set_major_formatter("{x:g}")
