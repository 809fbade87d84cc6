"""BatchNorm before signs: which activations stand behind a norm, and a BatchNorm for those that do not.

The model is traced with torch.fx. Where it cannot be traced as a whole, its parts are traced, each from its own input.
"""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules import batchnorm, dropout, instancenorm, pooling

from askew.nn.activations import Sign
from askew.nn.kinds import LAYERS, SIGNED, UNSIGNED

ACTIVATIONS = UNSIGNED + SIGNED
CENTRING = (batchnorm._BatchNorm, instancenorm._InstanceNorm, nn.GroupNorm, nn.LayerNorm)
CENTRING_CALLS = (functional.batch_norm, functional.instance_norm, functional.group_norm, functional.layer_norm)
SILENT = (nn.Identity, dropout._DropoutNd)
POOLS = (pooling._MaxPoolNd, pooling._AvgPoolNd, pooling._AdaptiveMaxPoolNd, pooling._AdaptiveAvgPoolNd)
ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")


class NormWarning(UserWarning):
    """Signs without a BatchNorm before them, where none could be put."""


class Call(NamedTuple):
    """One call of an activation: whether its input comes from a norm, and the layer that set the input's width."""

    centred: bool
    layer: nn.Module | None


class Featurewise(nn.Sequential):
    """Modules one after another on (.., features) as on (N, features): BatchNorm1d behind a linear layer."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.reshape(-1, input.shape[-1])).view(input.shape)


def sign_behind_norm(layer: nn.Module, sign: Sign, affine: bool = False) -> nn.Sequential:
    """BatchNorm for what the layer puts out, then the sign."""
    modules = OrderedDict[str, nn.Module](norm=_batchnorm(layer, affine), sign=sign)
    return Featurewise(modules) if isinstance(layer, nn.Linear) else nn.Sequential(modules)


def calls(model: nn.Module) -> dict[str, list[Call]]:
    """By the name of each activation module: its calls, none for those that the traces do not see."""
    try:  # a copy, as a forward may keep what it sees; the parameters themselves are shared
        twin = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    except Exception:
        return {}
    names = {module: name for name, module in twin.named_modules()}
    found: defaultdict[str, list[Call]] = defaultdict(list)
    for graph, modules in _traces(twin):
        for node in graph.nodes:
            module = modules.get(node)
            if isinstance(module, ACTIVATIONS):
                source = _input(node)
                found[names[module]].append(Call(_is_centred(source, modules), _layer(source, modules)))
    return dict(found)


Modules = Mapping[Any, nn.Module]  # by the node that calls it


class _Tracer(fx.Tracer):
    """Stops at the modules named above; a Sequential of any class is its modules, one after another."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (*LAYERS, *ACTIVATIONS, *CENTRING, *SILENT, *POOLS, Sign))
        return known or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if isinstance(m, nn.Sequential) and len(args) == 1 and not kwargs:
            for child in m:
                args = (child(*args),)
            return args[0]
        return super().call_module(m, forward, args, kwargs)


def _traces(part: nn.Module) -> Iterator[tuple[fx.Graph, Modules]]:
    """The graph of the part, or those of its parts where it cannot be traced."""
    if not any(True for _ in part.children()):
        return
    root = nn.Sequential(part) if isinstance(part, nn.Sequential) else part
    try:
        graph = _Tracer().trace(root)
    except Exception:  # whatever a forward does with what is no tensor
        for child in part.children():
            yield from _traces(child)
        return
    yield graph, {n: root.get_submodule(str(n.target)) for n in graph.nodes if n.op == "call_module"}


def _input(node: fx.Node) -> Any:
    return next(iter((*node.args, *node.kwargs.values())), None)


def _is_centred(node: Any, modules: Modules) -> bool:
    """Whether the value comes straight from a norm, or is a sum with such a term, as where a ResNet's ways meet."""
    if not isinstance(node, fx.Node):
        return False
    module = modules.get(node)
    if module is None and node.target in ADDITIONS:
        return any(_is_centred(term, modules) for term in node.args)
    if isinstance(module, SILENT):
        return _is_centred(_input(node), modules)
    return isinstance(module, CENTRING) or node.target in CENTRING_CALLS


def _layer(node: Any, modules: Modules) -> nn.Module | None:
    """The conv or linear layer whose width the value has; None if that cannot be told."""
    if not isinstance(node, fx.Node):
        return None
    module = modules.get(node)
    if module is None and node.target in ADDITIONS:
        return next((layer for term in node.args if (layer := _layer(term, modules))), None)
    if isinstance(module, LAYERS):
        return module
    if isinstance(module, POOLS):
        layer = _layer(_input(node), modules)
        return None if isinstance(layer, nn.Linear) else layer  # a pool there takes features together
    return _layer(_input(node), modules) if isinstance(module, (*SILENT, *CENTRING, *ACTIVATIONS)) else None


def _batchnorm(layer: Any, affine: bool) -> nn.Module:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    linear = isinstance(layer, nn.Linear)
    kind = nn.BatchNorm1d if linear else kinds[len(layer.kernel_size) - 1]
    width = layer.out_features if linear else layer.out_channels
    return kind(width, affine=affine, device=layer.weight.device, dtype=layer.weight.dtype)
