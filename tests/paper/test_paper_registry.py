"""The paper's experiments by name: each has a command, a run and a presentation."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from image_trees import FakeGrid

from askew import cli
from askew.paper import image_runs, registry
from askew.paper.cifar_w1 import CifarW1
from askew.report.live import Status
from askew.train.grid import record_file
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


RESULTS = Path(__file__).parents[2] / "results"
RECORDED = {kind: folder for kind in registry.IMAGES if any((folder := RESULTS / kind(Path()).out.name).glob("*.json"))}


def run(kind: Any, config: Any) -> set[str]:
    """The names of the records that the command gives; what goes wrong there is no lack of a search."""
    try:
        return {record.name for record in registry.IMAGES[kind](config, None)}
    except (TypeError, ValueError) as error:
        raise AssertionError(str(error)) from error


@pytest.mark.parametrize("kind", RECORDED, ids=lambda kind: kind.__name__)
def test_committed_records_are_those_that_the_commands_would_make(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of a table, and its search, take every record that is there and make none of them again.

    All of it in a copy: what the commands would make, they make up here.
    """
    grid, out = FakeGrid(), tmp_path / "results" / RECORDED[kind].name
    monkeypatch.setattr(image_runs, "run_grid", grid)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("*.png"))
    untouched = sorted(RESULTS.rglob("*"))
    there = {path.stem for path in out.glob("*.json")}
    taken: set[str] = set()
    for more in ({}, {"search": True, "search_seeds": 2}):
        with suppress(TypeError, ValueError):  # a table without a search of its own
            config = kind(tmp_path, device="cpu", seeds=5, **more)
            taken |= run(kind, config)
    alone = {"cifar-w1a1-search-full-precision-w32a32-lr0.03-0"}  # from when a setting without a choice was tried
    assert there - taken <= alone and there
    assert not {out / f"{name}.json" for name in there} & {record_file(job).resolve() for job in grid.asked}
    assert sorted(RESULTS.rglob("*")) == untouched


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="seeds must be 1 or more"):
        CifarW1(Path("data"), seeds=0)
    with pytest.raises(ValueError, match="holdout must be 1 or more"):
        CifarW1(Path("data"), holdout=0)
