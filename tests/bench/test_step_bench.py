"""The step benchmark on a small case: what it records, what it shows, and the memory it finds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from askew.bench import machine, shapes, steps, steps_report
from askew.bench.contenders import CONTENDERS, REFERENCE
from askew.bench.steps import StepBench
from askew.train.record import load_all

CPU = torch.device("cpu")


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
    assert "ASkew, paper form" in presentation.tables[0].markdown()
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


def test_a_missing_rival_is_left_out_and_said(tmp_path, monkeypatch):
    def absent(params):
        raise ImportError("no such package")

    monkeypatch.setitem(shapes.CASES, "resnet18", [(4, 3)])
    monkeypatch.setattr(machine, "stream", lambda device: {"copy": 1e10})
    monkeypatch.setattr(steps, "CONTENDERS", {REFERENCE: CONTENDERS[REFERENCE], "PARQ": absent})
    config = StepBench(("resnet18",), rounds=2, build=False, out=tmp_path, device="cpu")
    (record,) = steps.run(config)
    assert record.summary["PARQ"] == {"missing": "no such package"}
    assert steps_report.table(record).rows[1][1] == "–"


@pytest.mark.parametrize("name", ["ASkew, level-first", "ASkew, paper form"])
def test_the_fused_step_needs_no_memory(name):
    """0 bytes beyond Adam's moments, and next to none during a step."""
    p = nn.Parameter(torch.randn(50, 1000))
    p.grad = torch.randn(50, 1000)
    _, facts = steps._prepare(CONTENDERS[name], [p], p.numel(), 2, CPU)
    assert abs(facts["steady_bytes"]) < 0.05 and facts["peak_bytes"] < 0.05
