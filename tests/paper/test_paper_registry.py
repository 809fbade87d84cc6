"""The paper's experiments by name: each has a command, a run and a presentation."""

from pathlib import Path

import pytest

from askew import cli
from askew.paper import registry
from askew.paper.cifar_w1 import CifarW1
from askew.report.live import Status
from askew.train.record import Record


@pytest.mark.parametrize("name", registry.PRESENT)
def test_every_experiment_is_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["paper", name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert f"results/{name}" in shown
    if name.endswith("-w1"):
        assert all(flag in shown for flag in ("--data", "--seeds", "--methods", "--schedules", "--engine", "--epochs"))


def test_a_search_belongs_to_its_table() -> None:
    found = [Record("other", "m", {}, 0, environment={}), Record("cifar-w1-search", "m", {}, 0, environment={})]
    assert registry.experiment_of(found) == "cifar-w1" and registry.experiment_of(found[:1]) is None


def test_many_runs_are_told_in_a_line() -> None:
    lines: list[str] = []
    tell = registry.follow(lines.append)
    tell("a", Status(3, 10, 1, 2, loss=0.5))
    tell("b", Status(10, 10, 2, 2, accuracy=80.0))
    tell("b", Status(10, 10, 2, 2, accuracy=80.0))
    assert lines[0].startswith("0 runs done · a: epoch 1/2 · loss 0.500")
    assert lines[-1].startswith("1 runs done · b")


def test_a_missing_data_set_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["paper", "cifar-w1", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    line += ["--methods", "askew", "--seeds", "1", "--schedules", "best", "--checkpoints", str(tmp_path / "runs")]
    with pytest.raises(SystemExit) as end:
        cli.main(line)
    message = capsys.readouterr().err
    assert end.value.code == 2 and "nowhere" in message and "Traceback" not in message


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="seeds must be 1 or more"):
        CifarW1(Path("data"), seeds=0)
    with pytest.raises(ValueError, match="holdout must be 1 or more"):
        CifarW1(Path("data"), holdout=0)
