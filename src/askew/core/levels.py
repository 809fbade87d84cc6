"""Level sets: the values c_1 < ... < c_K that a weight may take, in level units.

A weight tensor is w = s q with a scale s (see scale.py); the levels speak of q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class LevelSet:
    """The sorted levels c_1 < ... < c_K (paper: the set Q of one coordinate).

    Arguments: values, at least two, finite and strictly increasing; name, for tables and errors.
    """

    values: tuple[float, ...]
    name: str = "levels"

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(float(v) for v in self.values))
        if len(self.values) < 2:
            raise ValueError(f"level set {self.name!r}: needs at least two levels, got {list(self.values)}")
        as_float32 = torch.tensor(self.values, dtype=torch.float32, device="cpu")
        if not bool(as_float32.isfinite().all()):
            raise ValueError(
                f"level set {self.name!r}: every level must be finite (as float32 too), got {list(self.values)}"
            )
        if not bool((as_float32[1:] > as_float32[:-1]).all()):
            raise ValueError(
                f"level set {self.name!r}: levels must increase strictly (as float32 too), got {list(self.values)}"
            )

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def gaps(self) -> tuple[float, ...]:
        """h_j = c_{j+1} - c_j."""
        return tuple(b - a for a, b in pairwise(self.values))

    @cached_property
    def midpoints(self) -> tuple[float, ...]:
        """(c_j + c_{j+1}) / 2, where the nearest level changes."""
        return tuple((a + b) / 2 for a, b in pairwise(self.values))

    @cached_property
    def grid(self) -> Literal["whole", "halves"] | None:
        """Whether the levels are consecutive whole numbers, or halfway between such: then none need be searched."""
        if any(gap != 1 for gap in self.gaps) or max(map(abs, self.values)) > 2**20:
            return None
        return {0.0: "whole", 0.5: "halves"}.get(self.values[0] % 1)  # pyright: ignore[reportReturnType]

    @property
    def min_gap(self) -> float:
        return min(self.gaps)

    @property
    def bits(self) -> int:
        """Bits that one stored index takes: ceil(log2 K); 17 levels take 5 (8 in a file: ship/pack.py)."""
        return max(1, math.ceil(math.log2(len(self.values))))

    @property
    def epsilon_bound(self) -> float:
        """Theorem 1: eps <= min_j h_j^4 / 16, above which intervals of neighbouring levels touch."""
        return self.min_gap**4 / 16

    def table(self, like: Tensor) -> Tensor:
        """The levels as a 1-D tensor of `like`'s device and computing dtype; made once, then cached."""
        return _table(self.values, compute_dtype(like.dtype), like.device)

    def midpoint_table(self, like: Tensor) -> Tensor:
        """The midpoints, likewise."""
        return _table(self.midpoints, compute_dtype(like.dtype), like.device)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype the mathematics runs in: float32 for bfloat16 and float16, otherwise the dtype itself."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


@lru_cache(maxsize=256)
def _table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def binary() -> LevelSet:
    """{-1, +1}."""
    return LevelSet((-1.0, 1.0), "binary")


def ternary() -> LevelSet:
    """{-1, 0, +1}."""
    return LevelSet((-1.0, 0.0, 1.0), "ternary")


