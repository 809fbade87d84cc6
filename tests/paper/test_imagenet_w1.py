"""The one-bit table of ImageNet, on a small tree of its layout: top-1 and top-5, last layer in full precision."""

from pathlib import Path

import pytest
import torch
from image_trees import imagenet_tree

from askew import cli
from askew.data.images import DataError
from askew.paper.imagenet_w1 import ImageNetW1
from askew.train.record import load
from askew.train.worker_source import imagenet_sources, thinned


def test_from_the_tree_to_the_table(tmp_path: Path) -> None:
    out = tmp_path / "imagenet-w1"
    line = ["paper", "imagenet-w1", "--data", str(imagenet_tree(tmp_path / "data")), "--no-check-data"]
    line += ["--epochs", "1", "--batch", "12", "--resize", "24", "--crop", "20", "--workers", "0", "--device", "cpu"]
    line += ["--methods", "askew-level-first", "--schedules", "best", "--out", str(out)]
    cli.main([*line, "--checkpoints", str(tmp_path / "runs")])
    record = load(out / "imagenet-w1-askew-level-first-best-0.json")
    assert record.config["skip"] == ["head.linear"] and record.config["stem"] == "imagenet"
    assert record.summary["weights"] == sum_of_binary_weights()
    assert record.summary["accuracy"] <= record.summary["top5"] <= 100
    table = (out / "table.md").read_text()
    top1, top5 = table.index("## Top-1 (%), 1 epochs, batch 12"), table.index("## Top-5 (%), 1 epochs, batch 12")
    assert "66.39" in table[top1:top5] and "95.32" in table[top5:]
    assert f"{record.summary['top5']:.2f}" in table[top5:]


def sum_of_binary_weights() -> int:
    """ResNet-18 without its last layer."""
    return 11_678_912 - 512 * 1000


def test_sources_see_every_image_and_mix_the_classes(tmp_path: Path) -> None:
    tree = imagenet_tree(tmp_path)
    train, val = imagenet_sources(tree, 8, 0, resize=24, crop=20, classes=None, workers=0)
    assert (train.steps(), train.images, val.images) == (3, 24, 12)
    ordered = torch.cat([y for _, y in train.ordered(5)])
    (mixed, labels), (again, _) = (map(torch.cat, zip(*train.seen(6), strict=True)) for _ in range(2))
    assert ordered.tolist() == sorted(ordered.tolist()) and torch.equal(mixed, again)
    assert labels.sort().values.tolist() == ordered.tolist() and len(set(labels[:8].tolist())) > 2
    assert [len(y) for _, y in train.seen(5)] == [5] * 4 and [len(y) for _, y in train.seen(30)] == [24]
    assert torch.equal(mixed[:8], next(train.epoch(0))[0])  # cropped and mirrored as training sees them
    x, _ = next(train.ordered(5))
    assert torch.equal(x, next(train.ordered(5))[0]) and x.dtype == torch.float32 and x.shape == (5, 3, 20, 20)
    whole, skipped = list(train.epoch(1)), list(train.epoch(1, skip=2))
    assert torch.equal(whole[2][0], skipped[0][0]) and not torch.equal(whole[0][0], next(train.epoch(0))[0])
    assert [len(y) for _, y in val.ordered(5)] == [5, 5, 2]


def test_fewer_images_are_spread_over_the_classes(tmp_path: Path) -> None:
    train, _ = imagenet_sources(imagenet_tree(tmp_path), 4, 0, resize=24, crop=20, classes=None, images=6, workers=0)
    assert train.images == 6 and sorted(train.data.labels.tolist()) == [0, 1, 2, 3, 4, 5]
    assert len(thinned(train.data, 100)) == 6


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="search in cifar-w1 or tiny-low"):
        ImageNetW1(tmp_path, search=True)
    with pytest.raises(DataError, match="6 class folders, 1000 expected"):
        imagenet_sources(imagenet_tree(tmp_path), 4, 0)
