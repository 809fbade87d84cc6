"""A shipped net as ONNX: standard operators, INT2 or INT4 weights behind DequantizeLinear. Needs the package onnx.

A weight is scale * unit * q with q a small signed integer: {-1, +1} fits INT2 (there is no 1-bit type), 4 bits INT4.
Level sets without such a unit go as floats. onnxruntime computes these nets in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from askew.atomic import replacing
from askew.ship.check import check, ranks
from askew.ship.graph import Graph, Node, ShipError, Weight
from askew.ship.pack import pack

if TYPE_CHECKING:
    from onnx import ModelProto

# name of the ONNX type -> bits, opset from which DequantizeLinear takes it
INTEGERS = {"INT2": (2, 25), "INT4": (4, 21), "INT8": (8, 21)}


def save_onnx(graph: Graph, path: Path) -> int:
    """Write the ONNX file atomically; returns its size in bytes."""
    data = to_onnx(graph).SerializeToString()
    with replacing(path) as stream:
        stream.write(data)
    return len(data)


def to_onnx(graph: Graph) -> ModelProto:
    """The graph as an ONNX model with a free batch dimension, checked by onnx itself."""
    onnx = _package()
    check(graph)
    builder = _Builder(onnx, graph)
    for node in graph.nodes[1:]:
        builder.add(node)
    opset = onnx.helper.make_opsetid("", builder.opset)
    model = onnx.helper.make_model(
        builder.finished(),
        opset_imports=[opset],
        producer_name="askew",
        ir_version=onnx.helper.find_min_ir_version_for([opset]),
    )
    onnx.checker.check_model(model)
    return model


def session(path: str | Path, threads: int = 1) -> Any:
    """An onnxruntime session whose low-bit products accumulate in float32.

    Where onnxruntime turns DequantizeLinear and MatMul into MatMulNBits, its default rounds activations to 8 bits.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _package() -> Any:
    try:
        import onnx
        import onnx.checker
        import onnx.helper
    except ImportError as error:
        raise ImportError("ONNX files need the package onnx: pip install 'askew[onnx]'") from error
    return onnx


def signed(weight: Weight) -> tuple[str, float, np.ndarray] | None:
    """(ONNX type, unit, q) with levels = unit * q, q signed integers of the type; None if no unit does that exactly."""
    if weight.whole is None:
        return None
    unit, q = weight.whole
    for kind, (bits, _) in INTEGERS.items():
        if q.min() >= -(1 << (bits - 1)) and q.max() < 1 << (bits - 1):
            return kind, unit, q[weight.codes()]
    return None


