"""From a torch module to the graph, traced with torch.fx; what is not supported is an error that names it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from askew.models.norm import Chain, unfused
from askew.nn.activations import QuantizedActivation, Sign
from askew.nn.gradients import QuantizedGradient
from askew.nn.norms import Featurewise
from askew.ship.fold import batchnorm, scaled
from askew.ship.graph import Graph, Node, ShipError, Weight

FindWeight = Callable[[str, Tensor], tuple[Weight, np.ndarray]]  # -> weight in levels, scale (1 or outputs)
SILENT = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, QuantizedGradient)
OWN = (Sign, QuantizedActivation, QuantizedGradient)


class _Tracer(fx.Tracer):
    """Our own activations are leaves too; a Chain is its modules, one after another, and Featurewise too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, OWN) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict) -> Any:
        if isinstance(m, (Chain, Featurewise)):
            (value,) = (*args, *kwargs.values())
            for child in m:
                value = child(value)
            return value
        return super().call_module(m, forward, args, kwargs)


def trace(model: nn.Module, find_weight: FindWeight, input_shape: tuple[int | None, ...] | None = None) -> Graph:
    """The graph of a model in evaluation mode, BatchNorm as `affine` nodes; find_weight gives each weight's codes."""
    if not any(True for _ in model.children()):
        model = nn.Sequential(model)  # a net of one layer, which would be traced into
    try:
        with unfused():
            traced = _Tracer().trace(model)
    except Exception as error:
        raise ShipError(f"{type(model).__name__} cannot be traced: {error}") from error
    builder = _Builder(model, find_weight, input_shape)
    for node in traced.nodes:
        builder.add(node)
    return Graph(tuple(builder.nodes))


