"""Static steps are the eager ones: from buffers, and on a GPU as a captured graph, for every method."""

import pytest
import torch
from image_kit import pictures, small_job, timeless

import askew.train.images as images
import askew.train.stepper as stepper
from askew.methods.registry import METHODS
from askew.train.images import train_images
from askew.train.source import TensorSource
from askew.train.stepper import Static, fastest_convolutions

NAMES = [name for name in METHODS if name not in ("luq", "lsq", "parq-fixed")]  # those take two bits and more
CUDA = pytest.mark.cuda


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


def run(data, out, **settings):
    record, _ = train_images(small_job(data, out, epochs=4, **settings))
    return record


@pytest.mark.parametrize("method", NAMES)
def test_static_steps_are_the_eager_ones_bit_for_bit(data, tmp_path, method):
    eager = timeless(run(data, tmp_path / "eager", method=method))
    static = timeless(run(data, tmp_path / "static", method=method, static=True))
    assert eager["config"].pop("static") is False
    assert static["config"].pop("static") is True
    assert len(eager["metrics"]["epoch_loss"]["value"]) == 4
    assert eager == static


def test_a_static_run_goes_on_bit_for_bit(data, tmp_path):
    whole = run(data, tmp_path / "whole", static=True)

    class StopError(Exception):
        pass

    def stop(status):
        if status.step == 7:
            raise StopError

    job = small_job(data, tmp_path / "parts", epochs=4, static=True)
    with pytest.raises(StopError):
        train_images(job, stop)
    assert timeless(train_images(job)[0]) == timeless(whole)


def test_a_loss_that_is_not_finite_ends_the_run_by_name(data, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "labelled", lambda logits, x, y: logits.sum() * float("nan"))
    with pytest.raises(ValueError, match="loss of step 0 is not a finite number"):
        run(data, tmp_path, static=True)


def test_static_steps_need_images_on_the_device():
    source = TensorSource((torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)), 2, 0)
    with pytest.raises(ValueError, match="images that lie on one device"):
        Static(lambda x, y: x, None, None, source, False)  # pyright: ignore


@pytest.mark.parametrize("before", [False, True])
def test_the_choice_of_convolutions_is_left_as_it_was(before, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)

    def inside():
        with fastest_convolutions():
            assert torch.backends.cudnn.benchmark is True
            raise KeyError

    with pytest.raises(KeyError):
        inside()
    assert torch.backends.cudnn.benchmark is before


@CUDA
@pytest.mark.parametrize("method", NAMES)
def test_the_captured_graph_trains_as_the_same_steps_without_one(data, tmp_path, method, monkeypatch):
    """The same compiled step, replayed or called; rounding that differs may grow, most where weights jump to levels."""
    found = {}
    for captured in (True, False):
        monkeypatch.setattr(stepper, "WARM", 3 if captured else 10**9)
        record = run(data, tmp_path / str(captured), method=method, static=True, device="cuda", lr=0.01)
        found[captured] = record.metrics["epoch_loss"]["value"]
    assert len(found[True]) == 4
    random = method in ("binaryconnect-stochastic", "askew-level-first-dithered")
    assert found[True][:2] == pytest.approx(found[False][:2], rel=0.2 if random else 0.02)
    assert found[True] == pytest.approx(found[False], rel=0.2)
    assert found[True][-1] != found[True][0]
