"""askew.export: a trained net into one small file that needs no torch to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from askew.core.levels import LevelSet, index
from askew.methods.base import FullPrecision
from askew.optim import MethodOptimizer, snapped
from askew.optim.groups import Levels, groups
from askew.ship.check import channels, ranks
from askew.ship.file import save
from askew.ship.fold import fold
from askew.ship.graph import Graph, Node, ShipError, Weight
from askew.ship.onnx import save_onnx
from askew.ship.pack import one_too_many, width
from askew.ship.torchao import Find, save_torchao
from askew.ship.trace import trace

Placed = dict[int, tuple[LevelSet, Tensor | None]]  # id of a parameter -> its levels and scale


@dataclass(frozen=True)
class Exported:
    """What was written: the file, its size, what the same net takes in float32, and the sizes of the other files."""

    path: Path
    bytes: int
    float_bytes: int
    onnx_bytes: int | None = None
    torchao_bytes: int | None = None

    @property
    def ratio(self) -> float:
        return self.float_bytes / self.bytes


def export(
    model: nn.Module,
    optimizer_or_levels: MethodOptimizer | Levels | None,
    path: str | Path,
    *,
    input_shape: Sequence[int | None] | None = None,
    record: str | None = None,
    about: Mapping[str, Any] | None = None,
    onnx: str | Path | None = None,
    torchao: str | Path | None = None,
    wide: bool = False,
) -> Exported:
    """Write the model with its weights on their levels, as it computes in evaluation mode.

    optimizer_or_levels  the optimizer that trained it (levels and scales are its own), or level sets as askew.groups
                         takes them for weights that lie on a multiple of their levels, or None: all in float32
    input_shape          of one input without the batch, None for any size; default: what the first layer asks for
    record               id of the training run, kept in the file
    about                more to keep in the file's metadata: plain values; `askew predict` looks for mean, std, classes
    onnx                 write an ONNX file of the same net too (needs the package onnx)
    torchao              write the model's state dict too, Linear weights as torchao tensors (needs the package torchao)
    wide                 store levels that need twice the bits because of one of them: 17 in 8 bits, 5 equally spaced
                         ones in 4; an error without it

    Re-estimate BatchNorm on the snapped weights first. Raises ShipError (a ValueError) naming a module that is not
    supported, a weight that is not on its levels or one with a level too many.
    """
    graph = to_graph(model, optimizer_or_levels, input_shape, record, wide)
    graph = replace(graph, metadata={**graph.metadata, **(about or {})})
    path = Path(path)
    size = save(graph, path)
    onnx_size = None if onnx is None else save_onnx(graph, Path(onnx))
    torchao_size = None
    if torchao is not None:
        with on_levels(model, optimizer_or_levels, wide) as (_, find):
            torchao_size = save_torchao(model, find, Path(torchao))
    return Exported(path, size, float_bytes(model), onnx_size, torchao_size)


def to_graph(
    model: nn.Module,
    optimizer_or_levels: MethodOptimizer | Levels | None,
    input_shape: Sequence[int | None] | None = None,
    record: str | None = None,
    wide: bool = False,
) -> Graph:
    """The folded graph that `export` writes."""
    shape = None if input_shape is None else tuple(input_shape)
    with on_levels(model, optimizer_or_levels, wide) as (placed, find):
        traced = trace(model, find, shape)
    ranks(traced)  # before anything is folded away
    channels(traced)
    return replace(_finished(fold(traced)), metadata=_metadata(model, placed, record))


@contextmanager
def on_levels(
    model: nn.Module, optimizer_or_levels: MethodOptimizer | Levels | None, wide: bool = False
) -> Iterator[tuple[Placed, Find]]:
    """The weights on their levels inside the block: which they are, and what finds a weight's codes and scale."""
    if isinstance(optimizer_or_levels, MethodOptimizer):
        optimizer = optimizer_or_levels
        plain = isinstance(optimizer.method, FullPrecision)
        # before snapping: while a scale follows its weight, the snapped weight would give another one
        placed: Placed = {} if plain else {id(p): (s.levels, s.scale) for _, p, s in optimizer.weights()}
        with torch.no_grad(), snapped(optimizer):
            yield placed, _finder(placed, exact=True, wide=wide)
    else:
        placed = {}
        for group in groups(model, optimizer_or_levels) if optimizer_or_levels is not None else []:
            placed |= {id(p): (group["levels"], None) for _, p in group["params"] if group["levels"] is not None}
        with torch.no_grad():
            yield placed, _finder(placed, exact=False, wide=wide)


