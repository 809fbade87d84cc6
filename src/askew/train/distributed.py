"""One run in several processes (`torchrun`): each takes its part of every batch, all hold the same weights.

The result is that of one process at the same global batch, up to rounding: gradients are averaged (DDP), BatchNorm
normalises by the statistics of the whole batch, losses and scores are those of all parts together. Gradients on a
random grid (`--gradient-bits`) have the scale of the whole batch, but each process draws its own part.
"""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from askew.nn import shared_scales
from askew.train.batchnorm import global_batchnorm

LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

_options = inspect.signature(DistributedDataParallel.__init__).parameters
BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _options else "broadcast_buffers"  # its name by version


@dataclass(frozen=True)
class World:
    """This process among those of the run; alone without torch.distributed."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """True in the one process that writes records and checkpoints and shows bars."""
        return self.rank == 0

    def total(self, t: Tensor) -> Tensor:
        """The sum over all processes, equal in each of them."""
        if self.size == 1:
            return t
        summed = t.to("cuda") if dist.get_backend() == "nccl" else t.clone()
        dist.all_reduce(summed)
        return summed.to(t.device)

    def mean(self, t: Tensor) -> Tensor:
        """The mean over all processes."""
        return t if self.size == 1 else self.total(t) / self.size

    def agree(self, flag: bool, what: str) -> bool:
        """The flag, if it is the same in all processes; an error that says `what` is not."""
        up = int(self.total(torch.tensor(float(flag))))
        if up not in (0, self.size):
            raise OSError(f"{what} for {up} of {self.size} processes only: they must share the folder")
        return bool(up)


def world() -> World:
    """The processes that torch.distributed knows of."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World()


def launched() -> bool:
    """True where torchrun (or a scheduler that sets its variables) started several processes."""
    return all(name in os.environ for name in LAUNCHED) and int(os.environ["WORLD_SIZE"]) > 1


def launched_first() -> bool:
    """True in the process that speaks to the user, also before the processes have met."""
    return not launched() or int(os.environ["RANK"]) == 0


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """Meet the other processes that torchrun started, over nccl on GPUs (one each) and over gloo elsewhere."""
    if not launched() or dist.is_initialized():
        yield world()
        return
    if device.type == "cuda":
        torch.cuda.set_device(_own_gpu(device))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield world()
        dist.barrier()  # nobody hangs up while another one still works
    finally:
        gc.collect()  # a net in a cycle of references would keep the group, whose threads may not outlive the process
        dist.destroy_process_group()


def _own_gpu(device: torch.device) -> int:
    here, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if device.index is not None:
        raise ValueError(f"device {device}: under torchrun each process takes a GPU of its own; say cuda")
    if here >= gpus:
        raise ValueError(f"torchrun started a process number {here} on a machine with {gpus} GPUs: one each")
    return here


@contextmanager
def together(model: nn.Module) -> Iterator[nn.Module]:
    """What to call for a training pass so that all processes train one net: the model itself if there is one process.

    Inside, the model's BatchNorm layers and quantised activations share their statistics over the processes; they are
    put back afterwards.
    """
    if world().size == 1:
        yield model
        return
    device = next(model.parameters()).device
    with global_batchnorm(model), shared_scales(model):
        own = [device] if device.type == "cuda" else None
        buffers: dict[str, Any] = {BUFFERS: False}  # they are equal without being sent
        yield DistributedDataParallel(model, device_ids=own, **buffers)
