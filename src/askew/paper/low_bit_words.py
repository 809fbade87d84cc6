"""What a table of few bits says: its rows' records, checked, their scores, and the sentences made of them."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper.images_common import KINDS, Kind, Settings
from askew.paper.images_rows import Place, gathered
from askew.paper.images_rows import Rows as Runs
from askew.paper.images_words import data_words, net_words
from askew.paper.low_bit import FULL, LowBit
from askew.report.runs import Stat, apart, stat, summary_values, unique
from askew.train.record import Record


def runs_of(table: LowBit, records: Sequence[Record]) -> Runs:
    """The records of each row at each kind of schedule, seed by seed, made with the row's settings."""
    settings: dict[Place, Settings] = {
        (row.key, kind): table.settings(row, kind) or {} for row in table.rows for kind in KINDS
    }
    return gathered(table.name, "row", settings, records)


def score(runs: Runs, key: str, kind: Kind) -> Stat | None:
    """Mean and spread over the seeds that have been run."""
    return stat(summary_values(runs[key, kind], "accuracy"))


def gap(runs: Runs, key: str, kind: Kind) -> float | None:
    """Full precision (weights and activations) at the same kind of schedule minus this row."""
    full, own = score(runs, FULL, kind), score(runs, key, kind)
    return full.mean - own.mean if full and own and key != FULL else None


def note(table: LowBit, runs: Runs, how: str) -> str:
    """What the numbers mean and how the settings of the best schedule were chosen."""
    shown = data_words([r.config for own in runs.values() for r in own])
    lessons = sorted({row.taught for row in table.rows if row.taught})
    taught = f" Taught: by full precision's net of the same seed, {_parts(lessons)} of the loss." if lessons else ""
    printed = " (the paper prints its best epoch)" if any(row.value for row in table.rows) else ""
    papers = f" Paper's schedule: {table.schedule}." if "paper" in table.runs_at else ""
    starred = " *: from the literature, as the paper prints it; not run here." if table.literature else ""
    return (
        f"{shown + '. ' if shown else ''}After the last epoch, weights on their levels, BatchNorm and activation "
        f"scales re-estimated on training images; mean ± sample standard deviation over n seeds{printed}. Levels: of "
        f"one weight. Gap: full precision at the same kind of schedule minus this.{papers} Best schedule: cosine, "
        f"settings {how}.{taught}{starred}"
    )


def _parts(shares: Sequence[float]) -> str:
    return " or ".join(f"{100 * share:g}%" for share in shares)


def norm_words(table: LowBit) -> str:
    """What a table's nets have besides their weights."""
    rows = [row for row in table.rows if row.method != "full-precision"]
    learnt = "a learnt scale and bias for each channel"
    if table.base.get("affine"):
        return f"no biases but those of BatchNorm, which has {learnt}"
    if all(row.search and row.search.winner.get("affine") for row in rows):
        return f"no biases but those of BatchNorm, which has {learnt}, full precision's without affine"
    return "no biases, BatchNorm without affine"


def lead(table: LowBit, runs: Runs) -> str:
    """What is compared, in a paragraph."""
    some = [r.config for own in runs.values() for r in own]
    left = ", ".join(unique(layer for c in some for layer in c["skip"]))
    return (
        f"The same net ({net_words(some)}; {norm_words(table)}) at several widths of "
        "weights (W) and activations (A), trained with Adam, for each seed from the same initial weights"
        f"{'; in full precision stays ' + left if left else ''}. {len(some)} runs so far."
    )


def verdicts(table: LowBit, runs: Runs) -> list[str]:
    """At each width: the gap of the best form of level-first, and its place among the others, whichever way it went.

    Rows with a teacher are compared with one another.
    """
    groups = unique((row.widths, row.taught is not None) for row in table.rows)
    return [text for widths, taught in groups for text in _verdict(table, runs, widths, taught)]


def _verdict(table: LowBit, runs: Runs, widths: str, taught: bool) -> list[str]:
    here = [row for row in table.rows if row.widths == widths and (row.taught is not None) == taught]
    ours = [(own, row) for row in here if row.ours and (own := score(runs, row.key, "best"))]
    if not ours:
        return []
    top, row = max(ours, key=lambda one: one[0].mean)
    below = gap(runs, row.key, "best")
    place = "" if below is None else f", {abs(below):.2f} points {'below' if below >= 0 else 'above'} full precision"
    picked = f" (the highest of {len(ours)} forms of level-first here)" if len(ours) > 1 else ""
    text = f"{row.label} scores {top.mean:.2f}%{picked} at its best schedule{place}."
    found = [(score(runs, row.key, kind), row.label) for row in here if not row.ours for kind in KINDS]
    rivals = [(own, label) for own, label in found if own]
    if rivals:
        best, nearest = max(rivals, key=lambda one: one[0].mean)
        others = f"every other {'taught ' if taught else ''}method at these widths"
        verb = f"ahead of {others}, the nearest being" if top.mean > best.mean else "NOT ahead of"
        text += f" It is {verb} {nearest}, by {apart(top, best)}."
    return [text]
