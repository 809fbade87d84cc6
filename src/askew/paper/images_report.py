"""From the records of a table on images to its tables; images_words.py has the sentences, steps_report.py the steps."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper.best_epochs import best_epochs_table
from askew.paper.images_common import HEADS, KINDS, MISSING, Experiment, Kind
from askew.paper.images_rows import Rows, gap, rows_of, score_of
from askew.paper.images_words import FULL, lead, made, note, verdicts
from askew.paper.present import Presentation
from askew.paper.search_report import Candidate, chosen_briefly, chosen_how, settings_table, with_held_out
from askew.paper.steps_report import accuracy_figure, histogram_figure, loss_figure, steps_table
from askew.report.tables import NONE, Grid, cell
from askew.train.record import Record


def present(experiment: Experiment, records: Sequence[Record]) -> Presentation:
    """Tables, figures and verdicts of whatever has been run so far."""
    rows = rows_of(experiment, [r for r in records if r.experiment == experiment.name])
    searched = [r for r in records if r.experiment == f"{experiment.name}-search"]
    found = candidates(experiment), searched, experiment.settings_from
    notes = [note(rows, how(*found)) for how in (chosen_how, chosen_briefly)]
    tables = [table(experiment, rows, metric, *notes) for metric in experiment.metrics]
    tables[0] = with_held_out(tables[0], found[0], searched)
    lines = [(c.method, c.label, c.values.get("accuracy", "")) for c in experiment.contenders]
    tables.append(best_epochs_table(rows, lines, list(KINDS), {c.method: c.method for c in experiment.contenders}))
    if experiment.steps:
        tables.append(steps_table(rows["askew", "paper"], experiment.steps))
    tables.append(settings_table(candidates(experiment), searched))
    drawn = {f"losses-{kind}": loss_figure(rows, kind) for kind in KINDS if any_run(rows, kind)}
    drawn |= {f"accuracy-{kind}": accuracy_figure(rows, kind) for kind in KINDS if any_run(rows, kind)}
    if rows["askew", "paper"] or rows["askew-level-first", "best"]:
        drawn["histograms"] = histogram_figure(rows)
    return Presentation(experiment.title, lead(experiment, rows), tables, drawn, verdicts(experiment, rows))


def any_run(rows: Rows, kind: Kind) -> bool:
    """Whether any method has run at this kind of schedule."""
    return any(own for (_, at), own in rows.items() if at == kind)


def table(experiment: Experiment, rows: Rows, metric: str, words_below: str, briefly: str) -> Grid:
    """The paper's value beside ours at both kinds of schedule, with the gap to full precision and n."""
    lines = []
    for contender in experiment.contenders:
        line = [contender.label, contender.values.get(metric, NONE)]
        for kind in KINDS:
            own, below = score_of(rows, contender.method, kind, metric), gap(rows, FULL, contender.method, kind, metric)
            shown = NONE if below is None else f"{below:.2f}"
            line += [cell(own, 2) if own else MISSING, shown, str(own.n) if own else "0"]
        lines.append(tuple(line))
    heads = ["method", "paper"]
    for kind in KINDS:
        heads += [HEADS[kind], "gap", "n"]
    return Grid(
        tuple(heads),
        tuple(lines),
        f"{experiment.metrics[metric].capitalize()}{made(rows)}",
        words_below,
        tuple(c.method for c in experiment.contenders),
        short=briefly,
    )


def candidates(experiment: Experiment) -> list[Candidate]:
    """The methods as the search knows them."""
    own = "epochs" in experiment.kinds.get("best", {})
    return [
        Candidate(c.label, c.method, c.method, c.paper, c.origin("paper"), c.search, own) for c in experiment.contenders
    ]
