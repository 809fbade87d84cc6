"""Activations of few bits, for any nn.Module: SAWB integers with a straight-through gradient, signs, LUQ gradients."""

from askew.nn.activations import QuantizedActivation, Sign, quantized_relu, shared_scales
from askew.nn.gradients import QuantizedGradient, logarithmic
from askew.nn.insert import quantize_activations, quantize_gradients
from askew.nn.norms import NormWarning

__all__ = [
    "NormWarning",
    "QuantizedActivation",
    "QuantizedGradient",
    "Sign",
    "logarithmic",
    "quantize_activations",
    "quantize_gradients",
    "quantized_relu",
    "shared_scales",
]
