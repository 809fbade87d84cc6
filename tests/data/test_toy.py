"""The small problems: shapes, truth, and what makes them reproducible."""

import torch

from askew.data.toy import logistic, two_moons


def test_logistic_labels_follow_the_truth() -> None:
    data = logistic(3, n=20000, seed=5)
    margin = torch.einsum("rnd,rd->rn", data.x, data.truth)
    assert data.x.abs().max() <= 1
    assert data.truth.abs().eq(1).all()
    for low, high in ((-2.0, -1.0), (0.5, 1.0), (1.0, 2.0)):
        inside = (margin > low) & (margin < high)
        expected = torch.sigmoid(margin[inside]).mean()
        assert (data.y[inside].mean() - expected).abs() < 0.02


def test_repeats_are_different_problems_and_the_seed_fixes_them() -> None:
    a, b = logistic(2, n=50, seed=1), logistic(2, n=50, seed=1)
    assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
    assert not torch.equal(a.x[0], a.x[1])


def test_moons_are_standardised_by_the_training_set() -> None:
    data = two_moons()
    assert data.train_x.shape == (2000, 2) and data.test_x.shape == (200, 2)
    assert data.train_x.mean(0).abs().max() < 1e-5
    assert (data.train_x.std(0, correction=0) - 1).abs().max() < 1e-5
    assert data.test_x.mean(0).abs().max() > 1e-4
    own = two_moons(own_statistics=True)
    assert own.test_x.mean(0).abs().max() < 1e-5
    assert torch.equal(own.train_x, data.train_x)
