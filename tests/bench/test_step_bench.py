"""The step benchmark on a small case: what it records, what it shows, and the memory it finds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from askew.bench import machine, shapes, steps, steps_report
from askew.bench.compare import compared
from askew.bench.contenders import CONTENDERS, REFERENCE
from askew.bench.steps import StepBench
from askew.core import scale_of, uniform
from askew.optim import fused_native
from askew.train.record import Record, load_all

CPU = torch.device("cpu")
native = pytest.mark.skipif(fused_native.library() is None, reason="the native library was not built")


def test_the_lists_are_the_networks():
    """Parameters and tensors of torchvision's ResNets."""
    assert shapes.size(shapes.CASES["resnet18"]) == 11_689_512 and len(shapes.CASES["resnet18"]) == 62
    assert shapes.size(shapes.CASES["resnet50"]) == 25_557_032 and len(shapes.CASES["resnet50"]) == 161
    assert shapes.size(shapes.CASES["one-50m"]) == 50_000_000 and shapes.size(shapes.CASES["one-1b"]) == 10**9


def test_memory_counts_what_stays_and_the_peak():
    x, kept = torch.randn(100_000), []

    def call() -> None:
        y = x * 2
        kept.append(y + 1)

    stays, peak = machine.memory(call, CPU)
    assert stays == 400_000 and 800_000 <= peak < 801_000


def test_a_small_run_is_recorded_and_shown(tmp_path, monkeypatch):
    monkeypatch.setitem(shapes.CASES, "resnet18", [(40, 30), (7,)])
    monkeypatch.setattr(machine, "stream", lambda device: {"copy": 1e10, "update": 2e10})
    config = StepBench(
        ("resnet18",), rounds=3, only=("ASkew", "BinaryConnect"), build=False, out=tmp_path, device="cpu"
    )
    told: list[str] = []
    steps.run(config, told.append)
    (record,) = load_all(tmp_path, steps.EXPERIMENT)
    assert list(record.summary) == [name for name in CONTENDERS if "torch foreach" not in name and "PARQ" not in name]
    assert record.summary[REFERENCE]["ratio"] == 1.0
    assert record.config["parameters"] == 1207 and len(record.extra["seconds"][REFERENCE]) == 3
    assert record.environment["versions"]["torch"] and told
    assert len(record.extra["wait_seconds"][REFERENCE]) == 3 and record.config["steps"] >= 1
    assert record.summary[REFERENCE]["wait_ratio"] == 1.0
    presentation = steps_report.present([record])
    short, whole = presentation.tables
    assert "ASkew, paper form" in whole.markdown() and record.environment["cpu"] in whole.title
    assert short.rows[0][1] == "ResNet-18" and short.rows[0][5:7] == ("–", "–")  # PARQ did not run
    assert "out" not in record.config
    assert len(presentation.figures["steps"][0].axes) == 1


def test_a_sample_is_several_steps_of_every_optimizer(tmp_path, monkeypatch):
    """All take as many as the reference needs for 5 ms, on a GPU five at least; the wait comes after the last."""
    waits: list[str] = []
    monkeypatch.setattr(machine, "synchronise", lambda device: waits.append("wait"))

    class Counting:
        def step(self):
            waits.append("step")

    seconds = steps._in_a_row(Counting(), 4, CPU)
    assert waits == ["wait", *["step"] * 4, "wait"] and seconds >= 0
    monkeypatch.setattr(machine, "seconds", lambda call, device: 2e-3)
    assert steps._steps_in_a_sample(Counting(), CPU) == 3
    assert steps._steps_in_a_sample(Counting(), torch.device("cuda")) == 5
    monkeypatch.setattr(machine, "seconds", lambda call, device: 1.0)
    assert steps._steps_in_a_sample(Counting(), CPU) == 1
    with pytest.raises(ValueError, match="steps"):
        StepBench(steps=-1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("no such package"), "no such package"),
        (torch.OutOfMemoryError("3 GiB"), "out of memory beside the others"),
    ],
)
def test_a_missing_rival_is_left_out_and_said(error, said, tmp_path, monkeypatch):
    def absent(params):
        raise error

    monkeypatch.setitem(shapes.CASES, "resnet18", [(4, 3)])
    monkeypatch.setattr(machine, "stream", lambda device: {"copy": 1e10})
    monkeypatch.setattr(steps, "CONTENDERS", {REFERENCE: CONTENDERS[REFERENCE], "PARQ": absent})
    config = StepBench(("resnet18",), rounds=2, build=False, out=tmp_path, device="cpu")
    (record,) = steps.run(config)
    assert record.summary["PARQ"] == {"missing": said}
    shown = steps_report.table(record, 1e10)
    assert shown.rows[1][1] == "–" and shown.note.endswith(f" Not measured: PARQ on ResNet-18 ({said}).")
    assert f"PARQ on ResNet-18 ({said})." in steps_report.summary([record]).note


