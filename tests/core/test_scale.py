"""Scales: SAWB's coefficients re-derived, each kind by its formula, per tensor and per channel."""

import math

import numpy as np
import pytest
import sawb_fit
import torch
from hypothesis import given
from hypothesis import strategies as st
from level_strategies import level_sets
from rounding import DTYPES

from askew.core import LevelSet, binary, scale_of, ternary, uniform
from askew.core.levels import compute_dtype
from askew.core.scale import SAWB_COEFFICIENTS, ScaleKind, check_scale, sawb_bits, sawb_clip, scales_of

# -- the coefficients -------------------------------------------------------------------------------------------------


def test_sawb_one_bit_is_exactly_the_mean() -> None:
    """At one bit the best clip is E|w| for every distribution."""
    assert SAWB_COEFFICIENTS[1] == (0.0, -1.0)
    for name in sawb_fit.DISTRIBUTIONS:
        assert sawb_fit.optimal_clip(name, 1) == pytest.approx(sawb_fit.moments(name)[0], rel=1e-6)
    c1, c2 = sawb_fit.fit_least_squares(1)
    assert (c1, c2) == pytest.approx((0.0, -1.0), abs=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_sawb_published_coefficients_within_five_percent(bits: int) -> None:
    assert SAWB_COEFFICIENTS[bits] == {2: (3.19, 2.14), 3: (7.40, 6.66), 4: (11.86, 11.68)}[bits]
    assert sawb_fit.fit_least_squares(bits) == pytest.approx(SAWB_COEFFICIENTS[bits], rel=0.05)


@pytest.mark.parametrize("bits", [5, 6, 7, 8])
def test_sawb_further_coefficients_are_the_minimax_fit(bits: int) -> None:
    fit = sawb_fit.fit_minimax(bits)
    assert SAWB_COEFFICIENTS[bits] == pytest.approx(fit, rel=0.005)
    worst = max(sawb_fit.excess(k, bits, *SAWB_COEFFICIENTS[bits]) for k in sawb_fit.MINIMAX_OVER)
    assert worst <= max(sawb_fit.excess(k, bits, *fit) for k in sawb_fit.MINIMAX_OVER) + 0.01  # two decimals cost that
    least_squares = sawb_fit.fit_least_squares(bits)
    assert worst < max(sawb_fit.excess(k, bits, *least_squares) for k in sawb_fit.MINIMAX_OVER)


def test_the_quadrature_itself() -> None:
    assert sawb_fit.moments("gauss") == pytest.approx((math.sqrt(2 / math.pi), 1.0), rel=1e-12)
    assert sawb_fit.moments("laplace") == pytest.approx((1.0, math.sqrt(2)), rel=1e-12)
    assert sawb_fit.moments("uniform") == pytest.approx((0.5, math.sqrt(1 / 3)), rel=1e-12)
    assert sawb_fit.mse("uniform", 1.0 * (1 - 1 / 16), 4) == pytest.approx((1 / 8) ** 2 / 12, rel=1e-9)
    assert sawb_fit.mse("gauss", math.sqrt(2 / math.pi), 1) == pytest.approx(1 - 2 / math.pi, rel=1e-9)  # Max 1960
    rng = np.random.default_rng(0)
    x, clip = rng.laplace(size=400_000), 3.0
    q = clip / 1.5 * np.clip(np.floor(x / (clip / 1.5)) + 0.5, -1.5, 1.5)
    assert sawb_fit.mse("laplace", clip, 2) == pytest.approx(float(np.mean((x - q) ** 2)), rel=0.02)


# -- clip and scale ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(2, 9))
def test_sawb_clip_by_its_formula(bits: int) -> None:
    w = torch.distributions.Laplace(0.0, 0.1).icdf(torch.linspace(0.0005, 0.9995, 4000)).double()
    c1, c2 = SAWB_COEFFICIENTS[bits]
    expected = c1 * math.sqrt(float((w * w).mean())) - c2 * float(w.abs().mean())
    assert float(w.abs().mean()) < expected  # the formula applies
    assert sawb_clip(w, bits).item() == pytest.approx(min(expected, float(w.abs().max())), rel=1e-12)
    assert sawb_clip(w.float(), bits).item() == pytest.approx(sawb_clip(w, bits).item(), rel=1e-4)


def test_sawb_clip_where_the_formula_fails_is_the_largest_weight() -> None:
    w = torch.tensor([-1.0, 1.0, 1.0, -1.0, 0.99])  # nearly binary: c1 r - c2 falls below 1, from 5 bits on below 0
    for bits in range(3, 9):
        c1, c2 = SAWB_COEFFICIENTS[bits]
        assert c1 * w.square().mean().sqrt() - c2 * w.abs().mean() < w.abs().mean()
        assert sawb_clip(w, bits) == 1.0
    spiky = torch.zeros(1000)
    spiky[0] = 1.0  # r = 31: the formula would clip far beyond the largest weight
    assert sawb_clip(spiky, 2) <= 1.0
    assert sawb_clip(torch.tensor([0.3, -0.5]), 1).item() == pytest.approx(0.4)


@given(
    values=st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=40),
    bits=st.integers(1, 8),
)
def test_sawb_clip_lies_between_the_mean_and_the_largest(values: list[float], bits: int) -> None:
    w = torch.tensor(values, dtype=torch.float64)
    clip = sawb_clip(w, bits)
    assert w.abs().mean() * (1 - 1e-12) <= clip <= w.abs().max()


