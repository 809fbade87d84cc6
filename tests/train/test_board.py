"""TensorBoard: the event files say what the record says, once, also after a run was stopped and resumed."""

from __future__ import annotations

import builtins
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from image_kit import pictures, small_job

from askew import cli
from askew.train.images import ImageTraining, train_images
from askew.train.record import Record, load

EPOCH = {"test/accuracy": "accuracy", "test/loss": "test_loss", "train/epoch_loss": "epoch_loss", "test/top5": "top5"}
LOOKS = {"weights/feasible": "feasible", "weights/distance_mean": "distance_mean", "weights/flips": "flips"}


@pytest.fixture
def job(tmp_path: Path) -> ImageTraining:
    return small_job(pictures(tmp_path / "data"), tmp_path / "runs", tensorboard=True, keep_every=1)


def read(job: ImageTraining) -> Any:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(
        str(job.out / job.name / "tensorboard"), size_guidance=dict.fromkeys(reader.DEFAULT_SIZE_GUIDANCE, 0)
    )
    return events.Reload()


def curve(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in events.Scalars(tag)]


def agrees(events: Any, record: Record) -> None:
    """Every curve of the board is the record's, point by point; epochs stand at their last step."""
    metrics = record.metrics
    steps = {"train/loss": "loss", "train/lr": "lr", "train/radius": "value"}
    for tag, name in steps.items():
        expected = list(zip(metrics[name]["step"], metrics[name]["value"], strict=True))
        assert curve(events, tag) == [(step, pytest.approx(value)) for step, value in expected], tag
    for tag, name in EPOCH.items():
        expected = zip(metrics[name]["step"], metrics[name]["value"], strict=True)
        assert curve(events, tag) == [(3 * epoch - 1, pytest.approx(value)) for epoch, value in expected], tag
    looks = list(zip(metrics["diagnosis"]["step"], metrics["diagnosis"]["value"], strict=True))
    for tag, name in LOOKS.items():
        expected = [(e, look["overall"][name]) for e, look in looks if look["overall"][name] is not None]
        assert curve(events, tag) == [(3 * epoch - 1, pytest.approx(value)) for epoch, value in expected], tag
    kept = record.extra["histograms"]
    for layer in kept[0]["layers"]:
        shown = events.Histograms(f"weights/{layer}")
        assert [h.step for h in shown] == [max(0, 3 * found["epoch"] - 1) for found in kept]
        for h, found in zip(shown, kept, strict=True):
            assert h.histogram_value.num == sum(found["layers"][layer])


def test_the_board_shows_the_record(job: ImageTraining) -> None:
    record, _ = train_images(job)
    events = read(job)
    agrees(events, record)
    assert set(events.Tags()["scalars"]) >= {"train/loss", "train/lr", "train/radius", *EPOCH, *LOOKS}
    last = events.Histograms("weights/others")[-1].histogram_value
    bins = [limit for limit, count in zip(last.bucket_limit, last.bucket, strict=True) if count]
    assert len(bins) == 2 and bins[0] == pytest.approx(-0.975) and bins[1] == pytest.approx(1.025)  # -1 and +1


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("at", [2, 5, 8])
def test_a_resumed_run_goes_on_with_its_curves(job: ImageTraining, at: int) -> None:
    """Stopped after checkpoint and events of an epoch; what was shown since is purged and shown again, once."""

    def stop(status: Any) -> None:
        if status.step == at:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_images(job, stop)
    before = [(p.step, p.wall_time) for p in read(job).Scalars("train/epoch_loss")] if at > 3 else []
    record, _ = train_images(job)
    events = read(job)
    agrees(events, record)
    assert [(p.step, p.wall_time) for p in events.Scalars("train/epoch_loss")][: len(before)] == before
    train_images(job)  # a finished run adds nothing
    agrees(read(job), record)


def test_a_run_that_began_without_a_board_gets_all_of_its_curves(job: ImageTraining) -> None:
    def stop(status: Any) -> None:
        if status.step == 7:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_images(replace(job, tensorboard=False), stop)
    record, _ = train_images(job)
    agrees(read(job), record)


def test_the_board_is_no_setting_of_the_run(job: ImageTraining) -> None:
    assert job.describe() == replace(job, tensorboard=False).describe()


def test_without_tensorboard_the_error_says_what_to_install(
    job: ImageTraining, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return whole(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    line = ["train", "--data", str(job.data), "--out", str(job.out), "--no-check-data", "--tensorboard"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*line, "--width", "4", "--batch", "20", "--device", "cpu"])
    assert stop.value.code == 2
    assert "pip install 'askew[tensorboard]'" in capsys.readouterr().err


def test_a_rival_shows_no_radius(job: ImageTraining) -> None:
    """A rival has no epsilon and no radius to show."""
    _, path = train_images(replace(job, method="binaryconnect", epochs=1))
    assert "train/radius" not in read(replace(job, method="binaryconnect")).Tags()["scalars"]
    assert "value" not in load(path).metrics
