"""What a table of few bits says: its rows' records, checked, their scores, and the sentences made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from askew.paper.best_epochs import best_of
from askew.paper.images_common import KINDS, Kind, Settings
from askew.paper.images_rows import Place, gap, gathered, score_of
from askew.paper.images_rows import Rows as Runs
from askew.paper.images_words import GAP, best_words, data_words, gap_words, net_words, place_words
from askew.paper.low_bit import FULL, LowBit, Row, named
from askew.report.runs import Stat, so_far, unique
from askew.train.record import Record


def runs_of(table: LowBit, records: Sequence[Record]) -> Runs:
    """The records of each row at each kind of schedule, seed by seed, made with the row's settings."""
    settings: dict[Place, Settings] = {
        (row.key, kind): table.settings(row, kind) or {} for row in table.rows for kind in KINDS
    }
    return gathered(table.name, "row", settings, records)


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
        f"one weight. {GAP}.{papers} Best schedule: cosine, "
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
    some = unique(named(row.widths) for row in table.rows if row.search and row.search.winner.get("affine"))
    return "no biases, BatchNorm without affine" + (f", but at {' and '.join(some)} with {learnt}" if some else "")


def lead(table: LowBit, runs: Runs) -> str:
    """What is compared, in a paragraph."""
    some = [r.config for own in runs.values() for r in own]
    left = ", ".join(unique(layer for c in some for layer in c["skip"]))
    return (
        f"The same net ({net_words(some)}; {norm_words(table)}) at several widths of "
        "weights (W) and activations (A), trained with Adam, for each seed from the same initial weights"
        f"{'; in full precision stays ' + left if left else ''}. {so_far(len(some))}."
    )


def verdicts(table: LowBit, runs: Runs) -> list[str]:
    """At each width: the gap of the best form of level-first, and its place among the others, whichever way it went.

    Rows with a teacher are compared with one another.
    """
    groups = unique((row.widths, row.taught is not None) for row in table.rows)
    return [text for widths, taught in groups for text in _verdict(table, runs, widths, taught)]


def _verdict(table: LowBit, runs: Runs, widths: str, taught: bool) -> list[str]:
    here = [row for row in table.rows if row.widths == widths and (row.taught is not None) == taught]
    ours = [(own, row) for row in here if row.ours and (own := score_of(runs, row.key, "best"))]
    if not ours:
        return []
    top, row = max(ours, key=lambda one: one[0].mean)
    below = gap(runs, FULL, row.key, "best")
    place = "" if below is None else f", {gap_words(below)}"
    picked = f" (the highest of {len(ours)} forms of level-first here)" if len(ours) > 1 else ""
    text = f"{row.label} scores {top.mean:.2f}%{picked} at its best schedule{place}."
    others = f"every other {'taught ' if taught else ''}method at these widths"
    if rivals := _highest(here, lambda key, kind: score_of(runs, key, kind)):
        text += f" It is {place_words(top, rivals, others)}."
    heights, height = _highest(here, lambda key, kind: best_of(runs, key, kind)), best_of(runs, row.key, "best")
    return [f"{text} {best_words(height, heights, others)}" if heights and height else text]


def _highest(rows: Sequence[Row], scored: Callable[[str, Kind], Stat | None]) -> dict[str, Stat]:
    """Each rival by its label, at the kind of schedule where it scores higher."""
    out: dict[str, Stat] = {}
    for row in rows:
        found = [] if row.ours else [own for kind in KINDS if (own := scored(row.key, kind))]
        out |= {row.label: max(found, key=lambda own: own.mean)} if found else {}
    return out
