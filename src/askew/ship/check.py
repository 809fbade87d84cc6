"""What a graph must satisfy before anything is computed or written: every node by itself, and all of them together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from askew.ship.graph import Graph, Node, ShipError, Weight
from askew.ship.pack import packed_size

LARGEST = 1 << 28  # elements on any axis
MOST_NODES = 10_000
MOST_GROUPS = 1 << 14  # each becomes a layer of its own
LARGEST_KERNEL = 64  # work and memory at the borders grow with its fourth power

Check = Callable[[Any], bool]


def _pair(low: int, high: int) -> Check:
    return lambda v: (
        isinstance(v, (list, tuple)) and len(v) == 2 and all(type(i) is int and low <= i <= high for i in v)
    )


def _whole(low: int, high: int) -> Check:
    return lambda v: type(v) is int and low <= v <= high


def _flag(v: Any) -> bool:
    return type(v) is bool


def _shape(v: Any) -> bool:
    if not isinstance(v, (list, tuple)) or not 1 <= len(v) <= 3:
        return False
    return all(i is None or (type(i) is int and 0 < i <= 1 << 20) for i in v)


WINDOW: dict[str, Check] = {"stride": _pair(1, 1024), "padding": _pair(0, 1024), "dilation": _pair(1, 1024)}
POOL: dict[str, Check] = {"kernel": _pair(1, LARGEST_KERNEL), "stride": _pair(1, 1024), "padding": _pair(0, 32)}
SETTINGS: dict[str, dict[str, Check]] = {
    "input": {"shape": _shape, "dtype": lambda v: v in ("float32", "int64")},
    "conv2d": {**WINDOW, "groups": _whole(1, MOST_GROUPS)},
    "linear": {},
    "embedding": {},
    "affine": {},
    "relu": {},
    "sign": {},
    "threshold": {},
    "quantize": {"low": _whole(-128, 0), "high": _whole(1, 255)},
    "add": {},
    "flatten": {},
    "max_pool": {**POOL, "dilation": _pair(1, 1024)},
    "avg_pool": {**POOL, "count_include_pad": _flag},
    "global_avg_pool": {},
}
ARITY = {"input": 0, "add": 2}
RANKS = {"conv2d": 4, "linear": 2, "embedding": 2}  # of the weights
ROLES = {
    "conv2d": {"scale": np.float32, "bias": np.float32},
    "linear": {"scale": np.float32, "bias": np.float32},
    "embedding": {"scale": np.float32},
    "affine": {"scale": np.float32, "bias": np.float32},
    "threshold": {"threshold": np.int32, "flip": np.uint8},
    "quantize": {"step": np.float32},
}
REQUIRED = {"affine": ("scale", "bias"), "threshold": ("threshold",), "quantize": ("step",)}


def check_node(node: Node, known: set[str]) -> None:
    """Raise a ShipError that names the node unless operator, inputs, settings, arrays and weight fit each other."""

    def insist(right: bool, what: str) -> None:
        if not right:
            raise ShipError(f"node {node.name!r} ({node.op}): {what}")

    insist(node.op in SETTINGS, f"no such operator; known: {', '.join(SETTINGS)}")
    insist(node.name not in known, "the name is taken")
    insist(len(node.inputs) == ARITY.get(node.op, 1), f"needs {ARITY.get(node.op, 1)} inputs, has {len(node.inputs)}")
    insist((node.op == "input") == (not known), "the input is the first node, and there is one")
    for name in node.inputs:
        insist(name in known, f"input {name!r} is not an earlier node")
    rules = SETTINGS[node.op]
    insist(set(node.settings) == set(rules), f"settings must be {sorted(rules)}, got {sorted(node.settings)}")
    for key, right in rules.items():
        insist(right(node.settings[key]), f"{key} cannot be {node.settings[key]!r}")
    insist((node.weight is not None) == (node.op in RANKS), "a weight where none belongs, or none where one does")
    roles = ROLES.get(node.op, {})
    insist(set(node.arrays) <= set(roles), f"arrays may be {sorted(roles)}, got {sorted(node.arrays)}")
    for role in REQUIRED.get(node.op, ()):
        insist(role in node.arrays, f"needs the array {role!r}")
    for role, array in node.arrays.items():
        insist(array.dtype == roles[role] and array.ndim == 1, f"{role} must be a list of {np.dtype(roles[role])}")
        insist(array.size > 0 and bool(np.isfinite(array).all()), f"{role} must be finite, and some")
    if node.weight is not None:
        _check_weight(node, node.weight, insist)
    if node.op == "quantize":
        step = node.arrays["step"]
        insist(step.size == 1 and bool(step[0] > 0), "step must be one positive number")
    if "flip" in node.arrays:
        size = packed_size(node.arrays["threshold"].size, 1)
        insist(node.arrays["flip"].size == size, f"flip must have {size} bytes")
    if node.op in ("max_pool", "avg_pool"):
        pads = zip(node.settings["padding"], node.settings["kernel"], strict=True)
        insist(all(2 * p <= k for p, k in pads), "padding may be at most half the kernel")


def _check_weight(node: Node, weight: Weight, insist: Callable[[bool, str], None]) -> None:
    shape, levels = weight.shape, weight.levels
    insist(len(shape) == RANKS[node.op], f"the weight must have {RANKS[node.op]} dimensions, got {len(shape)}")
    insist(all(type(n) is int and 0 < n <= LARGEST for n in shape), f"the weight cannot have the shape {shape}")
    insist(len(levels) != 1 and len(levels) <= 256, f"{len(levels)} levels")
    insist(all(np.isfinite(np.float32(c)) for c in levels), "levels must be finite")
    insist(all(a < b for a, b in pairwise(levels)), "levels must increase")
    count = int(np.prod(shape, dtype=object))
    if levels:
        insist(weight.data.dtype == np.uint8, "codes must be bytes")
        insist(weight.data.size == packed_size(count, weight.bits), f"{weight.data.size} bytes for {count} codes")
        if len(levels) < 1 << weight.bits:
            insist(int(weight.codes().max()) < len(levels), f"a code beyond the {len(levels)} levels")
    else:
        insist(weight.data.dtype == np.float32 and weight.data.size == count, "floats do not fill the shape")
        insist(bool(np.isfinite(weight.data).all()), "the weight is not finite")
    for role, array in node.arrays.items():
        insist(array.size == shape[0] or (role == "scale" and array.size == 1), f"{role} must have {shape[0]} numbers")
    if node.op == "conv2d":
        s = node.settings
        insist(max(shape[2:]) <= LARGEST_KERNEL, f"a kernel may have a side of {LARGEST_KERNEL} at most")
        insist(shape[0] % s["groups"] == 0, f"{shape[0]} outputs in {s['groups']} groups")
        reach = [d * (k - 1) for k, d in zip(shape[2:], s["dilation"], strict=True)]
        insist(all(p <= r for p, r in zip(s["padding"], reach, strict=True)), "padding reaches beyond the kernel")


def check(graph: Graph) -> Graph:
    """The graph, if every node is right and all of them together are too (channels fit); else a ShipError."""
    if not 2 <= len(graph.nodes) <= MOST_NODES:
        raise ShipError(f"a net has 2 to {MOST_NODES} nodes, not {len(graph.nodes)}")
    known: set[str] = set()
    for node in graph.nodes:
        check_node(node, known)
        known.add(node.name)
    ranks(graph)
    channels(graph)
    return graph


IMAGES = ("conv2d", "max_pool", "avg_pool", "global_avg_pool")


def ranks(graph: Graph) -> dict[str, int]:
    """How many dimensions each value has: 4 for images, 2 for features, 3 for features at places (embeddings)."""
    found: dict[str, int] = {}
    for n in graph.nodes:
        if n.op == "input":
            found[n.name] = len(n.settings["shape"]) + 1
            continue
        before = found[n.inputs[0]]
        wrong = (
            (n.op in IMAGES and before != 4)
            or (n.op == "linear" and before == 4)
            or (n.op == "affine" and before == 3)
            or (n.op == "add" and before != found[n.inputs[1]])
            or (n.op == "embedding" and (n.inputs[0] != graph.nodes[0].name or before > 2))
        )
        if wrong:
            raise ShipError(f"node {n.name!r} ({n.op}): cannot take a value of {before} dimensions")
        found[n.name] = 2 if n.op == "flatten" else before + (n.op == "embedding")
    whole = graph.nodes[0].settings["dtype"] == "int64"
    for n in graph.nodes:
        if graph.nodes[0].name in n.inputs and whole != (n.op == "embedding"):
            raise ShipError(f"node {n.name!r} ({n.op}): indices go into embeddings, and nothing else does")
    return found


def channels(graph: Graph) -> dict[str, int | None]:
    """How many channels (features) each value has, None where only the input decides; a ShipError where they clash."""
    found: dict[str, int | None] = {}
    flat: dict[str, int | None] = {}  # flattened images: a multiple of these
    for n in graph.nodes:
        before = found[n.inputs[0]] if n.inputs else None
        if n.op == "input":
            shape = n.settings["shape"]
            found[n.name] = None if n.settings["dtype"] == "int64" else (shape[0] if len(shape) != 2 else shape[1])
            continue
        if n.weight is not None and n.op != "embedding":
            inputs = n.weight.shape[1] * n.settings.get("groups", 1)
            multiple = flat.get(n.inputs[0])
            if (before is not None and before != inputs) or (multiple and inputs % multiple):
                raise ShipError(f"node {n.name!r} ({n.op}): takes {inputs} channels, gets {before or multiple}")
        elif n.op in ("affine", "threshold"):
            sizes = {a.size for role, a in n.arrays.items() if role != "flip"}
            if len(sizes) > 1 or (before is not None and before not in sizes):
                raise ShipError(f"node {n.name!r} ({n.op}): arrays of {sorted(sizes)} for {before} channels")
        elif n.op == "add" and None not in (pair := (before, found[n.inputs[1]])) and pair[0] != pair[1]:
            raise ShipError(f"node {n.name!r} (add): {pair[0]} and {pair[1]} channels")
        found[n.name] = before
        if n.weight is not None:
            found[n.name] = n.weight.shape[1] if n.op == "embedding" else n.weight.shape[0]
        elif n.op == "flatten":
            found[n.name], flat[n.name] = None, before
        elif n.inputs[0] in flat and n.op not in ("global_avg_pool",):
            flat[n.name] = flat[n.inputs[0]]
    return found
