"""ResNet-18: shapes, weights counted by hand, equality with the network written out as functions."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import batch_norm, conv2d, cross_entropy, max_pool2d, relu

from askew.models.resnet import ResNet18

# Convolutions by stage: 147,456 + 524,288 + 2,097,152 + 8,388,608 = 11,157,504, that is
#   stage 0  4 x (64 x 64 x 9)
#   stage n  one of a x 2a x 9, three of 2a x 2a x 9, the shortcut a x 2a: 128 a^2 for a = 64, 128, 256
# stem: 3 x 64 x 49 = 9,408 or 3 x 64 x 9 = 1,728; head: 512 x classes.
STAGES = 4 * 64 * 64 * 9 + 128 * (64**2 + 128**2 + 256**2)


@pytest.mark.parametrize(
    ("stem", "classes", "weights"),
    [
        ("imagenet", 1000, 11_678_912),  # torchvision's 11,689,512 less 9,600 of affine BN and 1,000 biases
        ("tiny", 200, 11_269_312),
        ("small", 200, 11_261_632),
        ("small", 10, 11_164_352),
    ],
)
def test_weights(stem, classes, weights):
    with torch.device("meta"):
        model = ResNet18(classes=classes, stem=stem)
    assert sum(p.numel() for p in model.parameters()) == weights
    assert weights == STAGES + (1_728 if stem == "small" else 9_408) + 512 * classes
    assert len(list(model.parameters())) == 21  # stem, 16 in the blocks, 3 shortcuts, head


def test_weights_by_default():
    with torch.device("meta"):
        model = ResNet18()
    assert sum(p.numel() for p in model.parameters()) == 11_678_912


@pytest.mark.parametrize(
    ("stem", "image", "side"),
    [("small", 32, 32), ("small", 64, 64), ("tiny", 64, 16), ("imagenet", 32, 8), ("imagenet", 224, 56)],
)
def test_shapes(stem, image, side):
    """`side` after the stem, then halved at each stage but the first."""
    with torch.device("meta"):
        model = ResNet18(classes=7, stem=stem)
        x = torch.empty(2, 3, image, image)
    y = model.stem(x)
    assert y.shape == (2, 64, side, side)
    for i, stage in enumerate(model.stages):
        y = stage(y)
        assert y.shape == (2, 64 * 2**i, side // 2**i, side // 2**i)
    assert model(x).shape == (2, 7)


@pytest.mark.parametrize(("stem", "image"), [("imagenet", 224), ("small", 32), ("small", 37)])
def test_real_images_pass(stem, image):
    y = ResNet18(classes=7, stem=stem)(torch.randn(2, 3, image, image))
    assert y.shape == (2, 7) and y.isfinite().all()


@pytest.mark.parametrize("width", [1, 6, 64])
def test_another_width(width):
    """Every count of STAGES is a square of it; the stem's and the head's are linear in it."""
    with torch.device("meta"):
        model = ResNet18(classes=7, stem="small", width=width)
    assert sum(p.numel() for p in model.parameters()) == (STAGES * width**2) // 64**2 + 27 * width + 8 * width * 7
    if width < 64:
        assert ResNet18(classes=7, stem="small", width=width)(torch.randn(2, 3, 16, 16)).shape == (2, 7)


def test_an_unknown_stem():
    with pytest.raises(ValueError, match="no stem named 'tiny7'; known: imagenet, small, tiny"):
        ResNet18(stem="tiny7")  # type: ignore[arg-type]


def test_tiny_is_the_imagenet_stem():
    stems = [ResNet18(classes=2, stem=stem).stem for stem in ("tiny", "imagenet")]
    assert str(stems[0]) == str(stems[1])


def norm(x):
    return batch_norm(x, None, None, training=True)


def written_out(w, x, stem, head_norm):
    """ResNet-18 in train mode from the weights by name, with nothing but functions."""
    if stem == "small":
        x = relu(norm(conv2d(x, w["stem.conv.weight"], padding=1)))
    else:
        x = relu(norm(conv2d(x, w["stem.conv.weight"], stride=2, padding=3)))
        x = max_pool2d(x, 3, stride=2, padding=1)
    for stage in range(4):
        for block in range(2):
            name = f"stages.{stage}.{block}"
            stride = 2 if stage > 0 and block == 0 else 1
            y = relu(norm(conv2d(x, w[f"{name}.conv1.weight"], stride=stride, padding=1)))
            y = norm(conv2d(y, w[f"{name}.conv2.weight"], padding=1))
            if stride == 2:
                x = norm(conv2d(x, w[f"{name}.shortcut.conv.weight"], stride=2))
            x = relu(x + y)
    x = x.mean((2, 3)) @ w["head.linear.weight"].T
    return norm(x) if head_norm else x


@pytest.mark.parametrize(("stem", "head_norm"), [("small", True), ("tiny", False)])
def test_equal_to_the_network_written_out(stem, head_norm):
    """Outputs and every gradient, in float64."""
    torch.manual_seed(0)
    model = ResNet18(classes=5, stem=stem, head_norm=head_norm).double()
    image = 32 if stem == "small" else 64
    x, target = torch.randn(4, 3, image, image, dtype=torch.float64), torch.arange(4)
    weights = dict(model.named_parameters())
    ours, theirs = model(x), written_out(weights, x, stem, head_norm)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    a, b = (torch.autograd.grad(cross_entropy(y, target), list(weights.values())) for y in (ours, theirs))
    for name, mine, other in zip(weights, a, b, strict=True):
        assert mine.abs().max() > 0, name
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9, msg=name)
