"""Which device a run asks for, and whether this machine has it."""

from __future__ import annotations

import torch

KNOWN = ("cpu", "cuda", "mps")


def device_named(name: str) -> torch.device:
    """The device of a name such as cpu, cuda, cuda:1, mps or auto (a GPU if there is one, otherwise the CPU)."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in KNOWN:
        raise ValueError(f"no device named {name!r}; known: auto, {', '.join(KNOWN)}, cuda:N")
    return device


def check_present(device: torch.device) -> None:
    """ValueError if this machine (or this build of torch) does not have the device."""
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device mps: there is none here; choose cpu or auto")
    if device.type != "cuda":
        return
    count = torch.cuda.device_count()
    if count == 0:
        raise ValueError(f"device {device}: torch finds no CUDA GPU here; choose cpu or auto")
    if device.index is not None and device.index >= count:
        raise ValueError(f"device {device}: this machine has {count} GPU{'s' * (count > 1)}, counted from cuda:0")
