"""A self-contained HTML page from run records: inline style and figures, nothing fetched, light and dark, any width.

`render` returns text; whoever calls it writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from askew.report import figures, tables
from askew.report.figures import Curve
from askew.report.runs import Run, by_method, unique
from askew.report.style import LOOKS, look
from askew.report.tables import Column, Grid


@dataclass(frozen=True)
class Picture:
    """A figure with its caption; the caption also serves readers who do not see the figure."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading with a paragraph, tables and pictures, each of which may be missing."""

    title: str
    text: str = ""
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()


def render(title: str, lead: str, sections: Sequence[Section], runs: Sequence[Run]) -> str:
    """The page's HTML; every text is escaped. How the runs were made goes into a block that folds."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(resources.files("askew.report").joinpath("page.html").read_text("utf-8"))
    return template.render(
        title=title,
        lead=lead,
        sections=[_drawn(section, place) for place, section in enumerate(sections)],
        settings=settings(runs),
        facts=facts(runs),
        colours={method: look(method).colour for method in (*LOOKS, *by_method(runs))},
    )


def comparison(title: str, lead: str, runs: Sequence[Run], columns: Sequence[Column], note: str = "") -> str:
    """The standard page of a comparison of methods: table, curves, weight histograms, diagnosis, how it was made."""
    return render(title, lead, compared(runs, columns, note), runs)


def compared(runs: Sequence[Run], columns: Sequence[Column], note: str = "", of: str = "") -> list[Section]:
    """The sections of a comparison; the first column is the accuracy. of: what to add to the titles, if anything."""
    accuracy = columns[0].head.removesuffix(" (%)")
    sections = [
        Section(
            "Results",
            grids=(tables.overview(runs, columns, note=note),),
            pictures=(Picture(figures.accuracies(runs, columns[0].key, columns[0].head), "Each seed and the mean."),),
        ),
        Section(
            "While training",
            "Lines are means over the seeds, bands run from the lowest to the highest. Each method's training loss is "
            "taken at the weights it trains with: BinaryConnect's are on the levels all along, ASkew's arrive there.",
            pictures=(
                Picture(figures.curves(runs, Curve("epoch_loss", "training loss (nats)", log=True)), "Training loss."),
                Picture(
                    figures.curves(runs, Curve("accuracy", f"{accuracy}, snapped (%)", high=100)),
                    "Accuracy with every weight on its level (full precision: as it is).",
                ),
            ),
        ),
        *_histogram_section(runs),
        *_diagnosis_section(runs),
    ]
    return [replace(section, title=f"{section.title}{of}") for section in sections]


def _histogram_section(runs: Sequence[Run]) -> list[Section]:
    groups = {m: own for m, own in by_method(runs).items() if any(r.extra.get("histograms") for r in own)}
    if not groups:
        return []
    text = (
        "The weights that the optimizer moves, all layers and seeds together; the end bins hold what lies beyond them."
    )
    if any(method.startswith("binaryconnect") for method in groups):
        text += " BinaryConnect computes with the levels nearest to those shown."
    drawn = tuple(Picture(figures.weight_histograms(own), look(m).label) for m, own in groups.items())
    return [Section("Weights over time", text, pictures=drawn)]


def _diagnosis_section(runs: Sequence[Run]) -> list[Section]:
    chosen = [run for run in runs if run.method.startswith("askew") and "diagnosis" in run.metrics]
    if not chosen:
        return []
    run = chosen[0]
    middle = (len(run.metrics["diagnosis"]["step"]) - 1) // 2
    text = (
        "What the optimizer says of its own constraint in the first ASkew run, midway and at the end. Distances are in "
        "level units; flips are weights that changed sides since the look before. The KKT residual is the largest "
        "violation of the optimality conditions, measured on the last batch; it is 0 once every weight is on its level."
    )
    grids = tuple(tables.diagnosis(run, at) for at in unique([middle, len(run.metrics["diagnosis"]["step"]) - 1]))
    caption = f"How the weights meet the constraint ({look(run.method).label}, seed {run.seed})."
    return [Section("Diagnosis by layer", text, grids, (Picture(figures.arrival(run), caption),))]


def _drawn(section: Section, place: int) -> dict[str, Any]:
    pictures = [
        {
            "svg": Markup(figures.svg(picture.figure, f"f{place}-{i}")),
            "caption": picture.caption,
            "width": f"{7 * picture.figure.get_figwidth():.1f}rem",
        }
        for i, picture in enumerate(section.pictures)
    ]
    return {"title": section.title, "text": section.text, "grids": section.grids, "pictures": pictures}


def settings(runs: Sequence[Run]) -> Grid:
    """Every setting of every method; several values where runs of one method differ."""
    groups = by_method(runs)
    names = unique(key for run in runs for key in run.config if key not in ("method", "seed"))
    rows = [("seeds", *(_joined(run.seed for run in own) for own in groups.values()))]
    rows += [(name, *(_joined(run.config.get(name) for run in own) for own in groups.values())) for name in names]
    return Grid(("setting", *(look(method).label for method in groups)), tuple(rows))


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Versions, hardware and commit; several values where the runs differ."""
    versions = unique(run.environment.get("versions") or {} for run in runs)
    named = [
        ("commit", _joined(run.environment.get("commit") for run in runs)),
        ("python", _joined(run.environment.get("python") for run in runs)),
        ("packages", "; ".join(", ".join(f"{k} {v}" for k, v in found.items()) for found in versions)),
        ("system", _joined(run.environment.get("system") for run in runs)),
        ("processor", _joined(run.environment.get("cpu") for run in runs)),
        ("threads", _joined(run.environment.get("threads") for run in runs)),
        ("GPU", _joined(run.environment.get("gpu") for run in runs)),
        ("runs started", " to ".join(unique([min(r.started for r in runs), max(r.started for r in runs)]))),
    ]
    return [(name, value) for name, value in named if value]


def _joined(values: Any) -> str:
    return ", ".join(_plain(value) for value in unique(values) if value is not None)


def _plain(value: Any) -> str:
    """A setting as a reader writes it: {'schedule': 'LevelFirst', 'start': 0.2} as LevelFirst(start=0.2)."""
    if isinstance(value, dict):
        head = value.get("schedule", "")
        inner = ", ".join(f"{k}={_plain(v)}" for k, v in value.items() if k != "schedule")
        return f"{head}({inner})"
    if isinstance(value, (list, tuple)):
        return " ".join(_plain(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
