"""The inference benchmark's tables and figure, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from askew.paper.present import Presentation
from askew.report.figures import styled
from askew.report.style import INK
from askew.report.tables import NONE, Grid
from askew.train.record import Record

OURS = "askew"
RIVALS = ("torch fp32", "torch bf16", "torch.compile", "onnxruntime fp32", "onnxruntime int8")
LEAD = (
    "How many times faster packed inference is than each rival on the same shapes, in one process and in interleaved "
    "rounds, with the same number of threads. Nets: rivals run the float net with ReLU. Of the bound: against xor, "
    "popcount and add of the same number of bits in registers."
)


def table(record: Record, nets: bool) -> Grid:
    """One row a case: our time, how many times faster than each rival, part of the bound or size of the file."""
    cases = [c for c in record.extra["cases"] if is_net(c) == nets]
    rivals = [name for name in RIVALS if any(name in c["timings"] for c in cases)]
    last = ("file", "ONNX") if nets else ("of the bound",)
    rows = tuple((title(c), f"{1e3 * c['timings'][OURS]['seconds']:.3f}", *cells(c, rivals), *ends(c)) for c in cases)
    about, seen = record.config, record.environment
    note = f"{seen['cpu']}, {threads(record)}, {about['engine']}; medians of {about['rounds']} rounds (quartiles)"
    if nets:
        note += "; file: bytes, and how many times smaller than float32, everything included."
    heads = ("net" if nets else "layer", "ms", *(f"x {name}" for name in rivals), *last)
    return Grid(heads, rows, title="Whole nets" if nets else "Layers", note=note)


def threads(record: Record) -> str:
    count = record.config["threads"]
    return "1 thread" if count == 1 else f"{count} threads"


def is_net(case: dict[str, Any]) -> bool:
    return "bytes" in case["about"]


def title(case: dict[str, Any]) -> str:
    return case["name"] if is_net(case) else f"{case['kind']} {case['name']}"


def best_torch(case: dict[str, Any]) -> dict[str, float] | None:
    """torch fp32 in the faster of its layouts."""
    found = [t for name, t in case["timings"].items() if name.startswith("torch fp32")]
    return min(found, key=lambda t: t["seconds"]) if found else None


def cells(case: dict[str, Any], rivals: list[str]) -> list[str]:
    out = []
    for name in rivals:
        timing = best_torch(case) if name == "torch fp32" else case["timings"].get(name)
        text = NONE
        if timing is not None:
            text = f"{timing['times']:.1f} ({timing['times_low']:.1f}–{timing['times_high']:.1f})"
        out.append(text)
    return out


def ends(case: dict[str, Any]) -> list[str]:
    about = case["about"]
    if not is_net(case):
        return [f"{about['of_bound']:.2f}" if about.get("of_bound") is not None else NONE]
    onnx = f"{about['onnx_bytes']:,} ({about['onnx_times_smaller']:.1f}x)" if "onnx_bytes" in about else NONE
    return [f"{about['bytes']:,} ({about['times_smaller']:.1f}x)", onnx]


@styled
def figure(records: Sequence[Record]) -> Figure:
    """Bars: how many times faster than torch fp32, on a log axis, one panel a record."""
    cases = [[c for c in r.extra["cases"] if best_torch(c)] for r in records]
    height = 0.8 + sum(0.24 * len(c) + 0.5 for c in cases)
    drawn = Figure(figsize=(7.2, height), layout="constrained")
    panels = drawn.subplots(len(records), 1, squeeze=False).flat
    for axes, record, shown in zip(panels, records, cases, strict=True):
        times = [(best_torch(c) or {})["times"] for c in shown]
        colours = ["#1a7fc4" if is_net(c) else "#7b838c" for c in shown]
        axes.barh([title(c) for c in shown], times, color=colours, height=0.65)
        for i, value in enumerate(times):
            axes.annotate(f"{value:.1f}", (value, i), (3, 0), textcoords="offset points", va="center", fontsize=8)
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xscale="log", xlim=(0.4, 2 * max(times)), xlabel="times faster than torch fp32")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_title(threads(record))
        axes.invert_yaxis()
    return drawn


def present(records: Sequence[Record]) -> Presentation:
    """Tables of layers and of nets for each record, one figure."""
    grids = [
        table(r, nets) for r in records for nets in (False, True) if any(is_net(c) == nets for c in r.extra["cases"])
    ]
    caption = "Times faster than torch fp32; blue: whole nets."
    return Presentation("Packed inference", LEAD, grids, {"infer": (figure(records), caption)})
