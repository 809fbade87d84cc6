"""Records: what is logged comes back, writing is atomic, and a folder that cannot be written is named at once."""

from __future__ import annotations

import json
import math
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from askew.atomic import write_text
from askew.train import record as record_module
from askew.train.record import Record, environment, load, load_all, plain, writable_folder


def filled() -> Record:
    record = Record("toy", "askew/level first", {"lr": 0.1, "out": Path("x")}, seed=3, environment={"python": "3"})
    record.log(0, loss=torch.tensor(1.5), lr=0.1)
    record.log(1, loss=float("nan"), lr=torch.float64)
    record.summary["accuracy"] = torch.tensor([98.0, 99.0])
    return record


def test_round_trip(tmp_path):
    path = filled().save(tmp_path)
    assert path.name == "toy-askew-level-first-3.json"
    back = load(path)
    assert back.metrics["loss"] == {"step": [0, 1], "value": [1.5, None]}
    assert back.summary == {"accuracy": [98.0, 99.0]}
    assert back.config == {"lr": 0.1, "out": "x"}
    assert back.seed == 3
    assert load(back.save(tmp_path)) == back


def test_load_all_picks_an_experiment(tmp_path):
    for experiment in ("b", "a"):
        Record(experiment, "m", {}, 0, environment={}).save(tmp_path)
    assert [r.experiment for r in load_all(tmp_path)] == ["a", "b"]
    assert [r.experiment for r in load_all(tmp_path, "b")] == ["b"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}'])
def test_a_broken_record_is_named(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"broken\.json"):
        load(path)


def test_plain_keeps_seven_digits_and_no_nan():
    assert plain({"a": (1 / 3, math.inf, True, None)}) == {"a": [0.3333333, None, True, None]}


def test_a_failing_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_text(path, "old")

    def fail(*arguments):
        raise OSError("disk full")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(record_module.os, name, fail)
            with pytest.raises(OSError, match="disk full"):
                write_text(path, "new")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]
    write_text(path, "new")
    assert path.read_text() == "new"


def test_an_unserialisable_record_does_not_touch_the_old_one(tmp_path, monkeypatch):
    path = filled().save(tmp_path)
    before = path.read_text()
    monkeypatch.setattr(record_module, "plain", lambda value: value)
    with pytest.raises(TypeError, match="not JSON serializable"):
        filled().save(tmp_path)
    assert path.read_text() == before


def test_an_unwritable_folder_is_named(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    with pytest.raises(PermissionError, match=r"file/runs is not writable .*--out"):
        writable_folder(blocker / "runs")
    with pytest.raises(PermissionError, match=r"file/c is not writable .*choose another with --checkpoints$"):
        writable_folder(blocker / "c", "--checkpoints")


def test_a_writable_folder_is_made(tmp_path):
    assert writable_folder(tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_environment_is_plain_and_names_versions():
    found = environment()
    assert found["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert json.loads(json.dumps(found)) == found


def test_records_name_the_versions_of_what_the_benchmarks_compare_with(monkeypatch):
    """By their installation, or where there is none by the modules themselves."""
    real = metadata.version

    def version(name: str) -> str:
        if name == "torchao":
            return "1.2.3"
        if name == "triton":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    for module, expected in ((SimpleNamespace(__version__="3.6.0"), "3.6.0"), (None, None)):
        monkeypatch.setitem(sys.modules, "triton", module)
        found = environment()["versions"]
        assert found["torchao"] == "1.2.3" and found.get("triton") == expected
