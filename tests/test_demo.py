"""The demo end to end, small: records, page, tables in the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from askew.demo import ASKEW, BC, FULL, DemoConfig, note, present, run, verdict
from askew.train.record import Record, load_all


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Path, str, list[Record]]:
    """A run of two epochs: the folder, what was printed, and the records."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    console = Console(file=io.StringIO(), width=120)
    threads = torch.get_num_threads()
    index = run(DemoConfig(out=folder, epochs=2, seeds=2, first_seed=5, channels=4, images=200), console)
    assert index == folder / "index.html"
    assert torch.get_num_threads() == threads
    return folder, console.file.getvalue(), load_all(folder)


def test_every_run_leaves_a_record(small):
    folder, _, records = small
    assert sorted((r.method, r.seed) for r in records) == sorted((m, s) for m in (FULL, BC, ASKEW) for s in (5, 6))
    assert len(list(folder.iterdir())) == 7  # six records and the page, no temporary files
    assert all(r.environment["threads"] == 1 and r.config["train_images"] == 200 for r in records)


def test_the_methods_are_what_they_say(small):
    summaries = {(r.method, r.seed): r.summary for r in small[2]}
    assert summaries[FULL, 5]["bits"] == 32 and summaries[BC, 5]["bits"] == 1 and summaries[ASKEW, 5]["bits"] == 1
    assert summaries[ASKEW, 5]["distance_max"] == 0
    assert summaries[FULL, 5]["distance_mean"] > 0.1


def test_twins_start_alike(small):
    starts = {}
    for record in small[2]:
        starts.setdefault(record.seed, []).append(record.extra["histograms"][0])
    for one, *others in starts.values():
        assert one["epoch"] == 0 and others == [one, one]
    assert starts[5][0] != starts[6][0]


def test_terminal_and_page_tell_the_same(small):
    folder, printed, records = small
    html = (folder / "index.html").read_text()
    assert verdict(records) in " ".join(printed.split())
    for part in ("ASkew, level-first", "BinaryConnect", "full precision", "12.weight", "KKT"):
        assert part in printed and part in html
    assert (folder / "index.html").resolve().as_uri() in printed
    assert "http://" not in html and "https://" not in html


def test_the_page_comes_from_the_records_alone(small, tmp_path):
    folder, _, records = small
    again = present(records, tmp_path, Console(file=io.StringIO()))
    assert again.read_text() == (folder / "index.html").read_text()


def _made_up(full: float, askew: float) -> list[Record]:
    values = {FULL: full, BC: 97.0, ASKEW: askew}
    return [
        Record("demo", m, {"test_images": 400}, 0, summary={"accuracy": a}, environment={}) for m, a in values.items()
    ]


@pytest.mark.parametrize(
    ("full", "askew", "said"),
    [(99.0, 98.5, "0.50 points below"), (98.0, 98.25, "0.25 points above"), (98.0, 98.0, "level with")],
)
def test_the_verdict_goes_either_way(full, askew, said):
    assert said in verdict(_made_up(full, askew))
    assert "one seed" in verdict(_made_up(full, askew))
    assert "0.25 points" in note(_made_up(full, askew))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": 0}, "epochs"),
        ({"seeds": 0}, "seeds"),
        ({"images": 0}, "images"),
        ({"lr_askew": -1.0}, "lr"),
        ({"final_lr": 2.0}, "final_lr"),
        ({"start": 1.5}, "start"),
        ({"alpha": 0.0}, "alpha"),
    ],
)
def test_bad_settings_fail_before_anything_runs(wrong, said):
    with pytest.raises(ValueError, match=said):
        DemoConfig(**wrong)


def test_an_unwritable_folder_fails_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="file/demo"):
        run(DemoConfig(out=tmp_path / "file" / "demo"), Console(file=io.StringIO()))
