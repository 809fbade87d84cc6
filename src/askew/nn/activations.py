"""Modules: activations as b-bit integers times one scale, and activations of one bit."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from askew.nn.gradients import QuantizedGradient
from askew.nn.sawb import limits, moments, pooled, signed_scale, tally, unsigned_scale
from askew.nn.straight_through import SignGradient, check_sign_gradient, integer_codes, round_to, sign
from askew.optim.sharding import gathered


class UnmeasuredWarning(UserWarning):
    """Evaluation with an activation scale that no batch has set."""


class QuantizedActivation(nn.Module):
    """x -> s clamp(round(x / s), low, high): b-bit integers times one scale for the tensor.

    In training s is SAWB's for the batch (sawb.py), and `scale` follows it; in evaluation s is `scale`, so nothing
    depends on the other images of a batch. The gradient passes straight through inside [s low, s high] and is 0
    outside it. The scale itself takes no gradient.

    bits      2 to 8 (1 to 8 if unsigned); one bit of either sign is `Sign`
    signed    False: 0 .. 2^b-1, for what follows a ReLU. True: -2^(b-1) .. 2^(b-1)-1. None: unsigned until a
              negative number arrives in training, then signed for good, with running statistics begun anew
    momentum  weight of a new batch in `scale` (the plain mean over the first 1/momentum batches); None: the plain mean
              over all batches since `reset_running_stats`, as in torch's BatchNorm

    Buffers: scale, is_signed, num_batches_tracked. No branch looks at a tensor, so the module can be compiled and
    captured in a CUDA graph. An empty batch passes and leaves no trace. `shared`: measure over the batch's parts in
    all processes (see `shared_scales`).
    """

    scale: Tensor
    is_signed: Tensor
    num_batches_tracked: Tensor

    def __init__(self, bits: int = 4, signed: bool | None = None, momentum: float | None = 0.1) -> None:
        super().__init__()
        check_bits(bits, 1 if signed is False else 2)
        if momentum is not None and not 0 < momentum <= 1:
            raise ValueError(f"QuantizedActivation(momentum) must lie in (0, 1] or be None, got {momentum}")
        self.bits, self.signed, self.momentum = bits, signed, momentum
        self.shared = self._looked = False
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("is_signed", torch.tensor(bool(signed)))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    def reset_running_stats(self) -> None:
        """Forget the batches seen so far; the next one sets the scale."""
        self.num_batches_tracked.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training or self._looked):
            self._warn_unmeasured(x)
        measured = self.training and (self.shared or x.numel() > 0)  # an empty part still joins the other processes
        scale = self._measure(x) if measured else self.scale
        low, high = self._limits()
        return round_to(x, scale, low, high)

    def codes(self, x: Tensor) -> Tensor:
        """The integers (int16) that evaluation computes with: its output is codes * scale."""
        low, high = self._limits()
        return integer_codes(x, self.scale, low, high).to(torch.int16)

    @torch.no_grad()
    def _measure(self, x: Tensor) -> Tensor:
        """The batch's scale; the running one follows."""
        counted = pooled(gathered(tally(x), _everyone())) if self.shared else tally(x)
        moment = moments(counted)
        if self.signed is None:
            turned = (counted[3] > 0) & ~self.is_signed
            self.num_batches_tracked.masked_fill_(turned, 0)  # scales of unsigned integers are of another kind
            self.is_signed.logical_or_(turned)
            scale = torch.where(self.is_signed, signed_scale(moment, self.bits), unsigned_scale(moment, self.bits))
        else:
            scale = (signed_scale if self.signed else unsigned_scale)(moment, self.bits)
        self.num_batches_tracked.add_(1)
        weight = (1 / self.num_batches_tracked).clamp(min=self.momentum or 0.0)
        self.scale.lerp_(scale.to(self.scale.dtype), weight.to(self.scale.dtype))
        self.scale.clamp_(min=torch.finfo(self.scale.dtype).tiny)  # that of zeros is 0 in half precision
        return scale

    def _warn_unmeasured(self, x: Tensor) -> None:
        """Once, before the first evaluation, and not while a compiler or a CUDA graph looks on: one device sync."""
        if torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        self._looked = True
        if self.scale.device.type != "meta" and not self.num_batches_tracked and self.scale == 1:
            warnings.warn(
                "an activation's scale was never measured and is 1: run some batches through the net in training mode, "
                "or load a state that has it, before evaluating",
                UnmeasuredWarning,
                stacklevel=3,
            )

    def _limits(self) -> tuple[Tensor, Tensor]:
        """low and high as 0-d tensors on the device."""
        top = 2**self.bits - 1
        low = self.is_signed * float(limits(self.bits, True)[0])
        return low, top + low

    def extra_repr(self) -> str:
        return f"bits={self.bits}, signed={self.signed}, momentum={self.momentum}"


@contextmanager
def shared_scales(model: nn.Module) -> Iterator[None]:
    """Inside, scales of activations and gradients are those of the whole batch over all processes.

    These must call together.
    """
    layers = [m for m in model.modules() if isinstance(m, (QuantizedActivation, QuantizedGradient))]
    before = [layer.shared for layer in layers]
    for layer in layers:
        layer.shared = True
    try:
        yield
    finally:
        for layer, shared in zip(layers, before, strict=True):
            layer.shared = shared


def _everyone() -> dist.ProcessGroup:
    return dist.group.WORLD  # pyright: ignore[reportReturnType]


class Sign(nn.Module):
    """x -> +1 where x >= 0, else -1; the gradient is multiplied by 1 - tanh(x)^2 (see straight_through.slope).

    Put a BatchNorm right before it, so that what it sees is centred and of size 1.
    """

    def __init__(self, gradient: SignGradient = "tanh") -> None:
        super().__init__()
        check_sign_gradient(gradient)
        self.gradient: SignGradient = gradient

    @property
    def fused_as(self) -> SignGradient | None:
        """What the kernels of `askew.models.norm` call it; None for a class of its own."""
        return self.gradient if type(self) is Sign else None

    def forward(self, input: Tensor) -> Tensor:  # named as in the modules whose place it takes
        return sign(input, self.gradient)

    def extra_repr(self) -> str:
        return f"gradient={self.gradient!r}"


def quantized_relu(bits: int = 4, momentum: float | None = 0.1) -> nn.Sequential:
    """ReLU and then b-bit unsigned integers: `activation=partial(quantized_relu, 4)` in the models."""
    quantizer = QuantizedActivation(bits, signed=False, momentum=momentum)
    return nn.Sequential(OrderedDict(relu=nn.ReLU(), quantizer=quantizer))


def check_bits(bits: int, least: int = 1) -> None:
    """Raise a ValueError unless bits is a whole number in least..8."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
        raise ValueError(f"activations: bits must be a whole number from 1 to 8, got {bits!r}")
    if bits < least:
        raise ValueError("activations of one bit and either sign are askew.nn.Sign; QuantizedActivation has 2 to 8")