def test_sawb_clip_is_near_the_optimum_of_a_gaussian() -> None:
    w = torch.distributions.Normal(0.0, 0.02).icdf((torch.arange(100_000) + 0.5) / 100_000)
    for bits, worst in ((2, 0.05), (3, 0.05), (4, 0.15), (5, 0.15), (6, 0.2), (8, 0.5)):
        clips = torch.linspace(0.2, 1.0, 81).double() * float(w.abs().max())
        best = min(quantization_error(w, float(c), bits) for c in clips)
        assert quantization_error(w, float(sawb_clip(w, bits)), bits) <= (1 + worst) * best


def quantization_error(w: torch.Tensor, clip: float, bits: int) -> float:
    step = 2 * clip / (2**bits - 1)
    top = (2**bits - 1) / 2
    q = (torch.floor(w / step) + 0.5).clamp(-top, top) * step
    return float((w - q).double().square().mean())


def test_sawb_bits_is_the_rounded_logarithm() -> None:
    assert [sawb_bits(uniform(b)) for b in range(1, 9)] == list(range(1, 9))
    assert [sawb_bits(uniform(b, "paper")) for b in range(2, 9)] == list(range(2, 9))
    assert sawb_bits(ternary()) == 2
    assert sawb_bits(LevelSet(tuple(range(300)))) == 8
    with pytest.raises(ValueError, match="1 to 8 bits, got 9"):
        sawb_clip(torch.ones(2), 9)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_scale_by_its_formula(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    values = data.draw(st.lists(st.floats(-3, 3, width=16).filter(lambda x: abs(x) > 1e-3), min_size=6, max_size=6))
    w = torch.tensor(values).reshape(2, 3).to(dtype)
    mean_level = sum(abs(c) for c in levels.values) / len(levels)
    close = {"rel": 1e-12 if dtype == torch.float64 else 1e-5}
    assert scale_of(w, levels, "none") is None
    s = scale_of(w, levels, "abs-mean")
    assert s is not None
    assert s.shape == ()
    assert s.dtype == compute_dtype(dtype)
    assert s.item() == pytest.approx(sum(abs(x) for x in w.flatten().tolist()) / 6 / mean_level, **close)
    s = scale_of(w, levels, "sawb")
    assert s is not None
    span = levels.values[-1] - levels.values[0]
    assert s.item() == pytest.approx(2 * sawb_clip(w, sawb_bits(levels)).item() / span, **close)


@pytest.mark.parametrize("kind", ["abs-mean", "sawb"])
@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 2), (3, 2, 3, 3), (3, 2, 2, 2, 2)])
def test_scale_per_channel_is_that_of_each_channel(kind: str, shape: tuple[int, ...]) -> None:
    w = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.tensor([0.1, 1.0, 9.0]).reshape(
        3, *[1] * (len(shape) - 1)
    )
    s = scale_of(w, uniform(4), kind, "channel")
    assert s is not None
    assert s.shape == (3, *[1] * (len(shape) - 1))
    for k in range(3):
        alone = scale_of(w[k], uniform(4), kind)
        torch.testing.assert_close(s[k].reshape(()), alone, rtol=1e-5, atol=0)
    assert (s * w).shape == w.shape


