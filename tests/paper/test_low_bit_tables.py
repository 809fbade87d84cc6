"""The tables of two and four bits and of one-bit activations: which runs, with which settings, and what is printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from image_trees import FakeGrid, cifar_archive, imagenet_tree, made_up, tiny_tree

from askew import cli
from askew.paper import (
    cifar_affine,
    cifar_few,
    cifar_long,
    cifar_taught,
    cifar_w1,
    cifar_w1a1,
    cifar_w1a1_taught,
    image_runs,
    imagenet_low,
    low_bit,
    low_bit_report,
    low_bit_words,
    tiny_low,
    tiny_taught,
    tiny_w1,
)
from askew.paper.cifar_affine import CifarAffine
from askew.paper.cifar_few import CifarFew
from askew.paper.cifar_long import CifarLong
from askew.paper.cifar_taught import CifarTaught
from askew.paper.cifar_w1 import CifarW1
from askew.paper.cifar_w1a1 import CifarW1A1
from askew.paper.cifar_w1a1_taught import CifarW1A1Taught
from askew.paper.imagenet_low import ImageNetLow
from askew.paper.images_common import KINDS
from askew.paper.tiny_low import TinyLow
from askew.paper.tiny_taught import TinyTaught
from askew.paper.tiny_w1 import TinyW1
from askew.train.image_config import ImageTraining
from askew.train.recipes import DATASETS
from askew.train.record import Record, load

TABLES = {
    "tiny-low": (tiny_low.TABLE, TinyLow),
    "imagenet-low": (imagenet_low.TABLE, ImageNetLow),
    "cifar-w1a1": (cifar_w1a1.TABLE, CifarW1A1),
    "cifar-few": (cifar_few.TABLE, CifarFew),
    "cifar-long": (cifar_long.TABLE, CifarLong),
    "cifar-affine": (cifar_affine.TABLE, CifarAffine),
    "cifar-taught": (cifar_taught.TABLE, CifarTaught),
    "cifar-w1a1-taught": (cifar_w1a1_taught.TABLE, CifarW1A1Taught),
    "tiny-taught": (tiny_taught.TABLE, TinyTaught),
}
LIKE = {"cifar-taught": "cifar-w1", "cifar-w1a1-taught": "cifar-w1a1", "tiny-taught": "tiny-w1"}
AFFINE = {"cifar-taught": "one-bit nets", "cifar-w1a1-taught": "all", "tiny-taught": "none"}
TAUGHT = [name for name in TABLES if name.endswith("-taught")]


def records(name: str, folder: Path, scores: dict[str, float], seeds: int = 2) -> list[Record]:
    """Made-up records of a whole table; the score of a row at its best schedule by the row's key, else 50."""
    table, kind = TABLES[name]
    jobs = low_bit.plan(table, kind(folder, out=folder, seeds=seeds, device="cpu"))
    return [
        made_up(job, scores.get(f"{job.row.about['row']}-{job.row.about['kind']}", 50.0)) for job in jobs if job.row
    ]


@pytest.mark.parametrize("name", TABLES)
def test_every_run_has_settings_that_fit(name: str, tmp_path: Path) -> None:
    """ImageTraining refuses what it would ignore, so planning is a test of all settings; every run has its own name."""
    table, kind = TABLES[name]
    config = kind(tmp_path, device="cpu")
    jobs = low_bit.plan(table, config)
    assert len({(job.row.key, job.seed) for job in jobs if job.row}) == len(jobs) > 0
    expected = sum(table.settings(row, k) is not None for row in table.rows for k in ("paper", "best"))
    assert len(jobs) == config.seeds * expected
    if name not in ("imagenet-low", "cifar-long", "cifar-affine", *TAUGHT):
        tried = low_bit.plan(table, kind(tmp_path, search=True, device="cpu"))
        assert len({job.row.key for job in tried if job.row}) == len(tried)
        choices = [len(row.search.tried) for row in table.rows if row.search]
        assert len(tried) == sum(count for count in choices if count > 1)  # one setting alone is no choice
        assert all(job.holdout == 5000 for job in tried)


