"""The one-bit table of CIFAR-10: which runs it asks for, what it says of their records, and a small one for real."""

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from image_trees import FakeGrid, cifar_archive

from askew import cli
from askew.paper import cifar_w1, cifar_w1_report, image_runs, imagenet_w1, tiny_w1
from askew.paper.cifar_w1 import EXPERIMENT, CifarW1
from askew.paper.image_runs import plan
from askew.paper.images_common import KINDS, Experiment, Search, words
from askew.paper.images_rows import rows_of
from askew.report.readme import block
from askew.train.grid import record_file
from askew.train.image_config import ImageTraining
from askew.train.record import load, load_all

METHODS = [contender.method for contender in EXPERIMENT.contenders]


@pytest.fixture
def config(tmp_path: Path) -> CifarW1:
    return CifarW1(tmp_path / "data", out=tmp_path / "results", seeds=2, epochs=20, checkpoints=tmp_path / "runs")


def fake(monkeypatch: pytest.MonkeyPatch, **accuracies: float) -> FakeGrid:
    """made up: method=accuracy at the best schedule, plus 0.2 for seed 1, minus 1 at the paper's."""
    shift = {"paper": -1.0, "best": 0.0}
    table = {
        (method.replace("_", "-"), kind, seed): value + shift[kind] + 0.2 * seed
        for method, value in accuracies.items()
        for kind in KINDS
        for seed in range(2)
    }
    grid = FakeGrid(table)
    monkeypatch.setattr(image_runs, "run_grid", grid)
    return grid


