"""Settings of a run on images: defaults by method and data set, nothing taken and ignored, what counts described."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from askew.core import Exponential, LevelFirst
from askew.data.images import ImageSet
from askew.methods.registry import METHODS
from askew.paper import tiny_w1
from askew.train import image_config, low_bit
from askew.train.image_config import ImageTraining, TableRow
from askew.train.images import build_model, build_optimizer, held_out
from askew.train.recipes import RECIPES

PLAIN = ImageTraining(Path("data"), device="cpu")


def test_the_simple_command_trains_level_first_by_its_recipe():
    settings = PLAIN.settings()
    assert settings.annealing == LevelFirst(start=0.5, end=0.85, power=0.5) and settings.alpha == 0.05
    assert (settings.lr, settings.min_lr, settings.cosine_end, settings.schedule) == (0.03, 0.0, 1.0, "cosine")
    assert (settings.epochs, settings.batch_size, PLAIN.padding) == (100, 100, 4)


def test_the_method_that_is_taken_if_none_is_named():
    """Level-first; at one bit on TinyImageNet its reversible form, with a scale and decay, as in tiny-w1."""
    tiny = ImageTraining(Path("data"), "tiny-imagenet", device="cpu")
    assert (PLAIN.method, tiny.method) == ("askew-level-first", "askew-level-first-reversible")
    assert replace(tiny, method="auto", bits=2).method == "askew-level-first"
    winner = next(c for c in tiny_w1.EXPERIMENT.contenders if c.method == tiny.method).search.winner
    assert {name: getattr(tiny.recipe, name) for name in winner} == winner
    assert low_bit.scale(tiny) == tiny.describe()["scale"] == "abs-mean"
    plain = replace(tiny, scale="none", weight_decay=0.0)
    assert low_bit.scale(plain) == "none" and plain.describe()["scale"] is None
    assert replace(tiny, per="channel").per == "channel"
    assert replace(tiny, method="binaryconnect", weight_decay=None, scale="none").describe()["scale"] is None
    with pytest.raises(ValueError, match="scale none is a setting of one bit"):
        replace(tiny, bits=4, scale="none")


def test_every_recipe_is_of_a_method_and_valid():
    assert set(RECIPES) <= set(METHODS)
    for method in METHODS:
        replace(PLAIN, method=method)


def test_what_is_given_takes_the_place_of_the_recipe():
    given = replace(PLAIN, lr=0.1, start=0.2, end=0.9, power=2.0, by="quantile", alpha=0.3, min_lr=0.0)
    assert given.settings().annealing == LevelFirst(0.2, 0.9, 2.0, "quantile") and given.settings().alpha == 0.3
    paper = replace(PLAIN, method="askew", K=0.5, start=0.4, alpha=1.0)
    assert paper.settings().annealing == Exponential(K=0.5, start=0.4)
    assert paper.settings().schedule == "steps"
    assert replace(PLAIN, method="askew-level-first-dithered").settings().annealing == LevelFirst(dither=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"method": "rounding"}, "no method named 'rounding'"),
        ({"dataset": "mnist"}, "no data set named 'mnist'"),
        ({"bits": 9}, "bits"),
        ({"method": "binaryconnect", "alpha": 0.1}, "alpha is a setting of askew"),
        ({"method": "parq", "weight_decay": -0.1}, "weight_decay must be 0 or more"),
        ({"method": "askew", "by": "quantile"}, "by is a setting of askew-level-first"),
        ({"K": 0.5}, "K is a setting of askew"),
        ({"method": "askew", "min_lr": 0.1}, "min_lr belongs to the schedule 'cosine', not to 'steps'"),
        ({"factor": 0.1}, "factor belongs to the schedule 'steps'"),
        ({"stem": "small"}, "stem is a setting of resnet18; this run trains vgg-small"),
        ({"model": "alexnet"}, "no model named 'alexnet'; known: vgg-small, resnet18"),
        ({"model": "vgg-small", "dataset": "tiny-imagenet"}, "vgg-small takes the 32x32 images of cifar10"),
        ({"dataset": "tiny-imagenet", "stem": "huge"}, "no stem named 'huge'"),
        ({"dataset": "imagenet", "pad": 4}, "pad and holdout"),
        ({"options": {"rate": 0.1}}, "askew-level-first has no options"),
        ({"method": "proxquant", "options": {"rating": 0.1}}, "options of proxquant: .*rating"),
        ({"method": "proxquant", "options": {"rate": -1.0}}, "rate"),
        ({"images": 0}, "images"),
        ({"resize": 300}, "resize is a setting of imagenet; cifar10 has none"),
        ({"dataset": "tiny-imagenet", "workers": 2}, "workers is a setting of imagenet"),
        ({"method": "full-precision", "bits": 4}, "bits, form, per and scale are of weights on levels"),
        ({"method": "parq", "bits": 2, "per": "channel"}, "per: parq finds its own levels"),
        ({"method": "parq", "bits": 2, "form": "symmetric"}, "form: parq finds its own levels"),
        ({"lr": -0.1}, "lr"),
        ({"lr": 0.01, "min_lr": 0.02}, "min_lr 0.02 lies above lr 0.01"),
        ({"seed": -1}, r"seed must lie in 0\.\.2\^32-1, got -1"),
        ({"seed": 2**32}, "seed must lie in"),
        ({"device": "foo"}, "no device named 'foo'"),
    ],
)
def test_mistakes_are_named(wrong: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        replace(PLAIN, **wrong)


def test_options_reach_the_method():
    config = replace(PLAIN, method="proxquant", options={"rate": 0.5, "freeze": 0.7}, width=2)
    method = build_optimizer(config, build_model(config, 10), 10).method
    assert (vars(method)["rate"], vars(method)["freeze"]) == (0.5, 0.7)


def test_what_decides_the_outcome_is_described():
    described = PLAIN.describe()
    assert json.loads(json.dumps(described)) == described
    changes: list[dict[str, Any]] = [
        {"lr": 0.2}, {"schedule": "steps"}, {"min_lr": 0.01}, {"cosine_end": 0.5}, {"alpha": 0.2}, {"start": 0.1},
        {"end": 0.8}, {"power": 2.0}, {"by": "quantile"}, {"seed": 1}, {"width": 64}, {"skip": ("head.linear",)},
        {"pad": 2}, {"images": 100}, {"holdout": 10}, {"epochs": 10}, {"batch": 10}, {"bits": 2}, {"method": "parq"},
    ]  # fmt: skip
    for change in changes:
        assert replace(PLAIN, **change).describe() != described, change
    rival = replace(PLAIN, method="proxquant", options={"rate": 0.5})
    assert rival.describe()["options"] == {"rate": 0.5}
    tiny = replace(PLAIN, dataset="tiny-imagenet")
    assert tiny.describe()["stem"] == "tiny" and replace(tiny, stem="small").describe()["stem"] == "small"
    for same in (
        {"out": Path("elsewhere")},
        {"data": Path("there")},
        {"keep_every": 3},
        {"keep_steps": 2},
        {"check_data": False},
    ):
        assert replace(PLAIN, **same).describe() == described


def test_the_net_is_the_data_sets_own_unless_one_is_given():
    nets = {
        "vgg-small": PLAIN,
        "resnet18 small 64": replace(PLAIN, model="resnet18"),
        "resnet18 tiny 64": replace(PLAIN, dataset="tiny-imagenet"),
        "resnet18 tiny 16": replace(PLAIN, dataset="tiny-imagenet", width=16),
        "resnet18 imagenet 64": replace(PLAIN, dataset="imagenet"),
    }
    for name, config in nets.items():
        model, *size = name.split()
        assert config.net == config.describe()["model"] == model
        if size:
            assert config.net_options == {"stem": size[0], "width": int(size[1])}
    assert nets["vgg-small"].describe()["width"] == 128
    wide, thin = nets["resnet18 tiny 64"].describe(), nets["resnet18 tiny 16"].describe()
    assert wide["width"] is None and thin["width"] == 16  # None: as in records older than the setting
    assert replace(nets["resnet18 tiny 64"], width=64).describe() == wide
    assert replace(PLAIN, model="vgg-small").describe() == PLAIN.describe()
    assert build_model(nets["resnet18 tiny 16"], 5).head.linear.weight.shape == (5, 128)  # pyright: ignore


def test_a_row_names_the_run_and_is_told_in_its_record():
    row = TableRow("cifar-w1", "parq-best", Path("results"), {"kind": "best"})
    config = replace(PLAIN, row=row, seed=3)
    assert config.name == "cifar-w1-parq-best-seed3" and config.describe()["kind"] == "best"
    assert hash(config) == hash(replace(config))


def test_held_out_images_are_spread_over_the_set_and_no_longer_trained_on():
    images = np.arange(30, dtype=np.uint8)[:, None, None, None].repeat(3, 3)
    whole = ImageSet(images, np.repeat(np.arange(3), 10).astype(np.int64), ("a", "b", "c"), "set")
    train, test = held_out(whole, 6)
    seen = [int(x) for part in (train, test) for x in part.images[:, 0, 0, 0]]
    assert sorted(seen) == list(range(30)) and len(test) == 6
    assert np.bincount(test.labels).tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="holdout 30 leaves nothing"):
        held_out(whole, 30)


def test_a_run_is_named_after_the_bits_it_has():
    assert PLAIN.name == "cifar10-askew-level-first-1bit-seed0"
    assert replace(PLAIN, method="full-precision").name == "cifar10-full-precision-32bit-seed0"
    assert replace(PLAIN, bits=2, activation_bits=4).width_name == "w2a4"


def test_scales_and_biases_of_batchnorm_have_a_smaller_learning_rate() -> None:
    config = ImageTraining(Path("data"), width=8, affine=True, lr=0.1, skip=("head.linear",), device="cpu")
    optimizer = build_optimizer(config, build_model(config, 10), 10)
    weights, skipped, vectors = optimizer.param_groups
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1, pytest.approx(0.03)]
    assert len(weights["params"]) == 6 and skipped["params"][0].shape == (10, 8 * 4 * 16)
    assert {p.ndim for p in vectors["params"]} == {1} and len(vectors["params"]) == 12
    scheduler = config.settings().scheduler(optimizer, 500)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    assert vectors["lr"] == pytest.approx(0.3 * weights["lr"]) and weights["lr"] < 0.1
    assert config.describe()["affine"] is True and config.describe()["affine_rate"] == 0.3
    faster = replace(config, affine_rate=1.0)
    assert [group["lr"] for group in build_optimizer(faster, build_model(faster, 10), 10).param_groups] == [0.1] * 3
    with pytest.raises(ValueError, match="affine_rate, above 0 and finite, needs affine"):
        replace(config, affine=False, affine_rate=1.0)
    with pytest.raises(ValueError, match="affine_rate, above 0 and finite"):
        replace(config, affine_rate=float("inf"))
    plain = ImageTraining(Path("data"), width=8, device="cpu")
    assert (
        plain.describe()["affine"] is None and len(build_optimizer(plain, build_model(plain, 10), 10).param_groups) == 1
    )


def test_weights_decay_and_scales_of_batchnorm_do_not() -> None:
    """A step at learning rate lr shrinks a weight without a gradient by lr times the decay, as AdamW does."""
    config = ImageTraining(Path("data"), width=8, method="full-precision", lr=0.1, weight_decay=0.5, device="cpu")
    net = build_model(config, 10)
    optimizer, start = build_optimizer(config, net, 10), [p.detach().clone() for p in net.parameters()]
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for p, before in zip(net.parameters(), start, strict=True):
        torch.testing.assert_close(p.detach(), 0.95 * before)
    scaled = replace(config, affine=True)
    decays = [g["weight_decay"] for g in build_optimizer(scaled, build_model(scaled, 10), 10).param_groups]
    assert decays == [0.5, 0.0]
    assert (
        config.describe()["weight_decay"] == 0.5
        and replace(config, weight_decay=None).describe() == replace(config, weight_decay=0.0).describe()
    )


def test_signs_come_with_thresholds_of_their_own_unless_told_otherwise() -> None:
    def norms(**settings: Any) -> tuple[bool, Any, Any]:
        config = ImageTraining(Path("data"), width=8, device="cpu", **settings)
        told = config.describe()
        return build_model(config, 10).features[0].norm.affine, told["affine"], told["affine_rate"]  # pyright: ignore

    assert norms(activation_bits=1) == norms(activation_bits=1, affine=True) == (True, True, 0.3)
    assert norms(activation_bits=1, affine=False) == norms(activation_bits=4) == norms() == (False, None, None)


def test_when_a_run_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph is compiled anyway; beside it: where there can be none, unless steps op by op are asked for."""
    cases = {"cifar10": (False, False, True), "imagenet": (True, False, True)}
    for dataset, expected in cases.items():
        job = ImageTraining(Path(), dataset, device="cuda")
        asked: list[dict[str, Any]] = [{}, {"static": False}, {"static": False, "compiled": True}]
        assert tuple(replace(job, **settings).compiles for settings in asked) == expected
        assert not replace(job, compiled=False).compiles and not replace(job, device="cpu").compiles
        assert replace(job, device="cpu", compiled=True).compiles
    monkeypatch.setattr(image_config, "launched", lambda: True)
    assert not ImageTraining(Path(), "imagenet", device="cuda").compiles
