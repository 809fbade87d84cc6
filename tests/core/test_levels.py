"""Level sets: counts, validation, nearest and bracket against the oracle, the cached tables."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from level_strategies import level_sets, weights
from rounding import DTYPES, as_computed, gap_around, near_midpoint, special_points, tensor

from askew.core import LevelSet, as_levels, binary, oracle, ternary, uniform
from askew.core.levels import bracket, compute_dtype, index, nearest, stairs

FORMS = ("int", "symmetric", "paper")


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("form", "count"), [("int", 0), ("symmetric", 0), ("paper", 1)])
def test_uniform_counts_and_spacing(bits: int, form: str, count: int) -> None:
    levels = uniform(bits, form)
    assert len(levels) == 2**bits + count
    assert set(levels.gaps) == {1.0}
    assert levels.values[0] == -(2 ** (bits - 1)) + (0.5 if form == "symmetric" else 0.0)
    assert levels.bits == bits + count


def test_uniform_forms_are_the_documented_ones() -> None:
    assert uniform(4).values == tuple(float(k) for k in range(-8, 8))
    assert uniform(2, "symmetric").values == (-1.5, -0.5, 0.5, 1.5)
    assert uniform(4, "paper").values == tuple(float(k) for k in range(-8, 9))
    assert (uniform(4).name, uniform(2, "symmetric").name, uniform(4, "paper").name) == ("int4", "sym2", "int4+1")


def test_seventeen_levels_need_five_bits() -> None:
    assert uniform(4).bits == 4
    assert uniform(4, "paper").bits == 5
    assert [binary().bits, ternary().bits] == [1, 2]
    assert LevelSet(tuple(range(256))).bits == 8
    assert LevelSet(tuple(range(257))).bits == 9


@pytest.mark.parametrize("bits", [0, 9, -1, 2.0, True, "4", None])
def test_uniform_refuses_bits(bits: object) -> None:
    with pytest.raises(ValueError, match=r"bits must be a whole number from 1 to 8"):
        uniform(bits)  # pyright: ignore[reportArgumentType]


def test_uniform_refuses_form() -> None:
    with pytest.raises(ValueError, match=r"form must be .* got 'signed'"):
        uniform(4, "signed")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((), "at least two"),
        ((1.0,), "at least two"),
        ((1.0, 0.0), "increase strictly"),
        ((0.0, 2.0, 1.0), "increase strictly"),
        ((0.0, 0.0), "increase strictly"),
        ((-1.0, 1.0, 1.0), "increase strictly"),
        ((1.0, 1.0 + 1e-12), "float32"),
        ((0.0, math.nan), "finite"),
        ((math.nan, 0.0, 1.0), "finite"),
        ((0.0, math.inf), "finite"),
        ((-math.inf, 0.0), "finite"),
        ((0.0, 1e39), "finite"),
        ((-1e39, 0.0), "finite"),
    ],
)
def test_invalid_sets_raise_with_their_name(values: tuple[float, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=rf"'mine'.*{reason}"):
        LevelSet(values, "mine")


def test_as_levels_keeps_a_set_and_makes_one() -> None:
    levels = uniform(3)
    assert as_levels(levels) is levels
    assert as_levels([-1, 0.5, 2]).values == (-1.0, 0.5, 2.0)
    with pytest.raises(ValueError, match="'levels'"):
        as_levels([1])


@given(levels=level_sets())
def test_derived_numbers(levels: LevelSet) -> None:
    c = levels.values
    assert len(levels) == len(c)
    assert levels.gaps == tuple(c[j + 1] - c[j] for j in range(len(c) - 1))
    assert levels.midpoints == tuple((c[j + 1] + c[j]) / 2 for j in range(len(c) - 1))
    assert levels.min_gap == min(levels.gaps)
    assert levels.epsilon_bound == pytest.approx(min(levels.gaps) ** 4 / 16, rel=1e-15)
    assert 2 ** (levels.bits - 1) < len(c) <= 2**levels.bits


def test_epsilon_bound_of_the_paper() -> None:
    assert binary().epsilon_bound == 1.0
    assert uniform(4).epsilon_bound == 1 / 16


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_nearest_and_index_agree_with_oracle(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    q = tensor(data.draw(weights(levels)), dtype)
    out, j = nearest(q, levels), index(q, levels)
    assert out.dtype == dtype
    assert j.dtype == torch.int64
    exact = as_computed(levels, dtype)
    for x, level, at in zip(q.double().tolist(), out.tolist(), j.tolist(), strict=True):
        shift = near_midpoint(x, exact, dtype)  # there, either neighbour will do
        assert exact.values[at] in {oracle.nearest(y, exact.values) for y in (x - shift, x, x + shift)}
        assert level == torch.tensor(exact.values[at], dtype=torch.float64).to(dtype).item()


def test_nearest_on_exactly_representable_ties_goes_right() -> None:
    for levels in (binary(), ternary(), uniform(4), uniform(2, "symmetric"), LevelSet((-3.0, -1.0, 0.0, 4.0))):
        for dtype in DTYPES:
            middle = tensor(list(levels.midpoints), dtype)
            assert nearest(middle, levels).tolist() == list(levels.values[1:])
            assert index(middle, levels).tolist() == list(range(1, len(levels)))
            below = torch.nextafter(middle, torch.full_like(middle, -math.inf))
            assert nearest(below, levels).tolist() == list(levels.values[:-1])
            assert [oracle.nearest(m, levels.values) for m in levels.midpoints] == list(levels.values[1:])


GRIDS = [uniform(bits, form) for bits in (1, 2, 3, 4, 8) for form in FORMS] + [ternary(), LevelSet((3.0, 4.0, 5.0))]


@pytest.mark.parametrize("levels", GRIDS, ids=lambda levels: f"{levels.name}-{len(levels)}")
def test_levels_on_a_grid_are_found_without_a_search(levels: LevelSet) -> None:
    """The same answers as a search among midpoints and levels, also next to them and at numbers of any size."""
    assert levels.grid == ("halves" if levels.values[0] % 1 else "whole")
    sizes = [sign * 2.0**k for k in range(-140, 120, 5) for sign in (-1, 1)]
    for dtype in DTYPES:
        marks = tensor([*levels.values, *levels.midpoints, 0.0, *sizes], dtype)
        near = [torch.nextafter(marks, torch.full_like(marks, end)) for end in (-math.inf, math.inf)]
        q = torch.cat([marks, *near, tensor([-math.inf, math.inf], dtype)])
        x, table, middles = q.to(compute_dtype(dtype)), levels.table(q), levels.midpoint_table(q)
        assert torch.equal(nearest(q, levels), table[torch.bucketize(x, middles, right=True)].to(dtype))
        left = torch.bucketize(x, table[1:-1], right=True)
        a, b = bracket(q, levels)
        assert torch.equal(a.expand_as(x), table[left]) and torch.equal(b.expand_as(x), table[left + 1])


def test_what_is_no_grid() -> None:
    for values in ((-1.0, 1.0), (0.0, 1.0, 3.0), (0.25, 1.25), (-1.0, -0.5, 0.0), (2.0**21, 2.0**21 + 1)):
        assert LevelSet(values).grid is None


@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 40])
def test_a_chain_of_comparisons_is_the_search(count: int) -> None:
    edges, values = torch.arange(count) * 0.7 - 1, torch.linspace(-2, 3, count + 1) ** 3
    x = torch.cat([edges, torch.nextafter(edges, torch.tensor(-math.inf)), torch.linspace(-5, 30, 100)])
    assert torch.equal(stairs(x, edges, values), values[torch.bucketize(x, edges, right=True)])


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_nearest_is_idempotent(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    q = tensor(data.draw(weights(levels)), dtype)
    once = nearest(q, levels)
    assert torch.equal(nearest(once, levels), once)


@given(data=st.data())
def test_bracket_is_the_half_open_gap(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    q = data.draw(weights(levels)) + special_points(levels)
    a, b = torch.broadcast_tensors(*bracket(tensor(q), levels), tensor(q))[:2]
    assert list(zip(a.tolist(), b.tolist(), strict=True)) == [gap_around(x, levels) for x in q]


@pytest.mark.parametrize("levels", [binary(), ternary(), uniform(4)], ids=lambda x: x.name)
def test_bracket_at_the_ends(levels: LevelSet) -> None:
    c = levels.values
    q = tensor([c[0] - 5, c[0], c[-1], c[-1] + 5])
    a, b = (x.expand(4).tolist() for x in bracket(q, levels))
    assert a == [c[0], c[0], c[-2], c[-2]]
    assert b == [c[1], c[1], c[-1], c[-1]]


@pytest.mark.parametrize("levels", [binary(), uniform(4)], ids=lambda x: x.name)
def test_any_layout_gives_the_same_and_no_warning(
    levels: LevelSet, recwarn: pytest.WarningsRecorder, request: pytest.FixtureRequest
) -> None:
    torch.set_warn_always(True)  # torch warns once a program, and another test may have been first
    request.addfinalizer(lambda: torch.set_warn_always(False))
    q = 3 * torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    expected = torch.tensor([oracle.nearest(x, levels.values) for x in q.flatten().tolist()]).reshape(q.shape)
    last = q.to(memory_format=torch.channels_last)
    assert torch.equal(nearest(last, levels), expected)
    assert nearest(last, levels).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(nearest(q.permute(3, 1, 0, 2), levels), expected.permute(3, 1, 0, 2))
    assert torch.equal(nearest(q[:, ::2, 1:, ::3], levels), expected[:, ::2, 1:, ::3])
    assert torch.equal(nearest(q[0, 0, 0, 0], levels), expected[0, 0, 0, 0])
    assert nearest(q[:0], levels).shape == (0, 3, 4, 5)
    assert torch.equal(nearest(q[:1, :1].expand(2, 3, 4, 5), levels), expected[:1, :1].expand(2, 3, 4, 5))
    assert not recwarn.list


def test_table_is_cached_by_device_and_computing_dtype() -> None:
    levels = uniform(3)
    x = torch.zeros(4)
    assert levels.table(x) is levels.table(torch.ones(2, 2))
    assert levels.table(x) is uniform(3).table(x)
    assert levels.table(x.bfloat16()) is levels.table(x)
    assert levels.table(x.half()) is levels.table(x)
    assert levels.table(x.double()) is not levels.table(x)
    assert levels.table(x).dtype == torch.float32
    assert levels.table(x.double()).dtype == torch.float64
    assert levels.table(x.double()).tolist() == list(levels.values)
    assert levels.midpoint_table(x) is levels.midpoint_table(x)
    assert levels.midpoint_table(x).tolist() == list(levels.midpoints)


def test_table_made_in_inference_mode_serves_autograd() -> None:
    levels = LevelSet((-0.75, 0.25, 0.8125), "made in inference mode")
    with torch.inference_mode():
        table = levels.table(torch.zeros(1))
    assert not table.is_inference()
    assert levels.table(torch.zeros(1)) is table


def test_compute_dtype() -> None:
    assert compute_dtype(torch.bfloat16) is torch.float32
    assert compute_dtype(torch.float16) is torch.float32
    assert compute_dtype(torch.float32) is torch.float32
    assert compute_dtype(torch.float64) is torch.float64


def test_one_set_shared_by_two_groups_cannot_be_confused() -> None:
    """PARQ gives a 4-bit and a 2-bit group that share a quantizer both 16 levels; a LevelSet cannot change."""
    four, two = uniform(4), uniform(2)
    first, second = {"levels": four}, {"levels": four}
    second["levels"] = two
    q = torch.linspace(-9, 9, 1001)
    for group, levels, count in ((first, four, 16), (second, two, 4), (first, four, 16)):
        assert len(nearest(q, group["levels"]).unique()) == count
        assert group["levels"] is levels
    for field in ("values", "name", "bits", "gaps", "min_gap"):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            setattr(four, field, getattr(two, field))
    with pytest.raises(TypeError):
        four.values[0] = 0.0  # pyright: ignore[reportIndexIssue]
    assert four == uniform(4)
    assert hash(four) == hash(uniform(4))
    assert four != two
    assert (four.bits, two.bits) == (4, 2)


def test_a_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        assert uniform(2).values == (-2.0, -1.0, 0.0, 1.0)
        with pytest.raises(ValueError, match="increase strictly"):
            LevelSet((1.0, 0.0))