class _Builder:
    """Walks the traced nodes and collects ours."""

    def __init__(self, model: nn.Module, find_weight: FindWeight, input_shape: tuple[int | None, ...] | None) -> None:
        self.model, self.find_weight, self.input_shape = model, find_weight, input_shape
        self.modules = dict(model.named_modules())
        self.nodes: list[Node] = []
        self.values: dict[fx.Node, str] = {}

    def add(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self.nodes:
                raise ShipError(f"{type(self.model).__name__} takes more than one input ({node.name})")
            self.values[node] = self._put("input", "input", (), self._input(node))
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node) or self.values[node.args[0]] != self.nodes[-1].name:
                raise ShipError(f"{type(self.model).__name__} must return one tensor, its last value")
        elif node.op == "call_module":
            self._module(node, str(node.target), self.modules[str(node.target)])
        else:
            self._function(node)

    def _put(
        self, op: str, name: str, inputs: tuple[str, ...], settings: dict[str, Any] | None = None, **arrays: np.ndarray
    ) -> str:
        """A new node; a module that is called again gets a number behind its name."""
        return self._append(Node(op, name, inputs, settings or {}, arrays))

    def _append(self, node: Node) -> str:
        taken = {n.name for n in self.nodes}
        unique = next(t for t in (node.name, *(f"{node.name}.{i}" for i in range(2, 10_000))) if t not in taken)
        self.nodes.append(replace(node, name=unique))
        return unique

    def _input(self, node: fx.Node) -> dict[str, Any]:
        """Shape and dtype of the input, as the first layer tells them (None: any size)."""
        first = next((u for u in self._forward(node) if u.op == "call_module"), None)
        module = self.modules[str(first.target)] if first else None
        if isinstance(module, nn.Embedding):
            shape, dtype = (None,), "int64"
        elif isinstance(module, nn.Conv2d):
            shape, dtype = (module.in_channels, None, None), "float32"
        elif isinstance(module, nn.Linear):
            shape, dtype = (module.in_features,), "float32"
        else:
            shape, dtype = (None, None, None), "float32"
        return {"shape": self.input_shape or shape, "dtype": dtype}

    def _forward(self, node: fx.Node) -> list[fx.Node]:
        """The first layers the input meets, past what does not change its shape; a flatten says nothing of it."""
        out: list[fx.Node] = []
        for user in node.users:
            module = self.modules.get(str(user.target)) if user.op == "call_module" else None
            out += self._forward(user) if isinstance(module, (*SILENT, *OWN)) else [user]
        return out

    def _sources(self, node: fx.Node) -> tuple[str, ...]:
        given = (*node.args, *node.kwargs.values())
        return tuple(self.values[a] for a in given if isinstance(a, fx.Node) and a in self.values)

    def _module(self, node: fx.Node, name: str, m: nn.Module) -> None:
        inputs = self._sources(node)
        check_hooks(name, m)
        quantizer = m._modules.get("input_quantizer")
        if isinstance(quantizer, QuantizedActivation):
            own = f"{name}.input_quantizer"
            inputs = (self._put("quantize", own, inputs, _range(own, quantizer), step=_step(quantizer)),)
        if isinstance(m, SILENT):
            self.values[node] = inputs[0]
        elif isinstance(m, (nn.Linear, nn.Conv2d, nn.Embedding)):
            self.values[node] = self._layer(name, m, inputs)
        elif isinstance(m, nn.modules.batchnorm._BatchNorm):
            self.values[node] = self._norm(node, name, m, inputs)
        elif isinstance(m, QuantizedActivation):
            self.values[node] = self._put("quantize", name, inputs, _range(name, m), step=_step(m))
        else:
            op, settings = _plain_module(name, m)
            self.values[node] = self._put(op, name, inputs, settings)

    def _norm(self, node: fx.Node, name: str, m: nn.modules.batchnorm._BatchNorm, inputs: tuple[str, ...]) -> str:
        """Affine; that of the last dimension (Featurewise) goes into its linear layer, so that it may have places."""
        s, b = _batchnorm(name, m)
        source = node.all_input_nodes[0]
        at = next(i for i, n in enumerate(self.nodes) if n.name == inputs[0])
        alone = isinstance(self.modules.get(str(source.target)), nn.Linear) and len(source.users) == 1
        if alone and isinstance(self.modules[name.rpartition(".")[0]], Featurewise):
            self.nodes[at] = scaled(self.nodes[at], s, b)
            return inputs[0]
        return self._put("affine", name, inputs, scale=s, bias=b)

    def _layer(self, name: str, m: nn.Linear | nn.Conv2d | nn.Embedding, inputs: tuple[str, ...]) -> str:
        weight, scale = self.find_weight(f"{name}.weight", m.weight)
        arrays = {} if scale.size == 1 and scale[0] == 1 else {"scale": scale.astype(np.float64)}
        settings: dict[str, Any] = {}
        if isinstance(m, nn.Embedding):
            if m.max_norm is not None:
                raise ShipError(f"{name}: an embedding with max_norm is not supported")
            op = "embedding"
        else:
            op = "linear" if isinstance(m, nn.Linear) else "conv2d"
            if m.bias is not None:
                arrays["bias"] = array(m.bias)
        if isinstance(m, nn.Conv2d):
            if m.padding_mode != "zeros" or isinstance(m.padding, str):
                raise ShipError(f"{name}: padding must be numbers and zeros, got {m.padding!r}, {m.padding_mode!r}")
            settings = {"stride": m.stride, "padding": m.padding, "dilation": m.dilation, "groups": m.groups}
        return self._append(Node(op, name, inputs, settings, arrays, weight))

    def _function(self, node: fx.Node) -> None:
        inputs = self._sources(node)
        if node.target in (operator.add, operator.iadd, torch.add, "add", "add_") and len(inputs) == 2:
            if len(node.kwargs) or len(node.args) != 2:
                raise ShipError(f"{node.name}: add with alpha is not supported")
            self.values[node] = self._put("add", node.name, inputs)
        elif node.target in (functional.relu, torch.relu, "relu", "relu_"):
            self.values[node] = self._put("relu", node.name, inputs)
        elif flattens(node):
            self.values[node] = self._put("flatten", node.name, inputs[:1])
        elif is_batch_size(node):
            return  # of use only in x.view(x.size(0), -1); anything else it goes into is an error there
        else:
            raise ShipError(f"{node.name}: the call {node.target!r} is not supported; use modules (docs/ship.md)")


