"""Scoring: BatchNorm re-estimated on the training data, accuracy and loss as they are defined."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from askew.train.evaluate import reestimate_batchnorm, score


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False), nn.ReLU(), nn.Linear(6, 3), nn.BatchNorm1d(3)
    )


def data(n: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator) * 3 + 1, torch.randint(3, (n,), generator=generator)


def test_one_batch_gives_full_batch_statistics():
    model, (x, y) = net(), data()
    model[1].running_mean.fill_(7)
    reestimate_batchnorm(model, [(x, y)])
    first, second = model[1], model[4]
    assert isinstance(first, nn.BatchNorm1d) and isinstance(second, nn.BatchNorm1d)
    hidden = model[0](x)
    torch.testing.assert_close(first.running_mean, hidden.mean(0))
    torch.testing.assert_close(first.running_var, hidden.var(0))
    normal = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + first.eps).sqrt()
    out = model[3](normal.relu())
    torch.testing.assert_close(second.running_mean, out.mean(0))
    torch.testing.assert_close(second.running_var, out.var(0))


def test_several_batches_average_with_equal_weight():
    model, (x, y) = net(), data()
    reestimate_batchnorm(model, zip(x.split(40), y.split(40), strict=True))
    first = model[1]
    assert isinstance(first, nn.BatchNorm1d)
    hidden = model[0](x)
    torch.testing.assert_close(first.running_mean, hidden.mean(0))
    torch.testing.assert_close(first.running_var, torch.stack([h.var(0) for h in hidden.split(40)]).mean(0))


@pytest.mark.parametrize("training", [True, False])
def test_mode_momentum_and_weights_are_left_as_they_were(training):
    model, batch = net().train(training), data()
    weights = [p.detach().clone() for p in model.parameters()]
    reestimate_batchnorm(model, [batch])
    score(model, [batch])
    assert model.training is training
    assert [m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm1d)] == [0.1, 0.1]
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_a_net_without_batchnorm_is_left_alone():
    reestimate_batchnorm(nn.Linear(2, 2), iter(()))


def test_score_is_the_same_in_any_batches_and_exact():
    model, (x, y) = net(), data()
    reestimate_batchnorm(model, [(x, y)])
    whole = score(model, [(x, y)])
    parts = score(model, zip(x.split(50), y.split(50), strict=True))
    assert parts == pytest.approx(whole)
    model.eval()
    with torch.no_grad():
        logits = model(x)
    assert whole[0] == pytest.approx(100 * float((logits.argmax(1) == y).float().mean()))
    assert whole[1] == pytest.approx(float(nn.functional.cross_entropy(logits, y)))


def test_top_five_counts_the_right_class_among_the_first_five():
    torch.manual_seed(0)
    logits, y = torch.randn(200, 9), torch.randint(9, (200,))
    found = score(nn.Identity(), zip(logits.split(70), y.split(70), strict=True))
    place = (logits > logits[torch.arange(200), y][:, None]).sum(1)  # classes before the right one
    assert found.top5 == pytest.approx(100 * float((place < 5).float().mean()))
    assert found.accuracy == pytest.approx(100 * float((place == 0).float().mean()))
    assert score(nn.Identity(), [(logits[:, :5], y % 5)]).top5 is None


def test_nothing_to_score_is_an_error():
    with pytest.raises(ValueError, match="no batches"):
        score(net(), [])


def test_a_stop_within_the_batches_leaves_the_momentum_and_the_mode():
    model, (x, y) = net().eval(), data()

    def stopped():
        yield x, y
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reestimate_batchnorm(model, stopped())
    assert model[1].momentum == model[4].momentum == 0.1 and not model.training
