"""From the records of a table of few bits to its tables and figures; low_bit_words.py has the sentences."""

from __future__ import annotations

from collections.abc import Sequence

from askew.core import uniform
from askew.paper.images_common import KINDS, Kind, search_key, words
from askew.paper.low_bit import LowBit, Row
from askew.paper.low_bit_words import FULL, Runs, gap, lead, note, runs_of, score, verdicts
from askew.paper.present import Presentation
from askew.report import image_figures
from askew.report.runs import stat, summary_values, unique
from askew.report.tables import NONE, Grid, cell
from askew.train.record import Record

MISSING = "not run"


def present(table: LowBit, records: Sequence[Record]) -> Presentation:
    """Tables, figures and verdicts of whatever has been run so far."""
    runs = runs_of(table, [r for r in records if r.experiment == table.name])
    searched = [r for r in records if r.experiment == f"{table.name}-search"]
    grids = [main_table(table, runs), settings_table(table, searched)]
    drawn = {f"accuracy-{w}": curves(table, runs, w) for w in unique(r.widths for r in table.rows) if any_run(runs, w)}
    return Presentation(table.title, lead(table, runs), grids, drawn, verdicts(table, runs))


def level_count(table: LowBit, row: Row, kind: Kind) -> str:
    """Levels of a weight, of the integers that ran."""
    settings = table.settings(row, kind)
    if settings is None or "bits" not in settings:
        return NONE
    bits = int(str(settings["bits"]))
    return "2" if bits == 1 else str(len(uniform(bits, settings.get("form", "int"))))  # pyright: ignore


def main_table(table: LowBit, runs: Runs) -> Grid:
    """The paper's value beside ours at both kinds of schedule: levels, accuracy, gap to full precision, n."""
    lines, keys = [], []
    for row in table.rows:
        line = [row.label, row.value or NONE]
        for kind in KINDS:
            own, below = score(runs, row.key, kind), gap(runs, row.key, kind)
            missing = NONE if table.settings(row, kind) is None else MISSING
            line += [level_count(table, row, kind), cell(own, 2) if own else missing]
            line += [NONE if below is None else f"{below:.2f}", str(own.n if own else 0)]
        lines.append(tuple(line))
        keys.append(row.method)
    lines += [(f"{name} *", f"{value}*", *[NONE] * 8) for name, value in table.literature.items()]
    heads = ["method", "paper"]
    for name in ("ours, paper's schedule", "ours, best schedule"):
        heads += ["levels", name, "gap", "n"]
    return Grid(tuple(heads), tuple(lines), f"test accuracy (%){made(runs)}", note(table, runs), tuple(keys))


def made(runs: Runs) -> str:
    """Epochs and batch, from the records."""
    found = unique((r.config["epochs"], r.config["batch_size"]) for own in runs.values() for r in own)
    return ", " + " and ".join(f"{epochs} epochs, batch {batch}" for epochs, batch in found) if found else ""


def any_run(runs: Runs, widths: str) -> bool:
    return any(own for (key, _), own in runs.items() if f"-{widths}" in key)


def curves(table: LowBit, runs: Runs, widths: str) -> tuple[image_figures.Figure, str]:
    """Accuracy by epoch of the rows of one width, the best schedule where it ran, else the paper's."""
    groups: dict[str, list[Record]] = {}
    for row in table.rows:
        found = runs[row.key, "best"] or runs[row.key, "paper"]
        if found and (row.widths == widths or row.key == FULL):
            groups.setdefault(row.method, found)
    figure = image_figures.epoch_curves(groups, "accuracy", "test accuracy (%), snapped", later=True)
    bits = widths.upper().replace("A", "/A")
    return figure, f"{bits}: accuracy of the snapped net by epoch, mean over seeds with its range."


def settings_table(table: LowBit, searched: Sequence[Record]) -> Grid:
    """Every setting that ran or was tried, and what the search found."""
    lines, methods = [], []
    for row in table.rows:
        before = len(lines)
        if row.paper is not None:
            lines.append((row.label, words(row.paper), f"paper's schedule ({row.origin('paper')})", NONE))
        for tried in row.search.tried if row.search else ():
            own = [r for r in searched if r.config["key"] == search_key(row.key, tried)]
            used = "best schedule" if row.search and tried == row.search.winner else ""
            lines.append((row.label, words(tried), used, cell(stat(summary_values(own, "accuracy")), 2)))
        methods += [row.method] * (len(lines) - before)
    held = ", ".join(map(str, unique(r.config["holdout"] for r in searched)))
    found = f"Held-out: accuracy (%) on {held} training images left out of one run." if held else "No search was run."
    heads = ("method", "settings", "used at", "held-out")
    return Grid(heads, tuple(lines), "Settings and the search", found, tuple(methods))