def float_bytes(model: nn.Module) -> int:
    """Bytes of the state dict's floats in float32."""
    return sum(4 * t.numel() for t in model.state_dict().values() if t.is_floating_point())


def _finder(placed: Placed, exact: bool, wide: bool) -> Find:
    def find(name: str, p: Tensor) -> tuple[Weight, np.ndarray]:
        w = p.detach().cpu().float()
        if id(p) not in placed:
            return Weight.of_floats(w.numpy()), np.ones(1, np.float32)
        levels, scale = placed[id(p)]
        _check_width(name, levels, wide)
        s = (torch.ones(()) if scale is None else scale.detach().cpu().float()) if exact else _infer(name, w, levels)
        s = s.reshape(-1, *[1] * (w.ndim - 1)) if s.numel() > 1 else s.reshape(())
        codes = index(w / s, levels)
        table = torch.tensor(levels.values, dtype=torch.float32)
        if not torch.allclose(table[codes] * s, w, rtol=1e-5, atol=0):
            return _own_levels(name, w)
        return Weight.of_codes(codes.numpy().astype(np.uint8), levels.values), s.reshape(-1).numpy()

    return find


def _check_width(name: str, levels: LevelSet, wide: bool) -> None:
    """A ShipError for more levels than a byte tells apart and, unless wide, for one that doubles the bits."""
    count = len(levels)
    if count > 256:
        raise ShipError(f"{name}: {count} levels do not fit in 8 bits; train this layer on 256 or fewer")
    if one_too_many(levels.values) and not wide:
        bits, half, fewer = width(count), width(count - 1), count - 1
        raise ShipError(
            f"{name}: {count} levels take {bits} bits a weight, twice the {half} of {fewer} levels; train this layer "
            f"on {fewer} levels, uniform({half}) in the form 'int' or 'symmetric', or store {bits} bits a weight all "
            "the same: wide=True, on the command line --wide"
        )


def _own_levels(name: str, w: Tensor) -> tuple[Weight, np.ndarray]:
    """For methods that find their levels themselves: the values the snapped weight takes, up to 256 of them."""
    values, codes = w.unique(return_inverse=True)
    if len(values) > 256:
        raise ShipError(f"{name}: the snapped weight takes {len(values)} values; 256 can be packed")
    padded = values.tolist() if len(values) > 1 else [*values.tolist(), float(values[0]) + 1]
    return Weight.of_codes(codes.numpy().astype(np.uint8), tuple(padded)), np.ones(1, np.float32)


def _infer(name: str, w: Tensor, levels: LevelSet) -> Tensor:
    """The scale s (per tensor, else per output) for which w / s lies on the levels; a ShipError if there is none."""
    table = torch.tensor(levels.values)
    for rows in (w.reshape(1, -1), w.reshape(len(w), -1)):
        best = torch.zeros(len(rows))
        for size in sorted({abs(c) for c in levels.values if c}, reverse=True):
            s = rows.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / size
            error = (table[index(rows / s[:, None], levels)] * s[:, None] - rows).abs().amax(1)
            fits = (error <= 1e-6 * rows.abs().amax(1)) & (best == 0)
            best = torch.where(fits, s, best)
        if bool((best > 0).all()):
            return best
    raise ShipError(f"{name}: the weight is no multiple of the levels {levels.values}; snap it, or give the optimizer")


def _finished(graph: Graph) -> Graph:
    """Arrays in the dtypes of the file; scales that are all alike as one number, biases of zero left out."""

    def tidy(node: Node) -> Node:
        arrays = {}
        for role, values in node.arrays.items():
            kept = values.astype(np.float32) if values.dtype == np.float64 else values
            if node.weight is not None and role == "scale" and bool((kept == kept[0]).all()):
                kept = kept[:1]
            neutral = {"scale": kept.size == 1 and kept[0] == 1, "bias": not kept.any()}
            if node.weight is None or not neutral.get(role, False):
                arrays[role] = kept
        return replace(node, arrays=arrays)

    return graph.with_nodes([tidy(n) for n in graph.nodes])


def _metadata(model: nn.Module, placed: Placed, record: str | None) -> Mapping[str, Any]:
    used = sorted({(levels.name, levels.bits, levels.values) for levels, _ in placed.values()})
    return {
        "model": type(model).__name__,
        "levels": [{"name": name, "bits": bits, "values": list(values)} for name, bits, values in used],
        "parameters": sum(p.numel() for p in model.parameters()),
        "float_bytes": float_bytes(model),
        "record": record,
        "askew": packages.version("askew"),
        "torch": torch.__version__,
        "exported": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
