"""From the records of a table of few bits to its tables and figures; low_bit_words.py has the sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from askew.core import uniform
from askew.paper.best_epochs import best_epochs_table
from askew.paper.images_common import HEADS, MISSING, Kind
from askew.paper.images_rows import gap, score_of
from askew.paper.images_words import made
from askew.paper.low_bit import FULL, LowBit, Row, Widths, named
from askew.paper.low_bit_words import Runs, lead, note, runs_of, verdicts
from askew.paper.present import Presentation
from askew.paper.search_report import Candidate, chosen_briefly, chosen_how, settings_table, with_held_out
from askew.report import image_figures
from askew.report.runs import unique
from askew.report.tables import NONE, Grid, cell
from askew.train.record import Record


def present(table: LowBit, records: Sequence[Record]) -> Presentation:
    """Tables, figures and verdicts of whatever has been run so far."""
    runs = runs_of(table, [r for r in records if r.experiment == table.name])
    searched = [r for r in records if r.experiment == f"{table.name}-search"]
    rows = candidates(table)
    hows = (f(rows, searched, table.settings_from) for f in (chosen_how, chosen_briefly))
    grids = [with_held_out(main_table(table, runs, *(note(table, runs, how) for how in hows)), rows, searched)]
    if any(row.value for row in table.rows):
        lines = [(row.key, row.label, row.value) for row in table.rows]
        methods = {row.key: row.method for row in table.rows}
        grids.append(best_epochs_table(runs, lines, table.runs_at, methods))
    grids.append(settings_table(rows, searched))
    widths = unique(row.widths for row in table.rows if row.method != "full-precision")
    drawn = {f"accuracy-{w}": curves(table, runs, w) for w in widths if any_run(runs, w)}
    return Presentation(table.title, lead(table, runs), grids, drawn, verdicts(table, runs))


def level_count(table: LowBit, row: Row, kind: Kind) -> str:
    """Levels of a weight, of the integers that ran."""
    settings = table.settings(row, kind)
    if settings is None or "bits" not in settings:
        return NONE
    bits = int(str(settings["bits"]))
    return "2" if bits == 1 else str(len(uniform(bits, settings.get("form", "int"))))  # pyright: ignore


def main_table(table: LowBit, runs: Runs, said: str, briefly: str) -> Grid:
    """The paper's value, if any, beside ours at each kind of schedule: levels, accuracy, gap to full precision, n."""
    printed = bool(table.literature) or any(row.value for row in table.rows)
    lines, keys = [], []
    for row in table.rows:
        line = [row.label, row.value or NONE] if printed else [row.label]
        for kind in table.runs_at:
            own, below = score_of(runs, row.key, kind), gap(runs, FULL, row.key, kind)
            missing = NONE if table.settings(row, kind) is None else MISSING
            line += [level_count(table, row, kind), cell(own, 2) if own else missing]
            line += [NONE if below is None else f"{below:.2f}", str(own.n if own else 0)]
        lines.append(tuple(line))
        keys.append(row.method)
    heads = ["method", "paper"] if printed else ["method"]
    for kind in table.runs_at:
        heads += ["levels", HEADS[kind], "gap", "n"]
    empty = [NONE] * (len(heads) - 2)
    lines += [(f"{name} *", f"{value}*", *empty) for name, value in table.literature.items()]
    return Grid(tuple(heads), tuple(lines), f"Test accuracy (%){made(runs)}", said, tuple(keys), short=briefly)


def any_run(runs: Runs, widths: str) -> bool:
    return any(own for (key, _), own in runs.items() if f"-{widths}" in key)


def curves(table: LowBit, runs: Runs, widths: Widths) -> tuple[image_figures.Figure, str]:
    """Accuracy by epoch of the rows of one width and of real weights, at the best schedule where it ran."""
    real = (FULL, f"full-precision-w32a{widths.split('a')[1]}")
    shown = [row for row in table.rows if row.widths == widths or row.key.removesuffix("-taught") in real]
    found = {row: own for row in shown if (own := runs[row.key, "best"] or runs[row.key, "paper"])}
    alike = Counter(row.method for row in found)
    kinds: Counter[str] = Counter()
    groups: dict[str, list[Record]] = {}
    for row, own in found.items():
        kinds[row.method] += 1
        one = alike[row.method] == 1
        groups[row.method if one else f"{row.method}|{kinds[row.method]}|{row.words}"] = own
    figure = image_figures.epoch_curves(groups, "accuracy", "test accuracy (%), snapped", later=True)
    where = "at each row's best schedule where that was run, else at the paper's"
    return figure, f"{named(widths)}: accuracy of the snapped net by epoch, {where}; mean over seeds with its range."


def candidates(table: LowBit) -> list[Candidate]:
    """The rows as the search knows them."""
    own = "epochs" in table.kinds.get("best", {})
    return [Candidate(r.label, r.method, r.key, r.paper, r.origin("paper"), r.search, own) for r in table.rows]