def test_the_settings_of_the_text(tmp_path: Path) -> None:
    jobs = {job.row.key: job for job in low_bit.plan(tiny_low.TABLE, TinyLow(tmp_path, device="cpu")) if job.row}
    paper = jobs["askew-w4a4-paper"]
    assert (paper.bits, paper.activation_bits, paper.form, len(paper.levels)) == (4, 4, "paper", 17)
    assert paper.skip == ("head.linear",) and paper.epochs == 200 and paper.settings().batch_size == 512
    rates = [0.06 * paper.settings().rate(epoch, 200) for epoch in (0, 19, 20, 39, 40, 199)]
    assert rates == pytest.approx([0.06, 0.06, 0.03, 0.03, 0.015, 0.015])
    assert len(jobs["luq-w2a4-best"].levels) == 4 and len(jobs["askew-level-first-w4a4-best"].levels) == 16
    big = {j.row.key: j for j in low_bit.plan(imagenet_low.TABLE, ImageNetLow(tmp_path, device="cpu")) if j.row}
    paper = big["askew-w2a4-paper"]
    assert paper.skip == ("stem.conv", "head.linear")
    rates = [0.1 * paper.settings().rate(epoch, 200) for epoch in (29, 30, 60, 90)]
    assert rates == pytest.approx([0.1, 0.01, 0.001, 0.0001])
    small = {j.row.key: j for j in low_bit.plan(cifar_w1a1.TABLE, CifarW1A1(tmp_path, device="cpu")) if j.row}
    for alpha in (0.2, 0.5, 0.7):
        job = small[f"askew-w1a1-alpha{alpha}-paper"]
        assert (job.alpha, job.lr, job.bits, job.activation_bits) == (alpha, 0.03, 1, 1)


def test_the_table_shows_gaps_levels_and_the_paper(tmp_path: Path) -> None:
    scores = {
        "full-precision-w32a32-best": 60.0,
        "luq-w4a4-best": 59.0,
        "askew-level-first-w4a4-best": 60.5,
        "askew-level-first-w2a4-best": 58.0,
        "luq-w2a4-best": 58.5,
    }
    shown = low_bit_report.present(tiny_low.TABLE, records("tiny-low", tmp_path, scores))
    lines = {line[0]: line for line in shown.tables[0].rows}
    assert lines["LUQ [W4/A4]"][1] == "55.69±0.32" and lines["LUQ [W4/A4]"][7:] == ("59.00 ± 0.00", "1.00", "2")
    assert lines["ASkew, as in the paper [W4/A4]"][2] == "17" and lines["ASkew, level-first [W2/A4]"][6] == "4"
    assert lines["full precision [W32/A32]"][8] == "–"
    assert any("0.50 points above full precision" in text and "ahead of every other" in text for text in shown.verdicts)
    assert any("NOT ahead of LUQ [W2/A4], by 0.50" in text for text in shown.verdicts)
    assert set(shown.figures) == {"accuracy-w2a4", "accuracy-w4a4"}


def test_a_figure_has_a_line_for_every_row_of_its_width_and_for_real_weights(tmp_path: Path) -> None:
    def lines(name: str, width: str) -> list[str]:
        figure, _ = low_bit_report.present(TABLES[name][0], records(name, tmp_path / name, {})).figures[width]
        return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]  # pyright: ignore

    shown = lines("cifar-w1a1", "accuracy-w1a1")
    alphas = [f"ASkew, as in the paper, alpha {a}" for a in (0.2, 0.5, 0.7)]
    assert len({*shown}) == len(shown) == len(cifar_w1a1.TABLE.rows)
    assert {"full precision, W32/A32", "full precision, W32/A1", "PARQ", *alphas} < {*shown}
    shown = lines("cifar-taught", "accuracy-w1a32")
    assert shown[:2] == ["full precision, W32/A32", "full precision, W32/A32, taught"]
    assert len({*shown}) == len(shown) == len(cifar_taught.TABLE.rows)


def test_literature_rows_are_marked_and_not_run(tmp_path: Path) -> None:
    shown = low_bit_report.present(imagenet_low.TABLE, records("imagenet-low", tmp_path, {}, seeds=1))
    starred = [line for line in shown.tables[0].rows if line[0].endswith("*")]
    assert [line[1] for line in starred] == ["65.5*", "66.4*", "68.27*"]
    assert all(set(line[2:]) == {"–"} for line in starred) and "literature" in shown.tables[0].note


def test_nothing_run_yet_and_foreign_records(tmp_path: Path) -> None:
    shown = low_bit_report.present(cifar_w1a1.TABLE, [])
    assert "not run" in shown.tables[0].markdown() and shown.verdicts == [] and shown.figures == {}
    (record,) = records("cifar-w1a1", tmp_path, {})[:1]
    record.config["row"] = "luq-w4a4"
    with pytest.raises(ValueError, match="is of no row of cifar-w1a1"):
        low_bit_words.runs_of(cifar_w1a1.TABLE, [record])


