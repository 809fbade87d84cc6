"""The bars: what they say of a run, how far they are, and what they expect of the rest."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from askew.report.live import Bars, GridBars, Lines, Status, describe


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def test_a_bar_says_all_that_is_known() -> None:
    status = Status(50, 100, 5, 10, 0.4213, 88.06, "eps", 0.00589, 0.973)
    assert describe(status) == "epoch  5/10 · loss 0.421 · accuracy 88.1% · eps 0.0059 · feasible  97%"
    assert describe(status, short=True) == "loss 0.421 acc 88.1% eps 0.0059 on  97%"
    assert describe(Status(1, 100, 1, 10)) == "epoch  1/10"
    assert describe(Status(1, 2, 1, 1, symbol="radius", value=0.5)).endswith("radius 0.50")


def test_a_bar_goes_over_the_runs_of_a_method() -> None:
    with Bars(console()) as bars:
        bars.add("askew", runs=2)
        bars.show("askew", Status(5, 10, 1, 2))
        task = bars._progress.tasks[0]
        assert task.completed == 0.5 and task.total == 2
        bars.finish("askew", "accuracy 90%")
        bars.show("askew", Status(1, 10, 1, 2))
        assert task.completed == pytest.approx(1.1)
        bars.finish("askew", "accuracy 91%")
        assert task.finished and "91%" in task.fields["numbers"]


def test_a_resumed_run_is_not_taken_for_a_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time left comes from the steps that were seen: one a second."""
    clock = [0.0]
    with Bars(console()) as bars:
        monkeypatch.setattr(bars._progress, "get_time", lambda: clock[0])
        bars.add("askew")
        task = bars._progress.tasks[0]
        task._get_time = lambda: clock[0]
        for step in range(81, 91):
            bars.show("askew", Status(step, 100, 9, 10))
            clock[0] += 1
        assert task.time_remaining == pytest.approx(10, abs=2)


def test_a_grid_has_a_bar_for_all_and_one_for_each_run_under_way() -> None:
    with GridBars(console()) as bars:
        for name in ("a", "b", "c"):
            bars(name, Status(0, 1, 0, 5))
        bars("d", Status(1, 1, 5, 5, accuracy=80.0))
        (whole,) = bars._progress.tasks
        assert whole.total == 4 and whole.completed == 1 and whole.fields["numbers"] == "1 of 4 runs done"
        bars("a", Status(5, 10, 3, 5, loss=0.5))
        bars("b", Status(2, 10, 1, 5))
        assert [task.description for task in bars._progress.tasks] == ["all runs", "a", "b"]
        assert whole.completed == pytest.approx(1.7)
        assert "loss 0.500" in bars._progress.tasks[1].fields["numbers"]
        bars("a", Status(10, 10, 5, 5))
        bars("a", Status(10, 10, 5, 5, accuracy=81.0))  # after the last score
        assert [task.description for task in bars._progress.tasks] == ["all runs", "b"]
        assert whole.fields["numbers"] == "2 of 4 runs done"


def test_bars_of_a_grid_leave_out_what_all_names_share_and_on_a_narrow_terminal_more() -> None:
    with GridBars(Console(file=io.StringIO(), width=80)) as bars:
        for name in ("cifar-w1-askew-paper-seed0", "cifar-w1-askew-level-first-best-seed0"):
            bars(name, Status(0, 1, 0, 5))
        bars("cifar-w1-askew-level-first-best-seed0", Status(5, 10, 3, 5, 0.5, 80.0, "radius", 0.3, 0.4))
        task = bars._progress.tasks[1]
        assert task.description == "level-first-best-seed0" and task.fields["numbers"] == "loss 0.500 acc 80.0%"
    with GridBars(console()) as bars:
        bars("cifar-w1-askew-paper-seed0", Status(1, 10, 1, 5))
        assert bars._progress.tasks[1].description == "cifar-w1-askew-paper-seed0"  # alone: its whole name


def test_a_file_gets_a_line_an_epoch_as_the_run_goes() -> None:
    out = io.StringIO()
    with Bars(Console(file=out, width=80)) as bars:
        bars.add("askew")
        for step in range(1, 5):
            bars.show("askew", Status(step, 6, 1 + (step - 1) // 2, 3, loss=1.0 / step))
        bars.show("askew", Status(4, 6, 2, 3, loss=0.2, accuracy=50.0))  # after the look at the epoch's end
        assert [line.split(" · ")[:2] for line in out.getvalue().splitlines()] == [
            ["ASkew, as in the paper: epoch 1/3", "loss 0.500"]
        ]
        bars.show("askew", Status(5, 6, 3, 3, loss=0.2, accuracy=50.0))
        assert "epoch 2/3 · loss 0.200 · accuracy 50.0%" in out.getvalue()
        bars.finish("askew", "accuracy 51.00%")
    lines = out.getvalue().splitlines()
    assert len(lines) == 3 and "epoch 3/3" in lines[-1] and "done: accuracy 51.00%" in lines[-1]


def test_a_long_epoch_is_not_silent_and_a_terminal_gets_no_lines() -> None:
    clock = [0.0]
    for terminal in (False, True):
        out = io.StringIO()
        lines = Lines(Console(file=out, width=80, force_terminal=terminal), lambda: clock[0])
        for step in range(1, 11):
            clock[0] += 10
            lines.show("run", Status(step, 100, 1, 3))
        assert out.getvalue().count("epoch 1/3") == (0 if terminal else 3)


def test_a_grid_in_a_file_tells_of_the_runs_that_end() -> None:
    out = io.StringIO()
    with GridBars(Console(file=out, width=80)) as bars:
        bars("a", Status(0, 1, 0, 5))
        bars("b", Status(1, 1, 5, 5, accuracy=80.0))  # finished before
        for step in range(1, 11):
            bars("a", Status(step, 10, (step + 1) // 2, 5))
        bars("a", Status(10, 10, 5, 5, accuracy=81.0))
    (line,) = out.getvalue().splitlines()
    assert line.startswith("a: ") and "2 of 2 runs done" in line


def test_a_terminal_gets_bars_and_no_lines() -> None:
    out = io.StringIO()
    with Bars(Console(file=out, width=160, force_terminal=True)) as bars:
        bars.add("askew")
        for step in range(1, 5):
            bars.show("askew", Status(step, 4, step, 4, loss=0.5))
        bars.finish("askew", "accuracy 51.00%")
    assert "━" in out.getvalue() and "accuracy 51.00%" in out.getvalue() and " s\n" not in out.getvalue()
