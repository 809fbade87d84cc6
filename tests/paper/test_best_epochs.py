"""Runs at their best epochs, gaps over the seeds that both have, and what is said of them."""

from __future__ import annotations

import pytest

from askew.paper.best_epochs import best, best_epochs_table, best_of
from askew.paper.images_rows import Rows, gap
from askew.paper.images_words import best_words, gap_words
from askew.report.runs import Stat
from askew.train.record import Record

LINES = [("full-precision", "full precision", "56.46"), ("parq", "PARQ", "")]


def run(method: str, seed: int, *curve: float | None) -> Record:
    """A run scored every 5 epochs."""
    record = Record("made-up", method, {"score_every": 5}, seed, environment={})
    for turn, value in enumerate(curve, start=1):
        record.log(5 * turn, accuracy=value)
    record.summary["accuracy"] = curve[-1]
    return record


@pytest.fixture
def rows() -> Rows:
    full = [run("full-precision", 0, 40.0, 43.0, 42.0), run("full-precision", 1, 41.0, 45.0, 46.0)]
    others = [run("parq", 1, 44.0, None, 45.0)]
    return {("full-precision", "best"): full, ("parq", "best"): others, ("parq", "paper"): []}


def test_the_best_epoch_is_the_first_with_the_highest_score() -> None:
    assert best(run("parq", 0, 1.0, 3.0, None, 3.0, 2.0)) == (3.0, 10)
    assert best(run("parq", 0, None)) is None
    assert best(Record("made-up", "parq", {}, 0, environment={})) is None


def test_the_table_shows_what_the_paper_prints_beside_it(rows: Rows) -> None:
    assert best_of(rows, "full-precision", "best") == Stat(44.5, pytest.approx(1.5 * 2**0.5), 2)
    grid = best_epochs_table(rows, LINES, ["best"], {key: key for key, *_ in LINES})
    assert grid.rows[0][1:] == ("56.46", "44.50 ± 2.12", "12.5", "2")
    assert grid.rows[1] == ("PARQ", "–", "45.00", "15", "1")
    assert "scored every 5 epochs" in grid.note
    empty = best_epochs_table(rows, LINES[1:], ["paper"], {"parq": "parq"})
    assert empty.rows[0] == ("PARQ", "–", "not run", "–", "0")


def test_a_gap_is_over_the_seeds_that_both_have(rows: Rows) -> None:
    """PARQ's only seed is 1, where full precision has 46, not its mean of 44."""
    assert gap(rows, "full-precision", "parq", "best") == pytest.approx(1.0)
    assert gap(rows, "full-precision", "full-precision", "best") is None
    rows["parq", "best"] = [run("parq", 7, 45.0)]
    assert gap(rows, "full-precision", "parq", "best") is None


def test_more_than_full_precision_is_no_feat() -> None:
    assert gap_words(0.5) == "0.50 points below full precision"
    assert gap_words(-0.5).startswith("0.50 points above full precision, which is then no measure")


def test_the_best_epochs_are_compared_whichever_way_it_goes() -> None:
    ours = Stat(45.0, None, 1)
    assert "NOT ahead of ProxQuant, by 1.25 points" in best_words(ours, {"ProxQuant": Stat(46.25, None, 1)})
    assert "ahead of every other method, the nearest being PARQ" in best_words(ours, {"PARQ": Stat(41.0, None, 1)})
