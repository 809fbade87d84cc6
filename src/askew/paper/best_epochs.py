"""Runs at the best of their epochs, as the paper prints its own: chosen on the test images, so too high, but alike."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from askew.paper.images_common import HEADS, MISSING, Kind
from askew.paper.images_rows import Rows
from askew.report.runs import Stat, stat, unique
from askew.report.tables import NONE, Grid, cell
from askew.train.record import Record

Line = tuple[str, str, str]  # of a table: the row's key, its label, the paper's value


def best(record: Record, metric: str = "accuracy") -> tuple[float, int] | None:
    """(highest value, the first epoch that had it) of a run; None if it was never scored."""
    series = record.metrics.get(metric, {"step": [], "value": []})
    scored = [(v, -s) for s, v in zip(series["step"], series["value"], strict=True) if v is not None]
    value, epoch = max(scored, default=(None, 0))
    return None if value is None else (float(value), -int(epoch))


def best_of(rows: Rows, key: str, kind: Kind) -> Stat | None:
    """Mean and spread over the seeds, each at its best epoch."""
    return stat([found[0] for record in rows[key, kind] if (found := best(record))])


def best_epochs_table(rows: Rows, lines: Sequence[Line], kinds: Sequence[Kind], methods: Mapping[str, str]) -> Grid:
    """The paper's value beside ours at each kind of schedule; the median epoch, n. methods: of each key."""
    table = []
    for key, label, value in lines:
        line = [label, value or NONE]
        for kind in kinds:
            own = best_of(rows, key, kind)
            at = [found[1] for record in rows[key, kind] if (found := best(record))]
            line += [cell(own, 2), f"{statistics.median(at):g}", str(own.n)] if own else [MISSING, NONE, "0"]
        table.append(tuple(line))
    heads = ["method", "paper"]
    for kind in kinds:
        heads += [HEADS[kind], "epoch", "n"]
    every = unique(str(r.config["score_every"]) for own in rows.values() for r in own)
    return Grid(
        tuple(heads),
        tuple(table),
        "The same runs, each at its best epoch: test accuracy (%)",
        "As the paper prints its own. The epoch is chosen on the test images, so nobody has a net of that accuracy "
        f"without them; scored every {' or '.join(every) or '?'} epochs; epoch: the median over n seeds.",
        tuple(methods[key] for key, *_ in lines),
    )
