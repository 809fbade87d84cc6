"""The inference benchmark measures what it says, and its tables come from its records."""

from __future__ import annotations

import logging
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from askew import cli
from askew.bench.infer import InferBench, run
from askew.bench.infer_report import present
from askew.bench.infer_timing import race
from askew.ship import kernels
from askew.train.record import load_all

needs_library = pytest.mark.skipif(kernels.library() is None, reason="the native library was not built")


def test_a_race_gives_ratios_to_the_first() -> None:
    found = race({"one": lambda: time.sleep(0.001), "three": lambda: time.sleep(0.003)}, rounds=3, least=0.002)
    assert found["one"].times == 1
    assert found["three"].times > 1
    assert found["three"].low <= found["three"].seconds <= found["three"].high


@needs_library
def test_a_record_and_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(InferBench(tmp_path, rounds=1, only="256x256x2304", batches=(1,)))
    (record,) = load_all(tmp_path, "bench-infer")
    for package in ("onnx", "onnxruntime"):
        assert (package in record.environment["versions"]) == (find_spec(package) is not None)
    (case,) = record.extra["cases"]
    assert set(case["timings"]) == {"askew", "torch fp32", "torch bf16"}
    cli.main(["bench", "show", str(tmp_path)])
    assert "W1A1 product 256x256x2304" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "infer.png").exists() and "256x256x2304" in (tmp_path / "table.md").read_text()


@needs_library
def test_whole_nets_have_their_sizes(tmp_path: Path) -> None:
    before = logging.getLogger().level
    record = run(InferBench(tmp_path, rounds=1, only="VGG-small W1A1", batches=(1,), compiled=False))
    assert logging.getLogger().level == before != logging.ERROR  # others' warnings are heard as before
    (case,) = record.extra["cases"]
    assert case["about"]["times_smaller"] > 28 and "torch fp32" in case["timings"]
    (grid,) = present([record]).tables
    assert grid.title == "Whole nets"


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        InferBench(rounds=0)
    with pytest.raises(ValueError, match="1 or more"):
        InferBench(batches=())


@needs_library
def test_no_such_case(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no case holds 'nothing'"):
        run(InferBench(tmp_path, only="nothing"))