def test_runs_that_are_there_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid()
    monkeypatch.setattr(image_runs, "run_grid", grid)
    config = CifarW1A1(tmp_path, out=tmp_path / "out", seeds=1, device="cpu", methods=("askew",))
    assert len(cifar_w1a1.run(config)) == len(grid.asked) == 3
    assert len(cifar_w1a1.run(config)) == 3 and len(grid.asked) == 3
    with pytest.raises(ValueError, match="cifar-w1a1 has no method 'luq'"):
        cifar_w1a1.run(CifarW1A1(tmp_path, methods=("luq",)))


def small(tmp_path: Path, name: str, data: Path, *more: Any) -> Path:
    """The command on a small tree: one epoch of one row; the folder of its results."""
    out = tmp_path / name
    line = ["paper", name, "--data", str(data), "--no-check-data", "--epochs", "1", "--device", "cpu", "--seeds", "1"]
    line += ["--schedules", "best", "--out", str(out), "--checkpoints", str(tmp_path / "runs"), *map(str, more)]
    cli.main(line)
    return out


def test_imagenet_low_from_a_small_tree_to_the_table(tmp_path: Path) -> None:
    size = ("--images", 6, "--batch", 6, "--resize", 24, "--crop", 20, "--workers", 0)
    tree = imagenet_tree(tmp_path / "data")
    out = small(tmp_path, "imagenet-low", tree, *size, "--methods", "askew-level-first")
    record = load(out / "imagenet-low-askew-level-first-w2a4-best-0.json")
    assert (record.config["bits"], record.config["activation_bits"], record.config["form"]) == (2, 4, "symmetric")
    assert record.summary["distance_max"] == 0 and record.summary["weights"] == 11_678_912 - 512_000 - 64 * 3 * 49
    table = (out / "table.md").read_text()
    assert f"{record.summary['accuracy']:.2f}" in table and "66.45" in table and "AdaBin" in table


def test_tiny_low_from_a_small_tree_to_the_table(tmp_path: Path) -> None:
    """The rivals at two bits and at four, with all the images there are as one batch."""
    methods = ("luq", "lsq", "parq")
    out = small(tmp_path, "tiny-low", tiny_tree(tmp_path / "data"), "--images", 6, "--methods", *methods)
    made = {p.stem: load(p) for p in out.glob("*.json")}
    assert {f"{r.config['method']}-{r.config['bits']}" for r in made.values()} == {
        f"{m}-{b}" for m in methods for b in (2, 4)
    }
    table = (out / "table.md").read_text()
    for name, record in made.items():
        assert record.config["batch_size"] == 6 and f"{record.summary['accuracy']:.2f}" in table, name
    assert "54.14±0.42" in table and "55.69±0.32" in table


def test_cifar_w1a1_from_an_archive_to_the_table(tmp_path: Path) -> None:
    out = small(tmp_path, "cifar-w1a1", cifar_archive(tmp_path / "data"), "--width", 4)
    record = load(out / "cifar-w1a1-askew-level-first-w1a1-best-0.json")
    assert record.config["activation_bits"] == 1 and record.config["sign_gradient"] == "tanh"
    assert record.summary["distance_max"] == 0
    assert "84.34" in (out / "table.md").read_text()


def test_cifar_few_from_an_archive_to_the_table(tmp_path: Path) -> None:
    """A quarter of ResNet-18 on CIFAR-10: the search's images held out on top of the table's, then one row."""
    data = cifar_archive(tmp_path / "data")
    size = ("--images", 40, "--methods", "full-precision", "--per-device", 1)
    out = small(tmp_path, "cifar-few", data, *size, "--search", "--holdout", 20)
    tried = [load(path) for path in out.glob("*.json")]
    assert {(r.config["train_images"], r.config["test_images"]) for r in tried} == {(40, 20)}
    settings = [
        one for row in cifar_few.TABLE.rows if row.method == "full-precision" and row.search for one in row.search.tried
    ]
    assert len(tried) == len(settings) and {r.config["model"] for r in tried} == {"resnet18"}
    small(tmp_path, "cifar-few", data, *size)
    record = load(out / "cifar-few-full-precision-w32a32-best-0.json")
    assert (record.config["train_images"], record.config["test_images"], record.config["width"]) == (40, 20, 16)
    assert record.config["data_digest"] not in {r.config["data_digest"] for r in tried}
    shown = low_bit_report.present(cifar_few.TABLE, [record, *tried])
    assert "ResNet-18, tiny stem, width 16" in shown.lead and f"{record.summary['accuracy']:.2f}" in str(shown.tables)


