"""The training benchmark measures every method, and its table says what its record holds."""

import pytest

from askew.bench.training import REFERENCE, TrainBench, run
from askew.bench.training_report import present
from askew.train.record import load_all


def test_record_and_table(tmp_path):
    config = TrainBench(
        methods=("binaryconnect", "askew-level-first"), rounds=2, steps=2, batch=4, width=4, device="cpu", out=tmp_path
    )
    run(config)
    (record,) = load_all(tmp_path)
    facts = record.summary
    assert list(facts) == [REFERENCE, "binaryconnect", "askew-level-first"]
    assert facts[REFERENCE]["ratio"] == 1
    for method, fact in facts.items():
        assert len(record.extra["seconds"][method]) == 2
        assert fact["epochs_per_second"] * fact["step_seconds"] * (50_000 // 4) == pytest.approx(1, rel=1e-5)
        assert fact["peak_bytes"] > 0
    (grid,) = present([record]).tables
    assert len(grid.rows) == 3
    assert f"{facts['binaryconnect']['ratio']:.3f}" in grid.rows[1][1]


def test_too_few_rounds():
    with pytest.raises(ValueError, match="rounds must be at least 2"):
        TrainBench(rounds=1)
