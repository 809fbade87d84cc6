"""Run records: one JSON per run with everything needed to trust and repeat it, written atomically.

Tables, figures and pages are made from these files only.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from askew.atomic import write_text

FORMAT = 1


@dataclass
class Record:
    """One run. `metrics` maps a name to {"step": [...], "value": [...]}; `summary` holds the final numbers.

    A batch of repeats trained in one tensor is one run: its values are then lists, one entry a repeat.
    """

    experiment: str
    method: str
    config: dict[str, Any]
    seed: int
    metrics: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=lambda: environment())
    started: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    format: int = FORMAT

    def log(self, step: int, **values: Any) -> None:
        """Append values at a step."""
        for name, value in values.items():
            series = self.metrics.setdefault(name, {"step": [], "value": []})
            series["step"].append(step)
            series["value"].append(plain(value))

    @property
    def name(self) -> str:
        """File stem: experiment, method, seed."""
        return f"{self.experiment}-{self.method}-{self.seed}".replace("/", "-").replace(" ", "-")

    def save(self, folder: Path) -> Path:
        """Write folder/NAME.json atomically: a reader sees the old file or the whole new one."""
        path = folder / f"{self.name}.json"
        write_text(path, lists_on_a_line(json.dumps(plain(asdict(self)), indent=1, allow_nan=False)) + "\n")
        return path


class NotARecordError(ValueError):
    """A JSON file of something else."""


def load(path: Path) -> Record:
    """Read one record; an error names the file and what is wrong with it."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"record {path}: cannot be read ({error}); remove it to have it made again") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise NotARecordError(f"record {path}: not a run record of format {FORMAT}")
    return Record(**data)


def load_all(folder: Path, experiment: str | None = None) -> list[Record]:
    """All records of a folder, by name; of one experiment if given."""
    found = [load(path) for path in sorted(folder.glob("*.json"))]
    return [r for r in found if experiment is None or r.experiment == experiment]


def plain(value: Any) -> Any:
    """JSON-safe: tensors become lists, floats keep 7 significant digits, NaN and infinity become None."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().tolist()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, (str, int, bool)) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return plain(value.item())
    return str(value)


def lists_on_a_line(text: str) -> str:
    """Indented JSON with each list of numbers on one line; a string has no raw line break, so none is touched."""
    number = r"(?:-?[0-9][0-9.eE+-]*|null)"
    numbers = re.compile(rf"\[\n\s+({number}(?:,\n\s+{number})*)\n\s+\]")
    return numbers.sub(lambda found: "[" + re.sub(r",\n\s+", ", ", found.group(1)) + "]", text)


def writable_folder(folder: Path, option: str = "--out") -> Path:
    """The folder, made if need be; PermissionError before a run starts, not after it, if it cannot be written.

    option: what it was given by.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise PermissionError(
            f"folder {folder} is not writable ({error.strerror or error}): choose another with {option}"
        ) from error
    return folder


def environment() -> dict[str, Any]:
    """Versions, hardware and git commit of this process."""
    return {
        "python": platform.python_version(),
        "versions": versions("askew", "torch", "triton", "numpy", "scipy", "scikit-learn", "torchao"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "commit": git_commit(),
    }


def versions(*packages: str) -> dict[str, str]:
    """Those of the packages that are installed, or imported from a folder that is none of pip's."""
    return {name: version for name in packages if (version := _version(name))}


def git_commit() -> str | None:
    """The commit of the source tree this package runs from, '+' when it has uncommitted changes; None outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if git("status", "--porcelain", "--untracked-files=no", "--", ":(top)*.py") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return getattr(sys.modules.get(package), "__version__", None)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = ""
    return f"{model or platform.processor() or 'unknown'}, {os.cpu_count()} cores"
