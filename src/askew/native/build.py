"""The native libraries: what they are made of, and how they are compiled. Run by the package's own build.

`python -m askew.native.build` compiles them in place, for a source tree that was not installed. This file uses the
standard library alone: setup.py runs it before the package and its dependencies are there.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SUFFIX = ".so"  # ctypes loads it under this name on Linux and macOS alike
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=default", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-ffp-contract=off"]  # fused multiply-adds only where the source asks, so AVX2 and AVX-512 agree to the bit
ISAS = {
    "base": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"],
}


class Unit(NamedTuple):
    """One source file, compiled with -DISA=... and that instruction set's flags if it has one."""

    source: str
    isa: str = ""


def for_each_isa(source: str) -> list[Unit]:
    """The file once for each instruction set of this machine's family; it takes its name from the macro ISA."""
    x86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
    return [Unit(source, isa) for isa in (ISAS if x86 else ["base"])]


LIBRARIES: dict[str, list[Unit]] = {
    "step": [Unit("step.cpp"), *for_each_isa("step_kernel.cpp")],
    "infer": [Unit(f"infer_{part}.cpp") for part in ("threads", "bits", "w1a1", "gemv", "float", "int")],
}


class BuildError(RuntimeError):
    """No compiler, or one that refused; the message says which."""


def compiler() -> list[str]:
    """$CXX, or the first C++ compiler on the path."""
    given = shlex.split(os.environ.get("CXX", ""))
    found = next((c for c in (*given[:1], "c++", "g++", "clang++") if shutil.which(c)), None)
    if found is None:
        raise BuildError("no C++ compiler found (set CXX to one)")
    return [found, *given[1:]] if given and found == given[0] else [found]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def compile_library(name: str, target: Path) -> Path:
    """Compile one library of LIBRARIES to `target`; the file appears whole or not at all."""
    cxx = compiler()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="askew-build-") as folder:

        def one(unit: Unit) -> str:
            out = str(Path(folder) / f"{Path(unit.source).stem}-{unit.isa}.o")
            extra = [f"-DISA={unit.isa}", *ISAS[unit.isa]] if unit.isa else []
            _run([*cxx, *FLAGS, *extra, "-c", str(HERE / unit.source), "-o", out])
            return out

        with ThreadPoolExecutor() as pool:
            objects = list(pool.map(one, LIBRARIES[name]))
        finished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            _run(
                [*cxx, "-shared", *objects, "-o", str(finished), *(["-ldl", "-pthread"] if os.name == "posix" else [])]
            )
            os.replace(finished, target)
        finally:
            finished.unlink(missing_ok=True)
    return target


def build_in_place() -> list[Path]:
    """All libraries, beside this file, where the loader looks."""
    return [compile_library(name, HERE / f"_{name}.abi3{SUFFIX}") for name in LIBRARIES]


if __name__ == "__main__":
    build_in_place()