def uniform(bits: int, form: Literal["int", "symmetric", "paper"] = "int") -> LevelSet:
    """Unit-spaced levels for `bits` in 1..8.

    int        the 2^b integers -2^(b-1) .. 2^(b-1)-1 of a signed b-bit number: what ships (INT4: -8..7)
    symmetric  2^b levels -(2^b-1)/2 .. (2^b-1)/2, no zero (2 bits: -1.5, -.5, .5, 1.5)
    paper      2^b+1 integers -2^(b-1) .. 2^(b-1); 17 levels at 4 bits do not fit in 4 bits, nor 5 at 2 bits in 2
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
        raise ValueError(f"uniform levels: bits must be a whole number from 1 to 8, got {bits!r}")
    half = 2 ** (bits - 1)
    if form == "int":
        return LevelSet(tuple(range(-half, half)), f"int{bits}")
    if form == "symmetric":
        return LevelSet(tuple(k - half + 0.5 for k in range(2 * half)), f"sym{bits}")
    if form == "paper":
        return LevelSet(tuple(range(-half, half + 1)), f"int{bits}+1")
    raise ValueError(f"uniform levels: form must be 'int', 'symmetric' or 'paper', got {form!r}")


def as_levels(levels: LevelSet | Sequence[float]) -> LevelSet:
    """A LevelSet as it is, or one made of any sorted list of numbers."""
    return levels if isinstance(levels, LevelSet) else LevelSet(tuple(levels))


def index(q: Tensor, levels: LevelSet) -> Tensor:
    """Index (int64) of the nearest level; an exact midpoint goes to the right, as in the paper's convention."""
    x = q.to(compute_dtype(q.dtype))
    if len(levels) == 2:
        return (x >= levels.midpoints[0]).long()
    return _count_left(x, levels.midpoint_table(x))


def nearest(q: Tensor, levels: LevelSet) -> Tensor:
    """The nearest level to each element, in q's dtype (sign(q) for {-1, +1}, with sign(0) = +1)."""
    x = q.to(compute_dtype(q.dtype))
    if levels.grid is None:
        return stairs(x, levels.midpoint_table(x), levels.table(x)).to(q.dtype)
    inside = x.clamp(levels.values[0], levels.values[-1])
    return (half_up(inside) if levels.grid == "whole" else inside.floor() + 0.5).to(q.dtype)


def bracket(q: Tensor, levels: LevelSet) -> tuple[Tensor, Tensor]:
    """Neighbouring levels (a, b) with a <= q < b; the outermost pair for q outside [c_1, c_K].

    For two levels the results are 0-d tensors that broadcast.
    """
    table = levels.table(q)
    if len(levels) == 2:
        return table[0], table[1]
    x = q.to(table.dtype)
    if levels.grid is None:
        return stairs(x, table[1:-1], table[:-1]), stairs(x, table[1:-1], table[1:])
    inside = x.clamp(levels.values[0], levels.values[-1])
    left = (inside.floor() if levels.grid == "whole" else half_up(inside) - 0.5).clamp(max=levels.values[-2])
    return left, left + 1


CHAIN = 5  # steps up to which a chain of comparisons is faster than a search and a look-up


def stairs(x: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """values_j where j of the sorted edges are <= x: a step function with one value more than edges."""
    if len(edges) > CHAIN:
        return values[_count_left(x, edges)]
    out = values[0]
    for edge, value in zip(edges.unbind(), values[1:].unbind(), strict=True):
        out = torch.where(x >= edge, value, out)
    return out


def half_up(x: Tensor) -> Tensor:
    """The nearest whole number, halves upwards: floor(x + 1/2), had x + 1/2 no rounding error.

    x - floor(x) has none where it lies below 1/2, and is never rounded down to there.
    """
    whole = x.floor()
    return whole + ((x - whole) * 2).floor().clamp(max=1)


def draw(q: Tensor, levels: LevelSet) -> Tensor:
    """One of the two levels around q, at random with mean clamp(q, c_1, c_K).

    Beyond the range the outermost pair brackets q and the odds fall below 0 or above 1: always the end level.
    """
    a, b = bracket(q, levels)
    return torch.where(torch.rand_like(q) < (q - a) / (b - a), b, a)


def _count_left(x: Tensor, edges: Tensor) -> Tensor:
    """How many of the sorted edges are <= each element, in x's memory layout (bucketize alone loses it, and warns)."""
    if x.is_contiguous():
        return torch.bucketize(x, edges, right=True)
    count = torch.empty_like(x, dtype=torch.int64)
    return count.copy_(torch.bucketize(x.contiguous(), edges, right=True))
