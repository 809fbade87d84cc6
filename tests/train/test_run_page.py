"""askew report on runs of askew train: one run's folder, or all runs of a folder side by side."""

from pathlib import Path
from typing import Any

import pytest
from image_kit import pictures, small_job

from askew import cli
from askew.report.style import LOOKS, look
from askew.train.images import train_images
from askew.train.record import Record
from askew.train.run_page import lead, named, overviews, render, trained


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    data = pictures(tmp_path_factory.mktemp("pictures"))
    for settings in ({"seed": 0}, {"seed": 1}, {"method": "full-precision"}):
        train_images(small_job(data, out, epochs=2, **settings))
    return out


def test_runs_stand_side_by_side(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["report", str(runs)])
    printed = capsys.readouterr().out
    assert "full precision" in printed and "ASkew" in printed and "index.html" in printed
    (grid,) = overviews(trained(runs))
    assert {row[0]: row[-1] for row in grid.rows} == {"ASkew, level-first, 1 bit": "2", "full precision": "1"}
    html = (runs / "index.html").read_text()
    assert "3 runs on" in html and "<svg" in html and "Diagnosis by layer" in html


def test_one_run_alone(runs: Path) -> None:
    folder = next(path for path in sorted(runs.glob("*/")) if "level-first" in path.name)
    assert len(trained(folder)) == 1
    cli.main(["report", str(folder)])
    assert "1 run on" in (folder / "index.html").read_text()


def test_a_folder_of_unfinished_runs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cifar10-askew-1bit-seed0").mkdir()
    with pytest.raises(SystemExit):
        cli.main(["report", str(tmp_path)])
    assert "nor runs of askew train or fit that have ended" in " ".join(capsys.readouterr().err.split())


def test_a_width_in_a_name_is_told_in_words() -> None:
    assert look("luq-w2a4").label == "LUQ, W2/A4" and look("askew-4bit").label == f"{LOOKS['askew'].label}, 4 bits"
    assert look("full-precision-32bit") == LOOKS["full-precision"]
    assert look("parq-fixed").label == "PARQ, fixed levels" and look("mine-2bit").label == "mine-2bit"


def test_runs_are_found_two_folders_down(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """askew train writes to runs/train/NAME: askew report runs finds it there, beside files of something else."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "train").symlink_to(runs)
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "notes" / "x.json").write_text("[1, 2]")
    cli.main(["report", str(tmp_path / "runs")])
    assert "full precision" in capsys.readouterr().out and (tmp_path / "runs" / "index.html").exists()
    assert len(trained(tmp_path / "runs")) == 3


def made(seed: int, accuracy: float, method: str = "askew-level-first", **settings: Any) -> Record:
    """A record as askew train leaves it, in short."""
    usual: dict[str, Any] = {"dataset": "cifar10", "model": "vgg-small", "train_set": "cifar10-train", "epochs": 3}
    usual |= {"method": method, "seed": seed, "width": 4, "images": None, "holdout": None, "lr": 0.03, "skip": []}
    usual |= {"annealing": {"schedule": "LevelFirst", "start": 0.5}, "schedule": "cosine", "test_images": 100}
    started = f"2026-01-01T00:00:{seed:02}+00:00"
    summary = {"accuracy": accuracy, "weights": 1000 * (usual | settings)["width"], "bits": 1.0}
    name = f"{method}-{'32' if method == 'full-precision' else '1'}bit"
    metrics = {"accuracy": {"step": [3], "value": [accuracy]}}
    return Record("cifar10", name, usual | settings, seed, metrics, summary, {}, {}, started)


def rows(records: list[Record]) -> dict[str, tuple[str, str]]:
    """Name of a row: its accuracy and n."""
    (grid,) = overviews(records)
    return {row[0]: (row[1], row[-1]) for row in grid.rows}


def test_runs_of_different_settings_are_never_averaged() -> None:
    ours = "ASkew, level-first, 1 bit"
    assert rows([made(0, 50), made(1, 52), made(2, 54, device="cuda", static=True, score_every=1)]) == {
        ours: ("52.00 ± 2.00", "3")
    }
    assert rows([made(0, 50), made(1, 52), made(0, 80, width=8)]) == {
        f"{ours}, width 4": ("51.00 ± 1.41", "2"),
        f"{ours}, width 8": ("80.00", "1"),
    }
    other: dict[str, Any] = {"epochs": 1, "images": 200, "skip": ["head.linear"], "test_images": 50}
    assert list(rows([made(0, 50), made(1, 52, **other)])) == [
        f"{ours}, 3 epochs, all images, no layer skipped",
        f"{ours}, 1 epoch, 200 images, skipping head.linear",
    ]
    later = {"annealing": {"schedule": "LevelFirst", "start": 0.7}, "lr": 0.1}
    assert list(rows([made(0, 50), made(1, 52, **later)])) == [
        f"{ours}, lr 0.03, start 0.5",
        f"{ours}, lr 0.1, start 0.7",
    ]


def test_rows_of_different_methods_name_what_both_have() -> None:
    full = made(0, 90, "full-precision", width=8, lr=0.01, annealing=None)
    assert list(rows([made(0, 50), full])) == ["ASkew, level-first, 1 bit, width 4", "full precision, width 8"]
    assert list(rows([made(0, 50), made(1, 52, train_set="cifar10-jpeg-train")])) == [
        "ASkew, level-first, 1 bit, train set cifar10-train",
        "ASkew, level-first, 1 bit, train set cifar10-jpeg-train",
    ]


def test_the_same_run_twice_is_one_seed() -> None:
    again = made(0, 60)
    again.started = "2026-01-02T00:00:00+00:00"
    assert rows([again, made(0, 50), made(1, 62)]) == {"ASkew, level-first, 1 bit": ("61.00 ± 1.41", "2")}


def test_held_out_accuracies_have_a_table_and_curves_of_their_own() -> None:
    records = [made(0, 50), made(1, 90, holdout=20, test_images=20)]
    first, second = overviews(records)
    assert first.heads[1] == "test accuracy (%)" and [row[1] for row in first.rows] == ["50.00"]
    assert second.heads[1] == "held-out accuracy (%)" and [row[1] for row in second.rows] == ["90.00"]
    html = render(records)
    assert "Results, test images" in html and "Results, held-out images" in html
    assert "held-out accuracy, snapped (%)" in html
    assert "Results, " not in render(records[:1])


def test_the_lead_is_true_of_all_runs() -> None:
    records = [made(0, 50), made(1, 90, "full-precision", width=8, epochs=5, holdout=20, test_images=20)]
    assert lead(records) == (
        "2 runs on cifar10-train: vgg-small, 4,000 to 8,000 weights on levels or in full precision, 3 to 5 epochs, "
        "scored on 100 test images and 20 held-out images."
    )


def test_kinds_of_one_method_have_lines_of_their_own() -> None:
    drawn = [look(r.method) for r in named([made(0, 50), made(0, 60, width=8), made(0, 70, width=16)])]
    assert len({style.colour for style in drawn}) == 1 and len({str(style.line) for style in drawn}) == 3
