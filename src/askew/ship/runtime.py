"""askew.load: run a shipped net with numpy and the native kernels alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from askew.ship import kernels, values
from askew.ship.check import channels, ranks
from askew.ship.file import read
from askew.ship.geometry import Window
from askew.ship.graph import Graph, Node, ShipError
from askew.ship.layers import Product, layer
from askew.ship.reference import NO_FLOOR
from askew.ship.values import Value, to_floats

Step = Callable[..., Value]


def load(path: str | Path, threads: int | None = None) -> Net:
    """The net of a file that askew.export wrote; ShipError (a ValueError) says what is wrong with any other."""
    return Net(read(Path(path)), threads)


class Net:
    """A shipped net: net(x) takes a batch (batch, channels, height, width) or (batch, features) and gives float32.

    threads   for the kernels; default: as many as this process may use
    engine    the instruction set in use, or 'numpy' where no native library was built
    metadata  of the file: levels, versions, record of the training run
    """

    def __init__(self, graph: Graph, threads: int | None = None) -> None:
        self.metadata: Mapping[str, Any] = graph.metadata
        self.threads = threads if threads is not None else _processors()
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.engine = kernels.isa()
        self.input = graph.nodes[0]
        self.output = graph.nodes[-1].name
        self.steps = _compile(graph)
        self.last = {name: i for i, (_, inputs, _) in enumerate(self.steps) for name in inputs}

    def __call__(self, x: Any) -> np.ndarray:
        known: dict[str, Value] = {self.input.name: self._checked(np.asarray(x))}
        for i, (name, inputs, step) in enumerate(self.steps):
            try:
                known[name] = step(*(known[n] for n in inputs), threads=self.threads)
            except ValueError as error:
                shape = np.shape(x)
                raise ShipError(f"an input of shape {shape} does not fit: at {name!r} {error}") from error
            for used in set(inputs):
                if self.last[used] == i:
                    del known[used]
        y = to_floats(known[self.output])
        return np.ascontiguousarray(y.transpose(0, 3, 1, 2)) if y.ndim == 4 else y

    def __repr__(self) -> str:
        return f"Net({self.metadata.get('model')}, engine={self.engine!r}, threads={self.threads})"

    def _checked(self, x: np.ndarray) -> np.ndarray:
        """The input as the layers take it; an error says what was expected."""
        shape, dtype = self.input.settings["shape"], self.input.settings["dtype"]
        wanted = f"{dtype} of shape (batch, {', '.join('any' if n is None else str(n) for n in shape)})"
        kinds = "iu" if dtype == "int64" else "f"
        if x.dtype.kind not in kinds:
            raise TypeError(f"the net takes {wanted}, got {x.dtype}")
        fits = x.ndim == len(shape) + 1 and all(n in (None, m) for n, m in zip(shape, x.shape[1:], strict=False))
        if not fits or x.size == 0:
            raise ShipError(f"the net takes {wanted}, got shape {x.shape}")
        if dtype == "int64":
            return x.astype(np.int64)
        x = x.astype(np.float32, copy=False)
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _kinds(graph: Graph) -> dict[str, str]:
    """How each value flows: as 'bits', 'codes' or 'floats'."""
    found: dict[str, str] = {}
    for n in graph.nodes:
        found[n.name] = "floats"
        if n.op in ("sign", "threshold"):
            found[n.name] = "bits"
        elif n.op == "quantize" and n.settings["high"] <= 127:
            found[n.name] = "codes"
        elif n.op in ("max_pool", "flatten"):
            found[n.name] = found[n.inputs[0]]
    return found


def _compile(graph: Graph) -> list[tuple[str, tuple[str, ...], Step]]:
    """(name, inputs, step) in order; a ReLU or threshold right after a layer becomes part of it."""
    users, kinds, widths, rank = graph.users(), _kinds(graph), channels(graph), ranks(graph)
    nodes = {n.name: n for n in graph.nodes}
    steps: list[tuple[str, tuple[str, ...], Step]] = []
    made: dict[str, Any] = {}
    for n in graph.nodes[1:]:
        source = nodes[n.inputs[0]]
        if n.weight is not None and n.op != "embedding":
            after = [nodes[u] for u in users[n.name]]
            floor = 0.0 if len(after) == 1 and after[0].op == "relu" else NO_FLOOR
            flattened = None
            if source.op == "flatten" and _as_it_lies(source, users, nodes) and rank[source.inputs[0]] > 2:
                before = source.inputs[0]
                flattened = (widths[before] or n.weight.shape[1], rank[before] == 4)
            made[n.name] = layer(n, kinds[source.name], flattened, floor)
            step = _layer_step(made[n.name])
        elif n.op == "threshold" and _absorbs(made.get(source.name), users[source.name]):
            made[source.name].to_signs(n.arrays["threshold"], n.arrays.get("flip"))
            step = _same
        elif n.op == "sign" and _packs_itself([nodes[u] for u in users[n.name]]):
            step = _floats
        elif n.op == "relu" and source.name in made and len(users[source.name]) == 1:
            step = _same
        else:
            step = _step(n, n.op == "flatten" and not _as_it_lies(n, users, nodes))
        steps.append((n.name, n.inputs, step))
    return steps


def _as_it_lies(flatten: Node, users: dict[str, list[str]], nodes: dict[str, Node]) -> bool:
    """Whether only linear layers read the flattened value: their weights are then put in the image's order."""
    readers = users[flatten.name]
    return bool(readers) and all(nodes[u].op == "linear" for u in readers)


