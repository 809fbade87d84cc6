"""Checkpoints: everything a run needs to go on as if it had not stopped, written atomically, loaded without code.

A file holds plain types and tensors only, so it loads with weights_only=True. A write that fails (a full disk, a kill)
leaves the file that was there before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from askew.atomic import replacing
from askew.train.record import Record, plain

FORMAT = 1


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
    path: Path, model: nn.Module, parts: Mapping[str, Stateful], position: Position, record: Record, config: Any
) -> None:
    """Write the state of model, parts (optimizer, scheduler, ..), random generators, position and record to `path`.

    config: plain values that must be the same when the run is resumed.
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
    write_file(path, payload)


def load(path: Path, model: nn.Module, parts: Mapping[str, Stateful], config: Any) -> tuple[Position, Record]:
    """Put the saved state back; nothing changes unless the file is whole and belongs to this run's config."""
    payload = read_file(path)
    saved = json.loads(payload["config"])
    here = json.loads(json.dumps(plain(config)))
    different = sorted(k for k in saved.keys() | here.keys() if saved.get(k) != here.get(k))
    if different:
        shown = ", ".join(f"{k}: {saved.get(k)!r} there, {here.get(k)!r} here" for k in different[:4])
        raise CheckpointError(f"checkpoint {path} belongs to another run ({shown}); choose another folder or remove it")
    missing = sorted(parts.keys() - payload["parts"].keys())
    if missing:
        raise CheckpointError(f"checkpoint {path} has no {', '.join(missing)}")
    model.load_state_dict(payload["model"])
    for name, part in parts.items():
        part.load_state_dict(payload["parts"][name])
    restore_random_state(payload["random"], next(model.parameters()).device)
    return Position(*payload["position"]), Record(**json.loads(payload["record"]))


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


def write_file(path: Path, payload: Mapping[str, Any]) -> None:
    """torch.save, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as stream:
            torch.save(dict(payload), stream)
    except OSError as error:
        reason = error.strerror or error
        before = "the one before it is untouched and the run can go on from it" if path.exists() else "it was the first"
        message = f"checkpoint {path} could not be written ({reason}): {before}; make room and start again"
        raise OSError(message) from error


def read_file(path: Path) -> dict[str, Any]:
    """The payload of a whole checkpoint of our format, on the CPU."""
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises many kinds for a damaged file
        raise CheckpointError(f"checkpoint {path} cannot be read: damaged or not a checkpoint ({error})") from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint {path} is not one of askew's, format {FORMAT}")
    return payload


def random_state(device: torch.device) -> dict[str, Any]:
    """torch's generators on the CPU and on the GPU the run uses; in several processes they are alike."""
    return {"cpu": torch.get_rng_state(), "cuda": [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []}


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put `random_state` back, on whichever GPU the run goes on."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and state["cuda"]:
        torch.cuda.set_rng_state(state["cuda"][0], device)