@pytest.mark.parametrize("name", ["ASkew, level-first", "ASkew, paper form"])
def test_the_fused_step_needs_no_memory(name):
    """0 bytes beyond Adam's moments, and next to none during a step."""
    p = nn.Parameter(torch.randn(50, 1000))
    p.grad = torch.randn(50, 1000)
    _, facts = steps._prepare(CONTENDERS[name], [p], p.numel(), 2, CPU)
    assert abs(facts["steady_bytes"]) < 0.05 and facts["peak_bytes"] < 0.05


FOUR = "ASkew, level-first, 4 bits, scale "


@native
@pytest.mark.parametrize(("name", "frozen"), [(FOUR + "frozen", True), (FOUR + "followed", False)])
def test_four_bits_under_a_scale_per_channel(name, frozen):
    """Fused, 16 levels; the scale is one number a channel and stays, or follows the weights."""
    ps = [nn.Parameter(torch.randn(6, 50)), nn.Parameter(torch.randn(7))]
    for p in ps:
        p.grad = torch.randn_like(p)
    optimizer: Any = CONTENDERS[name](ps)
    scales = []
    for _ in range(3):
        optimizer.step()
        ((_, p, site),) = optimizer.weights()
        assert p is ps[0] and site.levels == uniform(4) and site.scale.shape == (6, 1)
        scales.append(site.scale.clone())
    assert optimizer.annealing.started(optimizer.clock) == frozen and optimizer._fusion._batches
    assert torch.equal(scales[0], scales[2]) == frozen
    assert torch.equal(scales[2], scale_of(ps[0].detach(), uniform(4), "sawb", "channel")) != frozen


def test_the_first_step_is_taken_with_empty_caches(tmp_path, monkeypatch):
    """Folders that are there, empty and the run's own before anything is compiled; the old ones come back after."""
    monkeypatch.setenv("TRITON_CACHE_DIR", "kept")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setitem(shapes.CASES, "resnet18", [(4, 3)])
    monkeypatch.setattr(machine, "stream", lambda device: {"copy": 1e10})
    seen: list[tuple[str | None, ...]] = []

    def watching(params):
        places = tuple(os.environ.get(name) for name in machine.CACHES)
        if places != ("kept", None):
            assert len(set(places)) == 2 and all(p and not Path(p).exists() and Path(p).parent.is_dir() for p in places)
            Path(str(places[0])).mkdir()
        seen.append(places)
        return CONTENDERS[REFERENCE](params)

    monkeypatch.setattr(steps, "CONTENDERS", {REFERENCE: watching})
    for cold in (True, True, False):
        config = StepBench(("resnet18",), rounds=2, build=False, out=tmp_path, device="cpu", cold=cold)
        (record,) = steps.run(config)
        assert ("First step, cold:" in steps_report.table(record, 1e10).note) == cold == record.config["cold"]
        assert [os.environ.get(name) for name in machine.CACHES] == ["kept", None]
    assert seen[2] == ("kept", None) and seen[0] != seen[1]
    assert not any(Path(str(place)).parent.exists() for places in seen[:2] for place in places)


