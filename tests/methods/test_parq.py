import pytest
import torch
from method_support import Problem, site, train, wrap

from askew.core import LevelSet, binary, ternary, uniform
from askew.methods.parq import Parq

torchao = pytest.importorskip("torchao.prototype.parq")


def by_torchao(problem: Problem, w: torch.nn.Parameter, quantizer, prox, bits: int, steps: int):
    """torchao's own optimizer, Adam inside; returns the weights each step saw, the last ones and the latents."""
    base = torch.optim.Adam([{"params": [w], "quant_bits": bits}], lr=0.05)
    optimizer = torchao.QuantOptimizer(base, quantizer, prox, quant_period=1)
    seen = []
    for _ in range(steps):
        seen.append(w.detach().clone())
        optimizer.zero_grad()
        problem.loss(w).backward()
        optimizer.step()
    return [*seen, w.detach().clone()], optimizer.state[w]["latent"]


class Fixed(torchao.Quantizer):
    """The levels -1, +1 as a torchao quantizer."""

    def get_quant_size(self, b: int) -> int:
        return 2

    def quantize(self, p: torch.Tensor, b: int, dim: int | None = None):
        return torch.where(p >= 0, 1.0, -1.0), torch.tensor([-1.0, 1.0])


@pytest.mark.parametrize(
    ("levels", "bits", "quantizer", "own"),
    [
        (binary(), 1, torchao.LSBQuantizer(), "lsbq"),
        (ternary(), 0, torchao.LSBQuantizer(), "lsbq"),
        (uniform(2), 2, torchao.LSBQuantizer(), "lsbq"),
        (binary(), 1, Fixed(), "fixed"),
    ],
    ids=["1 bit", "ternary", "2 bits", "fixed"],
)
def test_equals_torchaos_optimizer_bit_for_bit(levels, bits, quantizer, own):
    """50 Adam steps: before annealing, during it and after."""
    problem = Problem()
    w, v = problem.parameter(), problem.parameter()
    expected, latent = by_torchao(problem, w, quantizer, torchao.ProxPARQ(5, 40, steepness=10), bits, 50)
    optimizer = wrap(Parq(5, 40, 10.0, levels=own), v, "adam", levels=levels)
    found = [*train(problem, v, optimizer, 50), v.detach()]
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(optimizer.underlying(v), latent)
    assert len({len(x.unique()) for x in found}) > 1  # it did anneal


def test_hard_equals_torchaos_hard_map_once_the_first_weights_agree():
    """torchao takes the first gradient at the float weights, so start where both see the same: on +-1/4."""
    problem = Problem(d=8)
    problem.start = torch.where(problem.start >= 0, 0.25, -0.25)
    w, v = problem.parameter(), problem.parameter()
    expected, latent = by_torchao(problem, w, torchao.LSBQuantizer(), torchao.ProxHardQuant(), 1, 50)
    optimizer = wrap(Parq(hard=True), v, "adam")
    found = [*train(problem, v, optimizer, 50), v.detach()]
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(optimizer.underlying(v), latent)
    assert len({tuple(x.sign().tolist()) for x in found}) > 1


def test_map_is_the_clamped_slope_of_the_docstring():
    w, levels = torch.linspace(-2, 2, 81, dtype=torch.float64), LevelSet((-1.0, 0.5, 1.0))
    method = Parq(10, 30, steepness=4.0, levels="fixed")
    assert torch.equal(method.forward_weight(w, site(levels, step=9)), w)

    def sigmoid(f: float) -> float:
        return 1 / (1 + float(torch.tensor(4 * (f - 0.5), dtype=torch.float64).exp()))

    rho = (sigmoid(0.35) - sigmoid(1)) / (sigmoid(0) - sigmoid(1))
    found = method.forward_weight(w, site(levels, step=17))
    for q, x in zip(w.tolist(), found.tolist(), strict=True):
        if q <= -1 or q >= 1:
            expected = -1.0 if q < 0 else 1.0
        else:
            a, b = (-1.0, 0.5) if q <= 0.5 else (0.5, 1.0)
            expected = min(max((a + b) / 2 + (q - (a + b) / 2) / rho, a), b)
        assert x == pytest.approx(expected, abs=1e-9)
    assert set(method.forward_weight(w, site(levels, step=30)).tolist()) == {-1.0, 0.5, 1.0}


@pytest.mark.parametrize("hard", [False, True])
def test_fixed_levels_under_a_scale_per_channel(hard):
    torch.manual_seed(0)
    w, s = torch.randn(3, 2, 5), torch.tensor([0.1, 0.5, 2.0]).reshape(3, 1, 1)
    method = Parq(0, 10, hard=hard, levels="fixed")
    for step in (5, 10):
        found = method.forward_weight(w, site(uniform(2), s, step))
        rows = [method.forward_weight(w[i], site(uniform(2), s[i, 0, 0], step)) for i in range(3)]
        assert torch.allclose(found, torch.stack(rows))
    assert torch.allclose(found, method.final(w, site(uniform(2), s)))


def test_final_of_lsbq_is_exactly_two_scaled_levels():
    torch.manual_seed(0)
    w = torch.randn(1000)
    w[0] = 0.0
    final = Parq().final(w, site())
    v = w.abs().mean()
    assert set(final.tolist()) == {float(v), float(-v)}
    assert torch.equal(final > 0, w >= 0)
    assert len(Parq().final(w, site(uniform(2))).unique()) == 4


def test_refusals():
    with pytest.raises(ValueError, match=r"layer\.weight.*own scale"):
        Parq().forward_weight(torch.randn(4), site(scale=0.5))
    with pytest.raises(ValueError, match=r"layer\.weight.*got 5"):
        Parq().forward_weight(torch.randn(4), site(LevelSet(tuple(range(5)))))
    with pytest.raises(ValueError, match=r"steps 50 \.\. 20"):
        Parq(50, 0.2).forward_weight(torch.randn(4), site(total=100))
    for options, message in [
        ({"anneal_start": 0.8}, "after anneal_start"),
        ({"anneal_end": 2.0}, r"Parq\(anneal_end\)"),
        ({"steepness": 0.0}, r"Parq\(steepness\)"),
        ({"steepness": 5e3}, r"Parq\(steepness\)"),
        ({"levels": "sawb"}, r"Parq\(levels\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            Parq(**options)
