"""A net's Linear weights as torchao tensors, in a state dict for the model itself. Needs the package torchao.

A weight is scale * unit * q with q a small signed integer; torchao holds q as an IntxUnpackedToInt8Tensor of the fewest
bits that have room for it ({-1, +1} and ternary int2, 16 levels int4), one scale a tensor or an output, no zero point.
It keeps one byte a weight: it is what torchao's own exporters start from. Its other integer tensors ask for groups of a
fixed size, a GPU or an ARM machine. Convolutions and embeddings have none and stay float32, on their levels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from askew.atomic import replacing
from askew.ship.graph import ShipError, Weight

BITS = range(2, 9)  # of an integer that has room for -1 and +1
Find = Callable[[str, Tensor], tuple[Weight, np.ndarray]]


def save_torchao(model: nn.Module, find: Find, path: Path) -> int:
    """Write the state dict atomically; returns its size in bytes. See `torchao_state`."""
    state = torchao_state(model, find)
    with replacing(path) as stream:
        torch.save(state, stream)
        return stream.tell()


@torch.no_grad()
def torchao_state(model: nn.Module, find: Find) -> dict[str, Tensor]:
    """The model's state dict with its Linear weights as torchao tensors, where they lie on levels.

    find gives a weight's codes and scale; the model's weights are on their levels while this runs. Load it with
    `model.load_state_dict(state, assign=True)`.
    """
    make = _package()
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    placed = 0
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        key = f"{name}.weight" if name else "weight"
        weight, scale = find(key, module.weight)
        if weight.levels:
            state[key] = _tensor(make, key, weight, scale, module.weight)
            placed += 1
    if not placed:
        raise ShipError("torchao: no Linear weight lies on levels, and torchao holds no others in few bits")
    return state


def _tensor(make: Any, name: str, weight: Weight, scale: np.ndarray, original: Tensor) -> Tensor:
    """The torchao tensor, checked against the snapped weight."""
    unit, q = weight.whole or (1.0, np.zeros(0))
    bits = next((b for b in BITS if q.size and -(1 << (b - 1)) <= q.min() and q.max() < 1 << (b - 1)), None)
    if bits is None:
        raise ShipError(
            f"{name}: torchao holds equally spaced levels that are whole numbers of up to 8 bits times a scale, and "
            f"{weight.levels} are not; train this layer on binary, ternary or uniform levels, or keep it in float"
        )
    data = torch.from_numpy(q.astype(np.int8)[weight.codes()])
    steps = torch.from_numpy((scale * np.float32(unit)).astype(np.float32)).reshape(-1, 1)
    rows, columns = weight.shape
    made = make(
        qdata=data,
        scale=steps,
        zero_point=torch.zeros(steps.shape, dtype=torch.int8),
        target_dtype=getattr(torch, f"int{bits}"),
        block_size=(rows if len(steps) == 1 else 1, columns),
        dtype=torch.float32,
        activation_quantization=None,
    )
    if not torch.allclose(made.dequantize(), original.detach().cpu().float(), rtol=1e-6, atol=0):
        raise ShipError(f"{name}: torchao gives other values than the snapped weight")
    return made


def _package() -> Any:
    try:
        from torchao.quantization import IntxUnpackedToInt8Tensor
    except ImportError as missing:
        raise ImportError("torchao tensors need the package torchao: pip install 'askew[torchao]'") from missing
    return IntxUnpackedToInt8Tensor
