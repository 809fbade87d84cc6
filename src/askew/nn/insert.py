"""Quantised activations and gradients in any nn.Module by one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any, Literal, TypeVar

from torch import nn

from askew.nn.activations import QuantizedActivation, Sign, check_bits
from askew.nn.gradients import QuantizedGradient
from askew.nn.kinds import LAYERS, SIGNED, UNSIGNED
from askew.nn.norms import NormWarning, calls, sign_behind_norm
from askew.nn.straight_through import SignGradient

Where = Literal["inputs", "activations"]
Norm = Literal[True, False, "affine"]
Skip = str | Iterable[str] | Callable[[str, nn.Module], bool]
M = TypeVar("M", bound=nn.Module)


def quantize_activations(
    model: M,
    bits: int = 4,
    at: Where | None = None,
    skip: Skip = (),
    momentum: float | None = 0.1,
    gradient: SignGradient = "tanh",
    norm: Norm = True,
) -> M:
    """Give the model activations of `bits` bits, in place; returns it. Names of its layers' weights stay.

    at="inputs"       every conv and linear layer rounds what it multiplies (`layer.input_quantizer`); signed where
                      negative numbers arrive. Residual sums between the layers stay in full precision
    at="activations"  every activation module is followed by a quantiser, unsigned after a ReLU or sigmoid, else signed;
                      at one bit it is replaced by Sign. A module that serves at two places gets one scale for both
    at=None           "inputs", at one bit "activations"
    skip              patterns or a predicate (name, module) of the layers (or activations) to leave alone, such as
                      the first and the last: skip=("stem.conv", "head.linear")
    momentum          of the running scales (QuantizedActivation)
    gradient          of Sign
    norm              at one bit: put a BatchNorm before each Sign that does not stand behind a norm, without affine as
                      in the paper, or "affine": then the net learns where each sign changes. It fits the conv or
                      linear layer before it; a NormWarning names the signs for which that layer cannot be told.
                      False: signs alone

    Layers and activations that are called as functions (torch.nn.functional, the inside of MultiheadAttention) are not
    seen, and at="activations" leaves a layer as it is that no activation module stands before (behind a norm alone, in
    the projections of MobileNetV2): it goes on multiplying real numbers. Put the model in training mode and show it
    batches before it is evaluated: the scales are measured there.
    """
    check_bits(bits)
    if at not in (None, "inputs", "activations"):
        raise ValueError(f"at must be 'inputs' or 'activations', got {at!r}")
    if norm not in (True, False, "affine"):
        raise ValueError(f"norm must be True, False or 'affine', got {norm!r}")
    if at == "inputs" and bits == 1:
        raise ValueError("one bit at the inputs would be the sign of what a ReLU lets through; use at='activations'")
    if (at or ("activations" if bits == 1 else "inputs")) == "inputs":
        for _, layer in _chosen(model, LAYERS, skip, "input_quantizer"):
            layer.add_module("input_quantizer", _beside(QuantizedActivation(bits, None, momentum), layer, model))
            layer.register_forward_pre_hook(_quantize_input, with_kwargs=True)
        return model
    chosen = _chosen(model, UNSIGNED + SIGNED, skip, "quantizer")
    if bits == 1:
        _put_signs(model, chosen, gradient, norm)
        return model
    for name, module in chosen:
        _replace(model, name, module, _beside(_followed(module, bits, momentum), module, model))
    return model


def quantize_gradients(model: M, bits: int = 4, skip: Skip = ()) -> M:
    """Put the gradients that arrive at the outputs of conv and linear layers on LUQ's logarithmic grid, in place."""
    for _, layer in _chosen(model, LAYERS, skip, "gradient_quantizer"):
        layer.add_module("gradient_quantizer", QuantizedGradient(bits))
        layer.register_forward_hook(_quantize_gradient)
    return model


