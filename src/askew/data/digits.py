"""scikit-learn's 8x8 handwritten digits, embedded in that package: 1,797 images of 10 classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor


class Split(NamedTuple):
    """Images (n, 1, 8, 8), standardised by the training part, and labels (n,)."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def digits(test_fraction: float = 0.25, seed: int = 0) -> Split:
    """A fixed random split."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels, dtype=torch.long)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    held = int(len(y) * test_fraction)
    test, train = order[:held], order[held:]
    mean, std = x[train].mean(), x[train].std()
    x = (x - mean) / std
    return Split(x[train], y[train], x[test], y[test])
