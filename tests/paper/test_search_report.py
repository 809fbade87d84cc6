"""The search as its records show it: what was tried, what is in use, and whether the one is the best of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from askew.paper.images_common import Search, Settings, search_key
from askew.paper.search_report import Candidate, chosen_briefly, chosen_how, settings_table, with_held_out
from askew.report.tables import Grid
from askew.train.record import Record

TRIED = ({"lr": 0.01}, {"lr": 0.03})


LONG = tuple({**one, "epochs": 100} for one in TRIED)


def candidate(chosen: int = 0, method: str = "luq", settings: Sequence[Settings] = TRIED) -> Candidate:
    return Candidate(method.upper(), method, method, {"lr": 0.06}, "tuned", Search(tuple(settings), chosen))


def tried(settings: Settings, accuracy: float, method: str = "luq", seed: int = 0) -> Record:
    config = {"key": search_key(method, settings), "holdout": 500, "epochs": settings.get("epochs", 40)}
    return Record("made-up-search", method, config, seed, summary={"accuracy": accuracy}, environment={})


FOUND = [tried(TRIED[0], 50.0), tried(TRIED[1], 60.0)]


def test_without_records_nothing_is_said_to_be_searched() -> None:
    assert chosen_how([candidate()], [], "by hand") == "by hand"
    grid = settings_table([candidate()], [])
    assert "No search was run." in grid.note and {row[3] for row in grid.rows} == {"–"}


def test_the_best_of_the_search_is_simply_chosen() -> None:
    how = chosen_how([candidate(1)], FOUND, "by hand")
    assert how == "chosen by one run of 40 epochs each on 500 held-out training images; settings tried: LUQ 2"
    rows = settings_table([candidate(1)], FOUND).rows
    assert rows == (
        ("LUQ", "lr 0.06", "paper's schedule (tuned)", "–"),
        ("LUQ", "lr 0.01", "", "50.00"),
        ("LUQ", "lr 0.03", "best schedule", "60.00"),
    )


def test_a_setting_tried_with_several_seeds_has_their_mean() -> None:
    more = [*FOUND, tried(TRIED[0], 54.0, seed=1)]
    assert "chosen by 1 to 2 runs of 40 epochs each" in chosen_how([candidate(1)], more, "by hand")
    assert [row[3] for row in settings_table([candidate(1)], more).rows[1:]] == ["52.00 ± 2.83", "60.00"]
    assert chosen_how([candidate(0)], more, "").split("; ")[1] == "not the best found there: LUQ (52.00 against 60.00)"
    assert "by 2 runs of" in chosen_how([candidate(1)], [*more, tried(TRIED[1], 61.0, seed=1)], "")


def test_a_setting_in_use_that_lost_the_search_is_named() -> None:
    how = chosen_how([candidate(0)], FOUND, "by hand")
    assert how.endswith("not the best found there: LUQ (50.00 against 60.00); settings tried: LUQ 2")
    assert "LUQ (the one in use: not tried)" in chosen_how([candidate(0)], FOUND[1:], "by hand")


def test_methods_without_a_search_are_named() -> None:
    how = chosen_how([candidate(1), candidate(method="lsq")], FOUND, "by hand")
    assert (
        how
        == "chosen by one run of 40 epochs each on 500 held-out training images (LSQ: by hand); settings tried: LUQ 2"
    )


def test_settings_still_to_be_run_do_not_count_as_tried() -> None:
    assert chosen_how([candidate(1)], FOUND[1:], "by hand").endswith("; settings tried: LUQ 1 of 2")


def test_trials_are_compared_with_trials_of_their_length() -> None:
    both, found = (*TRIED, *LONG), [*FOUND, tried(LONG[0], 45.0), tried(LONG[1], 44.0)]
    used = candidate(2, settings=both)
    assert used.search and used.search.winner == {"lr": 0.01}
    how = "chosen by one run of 40 or 100 epochs each on 500 held-out training images"
    assert chosen_how([used], found, "by hand") == f"{how}; settings tried: LUQ 4"
    assert "LUQ (44.00 against 45.00)" in chosen_how([candidate(3, settings=both)], found, "by hand")
    assert "LUQ (the one in use: not tried)" in chosen_how([used], [*FOUND, found[3]], "by hand")
    rows = settings_table([used], found).rows
    assert [row[1] for row in rows if row[2] == "best schedule"] == ["lr 0.01, epochs 100"]


def test_a_setting_from_shorter_trials_is_named_once_there_are_longer_ones() -> None:
    how = chosen_how([candidate(1, settings=(*TRIED, *LONG))], [*FOUND, tried(LONG[0], 45.0)], "by hand")
    assert "LUQ (from the shorter trials; the best of the longer ones has 45.00)" in how


def test_words_stand_left_and_numbers_right() -> None:
    assert settings_table([candidate()], []).markdown().splitlines()[1] == "|---|---|---|---:|"


def test_in_short_it_says_in_how_many_rows_the_search_did_not_choose() -> None:
    how = "chosen by one run of 40 epochs each on 500 held-out training images"
    assert chosen_briefly([candidate(1)], [], "by hand") == "by hand"
    assert chosen_briefly([candidate(1)], FOUND, "by hand") == how
    rows = [candidate(0), candidate(1, method="lsq")]
    assert chosen_briefly(rows, FOUND, "by hand") == f"{how} (not so in 2 of 2 rows)"
    assert chosen_briefly([candidate(1), rows[1]], FOUND, "by hand") == f"{how} (not so in 1 of 2 rows)"


def test_where_the_table_is_as_long_as_the_shorter_trials_all_trials_count() -> None:
    both, found = (*TRIED, *LONG), [*FOUND, tried(LONG[0], 45.0), tried(LONG[1], 65.0)]
    used = replace(candidate(1, settings=both), as_long=True)
    assert used.overruled(found[:3]) == ""
    assert used.overruled(found) == "LUQ (60.00 against 65.00)"


def test_the_trial_of_the_setting_in_use_stands_beside_the_table() -> None:
    grid = Grid(("method", "n"), (("LUQ", "0"), ("LSQ", "0"), ("from a book *", "–")), note="All.", short="Little.")
    both = [candidate(1), candidate(method="lsq")]
    assert with_held_out(grid, both, []) is grid
    shown = with_held_out(grid, both, FOUND)
    assert shown.heads == ("method", "n", "held-out")
    assert shown.rows == (("LUQ", "0", "60.00"), ("LSQ", "0", "–"), ("from a book *", "–", "–"))
    for text, start in ((shown.note, "All."), (shown.short, "Little.")):
        assert text == f"{start} Held-out: the setting of the best schedule in the search, one run."
    brief = shown.brief("there")
    assert [row[0] for row in brief.rows] == ["LUQ", "from a book *"] and "Not run yet: LSQ." in brief.note
