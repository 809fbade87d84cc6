"""Hypothesis strategies: random level sets, and weights and gradients that meet their special points."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from rounding import special_points

from askew.core import LevelSet


@st.composite
def level_sets(draw: st.DrawFn, max_levels: int = 17) -> LevelSet:
    """2..17 levels of random spacing; half of the sets are dyadic, so that midpoints and ties are exact in float32."""
    count = draw(st.integers(2, max_levels))
    gaps = draw(st.lists(st.integers(32, 2048), min_size=count - 1, max_size=count - 1))
    first = draw(st.integers(-8 * 512, 2 * 512))
    step = 2.0**-9 if draw(st.booleans()) else 0.3 / 100
    values = [first * step]
    for gap in gaps:
        values.append(values[-1] + gap * step)
    return LevelSet(tuple(values), "random")


def epsilons(levels: LevelSet) -> st.SearchStrategy[float]:
    """Below, at and above the theorem's bound, up to merging every interval."""
    top = (max(levels.gaps) / min(levels.gaps)) ** 4
    below = st.floats(1e-4, 0.999)
    above = st.floats(1.001, 1.5 * top + 1)
    return st.one_of(below, above, st.just(1.0)).map(lambda x: x * levels.epsilon_bound)


alphas = st.floats(0.01, 5.0)
clips = st.one_of(st.floats(0.05, 20.0), st.just(math.inf))
radii = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.5, 1.0]))


@st.composite
def weights(draw: st.DrawFn, levels: LevelSet, epsilon: float | None = None, size: int = 24) -> list[float]:
    """`size` weights: inside and outside the range, or on a special point."""
    low, high = levels.values[0], levels.values[-1]
    anywhere = st.floats(low - 1.0, high + 1.0)
    special = st.sampled_from(special_points(levels, epsilon))
    return draw(st.lists(st.one_of(anywhere, special), min_size=size, max_size=size))


def gradients(size: int = 24) -> st.SearchStrategy[list[float]]:
    one = st.one_of(st.floats(-3.0, 3.0), st.floats(-0.05, 0.05), st.sampled_from([0.0, -0.0, 1e-30, 1e6, -1e6]))
    return st.lists(one, min_size=size, max_size=size)
