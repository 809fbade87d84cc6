"""Figures of runs on images show what the records hold."""

from __future__ import annotations

import pytest

from askew.report.image_figures import epoch_curves, histogram_rows
from askew.train.record import Record

EDGES = [-1.0, 0.0, 1.0]


def run(method: str, seed: int, losses: list[float]) -> Record:
    record = Record("cifar-w1", method, {"method": method}, seed, environment={})
    for epoch, loss in enumerate(losses, start=1):
        record.log(epoch, epoch_loss=loss)
    layers = {"first": [30, 10], "others": [10, 50]}
    record.extra["histograms"] = [{"epoch": e, "edges": EDGES, "layers": layers} for e in (1, 4)]
    return record


def test_a_line_is_the_mean_over_seeds_and_marks_stand_at_their_epochs() -> None:
    groups = {
        "askew": [run("askew", 0, [4, 3, 2, 1]), run("askew", 1, [2, 1, 0, 1])],
        "parq": [run("parq", 0, [1] * 4)],
    }
    (axes,) = epoch_curves(groups, "epoch_loss", "loss", {2: "mark"}).axes
    assert axes.lines[0].get_ydata().tolist() == [3, 2, 1, 1]  # pyright: ignore
    assert list(axes.lines[2].get_xdata()) == [2, 2] and axes.texts[0].get_text() == "mark"  # pyright: ignore
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ASkew, as in the paper", "PARQ"]


def test_one_epoch_is_a_marker() -> None:
    """A line of one point would be nothing to see."""
    for losses, marker in (([4.0], "P"), ([4.0, 3.0], "None")):
        (axes,) = epoch_curves({"askew": [run("askew", 0, losses)]}, "epoch_loss", "loss").axes
        assert axes.lines[0].get_marker() == marker


def test_the_axis_may_show_the_second_half_only() -> None:
    (axes,) = epoch_curves({"askew": [run("askew", 0, [100, 3, 2, 1])]}, "epoch_loss", "loss", later=True).axes
    assert axes.get_ylim() == pytest.approx((0.8, 3.2))


def test_histograms_have_a_row_a_method_and_a_column_an_epoch() -> None:
    figure = histogram_rows({"askew": [run("askew", 0, []), run("askew", 1, [])], "parq": [run("parq", 0, [])]})
    assert len(figure.axes) == 4 and [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["epoch 1", "epoch 4"]
    first, whole = figure.axes[0].patches
    assert list(first.get_data().values) == pytest.approx([75, 25])  # pyright: ignore
    assert list(whole.get_data().values) == pytest.approx([40, 60])  # pyright: ignore


def test_nothing_to_draw_and_bins_that_differ() -> None:
    bare = run("askew", 0, [])
    bare.extra.clear()
    assert histogram_rows({"askew": [bare]}).axes == []
    other = run("askew", 1, [])
    other.extra["histograms"][0]["edges"] = [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="different bins"):
        histogram_rows({"askew": [run("askew", 0, []), other]})
