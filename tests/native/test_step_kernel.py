"""The C++ step: its structs, its instruction sets and its threads agree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import Adam

import askew
from askew.native import build, loader
from askew.optim import fused_native
from askew.optim.fused_native import JOB, RULE, library

pytestmark = pytest.mark.skipif(library() is None, reason="the native library was not built")


def walk(threads: int = 1, size: int = 100_003) -> list[torch.Tensor]:
    """Three level-first steps of a weight large enough for several chunks."""
    w = nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(0)))
    opt = askew.ASkew(
        Adam([{"params": [w], "levels": askew.uniform(3)}], lr=0.05),
        askew.LevelFirst(start=0, end=4),
        scale="sawb",
        fused=True,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for k in range(3):
            w.grad = torch.randn(size, generator=torch.Generator().manual_seed(k))
            opt.step()
    finally:
        torch.set_num_threads(before)
    return [w.detach(), opt.state[w]["exp_avg"], opt.state[w]["exp_avg_sq"]]


def test_instruction_sets_agree():
    """AVX2 and AVX-512 to the bit; the portable one has no fused multiply-add and agrees to rounding."""
    lib = library()
    assert lib is not None
    best = lib.askew_step_isa(-1)
    results = []
    try:
        for isa in range(best + 1):
            assert lib.askew_step_isa(isa) == isa
            results.append(walk())
    finally:
        assert lib.askew_step_isa(99) == best
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[-1], other, strict=True))
    far = (results[0][0] - results[-1][0]).abs() > 1e-5
    assert far.double().mean() < 1e-3


def test_threads_do_not_change_a_bit():
    assert all(torch.equal(a, b) for a, b in zip(walk(1), walk(3), strict=True))


def test_structs_are_the_headers(tmp_path):
    """numpy's structs have the sizes and offsets that a C++ compiler gives step.h's."""
    fields = [(name, struct, kind) for struct, kind in (("Rule", RULE), ("Job", JOB)) for name in kind.names or ()]
    lines = [f'static_assert(offsetof({s}, {n}) == {k.fields[n][1]}, "{n}");' for n, s, k in fields]  # type: ignore
    lines += [f'static_assert(sizeof({s}) == {k.itemsize}, "size");' for s, k in (("Rule", RULE), ("Job", JOB))]
    source = tmp_path / "check.cpp"
    source.write_text('#include <stddef.h>\n#include "step.h"\n' + "\n".join(lines))
    try:
        cxx = build.compiler()
    except build.BuildError:
        pytest.skip("no compiler here")
    subprocess.run([*cxx, "-std=c++17", "-fsyntax-only", f"-I{build.HERE}", str(source)], check=True)


def test_a_library_of_other_sources_is_not_called(monkeypatch):
    told = []
    monkeypatch.setattr(fused_native.logger, "warning", told.append)
    assert not fused_native._matches(_Library(lambda: 7))  # type: ignore[arg-type]
    assert not fused_native._matches(object())  # type: ignore[arg-type]
    assert len(told) == 2 and all("out of date" in line for line in told)
    own = 1_000_000 * fused_native.VERSION + 1000 * RULE.itemsize + JOB.itemsize
    assert not fused_native._matches(_Library(lambda: own - 1_000_000))  # type: ignore[arg-type]
    assert fused_native._matches(_Library(lambda: own))  # type: ignore[arg-type]


class _Library:
    """What ctypes gives, as far as the look at the layout goes."""

    def __init__(self, layout):
        self.askew_step_layout = layout


def test_a_build_that_fails_says_which_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.BuildError, match="CXX"):
        build.compile_library("step", tmp_path / "x.so")
    assert list(tmp_path.iterdir()) == []


def test_the_newest_library_is_found(tmp_path):
    assert loader.find("step", tmp_path) is None
    for stamp, name in ((2, "_step.abi3.so"), (1, "_step.cpython-311.so")):
        Path(tmp_path / name).touch()
        os.utime(tmp_path / name, (stamp, stamp))
    found = loader.find("step", tmp_path)
    assert found is not None and found.name == "_step.abi3.so"


def test_build_needs_the_standard_library_alone():
    """setup.py runs it before anything is installed."""
    code = f"import runpy, sys; runpy.run_path({str(build.__file__)!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
