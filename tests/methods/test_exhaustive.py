import itertools

import pytest
import torch
from method_support import Problem

from askew.core import LevelSet, binary, ternary
from askew.methods.exhaustive import exhaustive, patterns


@pytest.mark.parametrize("levels", [binary(), ternary(), LevelSet((-2.0, 0.0, 0.5, 3.0))], ids=lambda s: s.name)
@pytest.mark.parametrize("batch", [1, 7, 4096])
def test_every_pattern_is_tried_once(levels, batch):
    seen = []

    def loss(w: torch.Tensor) -> torch.Tensor:
        assert len(w) <= batch
        seen.extend(map(tuple, w.tolist()))
        return ((w - torch.tensor([0.4, -0.6, 5.0])) ** 2).sum(1)

    found = exhaustive(loss, levels, 3, batch=batch)
    assert sorted(seen) == sorted(itertools.product(levels.values, repeat=3))
    nearest = [min(levels.values, key=lambda c: abs(c - t)) for t in (0.4, -0.6, 5.0)]
    assert found.pattern.tolist() == nearest
    assert found.loss == float(found.losses.min())
    assert len(found.losses) == len(levels) ** 3
    again = loss(patterns(torch.arange(len(levels) ** 3), levels, 3)) if batch == 4096 else found.losses
    assert torch.equal(found.losses, again)


def test_finds_the_truth_of_a_logistic_regression():
    problem = Problem()
    found = exhaustive(
        lambda w: torch.nn.functional.softplus(-(2 * problem.y[:, None] - 1) * (problem.x @ w.T)).mean(0), [-1, 1], 10
    )
    assert torch.equal(found.pattern, problem.truth)
    assert found.loss == pytest.approx(float(problem.loss(problem.truth)))
    assert found.losses.shape == (1024,)


def test_ties_go_to_the_first():
    assert exhaustive(lambda w: torch.zeros(len(w)), binary(), 3).pattern.tolist() == [-1, -1, -1]


def test_refusals():
    with pytest.raises(ValueError, match=r"2\^21 = 2097152 patterns exceed the limit of 1048576"):
        exhaustive(lambda w: w.sum(1), binary(), 21)
    with pytest.raises(ValueError, match=r"3\^3 = 27 .* limit of 26"):
        exhaustive(lambda w: w.sum(1), ternary(), 3, limit=26)
    with pytest.raises(ValueError, match="at least 1"):
        exhaustive(lambda w: w.sum(1), binary(), 0)
    with pytest.raises(ValueError, match=r"shape \(8,\), got \(8, 3\)"):
        exhaustive(lambda w: w, binary(), 3)
    with pytest.raises(ValueError, match="pattern 7 is NaN"):
        exhaustive(lambda w: torch.where(w.sum(1) == 3, torch.nan, 0.0), binary(), 3)
