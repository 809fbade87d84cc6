"""The graph of a shipped net: nodes in order of computation, each with its operator, settings and arrays. No torch.

A weight is w = scale * level[code], the scale per tensor or per output. The operators, z their input, y their output:
  conv2d, linear  y = scale (W z) + bias, W of codes or floats, without scale
  embedding       y = scale level[code[z]]
  affine          y = scale z + bias per channel
  sign            y = +1 where z >= 0, else -1
  threshold       y = +1 where (z >= threshold) differs from flip, else -1, for z of whole numbers
  quantize        y = step clip(round(z / step), low, high)
  relu, add, flatten, max_pool, avg_pool, global_avg_pool
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from askew.ship.pack import pack, unpack, width

FLOAT_BITS = 32


class ShipError(ValueError):
    """A net that cannot be shipped, or a file that is not one; the message says what and where."""


@dataclass(frozen=True)
class Weight:
    """A weight without its scale: packed codes with their levels, or floats (levels empty)."""

    data: np.ndarray
    shape: tuple[int, ...]
    levels: tuple[float, ...] = ()

    @property
    def bits(self) -> int:
        """Bits of a stored weight; 32 for floats."""
        return width(len(self.levels)) if self.levels else FLOAT_BITS

    @property
    def binary(self) -> bool:
        return self.levels == (-1.0, 1.0)

    @property
    def line(self) -> tuple[float, float] | None:
        """(a, d) where the levels are a + d code exactly, else None."""
        if not self.levels:
            return None
        a, d = self.levels[0], self.levels[1] - self.levels[0]
        return (a, d) if all(a + d * i == c for i, c in enumerate(self.levels)) else None

    @property
    def whole(self) -> tuple[float, np.ndarray] | None:
        """(unit, q) where the levels are unit * q exactly with whole numbers q, equally spaced, else None."""
        if self.line is None:
            return None
        levels = np.array(self.levels)
        for unit in (self.line[1], self.line[1] / 2):
            q = np.rint(levels / unit)
            if np.array_equal(np.float32(q * unit), levels.astype(np.float32)):
                return unit, q.astype(np.int64)
        return None

    def codes(self) -> np.ndarray:
        """The codes in the weight's shape (uint8)."""
        return unpack(self.data, self.bits, self.shape)

    def dense(self) -> np.ndarray:
        """level[code], or the floats (float32)."""
        if not self.levels:
            return self.data.reshape(self.shape)
        return self.table()[self.codes()]

    def table(self) -> np.ndarray:
        """The levels as float32, filled up to 2^bits with the last."""
        full = np.full(1 << self.bits, self.levels[-1], np.float32)
        full[: len(self.levels)] = self.levels
        return full

    @staticmethod
    def of_codes(codes: np.ndarray, levels: tuple[float, ...]) -> Weight:
        return Weight(pack(codes, width(len(levels))), codes.shape, levels)

    @staticmethod
    def of_floats(values: np.ndarray) -> Weight:
        return Weight(np.ascontiguousarray(values, np.float32).ravel(), values.shape)


@dataclass(frozen=True)
class Node:
    """One operator: its name is that of its value; inputs are names of earlier nodes."""

    op: str
    name: str
    inputs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    weight: Weight | None = None

    def array(self, role: str, outputs: int, default: float) -> np.ndarray:
        """An array per output, filled out from one number if it is one, or from the default."""
        found = self.arrays.get(role)
        return np.full(outputs, default) if found is None else np.broadcast_to(found, (outputs,))


@dataclass(frozen=True)
class Graph:
    """Nodes in order; the first is the input, the last the output."""

    nodes: tuple[Node, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)

    def users(self) -> dict[str, list[str]]:
        """Who reads each value."""
        found: dict[str, list[str]] = {n.name: [] for n in self.nodes}
        for n in self.nodes:
            for name in n.inputs:
                found[name].append(n.name)
        return found

    def with_nodes(self, nodes: list[Node]) -> Graph:
        return replace(self, nodes=tuple(nodes))
