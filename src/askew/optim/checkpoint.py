"""State dicts of the wrapped optimizer: the base's own, with askew's entries merged in, in plain types only.

Each group carries one JSON text under "askew" (levels, shapes, options of the run, position of the annealing), each
parameter's state carries askew's tensors under "askew.NAME". So the dict loads with weights_only=True, keeps the
{"state", "param_groups"} layout that torch's tools expect, and never mixes with the base optimizer's lazy state.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from askew.core import Plateau
from askew.core.annealing import from_description
from askew.methods.askew import LevelFirstSkew
from askew.optim.checks import Group, first_name, names
from askew.optim.sharding import local, unmeasured

if TYPE_CHECKING:
    from askew.optim.wrapper import MethodOptimizer

FORMAT = 1
KEY = "askew"
PREFIX = "askew."


def _header(optimizer: MethodOptimizer, group: Group) -> dict[str, Any]:
    levels = group["levels"]
    return {
        "format": FORMAT,
        "method": optimizer.method.describe(),
        "annealing": optimizer.annealing.describe(),
        "total_steps": optimizer.total_steps,
        "steps": optimizer.steps,
        "skipped": optimizer.skipped,
        "plateau": optimizer.plateau,
        "average": optimizer.average,
        "levels": None if levels is None else list(levels.values),
        "shapes": [list(p.shape) for p in group["params"]],
    }


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _unset(optimizer: MethodOptimizer, group: Group, p: Tensor) -> dict[str, Tensor]:
    """With more than one process, zeros for what is not frozen or measured yet: a fresh optimizer's dict then has the
    keys of a later one's. torch.distributed.checkpoint loads into those keys and no others.
    """
    out = {}
    if group["levels"] is None or not _distributed():
        return out
    if group["scale"] != "none":
        out["scale"] = unmeasured(p, group["per"])
    if isinstance(optimizer.method, LevelFirstSkew) and optimizer.method.by == "quantile":
        out["radius"] = torch.zeros((), device=p.device)
    return out


def _is_set(value: Tensor) -> bool:
    """Is it more than the zeros that stand for "not yet"? (Scales are positive.)"""
    return bool((local(value) != 0).any())


def pack(optimizer: MethodOptimizer) -> dict[str, Any]:
    """The state dict (a new outer structure; tensors are shared, as torch does)."""
    out = optimizer.base.state_dict()
    groups = []
    for live, packed in zip(optimizer.param_groups, out["param_groups"], strict=True):
        plain = {k: v for k, v in packed.items() if k != "levels"}
        groups.append({**plain, KEY: json.dumps(_header(optimizer, live))})
    state = dict(out["state"])
    for live, packed in zip(optimizer.param_groups, groups, strict=True):
        for p, i in zip(live["params"], packed["params"], strict=True):
            own = {**_unset(optimizer, live, p), **optimizer._memory.get(p, {})}
            if own:
                state[i] = {**state.get(i, {}), **{PREFIX + k: v for k, v in own.items()}}
    if state and _distributed():  # torch.distributed.checkpoint asks for all parameters or none
        state = {i: state.get(i, {}) for packed in groups for i in packed["params"]}
    return {**out, "state": state, "param_groups": groups}


def _verified_headers(optimizer: MethodOptimizer, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups' headers, after checking that they belong to these parameters and levels."""
    saved = state_dict["param_groups"]
    if len(saved) != len(optimizer.param_groups):
        raise ValueError(f"the state dict has {len(saved)} groups, this optimizer {len(optimizer.param_groups)}")
    headers = []
    for position, (live, packed) in enumerate(zip(optimizer.param_groups, saved, strict=True)):
        if KEY not in packed:
            raise ValueError(
                f"group {position}: the state dict was not made by askew; load it into the base optimizer instead "
                "(optimizer.base.load_state_dict)"
            )
        header = json.loads(packed[KEY])
        if header.get("format") != FORMAT:
            raise ValueError(f"group {position}: the state dict has format {header.get('format')!r}, not {FORMAT}")
        shapes = [list(p.shape) for p in live["params"]]
        if len(shapes) != len(header["shapes"]):
            raise ValueError(f"group {position}: {len(header['shapes'])} parameters saved, {len(shapes)} here")
        for name, here, there in zip(names(live, position), shapes, header["shapes"], strict=True):
            if here != there:
                raise ValueError(f"{name}: the state dict holds shape {there}, the parameter has {here}")
        here = None if live["levels"] is None else list(live["levels"].values)
        if here != header["levels"]:
            where = first_name(live, position)
            raise ValueError(f"{where}: the state dict holds levels {header['levels']}, here {here}")
        headers.append(header)
    method = optimizer.method.describe()["method"]
    saved_annealing = headers[0]["annealing"]
    own = optimizer.annealing.describe()
    if headers[0]["method"]["method"] != method:
        raise ValueError(f"the state dict belongs to method {headers[0]['method']['method']!r}, this is {method!r}")
    options = optimizer.method_under(saved_annealing).describe()
    if headers[0]["method"] != json.loads(json.dumps(options)):
        raise ValueError(f"the state dict belongs to {headers[0]['method']}, this optimizer runs {options}")
    if "Custom" in (saved_annealing["schedule"], own["schedule"]) and saved_annealing.get("name") != own.get("name"):
        raise ValueError(
            f"the state dict was made with schedule {saved_annealing}, this is {own}: a Custom schedule's function is "
            "not in the file, so build the optimizer with the same one"
        )
    if saved_annealing["schedule"] != "Custom":
        from_description(saved_annealing)  # raises for a schedule that is not known here
    return headers