def _absorbs(made: Any, users: list[str]) -> bool:
    return isinstance(made, Product) and made.kind == "bits" and len(users) == 1


def _packs_itself(readers: list[Node]) -> bool:
    """Whether the one reader of a sign is a native product of signs, which takes the signs of floats itself."""
    if len(readers) != 1 or kernels.library() is None:
        return False
    weight, one = readers[0].weight, readers[0].settings.get("groups", 1) == 1
    return readers[0].op in ("conv2d", "linear") and weight is not None and weight.binary and one


def _floats(x: Value, threads: int) -> Value:
    return to_floats(x)


def _same(x: Value, threads: int) -> Value:
    return x


def _layer_step(made: Any) -> Step:
    def step(x: Value, threads: int) -> Value:
        return made(x, threads)

    return step


def _step(n: Node, channels_first: bool) -> Step:
    """What a node without weights does."""
    if n.op in ("max_pool", "avg_pool"):
        s = n.settings
        window = Window(s["kernel"], s["stride"], s["padding"], s.get("dilation", (1, 1)))
        if n.op == "max_pool":
            return lambda x, threads: values.max_pool(x, window)
        return lambda x, threads: values.avg_pool(to_floats(x), window, s["count_include_pad"])
    if n.op == "quantize":
        step, low, high = n.arrays["step"][0], n.settings["low"], n.settings["high"]
        return lambda x, threads: values.quantize(to_floats(x), step, low, high)
    if n.op == "affine":
        scale, bias = n.arrays["scale"], n.arrays["bias"]
        return lambda x, threads: to_floats(x) * scale + bias
    if n.op == "embedding":
        return _embedding(n)
    if n.op == "threshold":
        return _threshold(n)
    if n.op == "flatten":
        return lambda x, threads: values.flat(x, channels_first)
    simple: dict[str, Step] = {
        "relu": lambda x, threads: np.maximum(to_floats(x), np.float32(0)),
        "sign": lambda x, threads: values.to_bits(to_floats(x), threads),
        "add": lambda x, y, threads: to_floats(x) + to_floats(y),
        "global_avg_pool": lambda x, threads: to_floats(x).mean(axis=(1, 2), keepdims=True),
    }
    return simple[n.op]


def _threshold(n: Node) -> Step:
    t = n.arrays["threshold"]
    flip = np.unpackbits(n.arrays["flip"], bitorder="little", count=t.size) if "flip" in n.arrays else np.zeros(1)

    def step(x: Value, threads: int) -> Value:
        positive = (to_floats(x) >= t) != flip.astype(bool)
        return values.to_bits(np.where(positive, np.float32(1), np.float32(-1)), threads)

    return step


def _embedding(n: Node) -> Step:
    weight = n.weight
    assert weight is not None
    rows, table = weight.shape[0], weight.table() if weight.levels else None
    codes = weight.codes() if weight.levels else weight.data.reshape(weight.shape)
    scale = n.array("scale", rows, 1.0).astype(np.float32)

    def step(x: np.ndarray, threads: int) -> np.ndarray:
        if x.min() < 0 or x.max() >= rows:
            raise ShipError(f"node {n.name!r}: indices must lie in 0..{rows - 1}, got {x.min()}..{x.max()}")
        found = codes[x] if table is None else table[codes[x]]
        return found * scale[x][..., None]

    return step
