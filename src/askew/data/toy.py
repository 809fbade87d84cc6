"""The paper's two small problems: logistic regression with a sign vector as truth, and two moons."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import make_moons
from torch import Tensor


class Logistic(NamedTuple):
    """x (R, n, d) uniform on [-1, 1]; truth (R, d) a vertex of the hypercube; y ~ Bernoulli(sigmoid(x . truth))."""

    x: Tensor
    y: Tensor
    truth: Tensor


def logistic(repeats: int, n: int = 6000, d: int = 10, seed: int = 0) -> Logistic:
    """`repeats` independent problems."""
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(repeats, n, d, generator=g) - 1
    truth = torch.where(torch.rand(repeats, d, generator=g) < 0.5, -1.0, 1.0)
    y = torch.bernoulli(torch.sigmoid(torch.einsum("rnd,rd->rn", x, truth)), generator=g)
    return Logistic(x, y, truth)


class Moons(NamedTuple):
    """Points (n, 2), standardised, and labels (n,) in {0, 1}."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def two_moons(train: int = 2000, test: int = 200, noise: float = 0.1, own_statistics: bool = False) -> Moons:
    """scikit-learn's make_moons with seed 0 for both sets, as in the published runs.

    The test points are standardised by the training set's mean and deviation, or by their own.
    """
    x, y = (np.asarray(a) for a in make_moons(train, noise=noise, random_state=0))
    u, v = (np.asarray(a) for a in make_moons(test, noise=noise, random_state=0))
    source = u if own_statistics else x

    def tensor(a: object) -> Tensor:
        return torch.as_tensor(a, dtype=torch.float32)

    test_x = (u - source.mean(0)) / source.std(0)
    return Moons(tensor((x - x.mean(0)) / x.std(0)), tensor(y), tensor(test_x), tensor(v))
