"""The one-bit table of TinyImageNet, on a small tree of its layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from image_trees import made_up, tiny_tree

from askew import cli
from askew.paper import image_runs, images_report, tiny_w1
from askew.paper.images_common import Contender, Experiment, Search
from askew.train.record import Record, load


def test_from_the_tree_to_the_table(tmp_path: Path) -> None:
    out = tmp_path / "tiny-w1"
    line = ["paper", "tiny-w1", "--data", str(tiny_tree(tmp_path / "data")), "--no-check-data", "--epochs", "1"]
    line += ["--seeds", "1", "--methods", "askew-level-first", "--schedules", "best", "--out", str(out)]
    cli.main([*line, "--checkpoints", str(tmp_path / "runs"), "--device", "cpu"])
    record = load(out / "tiny-w1-askew-level-first-best-0.json")
    assert record.config["model"] == "resnet18" and record.config["stem"] == "tiny" and record.config["pad"] == 0
    assert record.summary["distance_max"] == 0 and record.config["classes"] == 7
    table = (out / "table.md").read_text()
    assert "56.46±0.46" in table and "50.23±0.37" in table and "31.97" in table


def batched(folder: Path, sizes: dict[str, int], **more: Any) -> list[Record]:
    """Made-up records of the best schedule, methods with these batches; and the table that asks for them."""
    jobs = image_runs.plan(table_of(sizes), tiny_w1.TinyW1(folder, schedules="best", seeds=1, device="cpu", **more))
    return [made_up(job, 50.0) for job in jobs if job.method in sizes]


def table_of(sizes: dict[str, int]) -> Experiment:
    """tiny-w1 where each of these methods has one setting, with this batch."""

    def own(contender: Contender) -> Contender:
        size = sizes.get(contender.method)
        return replace(contender, search=Search(({"lr": 0.01, "batch": size},))) if size else contender

    return replace(tiny_w1.EXPERIMENT, contenders=tuple(map(own, tiny_w1.EXPERIMENT.contenders)))


def test_a_setting_may_have_a_batch_of_its_own(tmp_path: Path) -> None:
    """It is the run's, the table's title names the batches, and a record made with another one is refused."""
    sizes = {"full-precision": 512, "parq": 100, "askew-level-first": 512}
    records = batched(tmp_path, sizes)
    assert {r.config["method"]: r.config["batch_size"] for r in records} == sizes
    shown = images_report.present(table_of(sizes), records)
    assert shown.tables[0].title == "Test accuracy (%), 40 epochs, batch 100 or 512"
    with pytest.raises(ValueError, match="tiny-w1-parq-best-0 has batch 100, its row now has 512"):
        images_report.present(table_of({**sizes, "parq": 512}), records)
    few = batched(tmp_path, sizes, images=60)  # a trial with fewer images than a batch takes
    assert {r.config["batch_size"] for r in few} == {60}
    images_report.present(table_of(sizes), few)
