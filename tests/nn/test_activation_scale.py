"""Scales of activations: near the clip of least squared error for what networks produce, zeros or not."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from askew.core import scale_of, uniform
from askew.core.scale import SAWB_COEFFICIENTS, clip_from
from askew.nn.sawb import limits, nonzero_moments, pooled, signed_scale, tally, unsigned_scale


def normal(count: int = 40_000, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def error(x: Tensor, s: float, bits: int, signed: bool) -> float:
    """Mean squared error of rounding to the integers times s."""
    low, high = limits(bits, signed)
    return float((x - (x / s).round().clamp(low, high) * s).square().mean())


def excess(x: Tensor, s: float, bits: int, signed: bool) -> float:
    """Error above that of the best of 120 scales, relative to it."""
    best = float(x.abs().max()) / limits(bits, signed)[1]
    return error(x, s, bits, signed) / min(error(x, best * 0.01 * k, bits, signed) for k in range(6, 126)) - 1


HALVES = {
    "ReLU of a Gaussian": normal().clamp(min=0),
    "ReLU of a Gaussian at -1": (normal() - 1).clamp(min=0),
    "ReLU of a Gaussian at +1": (normal() + 1).clamp(min=0),
    "residual": (normal() + normal(seed=1).clamp(min=0)).clamp(min=0),
    "max-pooled": normal(40_000).reshape(4, -1).amax(0).clamp(min=0),
    "exponential": -torch.log(torch.rand(40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)),
    "uniform": torch.linspace(0, 1, 20_001, dtype=torch.float64)[1:],
}


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("name", HALVES)
def test_unsigned_scale_is_near_the_best_one(name: str, bits: int) -> None:
    x = HALVES[name]
    assert excess(x, float(unsigned_scale(nonzero_moments(x), bits)), bits, signed=False) < 0.3


@pytest.mark.parametrize(("bits", "worst"), [(2, 0.05), (3, 0.02), (4, 0.01), (6, 0.1), (8, 0.1)])
def test_half_a_gaussian_is_clipped_as_a_gaussian_of_one_more_bit(bits: int, worst: float) -> None:
    x = HALVES["ReLU of a Gaussian"]
    assert excess(x, float(unsigned_scale(nonzero_moments(x), bits)), bits, signed=False) < worst


def test_counting_the_zeros_of_a_relu_would_cost_much() -> None:
    """SAWB's formula as it stands, for all entries and as if signed: several times the error at four bits."""
    x = HALVES["ReLU of a Gaussian"]
    plain = scale_of(x, uniform(4), "sawb")
    assert plain is not None
    assert excess(x, float(plain), 4, signed=False) > 3


@pytest.mark.parametrize("bits", range(2, 9))
def test_signed_scale_is_that_of_weights(bits: int) -> None:
    """Where no entry is zero, a signed activation has the scale of a weight of uniform(bits)."""
    x = normal(5000)
    torch.testing.assert_close(
        signed_scale(nonzero_moments(x), bits), scale_of(x, uniform(bits), "sawb"), rtol=1e-12, atol=0
    )
    assert excess(x, float(signed_scale(nonzero_moments(x), bits)), bits, signed=True) < 0.15


@given(st.lists(st.floats(0.0078125, 8, width=16), min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 8))
def test_zeros_change_nothing_and_no_scale_exceeds_the_largest(values: list[float], zeros: int, bits: int) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    padded = torch.cat([x, torch.zeros(zeros, dtype=torch.float64)])
    torch.testing.assert_close(nonzero_moments(padded), nonzero_moments(x), rtol=1e-12, atol=0)
    s = unsigned_scale(nonzero_moments(x), bits)
    assert 0 < s * (2**bits - 1) <= max(values) * (1 + 1e-12)


def test_moments_by_hand_and_of_nothing() -> None:
    assert nonzero_moments(torch.tensor([0.0, 3.0, -1.0, 0.0])).tolist() == [2.0, 5.0, 3.0]
    assert nonzero_moments(torch.zeros(4)).tolist() == nonzero_moments(torch.zeros(0)).tolist() == [0.0, 0.0, 0.0]
    for scale in (signed_scale, unsigned_scale):
        s = scale(nonzero_moments(torch.zeros(4)), 4)
        assert s > 0 and not (torch.zeros(4) / s).any()
    x = normal(1000)
    assert unsigned_scale(nonzero_moments(8 * x.abs()), 4) == pytest.approx(
        8 * float(unsigned_scale(nonzero_moments(x.abs()), 4)), rel=1e-12
    )
    assert nonzero_moments(x.bfloat16()).dtype == torch.float32


def test_limits() -> None:
    assert [limits(b, True) for b in (2, 4, 8)] == [(-2, 1), (-8, 7), (-128, 127)]
    assert [limits(b, False) for b in (1, 2, 4, 8)] == [(0, 1), (0, 3), (0, 15), (0, 255)]


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_floor_is_rows_clip_of_a_gaussian(bits: int) -> None:
    """Away from zero the clip is mean + k sd, with k SAWB's clip of a standard Gaussian at that many bits."""
    moment = torch.tensor([2.0, 5.0, 100.0], dtype=torch.float64)  # mean 2, sd 1
    c1, c2 = SAWB_COEFFICIENTS[bits]
    floor = 2 + c1 - c2 * math.sqrt(2 / math.pi)
    formula = float(clip_from(moment, bits + 1))
    assert 2 < formula < floor  # SAWB's own clip, too small here, and no fall back to the largest entry
    top = 2**bits - 1
    assert float(unsigned_scale(moment, bits)) * top == pytest.approx(floor, rel=1e-12)
    moment[2] = 3.0
    assert float(unsigned_scale(moment, bits)) * top == pytest.approx(3.0, rel=1e-12)


def test_parts_of_a_batch_add_up() -> None:
    x = normal(999)
    x[::3] = 0
    parts = torch.stack([tally(part) for part in x.split([100, 1, 898])])
    torch.testing.assert_close(pooled(parts), tally(x), rtol=1e-12, atol=0)
    assert tally(x)[2:4].tolist() == [666.0, float((x < 0).sum())]
