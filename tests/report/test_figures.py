"""Figures render, are labelled, leave no state behind, and their colours are fit to read."""

from __future__ import annotations

import re
import sys
from itertools import pairwise

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from report_records import run, three_methods

from askew.report.figures import Curve, _pooled, accuracies, arrival, curves, save, svg, weight_histograms
from askew.report.style import DARK_GROUND, LIGHT_GROUND, LOOKS, look


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("method", LOOKS)
def test_colours_are_readable_on_light_and_dark(method):
    assert contrast(look(method).colour, LIGHT_GROUND) >= 3
    assert contrast(look(method).colour, DARK_GROUND) >= 3


def test_every_method_looks_different_without_colour():
    assert len({style.marker for style in LOOKS.values()}) == len(LOOKS)
    assert len({style.label for style in LOOKS.values()}) == len(LOOKS)


def test_an_unknown_method_keeps_its_name():
    assert look("mine").label == "mine"


def test_curves_have_a_line_a_method_and_labels():
    figure = curves(three_methods(), Curve("epoch_loss", "loss (nats)", log=True))
    axes = figure.axes[0]
    assert [line.get_label() for line in axes.lines] == [
        look(m).label for m in ("full-precision", "binaryconnect", "askew-level-first")
    ]
    assert list(axes.lines[0].get_ydata()) == [1.5, 0.5]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("epoch", "loss (nats)", "log")


def test_accuracies_show_every_seed_and_equal_ones_side_by_side():
    runs = [run("askew", s, summary={"accuracy": 98.0}) for s in range(3)]
    points = accuracies(runs, "accuracy", "accuracy (%)").axes[0].collections[0].get_offsets()
    assert len({tuple(p) for p in points.tolist()}) == 3


def test_no_accuracy_above_a_hundred_per_cent_is_on_the_axis():
    shown = accuracies([run("askew", 0, summary={"accuracy": 99.0})], "accuracy", "accuracy (%)").axes[0]
    low, high = shown.get_xlim()
    assert 90 < low < 99 < high <= 100.5
    free = accuracies([run("askew", 0, summary={"seconds": 150.0})], "seconds", "seconds").axes[0]
    assert free.get_xlim()[1] > 150


@pytest.mark.parametrize("lowest", [0.9, 0.05, 0.001, 1e-6])
def test_labels_of_a_long_logarithmic_axis_do_not_overlap(lowest):
    made = run("askew", 0)
    made.metrics["epoch_loss"] = {"step": [1, 2, 3], "value": [2.0, (2 * lowest) ** 0.5, lowest]}
    figure = curves([made], Curve("epoch_loss", "loss", log=True))
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    boxes = [
        t.get_window_extent() for t in axes.get_yticklabels() if t.get_text() and low <= t.get_position()[1] <= high
    ]
    boxes.sort(key=lambda box: box.y0)
    assert len(boxes) >= 3 and all(a.y1 <= b.y0 for a, b in pairwise(boxes))


def test_arrival_shows_parts_in_per_cent():
    axes = arrival(three_methods()[-1]).axes[0]
    assert {line.get_label(): list(line.get_ydata()) for line in axes.lines} == {
        "captured": [100.0, 100.0],
        "on a level": [100.0, 100.0],
    }
    assert axes.get_ylabel() == "share of weights (%)"


def test_histograms_pool_layers_and_seeds_into_shares():
    pooled = _pooled(three_methods()[-2:])
    assert pooled == {0: ([-1.0, 0.0, 1.0], [40.0, 60.0]), 2: ([-1.0, 0.0, 1.0], [40.0, 60.0])}
    figure = weight_histograms(three_methods()[-2:])
    assert [axes.get_title("left") for axes in figure.axes] == ["epoch 0", "epoch 2"]


def test_histograms_of_different_bins_do_not_mix():
    runs = three_methods()[-2:]
    runs[0].extra["histograms"][0]["edges"] = [-2.0, 0.0, 2.0]
    with pytest.raises(ValueError, match="different bins"):
        weight_histograms(runs)


def test_svg_is_an_element_of_the_page_with_ids_of_its_own():
    text = svg(curves(three_methods(), Curve("accuracy", "accuracy (%)")), "one")
    assert text.startswith("<svg ") and text.endswith("</svg>")
    assert "http" not in text and "xlink" not in text and "<metadata" not in text
    ids = set(re.findall(r'\bid="([^"]+)"', text))
    assert ids and all(i.startswith("one-") for i in ids)
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', text)) <= ids
    assert "currentColor" in text
    assert not re.search(r"<svg[^>]*\b(width|height)=", text)


def test_drawing_leaves_no_state_and_no_pyplot(tmp_path):
    before = dict(mpl.rcParams)
    figure = accuracies(three_methods(), "accuracy", "accuracy (%)")
    svg(figure, "x")
    save(figure, tmp_path / "x.png")
    assert dict(mpl.rcParams) == before
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []
