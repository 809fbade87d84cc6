"""A run on images, from a folder of files to a record, stopped and resumed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_kit import command_line, pictures, small_job
from PIL import Image

from askew import cli
from askew.report.live import Status
from askew.train.checkpoint import CheckpointError, read_file
from askew.train.images import ImageTraining, build_model, load_images, train_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten classes of noise around a colour of their own, as PNG files."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 2)):
        for label in range(10):
            place = tmp_path / "data" / split / f"class{label}"
            place.mkdir(parents=True)
            for k in range(count):
                pixels = rng.integers(0, 60, (32, 32, 3)) + 19 * label
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{k}.png")
    return tmp_path / "data"


@pytest.fixture
def config(folder: Path, tmp_path: Path) -> ImageTraining:
    return ImageTraining(
        folder,
        epochs=3,
        batch=20,
        width=4,
        score_every=1,
        keep_every=1,
        out=tmp_path / "runs",
        device="cpu",
        lr=0.1,
        check_data=False,
    )


def test_a_run_ends_on_the_levels_with_a_record(config: ImageTraining) -> None:
    record, path = train_images(config)
    assert path.exists() and record.summary["distance_max"] == 0
    assert record.summary["bits"] == 1 and record.summary["accuracy"] is not None
    assert record.config["train_set"].startswith("cifar10-png")
    assert {p.name for p in path.parent.iterdir()} == {"last.pt", "best.pt", path.name}


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("method", ["askew-level-first", "askew", "binaryconnect", "binaryconnect-stochastic"])
def test_a_stopped_run_goes_on_bit_for_bit(config: ImageTraining, tmp_path: Path, method: str) -> None:
    config = replace(config, method=method)
    whole, _ = train_images(config)

    def stop(status: Status) -> None:
        if status.step == 5:
            raise StoppedError

    again = replace(config, out=tmp_path / "again")
    with pytest.raises(StoppedError):
        train_images(again, stop)
    resumed, _ = train_images(again)
    assert resumed.metrics["epoch_loss"] == whole.metrics["epoch_loss"]
    assert resumed.metrics["accuracy"] == whole.metrics["accuracy"]


def test_several_bits_with_a_scale(config: ImageTraining) -> None:
    record, _ = train_images(replace(config, bits=2, skip=("head.linear",)))
    assert record.summary["bits"] == 2 and record.summary["distance_max"] < 1e-6


def test_the_seed_decides_the_weights_and_nothing_else(config: ImageTraining) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    a, b = (next(build_model(config, 10).parameters()) for _ in range(2))
    assert torch.equal(a, b) and torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(a, next(build_model(replace(config, seed=1), 10).parameters()))


def test_command_line(config: ImageTraining, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["train", "--data", str(config.data), "cifar10", "--bits", "1", "--epochs", "1", "--batch", "20"]
    cli.main([*line, "--width", "4", "--no-check-data", "--out", str(config.out), "--device", "cpu"])
    assert "% on the test images" in " ".join(capsys.readouterr().out.split())


def test_mistakes_are_named(config: ImageTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no method named 'rounding'"):
        replace(config, method="rounding")
    with pytest.raises(ValueError, match="bits must lie in"):
        replace(config, bits=9)
    with pytest.raises(SystemExit):
        cli.main(["train", "--data", str(tmp_path / "nowhere"), "cifar10", "--device", "cpu", "--out", str(tmp_path)])
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch": 61}, "batch 61 is larger than the 60 training images"),
        ({"batch": 20, "holdout": 45}, "batch 20 is larger than the 15 training images"),
        ({"images": 1}, "1 training image: BatchNorm needs 2 or more"),
        ({"holdout": 59}, "1 training image: BatchNorm needs 2 or more"),
        ({"batch": 1}, "batch 1: BatchNorm needs 2 images"),
    ],
)
def test_too_few_images_are_an_error(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        train_images(small_job(pictures(tmp_path / "data"), tmp_path / "runs", **settings))


def test_a_run_that_is_complete_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = small_job(pictures(tmp_path / "data"), tmp_path / "runs", epochs=2)
    cli.main(command_line(job))
    first = capsys.readouterr().out
    assert "epoch 1/2" in first and "complete already" not in first
    written = (job.out / job.name / "last.pt").stat().st_mtime_ns
    cli.main(command_line(replace(job, score_every=2)))
    again = capsys.readouterr().out
    assert f"{job.name}: complete already, a run of 20" in again and "epoch 1/2" not in again
    assert first[first.index("Record: ") :] == again[again.index("Record: ") :]
    assert (job.out / job.name / "last.pt").stat().st_mtime_ns == written


def test_a_run_goes_on_with_other_scorings_and_steps(tmp_path: Path) -> None:
    """What does not change the weights may change on the way; the weights are those of the run left alone."""
    data = pictures(tmp_path / "data")
    job = small_job(data, tmp_path / "cut")

    def stop(status: Status) -> None:
        if status.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_images(job, stop)
    resumed, _ = train_images(replace(job, score_every=3, static=True))
    whole, _ = train_images(replace(job, out=tmp_path / "whole"))
    assert resumed.config["score_every"] == 3 and resumed.config["static"] is True
    assert resumed.metrics["epoch_loss"]["value"] == pytest.approx(whole.metrics["epoch_loss"]["value"], rel=1e-4)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_run_goes_on_only_with_the_images_it_began_with(folder: Path, config: ImageTraining, split: str) -> None:
    """Moved or touched files are the same images; one other picture is not."""

    def stop(status: Status) -> None:
        if status.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_images(config, stop)
    one = folder / split / "class3" / "1.png"
    before = one.read_bytes()
    Image.new("RGB", (32, 32), (200, 10, 10)).save(one)
    with pytest.raises(CheckpointError, match="data_digest"):
        train_images(config)
    one.write_bytes(before)
    moved = folder.rename(folder.with_name("elsewhere"))
    assert train_images(replace(config, data=moved))[0].summary["accuracy"] is not None


def test_a_last_batch_of_one_image_does_not_spoil_batchnorm(tmp_path: Path) -> None:
    """Scores are made in batches of 1000."""
    config = small_job(pictures(tmp_path / "data", train=101), tmp_path / "runs", epochs=1, images=1001, batch=500)
    record, _ = train_images(config)
    assert record.summary["accuracy"] is not None and record.config["train_images"] == 1001


def test_a_damaged_cache_is_decoded_again(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    whole = load_images(small_job(data, tmp_path)).train.images.copy()
    (cache,) = data.glob(".askew-cache/*train.images")
    content = bytearray(cache.read_bytes())
    content[-5000:-4000] = bytes(1000)
    cache.write_bytes(content)
    assert np.array_equal(load_images(small_job(data, tmp_path)).train.images, whole)


def test_a_net_to_start_from_must_not_know_the_held_out_images(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    known = {}
    for name, part in {"all": {}, "fewer": {"holdout": 30}, "same": {"holdout": 20}}.items():
        job = small_job(data, tmp_path / name, epochs=1, method="full-precision", **part)
        train_images(job)
        known[name] = job.out / job.name / "last.pt"
    for name in ("all", "fewer"):
        with pytest.raises(ValueError, match=r"init .* may have seen images .* train it with --holdout 20, too"):
            train_images(small_job(data, tmp_path / "next", epochs=1, init=known[name], holdout=20))
    train_images(small_job(data, tmp_path / "next", epochs=1, init=known["same"], holdout=20))
    taught = small_job(data, tmp_path / "taught", epochs=1, teacher=known["fewer"], holdout=20)
    with pytest.raises(ValueError, match=r"teacher .* may have seen images"):
        train_images(taught)
    train_images(replace(taught, teacher=known["same"].with_name("best.pt")))


def test_full_precision_starts_from_weights_as_they_are(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    first = small_job(data, tmp_path / "first", epochs=1, method="full-precision")
    train_images(first)
    started = tmp_path / "first" / first.name / "last.pt"
    job = small_job(data, tmp_path / "second", epochs=1, method="full-precision", init=started, lr=1e-9)
    train_images(job)
    before, after = (read_file(p)["model"]["features.1.conv.weight"] for p in (started, job.out / job.name / "last.pt"))
    assert torch.allclose(before, after, atol=1e-6)
