"""The file of a shipped net: one safetensors file, its graph as JSON in the header's metadata. Read with suspicion.

safetensors: 8 bytes length of the header, the header (JSON: name -> dtype, shape, data_offsets), then the data. The
reader checks every field, allocates no more than the file is long, executes nothing, and says what is wrong.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from askew.atomic import replacing
from askew.ship.check import MOST_NODES, check
from askew.ship.graph import Graph, Node, ShipError, Weight

FORMAT, VERSION = "askew", 1
DTYPES = {"U8": np.dtype("u1"), "I32": np.dtype("<i4"), "F32": np.dtype("<f4")}
LONGEST_HEADER = 16 << 20
ALIGNMENT = 64


def save(graph: Graph, path: Path) -> int:
    """Write the file atomically; returns its size in bytes."""
    check(graph)
    tensors: dict[str, np.ndarray] = {}
    nodes = []
    for n in graph.nodes:
        entry: dict[str, Any] = {"op": n.op, "name": n.name, "inputs": list(n.inputs), "settings": dict(n.settings)}
        if n.weight is not None:
            tensors[f"{n.name}.weight"] = n.weight.data
            entry["weight"] = {"shape": list(n.weight.shape), "levels": list(n.weight.levels)}
        for role in sorted(n.arrays):
            tensors[f"{n.name}.{role}"] = n.arrays[role]
        if n.arrays:
            entry["arrays"] = sorted(n.arrays)
        nodes.append(entry)
    described = {"format": FORMAT, "version": VERSION, "nodes": nodes, "metadata": dict(graph.metadata)}
    header: dict[str, Any] = {"__metadata__": {"askew": json.dumps(described, allow_nan=False, separators=(",", ":"))}}
    position = 0
    for name, array in tensors.items():
        kind = next(k for k, v in DTYPES.items() if v == array.dtype)
        end = position + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with replacing(path) as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            stream.write(np.ascontiguousarray(array).tobytes())
    return 8 + len(text) + position


def read(path: Path) -> Graph:
    """The graph of a file; a ShipError names the file and what is wrong with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ShipError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        return parse(data)
    except ShipError as error:
        raise ShipError(f"{path}: {error}") from error


def parse(data: bytes) -> Graph:
    """The graph from the bytes of a file."""
    tensors, metadata = _tensors(data)
    described = _json(metadata.get("askew", ""), "the graph")
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise ShipError("a safetensors file, but not one that askew exported")
    if described.get("version") != VERSION:
        raise ShipError(f"format version {described.get('version')!r}; this release reads version {VERSION}")
    entries = described.get("nodes")
    if set(described) != {"format", "version", "nodes", "metadata"} or not isinstance(described["metadata"], dict):
        raise ShipError("the graph must hold format, version, nodes and metadata")
    if not isinstance(entries, list) or len(entries) > MOST_NODES:
        raise ShipError(f"the nodes must be a list of at most {MOST_NODES}")
    left = dict(tensors)
    graph = Graph(tuple(_node(entry, left) for entry in entries), described["metadata"])
    if left:
        raise ShipError(f"tensors that no node uses: {', '.join(sorted(left)[:3])}")
    return check(graph)


def _json(text: str | bytes, what: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN, no nesting beyond what the parser bears."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ShipError(f"{what}: a key appears twice")
        return found

    def refuse(constant: str) -> Any:
        raise ShipError(f"{what}: {constant} is not a number")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except ShipError:
        raise
    except (ValueError, RecursionError) as error:
        raise ShipError(f"{what}: not JSON") from error


def _tensors(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Every tensor as a view of the data, and the metadata."""
    if len(data) < 8:
        raise ShipError("not a safetensors file: shorter than its length field")
    length = struct.unpack("<Q", data[:8])[0]
    if length > min(LONGEST_HEADER, len(data) - 8):
        raise ShipError(f"not a safetensors file: a header of {length} bytes in a file of {len(data)}")
    header = _json(data[8 : 8 + length], "the header")
    if not isinstance(header, dict):
        raise ShipError("the header must be an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ShipError("the metadata must map names to text")
    body = memoryview(data)[8 + length :]
    places, tensors = [], {}
    for name, entry in header.items():
        tensors[name], place = _tensor(name, entry, body)
        places.append(place)
    end = 0
    for start, stop in sorted(places):
        if start != end:
            raise ShipError(f"tensors overlap or leave a hole at byte {end} of the data")
        end = stop
    if end != len(body):
        raise ShipError(f"the file holds {len(body)} bytes of data, its tensors {end}: truncated or too long")
    return tensors, metadata


def _tensor(name: str, entry: Any, body: memoryview) -> tuple[np.ndarray, tuple[int, int]]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ShipError(f"tensor {name!r}: needs dtype, shape and data_offsets")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise ShipError(f"tensor {name!r}: dtype {entry['dtype']!r}; known: {', '.join(DTYPES)}")
    dtype, shape, offsets = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0:
        raise ShipError(f"tensor {name!r}: the shape must be one length, got {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(v) is int for v in offsets):
        raise ShipError(f"tensor {name!r}: data_offsets must be two whole numbers")
    start, stop = offsets
    if not 0 <= start <= stop <= len(body) or stop - start != shape[0] * dtype.itemsize:
        raise ShipError(f"tensor {name!r}: bytes {start}..{stop} of {len(body)} for {shape[0]} numbers")
    return np.frombuffer(body[start:stop], dtype), (start, stop)


def _node(entry: Any, tensors: dict[str, np.ndarray]) -> Node:
    """One node; the tensors it uses are taken out of `tensors`."""
    if not isinstance(entry, dict) or not {"op", "name", "inputs", "settings"} <= set(entry):
        raise ShipError("a node needs op, name, inputs and settings")
    name = entry["name"]
    if not isinstance(name, str) or not 0 < len(name) <= 256 or not isinstance(entry["op"], str):
        raise ShipError(f"a node's name and op must be short texts, got {str(name)[:40]!r}")
    extra = set(entry) - {"op", "name", "inputs", "settings", "weight", "arrays"}
    inputs, settings, roles = entry["inputs"], entry["settings"], entry.get("arrays", [])
    texts = isinstance(inputs, list) and isinstance(roles, list) and all(isinstance(v, str) for v in inputs + roles)
    if extra or not texts or not isinstance(settings, dict):
        raise ShipError(f"node {name!r}: inputs and arrays are lists of names, settings an object, and no more")

    def take(role: str) -> np.ndarray:
        if f"{name}.{role}" not in tensors:
            raise ShipError(f"node {name!r}: the tensor {name}.{role} is missing or used twice")
        return tensors.pop(f"{name}.{role}")

    weight = _weight(name, entry["weight"], take) if "weight" in entry else None
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    return Node(entry["op"], name, tuple(inputs), settings, {role: take(role) for role in roles}, weight)


def _weight(name: str, entry: Any, take: Any) -> Weight:
    if not isinstance(entry, Mapping) or set(entry) != {"shape", "levels"}:
        raise ShipError(f"node {name!r}: a weight needs shape and levels")
    shape, levels = entry["shape"], entry["levels"]
    if not isinstance(shape, list) or not isinstance(levels, list) or len(levels) > 256 or len(shape) > 4:
        raise ShipError(f"node {name!r}: shape and levels of the weight must be short lists")
    if not all(type(c) in (int, float) and abs(c) < 1e38 for c in levels) or not all(type(n) is int for n in shape):
        raise ShipError(f"node {name!r}: shape and levels of the weight must be numbers")
    return Weight(take("weight"), tuple(shape), tuple(float(c) for c in levels))
