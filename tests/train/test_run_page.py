"""askew report on runs of askew train: one run's folder, or all runs of a folder side by side."""

from pathlib import Path

import pytest
from image_kit import pictures, small_job

from askew import cli
from askew.report.style import LOOKS, look
from askew.train.images import train_images
from askew.train.run_page import overview, trained


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
    grid = overview(trained(runs))
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
    assert "nor runs of askew train that have ended" in " ".join(capsys.readouterr().err.split())


def test_a_width_in_a_name_is_told_in_words() -> None:
    assert look("luq-w2a4").label == "LUQ, W2/A4" and look("askew-4bit").label == f"{LOOKS['askew'].label}, 4 bits"
    assert look("full-precision-32bit") == LOOKS["full-precision"]
    assert look("parq-fixed").label == "PARQ, fixed levels" and look("mine-2bit").label == "mine-2bit"
