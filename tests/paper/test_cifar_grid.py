"""The appendix's pairs of alpha and learning rate."""

from dataclasses import replace
from pathlib import Path

import pytest
from image_trees import FakeGrid

from askew.paper import cifar_grid, cifar_grid_report, image_runs
from askew.paper.cifar_grid import PAIRS, CifarGrid
from askew.train.record import load_all


def test_pairs_are_run_as_printed_and_shown_beside_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid()
    monkeypatch.setattr(image_runs, "run_grid", grid)
    config = CifarGrid(tmp_path / "data", out=tmp_path / "results", seeds=1, epochs=10)
    cifar_grid.run(config)
    assert [(job.settings().alpha, job.settings().lr) for job in grid.asked] == list(PAIRS)
    assert {job.settings().schedule for job in grid.asked} == {"steps"} and {job.method for job in grid.asked} == {
        "askew"
    }
    cifar_grid.run(replace(config, seeds=2))
    assert len(grid.asked) == 10
    (table,) = cifar_grid_report.present(load_all(config.out)).tables
    assert table.rows[0] == ("0.5 / 0.06", "88.51", "50.00 ± 0.00", "2")
    (config.out / "cifar-grid-alpha0.4-lr0.01-0.json").unlink()
    (config.out / "cifar-grid-alpha0.4-lr0.01-1.json").unlink()
    (table,) = cifar_grid_report.present(load_all(config.out)).tables
    assert table.rows[-1] == ("0.4 / 0.01", "84.50", "not run", "0")