def test_caches_come_back_after_an_error(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "kept")
    with pytest.raises(RuntimeError, match="in between"), machine.cold_caches():
        raise RuntimeError("in between")
    assert os.environ["TRITON_CACHE_DIR"] == "kept"


def test_old_records_are_shown_as_they_were():
    """Without the later rows and without a word on caches."""
    records = load_all(Path(__file__).parents[2] / "results" / "bench-step")
    assert records
    for record in records:
        grid = steps_report.table(record, 1e10)
        if "cold" not in record.config:
            assert "cold" not in grid.note
        assert [row[0] for row in grid.rows] == list(record.summary)
    drawn = steps_report.present(records).figures["steps"][0]
    shown = {label.get_text() for axes in drawn.axes for label in axes.get_yticklabels()}
    assert shown == {name for record in records for name in record.summary}


def made_up(case: str, device: str, stream: float, ratio: float) -> Record:
    """A record of two optimizers: the second takes `ratio` times the first's time, in every round."""
    seconds = {REFERENCE: [1e-3, 2e-3, 4e-3], "ASkew, level-first": [ratio * t for t in (1e-3, 2e-3, 4e-3)]}
    fact = {"first_step_seconds": 0.1, "steady_bytes": 0.0, "peak_bytes": 0.0, "bytes_per_second": 5e9}
    about = {"case": case, "device": device, "rounds": 3, "steps": 2, "parameters": 10**6, "tensors": 1}
    extra = {"seconds": seconds, "wait_seconds": seconds, "stream": {"copy": stream}}
    seen = {"cpu": "a CPU, 2 cores", "threads": 1, "gpu": "a GPU", "commit": "", "versions": {}}
    return Record(
        "bench-step", f"{case}-{device}", about, 0, summary=dict.fromkeys(seconds, fact), extra=extra, environment=seen
    )


def test_machines_are_told_apart():
    """Records of a machine with a GPU, of both its parts: each row, table and panel says which one it is of."""
    records = [
        made_up("one-50m", "cpu", 1e10, 1.5),
        made_up("one-50m", "cuda", 2e10, 0.5),
        made_up("resnet18", "cpu", 2e10, 2.5),
        made_up("one-1b", "cuda", 1e10, 0.75),
    ]
    presentation = steps_report.present(records)
    short, *whole = presentation.tables
    assert [row[:3] for row in short.rows] == [
        ("a GPU", "one tensor of 50M", "0.50 (0.50–0.50)"),
        ("a GPU", "one tensor of 1B", "0.75 (0.75–0.75)"),
        ("a CPU, 2 cores, 1 thread", "ResNet-18", "2.50 (2.50–2.50)"),
        ("a CPU, 2 cores, 1 thread", "one tensor of 50M", "1.50 (1.50–1.50)"),
    ]
    assert {row[-1] for row in short.rows} == {"25% / 25%"}  # of the best that any record of the machine saw
    assert [grid.title.partition(":")[0] for grid in whole] == [row[0] for row in short.rows]
    shown = [axes.get_title(loc="left") for axes in presentation.figures["steps"][0].axes if axes.get_visible()]
    assert sorted(shown) == sorted(f"{row[1]} · {row[0]}" for row in short.rows)


def test_ratios_are_taken_within_rounds():
    """A machine that gets slower for both changes no ratio, and the median lies between the quartiles."""
    found = compared([2.0, 40.0, 6.0], [1.0, 20.0, 3.0])
    assert found == {"seconds": 6.0, "ratio": 2.0, "ratio_quartiles": [2.0, 2.0]}
    found = compared([1.0, 2.0, 3.0, 4.0, 9.0], [1.0, 1.0, 2.0, 2.0, 1.0])
    assert found["ratio_quartiles"][0] <= found["ratio"] <= found["ratio_quartiles"][1]
