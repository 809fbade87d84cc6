"""Tables hold exactly the records' numbers, in a terminal and in Markdown."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_records import run, three_methods
from rich.console import Console

from askew.report.runs import Stat, apart, by_method, mean_series, stat, summary_values
from askew.report.tables import Column, Grid, comparison, diagnosis, overview

ACCURACY = Column("accuracy", "accuracy (%)", 2)


def text(grid: Grid) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(grid.rich())
    return console.file.getvalue()


def test_stat_is_the_mean_and_the_sample_standard_deviation():
    found = stat([1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert (found.mean, found.n) == (2.5, 4)
    assert found.std == pytest.approx((5 / 3) ** 0.5)
    assert found.text(3) == "2.500 ± 1.291"


def test_stat_of_one_value_has_no_spread_and_of_none_is_none():
    one = stat([98.125])
    assert one is not None and one.std is None and one.text(1) == "98.1"
    assert stat([]) is None


def test_repeats_in_one_record_count_one_each_and_unknown_values_do_not():
    runs = [run("askew", summary={"accuracy": [90.0, None, 92.0]}), run("askew", 1, summary={"accuracy": 94.0})]
    assert summary_values(runs, "accuracy") == [90.0, 92.0, 94.0]
    assert summary_values(runs, "absent") == []


def test_methods_keep_the_order_of_the_records():
    assert list(by_method(three_methods())) == ["full-precision", "binaryconnect", "askew-level-first"]


def test_overview_rows_are_exact():
    runs = [run("full-precision", s, summary={"accuracy": a, "bits": 32.0}) for s, a in enumerate((99.0, 98.0, 97.0))]
    runs.append(run("askew-level-first", summary={"accuracy": 98.5, "bits": 1.0}))
    grid = overview(runs, [ACCURACY, Column("bits", "bits", 0, spread=False), Column("absent", "absent")])
    assert grid.heads == ("method", "accuracy (%)", "bits", "absent", "n")
    assert grid.rows == (
        ("full precision", "98.00 ± 1.00", "32", "–", "3"),
        ("ASkew, level-first", "98.50", "1", "–", "1"),
    )
    assert "98.00 ± 1.00" in text(grid)


def test_comparison_sets_the_paper_beside_ours_and_keeps_methods_not_run():
    runs = [run("askew", s, summary={"accuracy": a}) for s, a in enumerate((88.0, 90.0))]
    grid = comparison(runs, ACCURACY, {"askew": "88.98±.35", "adaste": "87.1"}, labels={"askew": "ASkew (paper)"})
    assert grid.rows == (
        ("ASkew (paper)", "88.98±.35", "89.00 ± 1.41", "2"),
        ("AdaSTE", "87.1", "–", "0"),
    )


def test_markdown_is_a_table_with_a_note():
    grid = Grid(("method", "value"), (("a|b", "1.0"),), note="Said below.")
    assert grid.markdown() == "| method | value |\n|---|---:|\n| a\\|b | 1.0 |\n\nSaid below.\n"


def test_names_are_text_not_markup():
    assert "[red]x[/red]" in text(overview([run("[red]x[/red]", summary={"accuracy": 1.0})], [ACCURACY]))


def test_a_row_of_the_wrong_width_is_refused():
    with pytest.raises(ValueError, match="2 columns"):
        Grid(("a", "b"), (("1",),))


def test_diagnosis_shows_the_last_look_and_dashes_for_the_unknown():
    grid = diagnosis(three_methods()[-1])
    assert grid.title == "ASkew, level-first, seed 1, epoch 2: capture radius 0.5"
    assert grid.heads[2:4] == ("on level", "captured")
    assert grid.rows[0] == ("conv<1>", "288", "50.00%", "75.00%", "0.1250", "0.9000", "–", "1.5e-03")
    assert grid.rows[-1] == ("all", "1,288", "100.00%", "100.00%", "0.0000", "0.0000", "1.250%", "0")
    assert grid.totals == 1


def test_series_average_over_the_steps_that_all_runs_have():
    runs = [
        run("askew", 0, metrics={"loss": {"step": [1, 2, 3], "value": [3.0, None, 1.0]}}),
        run("askew", 1, metrics={"loss": {"step": [1, 2, 3, 4], "value": [1.0, 1.0, 2.0, 9.0]}}),
    ]
    assert mean_series(runs, "loss") == ([1.0, 3.0], [2.0, 1.5], [1.0, 1.0], [3.0, 2.0])
    assert mean_series(runs, "absent") == ([], [], [], [])


def test_a_rival_has_no_constraint_to_be_feasible_in():
    run = three_methods()[-1]
    run.config["annealing"] = None
    grid = diagnosis(run)
    assert grid.title == "ASkew, level-first, seed 1, epoch 2"
    assert grid.rows[0][2:4] == ("–", "–") and grid.rows[0][7] == "–" and grid.rows[0][4] == "0.1250"


def test_words_wrap_on_a_narrow_terminal_and_a_name_is_said_once():
    grid = Grid(("method", "settings", "n"), (("one", "some words " * 9, "1"), ("one", "few", "2")), text_columns=2)
    console = Console(file=io.StringIO(), width=40)
    console.print(grid.rich())
    text = console.file.getvalue()
    assert text.count("one") == 1 and text.count("some") == 9 and text.splitlines()[-2].split() == ["few", "2"]


def test_a_table_too_wide_for_the_terminal_comes_in_pieces() -> None:
    heads = ("method", *(f"number {i}" for i in range(9)))
    grid = Grid(heads, (("a method with a name", *(f"{i}.00 (0.11–0.99)" for i in range(9))),), title="T", note="N")
    pieces = grid.pieces(80)
    assert [p.title for p in pieces] == ["T"] + [""] * (len(pieces) - 1)
    assert [p.note for p in pieces] == [""] * (len(pieces) - 1) + ["N"]
    assert all(p.heads[0] == "method" and p.rows[0][0] == "a method with a name" for p in pieces)
    assert tuple(head for p in pieces for head in p.heads[1:]) == heads[1:]
    for piece in pieces:
        out = io.StringIO()
        Console(file=out, width=80).print(piece.rich())
        shown = out.getvalue()
        assert max(map(len, shown.splitlines())) <= 80
        assert all(cell in shown for cell in piece.rows[0][1:])
        assert "a method" in shown
    assert grid.pieces(500) == [grid]


def test_a_diagnosis_of_large_layers_fits_80_columns() -> None:
    """Every column is there, in pieces if need be."""
    run = three_methods()[-1]
    looked = run.metrics["diagnosis"]["value"][-1]
    looked["layers"] = [looked["layers"][0] | {"name": "stages.0.0.shortcut.conv.weight", "size": 1_179_648}]
    console = Console(file=io.StringIO(), width=80)
    console.print(diagnosis(run).fitted(console.width))
    text = console.file.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert all(word in text for word in ("1,179,648", "50.00%", "75.00%", "0.1250", "0.9000", "1.5e-03", "residual"))


def test_a_table_that_just_fits_is_not_cut() -> None:
    grid = Grid(("layer", "a", "b"), (("x" * 10, "1" * 5, "2" * 5),))
    console = Console(file=io.StringIO(), width=1 + 10 + 2 + 5 + 2 + 5)
    assert len(grid.pieces(console.width)) == 1 and len(grid.pieces(console.width - 1)) == 2
    console.print(grid.fitted(console.width))
    assert "2" * 5 in console.file.getvalue() and "1" * 5 in console.file.getvalue()


def test_how_far_two_means_lie_apart_and_how_far_to_trust_it():
    assert apart(Stat(89.5, 0.3, 4), Stat(89.0, 0.4, 4)) == "0.50 points (standard error 0.25)"
    assert apart(Stat(89.0, 0.3, 4), Stat(89.4, 0.4, 4)) == "0.40 points (standard error 0.25: chance may explain it)"
    assert apart(Stat(89.5, None, 1), Stat(89.0, 0.4, 4)) == "0.50 points (one seed)"


def test_a_readme_leaves_out_what_has_not_run_and_names_it() -> None:
    rows = (("one", "50 ± 1", "40.0", "3"), ("two", "60 ± 1", "not run", "0"), ("three", "–", "41.0", "1"))
    grid = Grid(("method", "paper", "ours", "n"), rows, note="All that there is to say.", keys=("a", "b", "c"))
    brief = grid.brief("there")
    assert (brief.rows, brief.keys) == ((rows[0], rows[2]), ("a", "c"))
    assert brief.note == "All that there is to say. Not run yet: two."
    shorter = replace(grid, rows=(rows[0], rows[2]), keys=("a", "c"), short="Little.").brief("there")
    assert shorter.rows == (rows[0], rows[2]) and shorter.note == "Little. More: there."
    twice = Grid(("method", "paper", "n", "best", "n"), (("one", "40.0", "2", "–", "0"), ("two", "–", "0", "–", "0")))
    assert [row[0] for row in twice.brief("there").rows] == ["one"]
    assert Grid(("method", "loss"), (("one", "0"),)).brief("there").rows == (("one", "0"),)