def _quantize_input(layer: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """The layer's arguments with its first one, by place or by keyword, quantised."""
    if inputs:
        return (layer.input_quantizer(inputs[0]), *inputs[1:]), named
    key = "input" if "input" in named else next(iter(signature(layer.forward).parameters), "")
    if key in named:
        return (), named | {key: layer.input_quantizer(named[key])}
    if not named:
        return (), named  # forward itself says what is missing
    what = f"{type(layer).__name__}({layer.extra_repr()})"
    raise TypeError(f"{what}: cannot tell its input among the keywords {', '.join(named)}; give it by place")


def _quantize_gradient(layer: Any, inputs: tuple[Any, ...], output: Any) -> Any:
    return layer.gradient_quantizer(output)


def _put_signs(model: nn.Module, chosen: list[tuple[str, nn.Module]], gradient: SignGradient, norm: Norm) -> None:
    """Signs in the place of activations, behind a BatchNorm of their own where they need one."""
    seen = calls(model) if norm else {}
    bare: list[str] = []
    for name, module in chosen:
        made: nn.Module = Sign(gradient)
        uses = seen.get(name, [])
        if norm and not (uses and all(use.centred for use in uses)):
            if len(uses) == 1 and uses[0].layer is not None:
                made = sign_behind_norm(uses[0].layer, Sign(gradient), affine=norm == "affine")
            else:
                bare.append(name)
        _replace(model, name, module, made.train(module.training))
    if bare:
        warnings.warn(
            f"{type(model).__name__}: no BatchNorm before the signs {', '.join(bare)}, for it cannot be told which "
            "conv or linear layer they follow; put one before each, or say norm=False if it is there",
            NormWarning,
            stacklevel=3,
        )


def _beside(made: nn.Module, old: nn.Module, model: nn.Module) -> nn.Module:
    """The new module on the model's device and in the mode of the one it stands beside."""
    weight = next(old.parameters(), next(model.parameters(), None))
    return made.to(None if weight is None else weight.device).train(old.training)


def _followed(module: nn.Module, bits: int, momentum: float | None) -> nn.Sequential:
    made = nn.Sequential()
    made.add_module("activation", module)
    made.add_module("quantizer", QuantizedActivation(bits, not isinstance(module, UNSIGNED), momentum))
    return made


def _chosen(model: nn.Module, kinds: tuple[type, ...], skip: Skip, marker: str) -> list[tuple[str, nn.Module]]:
    """(name, module) of that kind, each module once, without the skipped; none, or twice quantised, is an error."""
    if any(marker in m._modules for m in model.modules()):
        raise ValueError(f"{type(model).__name__} is quantised already (it has a {marker!r})")
    inside = {id(m) for a in model.modules() if isinstance(a, nn.MultiheadAttention) for m in a.modules()}
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, kinds) and id(m) not in inside]
    left_out = _skipped(found, skip)
    chosen = [(n, m) for n, m in found if n not in left_out]
    if not chosen:
        what = "layers" if kinds is LAYERS else "activation modules"
        raise ValueError(f"{type(model).__name__} has no {what} to quantise" + (" that skip leaves" if found else ""))
    return chosen


def _skipped(found: list[tuple[str, nn.Module]], skip: Skip) -> set[str]:
    if callable(skip):
        return {name for name, module in found if skip(name, module)}
    out: set[str] = set()
    for pattern in [skip] if isinstance(skip, str) else skip:
        hit = {name for name, _ in found if fnmatchcase(name, pattern)}
        if not hit:
            raise ValueError(f"skip pattern {pattern!r} matches nothing; there are: {', '.join(n for n, _ in found)}")
        out |= hit
    return out


def _replace(model: nn.Module, name: str, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` stands, under every name it goes by."""
    if not name:
        raise ValueError("the model is an activation itself: put it into a module")
    for parent in list(model.modules()):
        if parent is new:
            continue
        for child, module in list(parent._modules.items()):  # named_children shows a module only once
            if module is old:
                setattr(parent, child, new)
                if isinstance(parent, nn.TransformerEncoderLayer):  # its fast path remembers what it was made with
                    parent.activation_relu_or_gelu = 0
