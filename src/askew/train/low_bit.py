"""Bits of a run's weights and activations, from its settings: levels, scales, the activations of its net."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import nn

from askew.core import LevelSet, Per, ScaleKind, binary, ternary, uniform
from askew.methods.base import Method
from askew.methods.lsq import Lsq
from askew.methods.parq import Parq
from askew.nn import Sign, quantize_activations, quantize_gradients
from askew.nn.gradients import LEAST, MOST
from askew.nn.kinds import LAYERS
from askew.nn.straight_through import SignGradient
from askew.train.recipes import Fitted

if TYPE_CHECKING:
    from askew.train.image_config import ImageTraining

Form = Literal["int", "symmetric", "paper", "ternary"]

CHOICES = {
    "form": get_args(Form),
    "per": get_args(Per),
    "scale": get_args(Fitted),
    "sign_gradient": get_args(SignGradient),
}


def check(config: ImageTraining) -> None:
    """Raise a ValueError for bits that do not exist and for settings that would be ignored."""
    for name in ("bits", "activation_bits"):
        value = getattr(config, name)
        if value is not None and not 1 <= value <= 8:
            raise ValueError(f"{name} must lie in 1..8, got {value}")
    if config.gradient_bits is not None and not LEAST <= config.gradient_bits <= MOST:
        raise ValueError(f"gradient_bits must lie in {LEAST}..{MOST}, got {config.gradient_bits}")
    for name, kinds in CHOICES.items():
        if getattr(config, name) not in (None, *kinds):
            raise ValueError(f"{name} must be one of {', '.join(kinds)}, got {getattr(config, name)!r}")
    if config.bits == 1 and config.form is not None:
        raise ValueError("form is a setting of 2 to 8 bits; weights of one bit are -1 and +1")
    if config.bits > 1 and config.scale == "none":
        raise ValueError("scale none is a setting of one bit: more levels have a scale that fits them to the weights")
    if config.bits == 1 and config.per is not None and config.recipe.scale in (None, "none"):
        raise ValueError("per is a setting of a scale, which weights of one bit have with --scale abs-mean alone")
    if config.method == "full-precision" and (config.bits, config.form, config.per, config.scale) != (1, *[None] * 3):
        raise ValueError("bits, form, per and scale are of weights on levels; full-precision has none: leave them out")
    if config.form == "ternary" and config.bits != 2:
        raise ValueError(f"ternary weights (-1, 0, +1) take 2 bits, got bits={config.bits}")
    if config.sign_gradient is not None and config.activation_bits != 1:
        raise ValueError("sign_gradient is a setting of one-bit activations")


def levels(config: ImageTraining) -> LevelSet:
    """-1 and +1, -1, 0 and +1, or 2 to 8 bits in the form asked for (the 2^b integers if none is)."""
    if config.form == "ternary":
        return ternary()
    return binary() if config.bits == 1 else uniform(config.bits, config.form or "int")


def scale(config: ImageTraining, method: Method | None = None) -> ScaleKind:
    """The one asked for, else SAWB's from two bits on; LSQ starts from SAWB's; none for PARQ that finds its levels."""
    if isinstance(method, Lsq):
        return "sawb"
    if isinstance(method, Parq) and method.levels == "lsbq":
        return "none"
    return config.recipe.scale or ("none" if config.bits == 1 else "sawb")


def model_options(config: ImageTraining) -> dict[str, Any]:
    """Of the net: signs in the place of ReLUs at one bit (VGG-small then pools before its BatchNorm)."""
    if config.activation_bits != 1:
        return {}
    options: dict[str, Any] = {"activation": partial(Sign, config.sign_gradient or "tanh")}
    return options | ({"pool_first": True} if config.net == "vgg-small" else {})


def with_activations(config: ImageTraining, net: nn.Module) -> nn.Module:
    """The net with what its layers multiply at 2 to 8 bits, but for the first one (it sees images) and skipped ones.

    Gradients go on LUQ's grid, if asked for, at all layers but the skipped ones.
    """
    if config.gradient_bits is not None:
        net = quantize_gradients(net, config.gradient_bits, skip=_named(config.skip))
    if config.activation_bits in (None, 1):
        return net
    first = next(name for name, module in net.named_modules() if isinstance(module, LAYERS))
    return quantize_activations(net, config.activation_bits, at="inputs", skip=_named([first, *config.skip]))


def _named(patterns: Sequence[str]) -> Callable[[str, nn.Module], bool]:
    """Whether a module goes by one of these names or patterns, which may name its weight."""
    modules = [pattern.removesuffix(".weight") for pattern in patterns]
    return lambda name, _: any(fnmatchcase(name, pattern) for pattern in modules)
