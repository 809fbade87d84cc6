"""The one-bit table of TinyImageNet, on a small tree of its layout."""

from pathlib import Path

from image_trees import tiny_tree

from askew import cli
from askew.train.record import load


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
