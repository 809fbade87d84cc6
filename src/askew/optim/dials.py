"""The 0-d tensors from which a step reads its schedule: set from outside, so a compiled or captured step follows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor

K = TypeVar("K", int, str)


class Dials(Generic[K]):
    """Numbers by key, each as one 0-d tensor on every device that needs it; tensors once made stay where they are."""

    def __init__(self) -> None:
        self._held: dict[tuple[K, torch.device], Tensor] = {}

    def turn(self, key: K, number: float, devices: Iterable[torch.device]) -> None:
        """Set a number on these devices."""
        for device in devices:
            if (key, device) not in self._held:
                self._held[key, device] = torch.zeros((), dtype=_dtype(device), device=device)
            self._held[key, device].fill_(number)

    def keep(self, keys: Collection[K]) -> None:
        """Forget all others."""
        self._held = {at: held for at, held in self._held.items() if at[0] in keys}

    def at(self, key: K, device: torch.device) -> Tensor:
        return self._held[key, device]

    def on(self, device: torch.device) -> dict[K, Tensor]:
        """All that are on a device."""
        return {key: held for (key, there), held in self._held.items() if there == device}

    @property
    def keys(self) -> list[K]:
        """The key of each tensor, in the order of `tensors`."""
        return [key for key, _ in self._held]

    @property
    def tensors(self) -> list[Tensor]:
        return list(self._held.values())


def _dtype(device: torch.device) -> torch.dtype:
    """float64, so that float64 weights see all of the number; MPS has none."""
    return torch.float32 if device.type == "mps" else torch.float64
