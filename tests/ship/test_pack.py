"""Packing is a bijection, and takes as few bytes as it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from askew.core import LevelSet, ternary, uniform
from askew.ship.graph import Weight
from askew.ship.pack import WIDTHS, one_too_many, pack, packed_size, unpack, width


@given(st.sampled_from(WIDTHS).flatmap(lambda b: st.tuples(st.just(b), _codes(b))))
def test_unpack_inverts_pack(case: tuple[int, np.ndarray]) -> None:
    bits, codes = case
    packed = pack(codes, bits)
    assert packed.dtype == np.uint8 and packed.size == packed_size(codes.size, bits)
    assert np.array_equal(unpack(packed, bits, codes.shape), codes)


def _codes(bits: int) -> st.SearchStrategy[np.ndarray]:
    shapes = hnp.array_shapes(min_dims=1, max_dims=4, max_side=9)
    return hnp.arrays(np.uint8, shapes, elements=st.integers(0, (1 << bits) - 1))


@pytest.mark.parametrize(("levels", "bits"), [(2, 1), (3, 2), (4, 2), (5, 4), (16, 4), (17, 8), (256, 8)])
def test_width_is_the_smallest_that_fits(levels: int, bits: int) -> None:
    assert width(levels) == bits


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (uniform(4, "paper"), True),
        (LevelSet((*range(-3, 13), 40)), True),
        (uniform(2, "paper"), True),
        (LevelSet((-1.0, -0.5, 0.0, 0.5, 1.0)), True),
        (LevelSet((-0.2, -0.1, 0.0, 0.1, 0.2)), True),
        (LevelSet((-2e-9, -1e-9, 0.0, 2e-9, 3e-9)), False),
        (ternary(), False),
        (uniform(3, "paper"), False),
        (uniform(5, "paper"), False),
        *((uniform(bits), False) for bits in range(1, 9)),
    ],
    ids=lambda v: v.name if isinstance(v, LevelSet) else "",
)
def test_one_level_too_many_halves_the_bits_when_it_goes(levels: LevelSet, expected: bool) -> None:
    assert one_too_many(levels.values) == expected
    if expected:
        assert width(len(levels)) == 2 * width(len(levels) - 1)


def test_bytes_are_little_endian_in_their_bits() -> None:
    assert pack(np.array([1, 0, 0, 0, 0, 0, 0, 0, 1]), 1).tolist() == [1, 1]
    assert pack(np.array([1, 2, 3, 0, 1]), 2).tolist() == [0b00111001, 1]
    assert pack(np.array([1, 15, 7]), 4).tolist() == [0xF1, 7]


def test_wrong_codes_and_sizes_are_errors() -> None:
    with pytest.raises(ValueError, match=r"lie in 0\.\.3"):
        pack(np.array([4]), 2)
    with pytest.raises(ValueError, match="not 3"):
        pack(np.array([1]), 3)
    with pytest.raises(ValueError, match="cannot be"):
        unpack(np.zeros(2, np.uint8), 1, (17,))
    with pytest.raises(ValueError, match="257 levels"):
        width(257)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=20, unique=True), st.integers(0, 99))
def test_a_packed_weight_gives_its_levels_back(values: list[int], seed: int) -> None:
    levels = tuple(float(v) for v in sorted(values))
    codes = np.random.default_rng(seed).integers(0, len(levels), (3, 5))
    weight = Weight.of_codes(codes.astype(np.uint8), levels)
    assert np.array_equal(weight.dense(), np.array(levels, np.float32)[codes])
    if weight.line is not None:
        assert np.array_equal(weight.line[0] + weight.line[1] * codes, np.array(levels)[codes])