def test_a_row_of_four_bits_has_a_search_of_its_own(tmp_path: Path) -> None:
    """But for the settings in use both runs are the same."""
    for table, config, methods in (
        (tiny_low.TABLE, tiny_low.TinyLow(tmp_path, seeds=1), tiny_low.FOUR_BITS),
        (cifar_few.TABLE, CifarFew(tmp_path, seeds=1), cifar_few.FOUR_BITS),
    ):
        jobs = {j.row.key: j for j in low_bit.plan(table, config) if j.row}
        for method in methods:
            two, four = jobs[f"{method}-w2a4-best"], jobs[f"{method}-w4a4-best"]
            own = {"weight_decay": 0.0, **methods[method].winner}
            assert replace(two, bits=4, row=None, **own) == replace(four, row=None)
    assert {job.score_every for job in jobs.values()} == {6} and {job.padding for job in jobs.values()} == {0}


def test_the_note_claims_no_search_that_was_not_run(tmp_path: Path) -> None:
    made = records("tiny-low", tmp_path, {}, seeds=1)
    made[0].config["train_set"] = "tiny-imagenet-train"
    shown = low_bit_report.present(tiny_low.TABLE, made)
    assert "cosine, settings chosen without a recorded search." in shown.tables[0].note
    assert "TinyImageNet, 100 training" in shown.tables[0].note and "ResNet-18, tiny stem" in shown.lead
    assert "No search was run." in shown.tables[-1].note


def test_the_best_of_several_forms_is_called_that(tmp_path: Path) -> None:
    shown = low_bit_report.present(tiny_low.TABLE, records("tiny-low", tmp_path, {}, seeds=1))
    assert all("(the highest of 3 forms of level-first here)" in text for text in shown.verdicts)


@pytest.mark.parametrize("name", TAUGHT)
def test_taught_rows_have_full_precision_of_their_seed_as_teacher(name: str, tmp_path: Path) -> None:
    table, kind = TABLES[name]
    jobs = low_bit.plan(table, kind(tmp_path, device="cpu", seeds=2, checkpoints=tmp_path / "runs"))
    folder = tmp_path / "runs" / name
    for job in jobs:
        assert job.row is not None
        taught = job.row.key.endswith("-taught-best")
        file = folder / f"{name}-full-precision-w32a32-best-seed{job.seed}/last.pt"
        assert (job.teacher, job.teacher_share) == ((file, cifar_taught.SHARE) if taught else (None, None))
        assert job.affine == (AFFINE[name] == "all" or (AFFINE[name] != "none" and job.method != "full-precision"))
    makers = [image_runs.checkpoint(job) for job in jobs if job.teacher is None]
    assert len(makers) == 2 and {job.teacher for job in jobs if job.teacher} == set(makers)
    some = low_bit.plan(table, kind(tmp_path, device="cpu", seeds=1, methods=("parq",)))
    assert [(job.method, job.teacher is None) for job in some] == [("full-precision", True), ("parq", False)]
    with pytest.raises(ValueError, match=f"no search of its own: its settings are those of {LIKE[name]}$"):
        kind(tmp_path, search=True)


def test_taught_nets_of_tinyimagenet_have_the_epochs_and_settings_of_its_table(tmp_path: Path) -> None:
    jobs = low_bit.plan(tiny_taught.TABLE, TinyTaught(tmp_path, seeds=1, device="cpu"))
    like = {job.method: job for job in image_runs.plan(tiny_w1.EXPERIMENT, TinyW1(tmp_path, seeds=1, device="cpu"))}
    assert {job.passes for job in jobs} == {tiny_w1.EPOCHS}
    for job in jobs:
        plain = replace(job, teacher=None, teacher_share=None, out=like[job.method].out, row=like[job.method].row)
        assert plain.settings() == like[job.method].settings() and plain.recipe == like[job.method].recipe


