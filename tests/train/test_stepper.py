"""Static steps are the eager ones: from buffers, and on a GPU as a captured graph, for every method."""

import pytest
import torch
from image_kit import pictures, small_job, timeless

import askew.train.images as images
import askew.train.loop as loop
import askew.train.stepper as stepper
from askew.core import Clock
from askew.methods.registry import METHODS
from askew.train.checkpoint import read_file
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


@pytest.mark.parametrize(("method", "average"), [*((name, None) for name in NAMES), ("binaryconnect", 0.3)])
def test_static_steps_are_the_eager_ones_bit_for_bit(data, tmp_path, method, average):
    eager = timeless(run(data, tmp_path / "eager", method=method, average=average))
    static = timeless(run(data, tmp_path / "static", method=method, average=average, static=True))
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


class Replays(Static):
    """Captures without a GPU: what stands for a graph takes the steps of its stretch one by one when it is replayed."""

    replayed = 0

    def __init__(self, *args):
        super().__init__(*args)
        self.capture = True

    def _load(self, epoch):
        self.capture = False
        super()._load(epoch)
        self.capture = True

    def _at(self, i):
        self.capture = False
        self._set_rates(i)
        self._step()
        self.capture = True

    def _beside(self, step):
        self._at(step % len(self.losses))
        self.graph = None
        phase = self.optimizer.phase(Clock(step, self.optimizer.total_steps))
        if self._stretch_at(step + 1) == phase:
            self.graph, self.graph_phase = self, phase

    def replay(self):
        Replays.replayed += 1
        first = int(self.index)
        for i in range(first, first + self.stretch):
            self._at(i)
        self.optimizer.steps -= self.stretch  # the loop counts them as it is told of them


@pytest.mark.parametrize(("every", "stretch"), [(None, 6), (2, 2), (4, 2), (5, 1)])
@pytest.mark.parametrize(
    "method",
    [
        "askew-level-first",
        "parq",
        "full-precision",
        "askew-level-first-rounded",
        "askew-level-first-reversible",
    ],
)
def test_stretches_of_steps_are_the_eager_steps_bit_for_bit(data, tmp_path, method, every, stretch, monkeypatch):
    """As a graph takes them: some at once, told one by one, kept only where a stretch ends."""
    settings = {"method": method, "batch": 10, "keep_steps": every, "average": 0.3 if "rounded" in method else None}
    eager = timeless(run(data, tmp_path / "eager", **settings))
    seen = set()
    monkeypatch.setattr(loop, "Static", lambda *args: seen.add(made := Replays(*args)) or made)
    monkeypatch.setattr(Replays, "replayed", 0)
    static = timeless(run(data, tmp_path / "static", **settings, static=True))
    assert {made.stretch for made in seen} == {stretch} and Replays.replayed > 0
    assert (eager["config"].pop("static"), static["config"].pop("static")) == (False, True)
    assert eager == static


@pytest.mark.parametrize("at", range(1, 24, 3))
def test_a_run_of_stretches_goes_on_bit_for_bit_wherever_it_is_killed(data, tmp_path, at, monkeypatch):
    whole = run(data, tmp_path / "whole", static=True, batch=10)
    monkeypatch.setattr(loop, "Static", Replays)

    class StopError(Exception):
        pass

    def stop(status):
        if status.step == at:
            raise StopError

    job = small_job(data, tmp_path / "parts", epochs=4, static=True, batch=10, keep_steps=2)
    with pytest.raises(StopError):
        train_images(job, stop)
    last = job.out / job.name / "last.pt"
    epoch, step = read_file(last)["position"] if last.exists() else (0, 0)
    assert 6 * epoch + step == at - at % 2
    assert timeless(train_images(job)[0]) == timeless(whole)


@pytest.mark.parametrize(("n", "divisor"), [(1, 1), (7, 7), (20, 20), (23, 1), (391, 17), (500, 20), (1000, 20)])
def test_a_stretch_divides_the_epoch(n, divisor):
    assert stepper._divisor(n) == divisor


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
    found: dict[bool, list[float]] = {}
    for captured in (True, False):
        monkeypatch.setattr(stepper, "WARM", 3 if captured else 10**9)
        record = run(data, tmp_path / str(captured), method=method, static=True, device="cuda", lr=0.01)
        found[captured] = record.metrics["epoch_loss"]["value"]
    assert len(found[True]) == 4
    random = method in ("binaryconnect-stochastic", "askew-level-first-dithered")
    assert found[True][:2] == pytest.approx(found[False][:2], rel=0.2 if random else 0.02)
    assert found[True] == pytest.approx(found[False], rel=0.2)
    assert found[True][-1] != found[True][0]
