"""A teacher: its loss by hand, a teacher that stays as it is, and runs with one as good as any other run."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from image_kit import pictures, small_job, timeless
from torch import nn

import askew.train.stepper as stepper
from askew.paper import image_runs
from askew.paper.cifar_ideas import CifarIdeas
from askew.train.image_config import ImageTraining, TableRow
from askew.train.images import build_objective, train_images
from askew.train.teacher import Teacher, labelled, taught_by


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def learned(data, tmp_path_factory) -> Path:
    """The checkpoint of a float net."""
    job = small_job(data, tmp_path_factory.mktemp("teacher"), method="full-precision", epochs=2)
    train_images(job)
    return job.out / job.name / "last.pt"


class Fixed(nn.Module):
    """Says the same of every image."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    def forward(self, x):
        return self.logits.expand(len(x), -1)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_loss_by_hand(share):
    student = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    x, y, aim = torch.zeros(2, 1), torch.tensor([0, 2]), torch.tensor([0.3, 0.1, -0.2], dtype=torch.float64)
    loss = Teacher(Fixed(aim.tolist()), share)(student, x, y)
    log = student.detach().log_softmax(1)
    labels = -(log[0, 0] + log[1, 2]) / 2
    followed = -(log * aim.softmax(0)).sum(1).mean()
    torch.testing.assert_close(loss.detach(), (1 - share) * labels + share * followed)
    loss.backward()
    assert student.grad is not None
    p, one = log.exp(), torch.eye(3, dtype=torch.float64)[y]
    torch.testing.assert_close(student.grad, (p - (1 - share) * one - share * aim.softmax(0)) / 2)


def test_a_student_that_agrees_with_its_only_teacher_stays():
    student = torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    Teacher(Fixed([1.0, 0.0, -1.0]), 1.0)(student, torch.zeros(1, 1), torch.tensor([2])).backward()
    assert student.grad is not None
    assert student.grad.abs().max() < 1e-16


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_is_a_part(share):
    with pytest.raises(ValueError, match="share of the loss must lie above 0"):
        Teacher(nn.Linear(2, 2), share)


def test_settings_are_checked(data, tmp_path):
    with pytest.raises(ValueError, match="needs a teacher"):
        small_job(data, tmp_path, teacher_share=0.5)
    with pytest.raises(ValueError, match="above 0 and up to 1"):
        small_job(data, tmp_path, teacher=tmp_path / "t.pt", teacher_share=1.5)


def test_the_teacher_is_the_net_of_the_file_and_does_not_change(data, tmp_path, learned):
    job = small_job(data, tmp_path, epochs=2, teacher=learned, teacher_share=0.9)
    objective = build_objective(job, 10)
    assert isinstance(objective, Teacher) and objective.share == 0.9
    held = torch.load(learned, weights_only=True)["model"]
    before = {name: tensor.clone() for name, tensor in objective.net.state_dict().items()}
    assert before.keys() == held.keys() and all(torch.equal(before[name], held[name]) for name in held)
    logits = torch.randn(4, 10, requires_grad=True)
    objective(logits, torch.randn(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)).backward()
    assert all(torch.equal(before[name], tensor) for name, tensor in objective.net.state_dict().items())
    assert all(p.grad is None for p in objective.net.parameters())


@pytest.mark.parametrize("bits", [{}, {"bits": 4, "activation_bits": 4}, {"activation_bits": 1}], ids=str)
def test_a_run_with_a_teacher(data, tmp_path, learned, bits):
    taught = train_images(small_job(data, tmp_path / "taught", epochs=2, teacher=learned, **bits))[0]
    alone = train_images(small_job(data, tmp_path / "alone", epochs=2, **bits))[0]
    assert (taught.config["teacher"], taught.config["teacher_share"]) == ("last.pt", 0.5)
    assert (alone.config["teacher"], alone.config["teacher_share"]) == (None, None)
    assert taught.metrics["epoch_loss"]["value"] != alone.metrics["epoch_loss"]["value"]


def test_static_steps_with_a_teacher_are_the_eager_ones_bit_for_bit(data, tmp_path, learned):
    runs = {
        static: timeless(
            train_images(small_job(data, tmp_path / str(static), epochs=3, teacher=learned, static=static))[0]
        )
        for static in (False, True)
    }
    assert [run["config"].pop("static") for run in runs.values()] == [False, True]
    assert runs[False] == runs[True]