def _check_copies(optimizer: MethodOptimizer, state_dict: dict[str, Any], own: dict[Any, dict[str, Tensor]]) -> None:
    """A float32 copy of a bfloat16 weight belongs to master=True; without it nothing would move the copy."""
    for position, (live, packed) in enumerate(zip(optimizer.param_groups, state_dict["param_groups"], strict=True)):
        for name, p, i in zip(names(live, position), live["params"], packed["params"], strict=True):
            copy = own.get(i, {}).get("latent")
            if copy is not None and copy.dtype != p.dtype and not (optimizer._master and p.dtype == torch.bfloat16):
                raise ValueError(
                    f"{name}: the state dict holds a {copy.dtype} copy of this {p.dtype} weight: it was saved with "
                    "master=True, so build this optimizer with master=True and the same dtype"
                )


def unpack(optimizer: MethodOptimizer, state_dict: dict[str, Any]) -> None:
    """Load what `pack` made; nothing changes unless everything fits."""
    headers = _verified_headers(optimizer, state_dict)
    state, own = {}, {}
    for i, entries in state_dict["state"].items():
        base = {k: v for k, v in entries.items() if not str(k).startswith(PREFIX)}
        if base:
            state[i] = base
        own[i] = {str(k)[len(PREFIX) :]: v for k, v in entries.items() if str(k).startswith(PREFIX)}
    saved = [
        {k: v for k, v in packed.items() if k != KEY} | {"levels": live["levels"]}
        for packed, live in zip(state_dict["param_groups"], optimizer.param_groups, strict=True)
    ]
    _check_copies(optimizer, state_dict, own)
    optimizer.base.load_state_dict({**state_dict, "state": state, "param_groups": saved})
    header = headers[0]
    optimizer.resume_annealing(header["annealing"])
    optimizer.total_steps, optimizer.steps = header["total_steps"], header["steps"]
    optimizer.skipped = header["skipped"]
    optimizer.average = header.get("average", optimizer.average)
    optimizer.plateau = header["plateau"] if isinstance(optimizer.annealing, Plateau) else None
    for group, packed in zip(optimizer.param_groups, saved, strict=True):
        for p, i in zip(group["params"], packed["params"], strict=True):
            kept = {k: v for k, v in own.get(i, {}).items() if k != "scale" or _is_set(v)}
            optimizer._memory[p] = {k: v.detach().to(p.device, copy=True) for k, v in kept.items()}
            optimizer._make_master(p)
            if group["levels"] is not None:
                optimizer._make_average(p)
    optimizer._restore_values()
    optimizer._restore_forward()
