"""BatchNorm over a batch that is spread over processes: normalised by the mean and variance of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from askew.optim.sharding import gathered


@contextmanager
def global_batchnorm(model: nn.Module) -> Iterator[None]:
    """Inside, every BatchNorm of the model uses the statistics of all processes; parameters and buffers stay the same.

    On a GPU torch's fused SyncBatchNorm does it, elsewhere (it has no CPU form) GlobalBatchNorm.
    """
    swapped = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, _BatchNorm)
    ]
    for parent, name, child in swapped:
        parent._modules[name] = _twin(child)
    try:
        yield
    finally:
        for parent, name, child in swapped:
            child.train(parent._modules[name].training)  # pyright: ignore[reportOptionalMemberAccess]
            parent._modules[name] = child


def _twin(layer: _BatchNorm) -> _BatchNorm:
    """A layer of the global kind that holds the very parameters and buffers of this one."""
    on_gpu = any(t.is_cuda for t in (*layer.parameters(), *layer.buffers()))
    kind = nn.SyncBatchNorm if on_gpu else GlobalBatchNorm
    twin = kind(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)  # pyright: ignore
    twin._parameters, twin._buffers = layer._parameters, layer._buffers
    return twin.train(layer.training)


class GlobalBatchNorm(_BatchNorm):
    """y = (x - mean) / sqrt(var + eps), with mean and var over the batch's parts in all processes."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"BatchNorm needs inputs (N, C, ..), got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            return super().forward(input)
        y, mean, var, count = _Normalise.apply(input, self.eps)  # pyright: ignore[reportGeneralTypeIssues]
        if self.training:
            self._follow(mean, var, count)
        if not self.affine:
            return y
        return y * _wide(self.weight, input).to(y.dtype) + _wide(self.bias, input).to(y.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Running statistics as BatchNorm keeps them: the unbiased variance, a plain average if momentum is None."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        part = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = var * count / (count - 1).clamp_min(1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), part)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), part)


class _Normalise(torch.autograd.Function):
    """x -> (xhat, mean, var, count). With n values a channel in all processes together:

    xhat = (x - mean) r,  r = 1 / sqrt(var + eps),  dx = r (dy - sum(dy) / n - xhat sum(dy xhat) / n),

    the sums over all processes: the gradient of the sum of the processes' losses.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = x.double() if x.dtype == torch.float64 else x.float()
        mean, var, count = _moments(h)
        mean, r = mean.to(h.dtype), (var + eps).rsqrt().to(h.dtype)
        ctx.save_for_backward(x, mean, r, count)
        ctx.mark_non_differentiable(mean, var, count)
        return ((h - _wide(mean, h)) * _wide(r, h)).to(x.dtype), mean, var, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, mean, r, count = ctx.saved_tensors
        dy = gradients[0].to(mean.dtype)
        xhat = (x.to(mean.dtype) - _wide(mean, x)) * _wide(r, x)
        axes = _axes(x)
        sums = _gathered(torch.stack([dy.sum(axes), (dy * xhat).sum(axes)]).double()).sum(0) / count
        plain, along = (_wide(s.to(dy.dtype), x) for s in sums)
        return (_wide(r, x) * (dy - plain - xhat * along)).to(x.dtype), None


def _moments(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, variance, count) per channel over all processes, in float64, from each part's own (Chan's formula).

    mean = sum n_r mean_r / n,  n var = sum (m_r + n_r (mean_r - mean)^2),  m_r the squares about mean_r; an empty
    part adds nothing.
    """
    axes = _axes(h)
    n = h.numel() // h.shape[1]
    mean = h.sum(axes) / max(n, 1)
    squares = (h - _wide(mean, h)).square().sum(axes)
    rows = _gathered(torch.stack([torch.full_like(mean, n), mean, squares]).double())
    counts, means, parts = rows[:, 0], rows[:, 1], rows[:, 2]
    count = counts.sum(0)
    whole = (counts * means).sum(0) / count
    return whole, (parts + counts * (means - whole).square()).sum(0) / count, count


def _axes(x: Tensor) -> list[int]:
    return [0, *range(2, x.ndim)]


def _wide(t: Tensor, x: Tensor) -> Tensor:
    """Per channel, as it lines up with x (N, C, ..)."""
    return t.view(1, -1, *[1] * (x.ndim - 2))


def _gathered(t: Tensor) -> Tensor:
    """(processes, ...)."""
    if not dist.is_initialized():
        return t[None]
    return gathered(t, dist.group.WORLD)  # pyright: ignore[reportArgumentType]