def test_a_table_says_which_batchnorm_its_nets_have(tmp_path: Path) -> None:
    leads = {name: low_bit_report.present(TABLES[name][0], records(name, tmp_path, {}, 1)).lead for name in TAUGHT}
    learnt = "BatchNorm, which has a learnt scale and bias for each channel"
    assert f"{learnt}, full precision's without affine" in leads["cifar-taught"]
    assert f"{learnt})" in leads["cifar-w1a1-taught"]
    assert "no biases, BatchNorm without affine)" in leads["tiny-taught"]
    plain = low_bit_report.present(TABLES["cifar-w1a1"][0], records("cifar-w1a1", tmp_path, {}, 1)).lead
    assert "no biases, BatchNorm without affine)" in plain


def test_a_table_names_the_widths_whose_nets_have_affine_batchnorm(tmp_path: Path) -> None:
    lead = low_bit_report.present(cifar_few.TABLE, records("cifar-few", tmp_path, {}, 1)).lead
    assert "BatchNorm without affine, but at W32/A1 and W1/A1 with a learnt scale and bias for each channel)" in lead


def test_taught_rows_are_compared_with_one_another(tmp_path: Path) -> None:
    scores = {"full-precision-w32a32-best": 90.0, "full-precision-w32a32-taught-best": 91.0}
    scores |= {"askew-level-first-w1a32-taught-best": 89.95, "parq-w1a32-taught-best": 89.9}
    shown = low_bit_report.present(cifar_taught.TABLE, records("cifar-taught", tmp_path, scores))
    lines = {line[0]: line for line in shown.tables[0].rows}
    assert lines["full precision [W32/A32], taught"][2:4] == ("91.00 ± 0.00", "-1.00")
    assert shown.tables[0].heads == ("method", "levels", "ours, best schedule", "gap", "n")
    assert lines["ASkew, level-first [W1/A32], taught"][2:4] == ("89.95 ± 0.00", "0.05")
    assert (
        "taught: by full precision's net" in shown.tables[0].note.lower() and "90% of the loss" in shown.tables[0].note
    )
    (verdict,) = shown.verdicts
    assert "0.05 points below full precision" in verdict
    assert "ahead of every other taught method at these widths, the nearest being PARQ [W1/A32], taught" in verdict


def test_the_long_table_gives_every_row_the_same_epochs_and_cifar_w1_its_settings(tmp_path: Path) -> None:
    jobs = low_bit.plan(cifar_long.TABLE, CifarLong(tmp_path, seeds=1, device="cpu"))
    like = {job.method: job for job in image_runs.plan(cifar_w1.EXPERIMENT, CifarW1(tmp_path, seeds=1, device="cpu"))}
    for job in jobs:  # those at the best schedule come last
        same = replace(like[job.method], epochs=300, score_every=15, keep_every=75, out=job.out, row=job.row)
        assert job == (same if job.method == "full-precision" else replace(same, bits=1))
    with pytest.raises(ValueError, match=r"no search of its own: its settings are those of cifar-w1$"):
        CifarLong(tmp_path, search=True)


def test_a_method_has_the_options_that_its_row_names(tmp_path: Path) -> None:
    """`askew train`'s recipe for PARQ anneals until 90%; a row that says nothing gets PARQ's own default."""
    tried = low_bit.plan(tiny_low.TABLE, TinyLow(tmp_path, search=True, methods=("parq",), device="cpu"))
    two = [job for job in tried if job.bits == 2]
    assert [dict(job.recipe.options) for job in two] == [{"anneal_end": 0.9}] * len(tiny_low.DECAYS)
    (bare,) = [row for row in TABLES["tiny-low"][0].rows if row.key == "parq-fixed-w2a4"]
    fixed = low_bit.job(tiny_low.TABLE, TinyLow(tmp_path, device="cpu"), bare, "best", 0)
    assert dict(fixed.recipe.options) == {}
    (best,) = low_bit.plan(cifar_w1a1.TABLE, CifarW1A1(tmp_path, seeds=1, methods=("parq",), device="cpu"))
    assert dict(best.recipe.options) == {"anneal_end": 0.9}


def test_a_search_may_have_several_runs_of_each_setting(tmp_path: Path) -> None:
    """Seed by seed; in the tables of one bit as well."""
    for once, twice in (
        [low_bit.plan(tiny_low.TABLE, TinyLow(tmp_path, search=True, search_seeds=n, device="cpu")) for n in (1, 2)],
        [
            image_runs.plan(cifar_w1.EXPERIMENT, CifarW1(tmp_path, search=True, search_seeds=n, device="cpu"))
            for n in (1, 2)
        ],
    ):
        assert twice[: len(once)] == once and len({job.name for job in twice}) == len(twice) == 2 * len(once)
        assert [replace(job, seed=0) for job in twice[len(once) :]] == once
    with pytest.raises(ValueError, match="search_seeds must be 1 or more, got 0"):
        TinyLow(tmp_path, search=True, search_seeds=0)


