"""Logistic regression: ASkew ends on full precision, stochastic BinaryConnect above it."""

import statistics
from pathlib import Path

import pytest

from askew.data.toy import logistic
from askew.paper import logistic_report
from askew.paper.logistic import ENTRIES, SETTINGS, LogisticRegression, run, train
from askew.paper.logistic_report import excess


def test_final_losses_at_batch_1000() -> None:
    data = logistic(6, seed=3)
    batch, epochs = SETTINGS["batch-1000"]
    runs = {e.key: train(e, "batch-1000", data, batch, epochs, 3) for e in ENTRIES}
    ours, annealed, bc = (
        statistics.fmean(excess(runs[key], runs["fp"], "train_loss")) for key in ("askew", "level-first", "bc")
    )
    assert abs(ours) < 2 and abs(annealed) < 2
    assert bc > max(ours, annealed)
    assert runs["level-first"].extra["diagnosis"]["overall"]["distance_max"] == 0
    assert statistics.fmean(runs["level-first"].summary["right_signs"]) == 1
    assert runs["fp"].summary["snapped_train_loss"] == pytest.approx(runs["fp"].summary["train_loss"])


def test_whole_experiment_makes_tables_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "batch-1000", (1000, 2))
    monkeypatch.setitem(SETTINGS, "batch-1000-long", (1000, 2))
    monkeypatch.setitem(SETTINGS, "batch-100-long", (3000, 2))
    records = run(LogisticRegression(out=tmp_path, repeats=2))
    shown = logistic_report.present(records)
    assert len(shown.tables) == len(shown.figures) == len(shown.verdicts) == 3
    assert len(list(tmp_path.glob("*.json"))) == 3 * len(ENTRIES)