@pytest.mark.parametrize(
    ("experiment", "kind"),
    [
        (cifar_w1.EXPERIMENT, cifar_w1.CifarW1),
        (tiny_w1.EXPERIMENT, tiny_w1.TinyW1),
        (imagenet_w1.EXPERIMENT, imagenet_w1.ImageNetW1),
    ],
)
def test_every_method_is_asked_for_at_both_schedules_and_every_seed(experiment, kind) -> None:
    config = kind(Path("data"))
    jobs = plan(experiment, config)
    assert len(jobs) == len(METHODS) * 2 * config.seeds == len({record_file(job) for job in jobs})
    assert len({job.out / job.name for job in jobs}) == len(jobs)
    for job in jobs:
        assert job.row is not None and job.bits == 1
        steps = job.row.about["kind"] == "paper"
        epochs = 40 if experiment.name == "tiny-w1" and not steps else 100
        assert (job.epochs, job.score_every) == (epochs, epochs // 20)
        settings = job.settings()
        assert settings.schedule == ("steps" if steps else "cosine")
        if steps:
            assert (settings.milestones, settings.factor) == ((0.2, 0.4), 0.5)
        assert settings.histogram_epochs == ((20, 39, 55, 99, 100) if epochs == 100 else (8, 16, 22, 40))


def test_the_paper_form_and_full_precision_have_the_papers_settings() -> None:
    jobs = {job.method: job for job in plan(EXPERIMENT, CifarW1(Path("data"), seeds=1, schedules="paper"))}
    full, ours = jobs["full-precision"].settings(), jobs["askew"].settings()
    assert (full.lr, full.batch_size, jobs["projected"].settings().lr) == (0.08, 100, 0.08)
    assert ours.annealing is not None and ours.alpha == 0.5
    described = ours.annealing.describe()
    assert (described["K"], described["start"], described["period"]) == (0.88, 0.5, 0.01)
    assert jobs["askew"].padding == 4 and jobs["askew"].defaults.model == "vgg-small"


@pytest.mark.parametrize("experiment", [EXPERIMENT, tiny_w1.EXPERIMENT], ids=lambda found: found.name)
def test_askew_train_has_the_settings_of_the_best_schedule_by_default(experiment: Experiment) -> None:
    for contender in experiment.contenders:
        if contender.method not in ("askew", "askew-level-first-reversible"):  # the paper's form; what needs a scale
            plain = ImageTraining(Path("data"), experiment.base["dataset"], contender.method, device="cpu")
            best = replace(plain, **experiment.settings(contender, "best"))
            assert best.describe() == plain.describe(), contender.method


def test_imagenet_keeps_its_last_layer_and_tiny_imagenet_only_flips() -> None:
    big = plan(imagenet_w1.EXPERIMENT, imagenet_w1.ImageNetW1(Path("data")))[0]
    assert big.skip == ("head.linear",) and big.settings().batch_size == 512 and (big.resize, big.crop) == (256, 224)
    tiny = plan(tiny_w1.EXPERIMENT, tiny_w1.TinyW1(Path("data"), stem="small"))[0]
    assert tiny.padding == 0 and tiny.skip == () and tiny.describe()["stem"] == "small"


def test_table_from_records(config: CifarW1, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, full_precision=90.0, binaryconnect=89.5, askew_level_first=89.9)
    methods = ("full-precision", "binaryconnect", "askew-level-first")
    cifar_w1.run(replace(config, methods=methods))
    shown = cifar_w1_report.present(load_all(config.out))
    rows = {row[0]: row[1:] for row in shown.tables[0].rows}
    spread = f"{statistics.stdev([0, 0.2]):.2f}"
    assert rows["full precision"] == ("89.46±0.07", f"89.10 ± {spread}", "–", "2", f"90.10 ± {spread}", "–", "2")
    assert rows["BinaryConnect"] == ("88.33±0.29", f"88.60 ± {spread}", "0.50", "2", f"89.60 ± {spread}", "0.50", "2")
    assert rows["ASkew, level-first"][4:] == (f"90.00 ± {spread}", "0.10", "2")
    assert rows["PARQ"] == ("–", "not run", "–", "0", "not run", "–", "0")
    assert rows["ASkew, as in the paper"][0] == "88.98±0.35"
    best = shown.verdicts[1]
    assert "0.10 points below full precision (the paper's gap: 0.48)" in best
    by = "0.40 points (standard error 0.14); 1 of 7 others run"
    assert f"ahead of every other method, the nearest being BinaryConnect, by {by}" in best
    assert set(shown.figures) == {"losses-paper", "losses-best", "accuracy-paper", "accuracy-best", "histograms"}


def test_a_record_that_does_not_name_its_images_stands_beside_one_that_does(
    config: CifarW1, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, full_precision=90.0)
    cifar_w1.run(replace(config, schedules="best", methods=("full-precision",)))
    older, newer = load_all(config.out)
    newer.config["data_digest"] = "a"
    rows = rows_of(EXPERIMENT, [older, newer])
    assert len(rows["full-precision", "best"]) == 2
    older.config["data_digest"] = "b"
    with pytest.raises(ValueError, match="different settings"):
        rows_of(EXPERIMENT, [older, newer])


def test_a_defeat_is_called_one(config: CifarW1, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, full_precision=90.0, parq=91.0, askew_level_first=89.9)
    cifar_w1.run(replace(config, schedules="best", methods=("full-precision", "parq", "askew-level-first")))
    (verdict,) = cifar_w1_report.present(load_all(config.out)).verdicts
    assert "NOT ahead of PARQ, by 1.10 points" in verdict


def test_the_higher_of_our_forms_is_compared_and_said_to_be_picked(
    config: CifarW1, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, full_precision=90.0, parq=89.5, askew_level_first=89.0, askew_level_first_rounded=89.6)
    methods = ("full-precision", "parq", "askew-level-first", "askew-level-first-rounded")
    cifar_w1.run(replace(config, schedules="best", methods=methods))
    (verdict,) = cifar_w1_report.present(load_all(config.out)).verdicts
    assert "ASkew, level-first, rounded (the higher of 2 forms of level-first) scores 89.70%" in verdict
    by = "0.10 points (standard error 0.14: chance may explain it); 1 of 7 others run"
    assert f"ahead of every other method, the nearest being PARQ, by {by}" in verdict


def test_a_half_filled_table_is_filled_and_nothing_is_run_twice(
    config: CifarW1, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = fake(monkeypatch)
    cifar_w1.run(replace(config, seeds=1, methods=("askew", "parq")))
    assert len(grid.asked) == 4
    half = [row[4] for row in cifar_w1_report.present(load_all(config.out)).tables[0].rows]
    assert half.count("1") == 2 and half.count("0") == 9
    records = cifar_w1.run(config)
    assert len(records) == 44 and len(grid.asked) == 44
    (config.out / "cifar-w1-parq-best-1.json").unlink()
    cifar_w1.run(config)
    assert [job.name for job in grid.asked[44:]] == ["cifar-w1-parq-best-seed1"]


def test_records_of_other_settings_are_not_taken_nor_overwritten(
    config: CifarW1, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch)
    one = replace(config, seeds=1, methods=("parq",), schedules="best")
    cifar_w1.run(one)
    with pytest.raises(ValueError, match=r"cifar-w1-parq-best-0\.json was made with other settings \(epochs: 20 there"):
        cifar_w1.run(replace(one, epochs=40))
    record = load(config.out / "cifar-w1-parq-best-0.json")
    record.config["lr"] = 0.5
    record.save(config.out)
    with pytest.raises(ValueError, match=r"has lr 0\.5, its row now has 0\.06"):
        cifar_w1_report.present(load_all(config.out))


def test_a_gpu_record_counts_on_a_machine_without_one(config: CifarW1, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = fake(monkeypatch)
    one = replace(config, seeds=1, methods=("askew",), schedules="best")
    (record,) = cifar_w1.run(one)
    record.config |= {"device": "cuda", "bf16": True, "static": True, "log_every": 7}
    del record.config["teacher"]  # the record is older than this setting
    record.save(config.out)
    cifar_w1.run(one)
    assert len(grid.asked) == 1
    cifar_w1.run(replace(one, seeds=2))  # the second seed is made here, and both stand in one row
    row = next(row for row in cifar_w1_report.present(load_all(config.out)).tables[0].rows if "paper" in row[0])
    assert row[-1] == "2"


def test_the_search_is_run_on_held_out_images_and_stated(config: CifarW1, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = fake(monkeypatch)
    cifar_w1.run(replace(config, search=True, holdout=500, methods=("binaryconnect",)))
    tried = next(c for c in EXPERIMENT.contenders if c.method == "binaryconnect").search
    assert [job.recipe.lr for job in grid.asked] == [settings["lr"] for settings in tried.tried]
    assert all(job.holdout == 500 for job in grid.asked)
    alone = cifar_w1_report.present(load_all(config.out))
    assert {row[2] for row in alone.tables[0].rows} == {"not run"} and alone.figures == {} and alone.verdicts == []
    cifar_w1.run(replace(config, seeds=1, methods=("binaryconnect",)))
    shown = cifar_w1_report.present(load_all(config.out))
    assert (
        "chosen by one run of 20 epochs each on 500 held-out training images (full precision, " in shown.tables[0].note
    )
    assert "BinaryConnect, mirror" not in shown.tables[0].note
    rows = [
        row for row, key in zip(shown.tables[-1].rows, shown.tables[-1].keys, strict=True) if key == "binaryconnect"
    ]
    assert [row[3] for row in rows] == ["–", *["50.00"] * len(tried.tried)]
    assert [row[1] for row in rows if row[2] == "best schedule"] == [words(tried.winner)]


def test_a_trial_may_have_epochs_of_its_own(config: CifarW1) -> None:
    searches = Search(({"lr": 0.01}, {"lr": 0.01, "epochs": 100}), chosen=1)
    full = replace(next(iter(EXPERIMENT.contenders)), search=searches)
    short = replace(EXPERIMENT, contenders=(full,))
    looking = replace(config, epochs=None, search=True, holdout=500)
    trials = plan(short, looking)
    assert [job.epochs for job in trials] == [40, 100] and len({job.name for job in trials}) == 2
    assert [job.epochs for job in plan(short, replace(looking, epochs=4))] == [4, 4]
    table = replace(config, epochs=None, schedules="best", seeds=1)
    assert [job.epochs for job in plan(short, table)] == [100]
    assert [job.epochs for job in plan(short, replace(table, epochs=4))] == [4]


def test_an_unknown_method_is_named(config: CifarW1) -> None:
    with pytest.raises(ValueError, match="no method 'rounding'; it has: full-precision"):
        plan(EXPERIMENT, replace(config, methods=("rounding",)))


def test_from_the_archive_to_the_table(tmp_path: Path) -> None:
    data, out = cifar_archive(tmp_path / "data"), tmp_path / "cifar-w1"
    common = ["--data", str(data), "--no-check-data", "--width", "2", "--epochs", "4", "--seeds", "1"]
    common += ["--checkpoints", str(tmp_path / "runs"), "--device", "cpu"]
    chosen = ["--methods", "full-precision", "askew", "askew-level-first", "--schedules", "both", "--out", str(out)]
    cli.main(["paper", "cifar-w1", *common, *chosen])
    assert len(list(out.glob("*.json"))) == 6 and not list(out.glob("*.pt"))
    record = load(out / "cifar-w1-askew-level-first-best-0.json")
    assert record.summary["distance_max"] == 0 and record.config["train_images"] == 100
    assert (out / "histograms.png").exists() and "not run" in (out / "table.md").read_text()

    steps = tmp_path / "cifar-steps"
    cli.main(["paper", "cifar-steps", *common, "--out", str(steps), "--table", str(out)])
    shown = re.sub(r"\s+", " ", (steps / "table.md").read_text())
    accuracy = load(out / "cifar-w1-askew-paper-0.json").metrics["accuracy"]
    assert accuracy["step"] == [1, 2, 3, 4]
    assert f"| 50 | 0.88 | 1 | 75.77 | {accuracy['value'][1]:.2f} | 1 |" in shown
    assert len(list((tmp_path / "runs" / "cifar-w1").glob("*askew-paper*"))) == 1  # the table's own run, not another

    readme = tmp_path / "README.md"
    readme.write_text("<!-- cifar-w1 -->\n<!-- /cifar-w1 -->\n")
    cli.main(["report", str(out), "--readme", str(readme)])
    assert "| full precision | 89.46±0.07 |" in block(readme.read_text(), "cifar-w1")