def test_a_run_with_a_teacher_goes_on_bit_for_bit(data, tmp_path, learned):
    def job(name: str):
        return small_job(data, tmp_path / name, epochs=3, teacher=learned)

    class StopError(Exception):
        pass

    def stop(status):
        if status.step == 5:
            raise StopError

    with pytest.raises(StopError):
        train_images(job("parts"), stop)
    assert timeless(train_images(job("parts"))[0]) == timeless(train_images(job("whole"))[0])


@pytest.mark.parametrize("affine", [False, True])
def test_the_teachers_batchnorm_is_as_it_was_trained(data, tmp_path, affine):
    """Whatever the student's is: a net with signs learns scales and biases, its teacher need not have any."""
    job = small_job(data, tmp_path, method="full-precision", epochs=1, affine=affine)
    train_images(job)
    last, plain = job.out / job.name / "last.pt", tmp_path / "plain.pt"
    state = torch.load(last, weights_only=True)["model"]
    torch.save(state, plain)
    for file, own in itertools.product((last, plain), (False, True)):
        student = small_job(data, tmp_path / "student", affine=own, teacher=file, teacher_share=0.9, activation_bits=1)
        net = getattr(build_objective(student, 10), "net")  # noqa: B009
        assert (net.features[0].norm.weight is not None) == affine
    torch.save(state | {"head.linear.bias": torch.zeros(10)}, plain)
    with pytest.raises(ValueError, match=r"without a partner here: head\.linear\.bias"):
        build_objective(small_job(data, tmp_path / "student", teacher=plain), 10)


def test_another_net_or_no_file_is_named(data, tmp_path, learned):
    with pytest.raises(ValueError, match=r"last\.pt: no weight of it matches one of VGGSmall"):
        build_objective(small_job(data, tmp_path, teacher=learned, width=8), 10)
    with pytest.raises(ValueError, match=r"teacher .*last\.pt: not the float net of this run.*head\.linear"):
        build_objective(small_job(data, tmp_path, teacher=learned), 3)
    with pytest.raises(FileNotFoundError, match="nothing"):
        taught_by(nn.Linear(2, 2), tmp_path / "nothing.pt", 0.5)
    assert build_objective(small_job(data, tmp_path), 10) is labelled


def test_a_net_that_is_no_teacher_says_why(data, tmp_path, learned):
    def refused(teacher: Path, **settings: Any) -> str:
        with pytest.raises(ValueError, match="teacher") as error:
            build_objective(small_job(data, tmp_path, teacher=teacher, **settings), 10)
        return str(error.value)

    def trained(name: str, **settings: Any) -> Path:
        job = small_job(data, tmp_path / name, epochs=2, **settings)
        train_images(job)
        return job.out / job.name / "last.pt"

    assert "trained with binaryconnect; a teacher is a float net" in refused(trained("bc", method="binaryconnect"))
    rounded = trained("a4", method="full-precision", activation_bits=4)
    assert "its activations have 4 bits" in refused(rounded, bits=4, activation_bits=4)
    assert "may have seen images that are held out here; train it with --holdout 20" in refused(learned, holdout=20)
    build_objective(
        small_job(data, tmp_path, teacher=trained("held", method="full-precision", holdout=20), holdout=20), 10
    )

    def stop(status):
        if status.epoch == 2:
            raise KeyError

    with pytest.raises(KeyError):
        train_images(small_job(data, tmp_path / "half", epochs=3, method="full-precision"), stop)
    (half,) = (tmp_path / "half").glob("*/last.pt")
    assert "stands at epoch 1 of 3; let it end first" in refused(half)


def test_a_plain_file_of_weights_may_teach(data, tmp_path, learned):
    torch.save(torch.load(learned, weights_only=True)["model"], tmp_path / "plain.pt")
    assert isinstance(build_objective(small_job(data, tmp_path, teacher=tmp_path / "plain.pt"), 10), Teacher)


@pytest.mark.parametrize("what", ["teacher", "init"])
def test_a_run_does_not_go_on_with_another_file_of_the_same_name(data, tmp_path, learned, what):
    other = small_job(data, tmp_path / "other", method="full-precision", epochs=2, seed=1)
    train_images(other)
    job = small_job(data, tmp_path / "run", epochs=2, **{what: learned})
    record, _ = train_images(job)
    assert len(record.config[f"{what}_digest"]) == 16
    assert timeless(train_images(job)[0]) == timeless(record)
    with pytest.raises(ValueError, match=f"another run \\({what}_digest: "):
        train_images(replace(job, **{what: other.out / other.name / "last.pt"}))