class _Builder:
    """Collects ONNX nodes and initializers for the nodes of a graph."""

    def __init__(self, onnx: Any, graph: Graph) -> None:
        self.onnx, self.graph, self.ranks = onnx, graph, ranks(graph)
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.opset = 21

    def finished(self) -> Any:
        kinds, first = self.onnx.TensorProto, self.graph.nodes[0]
        dtype = kinds.INT64 if first.settings["dtype"] == "int64" else kinds.FLOAT
        shape = ["batch", *(f"size{i}" if n is None else n for i, n in enumerate(first.settings["shape"]))]
        value = self.onnx.helper.make_tensor_value_info
        last = self.graph.nodes[-1].name
        outputs = [value(last, kinds.FLOAT, ["batch", *(f"out{i}" for i in range(self.ranks[last] - 1))])]
        inputs = [value(first.name, dtype, shape)]
        return self.onnx.helper.make_graph(self.nodes, "askew", inputs, outputs, self.initializers)

    def emit(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(self.onnx.helper.make_node(op, inputs, [output], name=f"{output}:{op}", **attributes))
        return output

    def constant(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def weight(self, node: Node, weight: Weight) -> str:
        """The name of the weight at run time, in float32 and with the layer's scale."""
        found = signed(weight)
        scale = node.array("scale", weight.shape[0], 1.0).astype(np.float32)
        if found is None:
            dense = weight.dense() * scale.reshape(-1, *[1] * (len(weight.shape) - 1))
            return self.constant(f"{node.name}.weight", dense.astype(np.float32))
        kind, unit, q = found
        bits, opset = INTEGERS[kind]
        self.opset = max(self.opset, opset)
        raw = pack(q & ((1 << bits) - 1), bits).tobytes()
        dtype = getattr(self.onnx.TensorProto, kind)
        codes = self.onnx.helper.make_tensor(f"{node.name}.codes", dtype, weight.shape, raw, raw=True)
        self.initializers.append(codes)
        steps = self.constant(f"{node.name}.scale", (scale * np.float32(unit)).astype(np.float32))
        return self.emit("DequantizeLinear", [f"{node.name}.codes", steps], f"{node.name}.weight", axis=0)

    def add(self, n: Node) -> None:
        x, y, s = n.inputs[0], n.name, n.settings
        if n.weight is not None:
            self._layer(n, n.weight)
        elif n.op == "relu":
            self.emit("Relu", [x], y)
        elif n.op == "add":
            self.emit("Add", list(n.inputs), y)
        elif n.op == "flatten":
            self.emit("Flatten", [x], y, axis=1)
        elif n.op == "global_avg_pool":
            self.emit("GlobalAveragePool", [x], y)
        elif n.op == "max_pool":
            self.emit("MaxPool", [x], y, dilations=list(s["dilation"]), **_window(s))
        elif n.op == "avg_pool":
            self.emit("AveragePool", [x], y, count_include_pad=int(s["count_include_pad"]), **_window(s))
        elif n.op == "affine":
            shaped = [self.constant(f"{y}.{role}", self._per_channel(n, n.arrays[role])) for role in ("scale", "bias")]
            self.emit("Add", [self.emit("Mul", [x, shaped[0]], f"{y}.scaled"), shaped[1]], y)
        elif n.op in ("sign", "threshold"):
            self._signs(n)
        elif n.op == "quantize":
            self._quantize(n)
        else:
            raise ShipError(f"node {n.name!r}: {n.op} has no form in ONNX")

    def _per_channel(self, n: Node, values: np.ndarray) -> np.ndarray:
        return values.reshape(1, -1, *[1] * (self.ranks[n.inputs[0]] - 2)) if self.ranks[n.inputs[0]] != 3 else values

    def _layer(self, n: Node, weight: Weight) -> None:
        name = self.weight(n, weight)
        x, y = n.inputs[0], n.name
        if n.op == "embedding":
            self.emit("Gather", [name, x], y)
            return
        bias = [self.constant(f"{y}.bias", n.arrays["bias"])] if "bias" in n.arrays else []
        if n.op == "conv2d":
            s = n.settings
            pads, strides = [*s["padding"]] * 2, list(s["stride"])
            shape = {"kernel_shape": list(weight.shape[2:]), "dilations": list(s["dilation"]), "group": s["groups"]}
            self.emit("Conv", [x, name, *bias], y, pads=pads, strides=strides, **shape)
        elif self.ranks[x] == 2:
            self.emit("Gemm", [x, name, *bias], y, transB=1)
        else:
            turned = self.emit("Transpose", [name], f"{y}.turned", perm=[1, 0])
            product = self.emit("MatMul", [x, turned], f"{y}.product" if bias else y)
            if bias:
                self.emit("Add", [product, *bias], y)

    def _signs(self, n: Node) -> None:
        x, y = n.inputs[0], n.name
        t = n.arrays["threshold"].astype(np.float32) if n.op == "threshold" else np.zeros(1, np.float32)
        edge = self.constant(f"{y}.threshold", self._per_channel(n, t) if t.size > 1 else t)
        test = self.emit("GreaterOrEqual", [x, edge], f"{y}.test")
        if "flip" in n.arrays:
            flip = np.unpackbits(n.arrays["flip"], bitorder="little", count=t.size).astype(bool)
            test = self.emit("Xor", [test, self.constant(f"{y}.flip", self._per_channel(n, flip))], f"{y}.flipped")
        ones = [self.constant(f"{y}.{name}", np.array(v, np.float32)) for name, v in (("plus", 1), ("minus", -1))]
        self.emit("Where", [test, *ones], y)

    def _quantize(self, n: Node) -> None:
        y, step = n.name, self.constant(f"{n.name}.step", n.arrays["step"])
        low, high = (self.constant(f"{y}.{k}", np.array(n.settings[k], np.float32)) for k in ("low", "high"))
        rounded = self.emit("Round", [self.emit("Div", [n.inputs[0], step], f"{y}.units")], f"{y}.rounded")
        self.emit("Mul", [self.emit("Clip", [rounded, low, high], f"{y}.codes"), step], y)


def _window(s: Any) -> dict[str, Any]:
    return {"kernel_shape": list(s["kernel"]), "strides": list(s["stride"]), "pads": [*s["padding"]] * 2}