def flattens(node: fx.Node) -> bool:
    """flatten(x, 1), x.view(x.size(0), -1), x.reshape(len(x), -1): all but the batch."""
    rest = [*node.args[1:], *node.kwargs.values()]
    if node.target in (torch.flatten, "flatten"):
        return rest in ([1], [1, -1])
    return node.target in ("view", "reshape") and len(rest) == 2 and is_batch_size(rest[0]) and bool(rest[1] == -1)


def is_batch_size(node: Any) -> bool:
    """x.size(0), x.shape[0], or the shape on the way to it."""
    if not isinstance(node, fx.Node):
        return False
    if node.target == "size" or node.target is getattr:
        return list(node.args[1:]) in ([0], ["shape"])
    return node.target is operator.getitem and is_batch_size(node.args[0]) and bool(node.args[1] == 0)


def array(t: Tensor) -> np.ndarray:
    return t.detach().cpu().double().numpy()


def _step(m: QuantizedActivation) -> np.ndarray:
    return m.scale.detach().cpu().float().reshape(1).numpy()


def _range(name: str, m: QuantizedActivation) -> dict[str, Any]:
    if not int(m.num_batches_tracked):
        raise ShipError(f"{name}: its scale was never measured; show the model batches in training mode first")
    low = -(2 ** (m.bits - 1)) if bool(m.is_signed) else 0
    return {"low": low, "high": low + 2**m.bits - 1}


def _batchnorm(name: str, m: nn.modules.batchnorm._BatchNorm) -> tuple[np.ndarray, np.ndarray]:
    if m.running_mean is None or m.running_var is None:
        raise ShipError(f"{name}: BatchNorm without running statistics has no fixed meaning to ship")
    gamma, beta = (None if p is None else array(p) for p in (m.weight, m.bias))
    return batchnorm(array(m.running_mean), array(m.running_var), m.eps, gamma, beta)


def _two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _plain_module(name: str, m: nn.Module) -> tuple[str, dict[str, Any]]:
    """Operator and settings of a module without weights; a ShipError that names what is not supported."""
    if isinstance(m, nn.ReLU):
        return "relu", {}
    if isinstance(m, Sign):
        return "sign", {}
    if isinstance(m, nn.Flatten) and (m.start_dim, m.end_dim) == (1, -1):
        return "flatten", {}
    if isinstance(m, nn.AdaptiveAvgPool2d) and m.output_size in (1, (1, 1)):
        return "global_avg_pool", {}
    if isinstance(m, (nn.MaxPool2d, nn.AvgPool2d)) and not m.ceil_mode:
        stride = m.stride if m.stride is not None else m.kernel_size
        settings: dict[str, Any] = {"kernel": _two(m.kernel_size), "stride": _two(stride), "padding": _two(m.padding)}
        if isinstance(m, nn.MaxPool2d) and not m.return_indices:
            return "max_pool", settings | {"dilation": _two(m.dilation)}
        if isinstance(m, nn.AvgPool2d) and m.divisor_override is None:
            return "avg_pool", settings | {"count_include_pad": m.count_include_pad}
    what = f"{type(m).__name__}({m.extra_repr()})"
    raise ShipError(f"{name}: the module {what} is not supported in a shipped net (docs/ship.md lists those that are)")


def check_hooks(name: str, m: nn.Module) -> None:
    """Hooks change what a module computes, and a file cannot hold them; those of askew.nn are known."""
    for hook in [*m._forward_pre_hooks.values(), *m._forward_hooks.values()]:
        if getattr(hook, "__module__", "") != "askew.nn.insert":
            raise ShipError(f"{name}: has a forward hook ({hook}) that a shipped net cannot hold")
