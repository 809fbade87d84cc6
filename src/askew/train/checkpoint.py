"""Checkpoints: everything a run needs to go on as if it had not stopped, written atomically, loaded without code.

A file holds plain types and tensors only, so it loads with weights_only=True. A write that fails (a full disk, a kill)
leaves the file that was there before.
"""

from __future__ import annotations

import json
import pickle
import random
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from askew.atomic import replacing
from askew.train.config import MACHINE, WATCHED, decisive
from askew.train.record import Record, plain

FORMAT = 1
NOT_TENSORS = "damaged, or more than tensors and plain values (a pickled object): save a state_dict"
OF_THE_MACHINE = ("fused", "capturable", "foreach")  # options of a torch optimizer that change how, not what it does


class Stateful(Protocol):
    """Optimizers and schedulers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class Position:
    """Where a run stands: whole epochs done, and steps done within the next one."""

    epoch: int
    step: int


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and why."""


def save(
    path: Path,
    model: nn.Module,
    parts: Mapping[str, Stateful],
    position: Position,
    record: Record,
    config: Any,
    resumed: Path | None = None,
) -> None:
    """Write the state of model, parts (optimizer, scheduler, ..), random generators, position and record to `path`.

    config: plain values that must be the same when the run is resumed. resumed: the file a run goes on from, `path`
    itself if not given.
    """
    payload = {
        "format": FORMAT,
        "config": json.dumps(plain(config), sort_keys=True),
        "model": model.state_dict(),
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "random": random_state(next(model.parameters()).device),
        "position": [position.epoch, position.step],
        "record": json.dumps(plain(asdict(record))),
    }
    write_file(path, payload, resumed)


def load(path: Path, model: nn.Module, parts: Mapping[str, Stateful], config: Any) -> tuple[Position, Record]:
    """Put the saved state back; nothing changes unless the file is whole and belongs to this run's config.

    Settings that follow the machine or change only what is written of a run may differ; the record takes the new ones.
    """
    payload = read_file(path)
    asked = json.loads(json.dumps(plain(config)))
    saved, here = decisive(json.loads(payload["config"])), decisive(asked)
    different = sorted(k for k in saved.keys() | here.keys() if saved.get(k) != here.get(k))
    if different:
        shown = ", ".join(f"{k}: {saved.get(k)!r} there, {here.get(k)!r} here" for k in different[:4])
        raise CheckpointError(f"checkpoint {path} belongs to another run ({shown}); choose another folder or remove it")
    missing = sorted(parts.keys() - payload["parts"].keys())
    if missing:
        raise CheckpointError(f"checkpoint {path} has no {', '.join(missing)}")
    model.load_state_dict(payload["model"])
    for name, part in parts.items():
        part.load_state_dict(for_this_machine(payload["parts"][name], part))
    restore_random_state(payload["random"], next(model.parameters()).device)
    record = Record(**json.loads(payload["record"]))
    record.config |= {k: v for k, v in asked.items() if k in MACHINE | WATCHED and k in record.config}
    return Position(*payload["position"]), record


def for_this_machine(saved: dict[str, Any], part: Any) -> dict[str, Any]:
    """An optimizer's saved state with the options of `part` that say how a step is computed, and its lr as a number."""
    groups, live = saved.get("param_groups"), getattr(part, "param_groups", None)
    if groups is None or live is None or len(groups) != len(live):
        return saved  # no optimizer's, or one that load_state_dict will refuse
    own = [{k: here[k] for k in OF_THE_MACHINE if k in here} for here in live]
    made = [
        group | options | {"lr": float(group["lr"])} if "lr" in group else group | options
        for group, options in zip(groups, own, strict=True)
    ]
    return saved | {"param_groups": made}


def epochs_done(path: Path) -> int:
    """Whole epochs that the run of a checkpoint has made; 0 if there is none."""
    return read_file(path)["position"][0] if path.exists() else 0


class Origin(NamedTuple):
    """How the net of a checkpoint was made: the run's config, and whole epochs done."""

    config: dict[str, Any]
    epochs: int


def origin(path: Path) -> Origin | None:
    """Of one of our checkpoints; None for any other file."""
    try:
        payload = read_file(path)
    except CheckpointError:
        return None
    return Origin(json.loads(payload["config"]), payload["position"][0])


def write_file(path: Path, payload: Mapping[str, Any], resumed: Path | None = None) -> None:
    """torch.save, atomically; OSError in one line if the disk does not take it, saying what there is to go on from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as stream:
            torch.save(dict(payload), stream)
    except (OSError, RuntimeError) as error:
        reason = refusal(error)
        if reason is None:
            raise
        older = resumed or path
        left = f"the one before it is untouched and the run can go on from {older.name}"
        before = left if older.exists() else "there is none before it to go on from"
        message = f"checkpoint {path} could not be written ({reason}): {before}; make room and start again"
        raise OSError(message) from error


def refusal(error: BaseException) -> str | None:
    """Why the disk did not take a file, None if it was not the disk.

    torch's zip writer answers a write that fails with a RuntimeError of its own, the OSError in its context.
    """
    chain, seen = [error], error
    while (seen := seen.__cause__ or seen.__context__) is not None and seen not in chain:
        chain.append(seen)
    found = next((e for e in chain if isinstance(e, OSError)), None)
    if found is not None:
        return found.strerror or str(found)
    zipped = next((str(e) for e in chain if "inline_container" in str(e)), None)
    return zipped and zipped.splitlines()[0]


def read_file(path: Path) -> dict[str, Any]:
    """The payload of a whole checkpoint of our format, on the CPU."""
    if path.exists() and path.stat().st_size == 0:
        raise CheckpointError(f"checkpoint {path} cannot be read: it is empty; remove it to start anew")
    if path.is_file() and not zipfile.is_zipfile(path):
        raise CheckpointError(f"checkpoint {path} cannot be read: damaged or not a checkpoint; remove it to start anew")
    try:
        check_sums(path)
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {NOT_TENSORS}") from error
    except Exception as error:  # torch raises many kinds for a damaged file
        raise CheckpointError(f"checkpoint {path} cannot be read: damaged or not a checkpoint ({error})") from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint {path} is not one of askew's, format {FORMAT}")
    return payload


def check_sums(path: Path) -> None:
    """ValueError for a damaged part: torch.load does not look at the sums that torch.save writes with each.

    A file that is no zip archive, of an old torch or another kind, passes: torch.load says what is wrong with it.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as parts:
        bad = parts.testzip()
    if bad:
        raise ValueError(f"the sum of its part {bad} is wrong")


def random_state(device: torch.device) -> dict[str, Any]:
    """The global generators: torch's on the CPU and on the GPU the run uses, Python's and NumPy's.

    In several processes torch's are alike.
    """
    version, words, spare = random.getstate()
    name, keys, *rest = np.random.get_state()
    return {
        "cpu": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device)] if device.type == "cuda" else [],
        "python": [version, list(words), spare],
        "numpy": [str(name), [int(key) for key in keys], *(float(value) for value in rest)],
    }


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put `random_state` back, on whichever GPU the run goes on."""
    torch.set_rng_state(state["cpu"])
    if "python" in state:
        version, words, spare = state["python"]
        random.setstate((version, tuple(words), spare))
        name, keys, place, has_spare, value = state["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), int(place), int(has_spare), value))
    if device.type == "cuda" and state["cuda"]:
        torch.cuda.set_rng_state(state["cuda"][0], device)
