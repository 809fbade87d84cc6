"""Ideas for one bit: each run once, scored on held-out images, compared with the first of its table."""

from dataclasses import replace
from pathlib import Path

import pytest
from image_trees import FakeGrid

from askew.core import binary
from askew.methods.registry import METHODS
from askew.models.vgg_small import VGGSmall
from askew.optim import groups
from askew.paper import cifar_ideas, cifar_ideas_report, image_runs
from askew.paper.cifar_ideas import OURS, QUESTIONS, ROUND, ROUND_COLD, ROUNDED, CifarIdeas, ideas
from askew.train.record import load_all


def test_each_idea_is_run_once_on_held_out_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid()
    monkeypatch.setattr(image_runs, "run_grid", grid)
    config = CifarIdeas(tmp_path / "data", out=tmp_path / "results", seeds=1, epochs=10)
    cifar_ideas.run(config)
    alone = [key for key, idea in ideas().items() if idea.teacher is None]
    assert [job.row.key for job in grid.asked if job.row][: len(alone)] == alone
    assert sorted(job.row.key for job in grid.asked if job.row) == sorted(ideas())
    assert {job.holdout for job in grid.asked} == {5000} and {job.settings().schedule for job in grid.asked} == {
        "cosine"
    }
    assert {job.method for job in grid.asked} <= set(METHODS)
    assert all(job.epochs == (25 if job.row and job.row.key.startswith("long-") else 10) for job in grid.asked)
    cifar_ideas.run(replace(config, seeds=2))
    assert len(grid.asked) == 2 * len(ideas())
    for job in grid.asked:
        assert job.row is not None
        maker = ideas()[job.row.key].teacher
        assert job.teacher == (maker and Path(f"runs/cifar-ideas/cifar-ideas-{maker}-seed{job.seed}/last.pt"))
    tables = cifar_ideas_report.present(load_all(config.out)).tables
    assert [len(table.rows) for table in tables] == [len(group) for group in QUESTIONS.values()]
    first, second = tables[0].rows[:2]
    titles = [table.title for table in tables]
    assert titles[0].endswith(": 10 epochs") and "At what pace, over the epochs of the tables: 25 epochs" in titles
    assert first[1:3] == ("50.00 ± 0.00", "") and second[1:3] == ("50.00 ± 0.00", "+0.00") and second[-1] == "2"
    (config.out / "cifar-ideas-full-faster-0.json").unlink()
    (config.out / "cifar-ideas-full-faster-1.json").unlink()
    assert cifar_ideas_report.present(load_all(config.out)).tables[0].rows[1][1:] == ("not run", "", "", "", "0")


def test_one_key_means_one_thing_and_every_question_starts_from_a_base() -> None:
    for group in QUESTIONS.values():
        for idea in group:
            assert ideas()[idea.key].settings == idea.settings and ideas()[idea.key].method == idea.method
    ours = [group for title, group in list(QUESTIONS.items())[2:] if "one-bit activations" not in title]
    bases = [(OURS, {}), (ROUNDED, ROUND), (ROUNDED, ROUND_COLD), ("full-precision", {"lr": 0.03})]
    assert all((group[0].method, group[0].settings) in bases for group in ours)


def test_layers_left_in_full_precision_exist() -> None:
    net = VGGSmall(width=8)
    for idea in QUESTIONS["Which layers cost it (BinaryConnect)"][1:]:
        left = [g for g in groups(net, levels=binary(), skip=idea.settings["skip"]) if g["levels"] is None]
        assert sum(len(g["params"]) for g in left) == len(idea.settings["skip"])


def test_some_ideas_alone_bring_their_teachers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid()
    config = CifarIdeas(tmp_path / "data", out=tmp_path / "results", seeds=1, epochs=10)
    monkeypatch.setattr(image_runs, "run_grid", grid)
    cifar_ideas.run(replace(config, ideas=("rounded", "together-rounded-cold")))
    assert [job.row.key for job in grid.asked if job.row] == ["rounded", "full-together", "together-rounded-cold"]
    assert grid.asked[-1].affine and grid.asked[-1].average == 0.05 and grid.asked[-1].teacher_share == 0.9
    grid.asked.clear()
    cifar_ideas.run(replace(config, ideas=("long-taught-twice-rounded",)))
    keys = [job.row.key for job in grid.asked if job.row]
    assert keys == ["long-full", "long-taught-full", "long-taught-twice-rounded"]
    with pytest.raises(ValueError, match="no idea named 'rouded'; known: full, full-faster"):
        replace(config, ideas=("rouded",))
