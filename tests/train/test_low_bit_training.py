"""Image runs at few bits: which net and optimizer the settings give, whole small runs, resumed ones, bad settings."""

from __future__ import annotations

import pytest
import torch
from image_kit import pictures, small_job, timeless
from torch import nn

from askew.core import uniform
from askew.nn import QuantizedActivation, Sign
from askew.train.checkpoint import read_file
from askew.train.evaluate import reestimate_batchnorm
from askew.train.images import ImageTraining, build_model, build_optimizer, train_images


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


def job(data="x", out="y", **settings) -> ImageTraining:
    return small_job(data, out, **settings)


def test_four_bit_activations_leave_images_and_skipped_layers_alone():
    config = job(bits=4, activation_bits=4, skip=("head.linear.weight",))
    net = build_model(config, 10)
    names = [n for n, m in net.named_modules() if isinstance(m, QuantizedActivation)]
    assert names == [f"features.{i}.conv.input_quantizer" for i in range(1, 6)]
    assert all(m.bits == 4 for m in net.modules() if isinstance(m, QuantizedActivation))
    plain = build_model(job(), 10)
    for (a, p), (b, q) in zip(net.named_parameters(), plain.named_parameters(), strict=True):
        assert a == b and torch.equal(p, q)  # the same weights from the same seed


def test_one_bit_activations_are_signs_after_the_pool_and_its_norm():
    net = build_model(job(activation_bits=1, sign_gradient="quadratic"), 10)
    signs = [m for m in net.modules() if isinstance(m, Sign)]
    assert len(signs) == 6 and all(s.gradient == "quadratic" for s in signs)
    assert not any(isinstance(m, nn.ReLU) for m in net.modules())
    assert list(dict(net.features[1].named_children())) == ["conv", "pool", "norm", "activation"]  # pyright: ignore
    resnet = build_model(ImageTraining("x", "tiny-imagenet", activation_bits=1, device="cpu"), 4)  # pyright: ignore
    assert sum(isinstance(m, Sign) for m in resnet.modules()) == 17


@pytest.mark.parametrize(
    ("method", "scale"),
    [
        ("askew", "sawb"),
        ("askew-level-first", "sawb"),
        ("askew-level-first-rounded", "sawb"),
        ("askew-level-first-reversible", "sawb"),
        ("luq", "sawb"),
        ("lsq", "sawb"),
        ("parq-fixed", "sawb"),
        ("parq", "none"),
    ],
)
def test_the_optimizer_of_low_bits(method, scale):
    own = {"form": "symmetric", "per": "channel"} if scale == "sawb" else {}
    config = job(method=method, bits=4, **own)
    opt = build_optimizer(config, build_model(config, 10), 30)
    group = opt.param_groups[0]
    assert group["levels"] == uniform(4, own.get("form", "int")) and group["scale"] == scale
    assert group["per"] == ("channel" if scale == "sawb" else "tensor")
    if method.startswith("askew"):
        assert group["clip"] == "quarter" and group["clamp"]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "askew-level-first", "bits": 4, "activation_bits": 4, "lr": 0.01},
        {"method": "askew", "bits": 2, "activation_bits": 4, "form": "paper", "lr": 0.01},
        {"method": "luq", "bits": 2, "activation_bits": 4, "per": "channel"},
        {"method": "lsq", "bits": 4, "activation_bits": 4},
        {"method": "askew-level-first", "activation_bits": 1},
        {"method": "askew-level-first", "bits": 2, "form": "ternary", "scale": "abs-mean", "activation_bits": 8},
        {"method": "luq", "bits": 4, "activation_bits": 4, "gradient_bits": 4},
    ],
    ids=lambda s: f"{s['method']}-w{s.get('bits', 1)}a{s['activation_bits']}",
)
def test_a_run_goes_on_after_a_stop(settings, data, tmp_path):
    """A whole run, and one stopped before scales freeze and once more after it: the same record, the same weights."""
    whole, path = train_images(job(data, tmp_path / "whole", **settings))
    assert whole.config["activation_bits"] == settings["activation_bits"]
    assert whole.summary["accuracy"] is not None and whole.metrics["loss"]["value"]
    config = job(data, tmp_path / "cut", **settings)

    for epoch in (2, 3):

        def stop(status, epoch=epoch):
            if status.epoch == epoch:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_images(config, stop)
    resumed, again = train_images(config)
    assert timeless(resumed) == timeless(whole)
    first, second = (read_file(p.parent / "last.pt")["model"] for p in (path, again))
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_reestimation_covers_activation_scales():
    """The running scale becomes the mean over the given batches, and momentum is put back."""
    torch.manual_seed(0)
    net = nn.Sequential(QuantizedActivation(4, True), nn.BatchNorm1d(3))
    net(100 * torch.randn(20, 3))
    batches = [(torch.randn(20, 3), torch.zeros(20)) for _ in range(15)]
    reestimate_batchnorm(net, batches)
    scales = []
    for x, _ in batches:
        single = QuantizedActivation(4, True)
        single(x)
        scales.append(single.scale)
    torch.testing.assert_close(net[0].scale, torch.stack(scales).mean())  # pyright: ignore
    assert net[0].momentum == 0.1 and net.training  # pyright: ignore


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 9}, "bits must lie in 1..8, got 9"),
        ({"bits": 0}, "bits must lie in 1..8, got 0"),
        ({"activation_bits": 9}, "activation_bits must lie in 1..8, got 9"),
        ({"bits": 1, "form": "paper"}, "form is a setting of 2 to 8 bits"),
        ({"bits": 1, "per": "channel"}, "per is a setting of a scale"),
        ({"bits": 2, "form": "quaternary"}, "form must be one of int, symmetric, paper, ternary, got 'quaternary'"),
        ({"bits": 4, "form": "ternary"}, r"ternary weights \(-1, 0, \+1\) take 2 bits, got bits=4"),
        ({"bits": 2, "scale": "none"}, "scale none is a setting of one bit"),
        ({"bits": 2, "scale": "largest"}, "scale must be one of none, sawb, abs-mean, got 'largest'"),
        ({"bits": 2, "method": "lsq", "scale": "abs-mean"}, "scale: lsq learns its steps"),
        ({"bits": 2, "method": "parq", "scale": "abs-mean"}, "scale: parq finds its own levels"),
        ({"gradient_bits": 1}, "gradient_bits must lie in 2..5, got 1"),
        ({"gradient_bits": 6}, "gradient_bits must lie in 2..5, got 6"),
        ({"sign_gradient": "tanh"}, "sign_gradient is a setting of one-bit activations"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        job(**settings)