def test_a_trial_with_few_images_takes_them_as_one_batch(tmp_path: Path) -> None:
    def batches(**settings: Any) -> set[int]:
        jobs = low_bit.plan(tiny_low.TABLE, TinyLow(tmp_path, device="cpu", **settings))
        return {job.settings().batch_size for job in jobs}

    assert batches() == {512} and batches(images=600) == {512} and batches(images=100) == {100}
    assert batches(images=100, search=True, holdout=20) == {80}


def test_a_row_decays_weights_only_if_it_says_so(tmp_path: Path) -> None:
    """`askew train` decays level-first's at few bits on TinyImageNet; a row that says nothing does not."""
    assert ImageTraining(tmp_path, "tiny-imagenet", bits=2, device="cpu").recipe.weight_decay > 0
    for job in low_bit.plan(tiny_low.TABLE, TinyLow(tmp_path, search=True, device="cpu")):
        assert job.row and (job.recipe.weight_decay > 0) == ("weight_decay" in job.row.key)
    for row in tiny_low.TABLE.rows:
        for kind in KINDS:
            if (settings := tiny_low.TABLE.settings(row, kind)) is not None:
                job = low_bit.job(tiny_low.TABLE, TinyLow(tmp_path, device="cpu"), row, kind, 0)
                assert job.recipe.weight_decay == settings.get("weight_decay", 0.0)


def test_every_net_of_the_affine_table_has_it_but_one(tmp_path: Path) -> None:
    jobs = low_bit.plan(cifar_affine.TABLE, CifarAffine(tmp_path, seeds=1, device="cpu"))
    plain = [job for job in jobs if not job.learns_norms]
    assert [job.row.key for job in plain if job.row] == ["full-precision-w32a32-plain-best"]
    like = {job.method: job for job in image_runs.plan(cifar_w1.EXPERIMENT, CifarW1(tmp_path, seeds=1, device="cpu"))}
    for job in jobs:  # those at the best schedule come last
        assert job.settings() == like[job.method].settings() and job.passes == 100
    shown = low_bit_report.present(cifar_affine.TABLE, records("cifar-affine", tmp_path, {}, 1))
    assert [row[3] for row in shown.tables[0].rows] == ["–", *["0.00"] * (len(jobs) - 1)]


def test_tiny_low_has_epochs_of_its_own_at_each_schedule(tmp_path: Path) -> None:
    jobs = low_bit.plan(tiny_low.TABLE, TinyLow(tmp_path, seeds=1, device="cpu"))
    found = {(job.row.about["kind"], job.passes, job.score_every) for job in jobs if job.row}
    assert found == {("paper", 200, 10), ("best", 40, 2)}
    shown = low_bit_report.present(tiny_low.TABLE, records("tiny-low", tmp_path, {}, 1)).tables[0]
    at = "200 epochs, batch 512 (the paper's schedule), 40 epochs, batch 512 (its best schedule)"
    assert shown.title == f"Test accuracy (%), {at}"
    trial = low_bit.plan(tiny_low.TABLE, TinyLow(tmp_path, seeds=1, epochs=3, device="cpu"))
    assert {job.passes for job in trial} == {3}


def test_askew_train_has_tiny_lows_settings_of_two_bits_by_default(tmp_path: Path) -> None:
    for method in DATASETS["tiny-imagenet"].few_bit_recipes:
        (row,) = [row for row in tiny_low.TABLE.rows if row.key == f"{method}-w2a4"]
        settings = tiny_low.TABLE.settings(row, "best")
        assert settings is not None
        given = {"form": settings.get("form"), "skip": ("head.linear",), "device": "cpu"}
        plain = ImageTraining(tmp_path, "tiny-imagenet", method, bits=2, activation_bits=4, **given)
        best = replace(plain, **settings, batch=tiny_low.TABLE.base["batch"])
        assert best.describe() == plain.describe() and plain.settings().batch_size == 512, method
    assert ImageTraining(tmp_path, "tiny-imagenet", "luq", bits=2, batch=64, device="cpu").settings().batch_size == 64