@pytest.mark.parametrize("kind", ["abs-mean", "sawb"])
def test_scale_is_positive_equivariant_and_detached(kind: str) -> None:
    w = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    for levels in (binary(), ternary(), uniform(4)):
        s = scale_of(w, levels, kind)
        assert s is not None
        assert not s.requires_grad
        assert s > 0
        torch.testing.assert_close(scale_of(8 * w, levels, kind), 8 * s, rtol=1e-12, atol=0)
        torch.testing.assert_close(scale_of(-w, levels, kind), s, rtol=1e-12, atol=0)
        zero = scale_of(torch.zeros(4), levels, kind)
        assert zero is not None
        assert zero > 0
        assert not (torch.zeros(4) / zero).any()


def test_binary_scale_is_the_mean_magnitude() -> None:
    w = torch.tensor([0.5, -1.5, 1.0, -3.0])
    assert scale_of(w, binary(), "abs-mean") == 1.5
    assert scale_of(w, binary(), "sawb") == 1.5
    assert scale_of(w, uniform(1, "symmetric"), "abs-mean") == 3.0


def test_check_scale_names_the_parameter() -> None:
    w = torch.zeros(4, 2)
    check_scale("sawb", "channel", w, "conv.weight")
    check_scale("none", "tensor", w[0], "bias")
    with pytest.raises(ValueError, match=r"conv\.weight: scale must be one of none, abs-mean, sawb, got 'max'"):
        check_scale("max", "tensor", w, "conv.weight")
    with pytest.raises(ValueError, match=r"conv\.weight: per must be 'tensor' or 'channel', got 'group'"):
        check_scale("sawb", "group", w, "conv.weight")
    with pytest.raises(ValueError, match=r"norm\.weight: a scale per channel needs .* got \(4,\)"):
        check_scale("sawb", "channel", w[:, 0], "norm.weight")


@pytest.mark.parametrize("kind", ["abs-mean", "sawb"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3, 3)])
def test_a_weight_without_elements_has_a_scale(shape: tuple[int, ...], kind: ScaleKind) -> None:
    w = torch.zeros(shape)
    whole, each = (scale_of(w, uniform(4), kind, per) for per in ("tensor", "channel"))
    assert whole is not None and whole.shape == () and whole > 0
    assert each is not None and each.shape == (shape[0], *(1,) * (len(shape) - 1)) and bool((each > 0).all())


@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize("kind", ["abs-mean", "sawb"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_several_tensors_at_once_have_the_scales_of_each(bits, kind, per):
    levels = uniform(bits) if bits > 1 else binary()
    g = torch.Generator().manual_seed(bits)
    ws = [torch.randn(shape, generator=g) * size for shape, size in (((8, 3, 3, 3), 0.1), ((5, 7), 3.0), ((4, 1), 1.0))]
    ws += [torch.zeros(3, 2), torch.cat([torch.ones(20, 5), torch.full((20, 1), 9.0)], 1)]
    expected = [scale_of(w, levels, kind, per) for w in ws]
    for found in (scales_of(ws, levels, kind, per), scales_of([w.double() for w in ws], levels, kind, per)):
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(
                mine.float(), theirs, rtol=2e-5, atol=1e-37
            )  # nothing but zeros: the least there is
    assert scales_of([torch.empty(0, 3)], levels, kind, "tensor")[0] > 0


@pytest.mark.parametrize("kind", ["abs-mean", "sawb"])
def test_large_tensors_at_once_lose_nothing(kind):
    w = torch.randn(2**22, generator=torch.Generator().manual_seed(0)) * 0.02
    (found,) = scales_of([w], uniform(4), kind)
    torch.testing.assert_close(found.double(), scale_of(w.double(), uniform(4), kind), rtol=2e-6, atol=0)