@pytest.mark.cuda
def test_the_captured_graph_with_a_teacher_trains_as_the_same_steps_without_one(data, tmp_path, learned, monkeypatch):
    found = {}
    for captured in (True, False):
        monkeypatch.setattr(stepper, "WARM", 3 if captured else 10**9)
        job = small_job(data, tmp_path / str(captured), epochs=4, teacher=learned, static=True, device="cuda", lr=0.01)
        found[captured] = train_images(job)[0].metrics["epoch_loss"]["value"]
    assert found[True][:2] == pytest.approx(found[False][:2], rel=0.02)
    assert found[True] == pytest.approx(found[False], rel=0.2) and found[True][-1] != found[True][0]


def test_a_teacher_whose_net_is_gone_is_trained_again_beside_its_record(tmp_path) -> None:
    data = pictures(tmp_path / "data")

    def job(key: str, **settings: Any) -> ImageTraining:
        row = TableRow("table", key, tmp_path / "results", {"key": key})
        return small_job(data, tmp_path / "runs", epochs=2, row=row, **settings)

    config = CifarIdeas(data, out=tmp_path / "results", device="cpu")
    maker = job("maker", method="full-precision")
    pupil = job("pupil", teacher=image_runs.checkpoint(maker))
    image_runs.complete([maker], config)
    first = (tmp_path / "results/table-maker-0.json").read_bytes()
    image_runs.checkpoint(maker).unlink()
    assert len(image_runs.complete([pupil, maker], config)) == 2
    assert (tmp_path / "results/table-maker-0.json").read_bytes() == first
    assert (
        image_runs.checkpoint(maker).exists() and (image_runs.checkpoint(maker).parent / "table-maker-0.json").exists()
    )
    assert (tmp_path / "results/table-pupil-0.json").exists()
    assert not image_runs.remade_teachers([pupil, maker], [pupil])
    payload = torch.load(image_runs.checkpoint(maker), weights_only=True)
    torch.save({**payload, "position": [1, 0]}, image_runs.checkpoint(maker))  # one that was stopped half way
    assert [again.row and again.row.folder for again in image_runs.remade_teachers([pupil, maker], [pupil])] == [
        image_runs.checkpoint(maker).parent
    ]


def test_a_teacher_s_teacher_comes_first(tmp_path) -> None:
    """Three generations, in order; with the nets of the first two gone all three are made again for the last."""
    data = pictures(tmp_path / "data")

    def job(key: str, method: str = "full-precision", teacher: ImageTraining | None = None) -> ImageTraining:
        row = TableRow("table", key, tmp_path / "results", {"key": key})
        path = None if teacher is None else image_runs.checkpoint(teacher)
        return small_job(data, tmp_path / "runs", epochs=1, method=method, row=row, teacher=path)

    first = job("first")
    second = job("second", teacher=first)
    third = job("third", "binaryconnect", teacher=second)
    other = job("other")
    assert list(image_runs.generations([third, second, other, first])) == [[other, first], [second], [third]]
    assert list(image_runs.generations([third, other])) == [[third, other]]  # its teacher is there, or asked of nobody
    config = CifarIdeas(data, out=tmp_path / "results", device="cpu")
    assert len(image_runs.complete([third, second, first], config)) == 3
    for made in (first, second):
        image_runs.checkpoint(made).unlink()
    assert not image_runs.remade_teachers([third, second, first], [])
    again = image_runs.remade_teachers([third, second, first], [third])
    assert [job.row and job.row.key for job in again] == ["second", "first"]


def test_a_table_is_not_made_from_two_data_sets(tmp_path) -> None:
    def job(data: Path, key: str) -> ImageTraining:
        row = TableRow("table", key, tmp_path / "results", {"key": key})
        return small_job(data, tmp_path / "runs", epochs=1, method="full-precision", row=row)

    jobs = [job(pictures(tmp_path / key, train=n), key) for key, n in (("one", 4), ("two", 5))]
    config = CifarIdeas(tmp_path, out=tmp_path / "results", device="cpu")
    assert len(image_runs.complete(jobs[:1], config)) == 1
    with pytest.raises(ValueError, match="table-one-0 and table-two-0 were trained on different images; choose"):
        image_runs.complete(jobs, config)
