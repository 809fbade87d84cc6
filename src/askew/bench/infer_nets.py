"""Whole nets: the shipped file against the same architecture in torch and onnxruntime."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from askew.bench.infer_layers import Case
from askew.bench.infer_timing import Work
from askew.core import LevelSet, binary
from askew.core.levels import nearest
from askew.models.resnet import ResNet18
from askew.models.vgg_small import VGGSmall
from askew.nn import Sign
from askew.ship.export import Exported, export, to_graph
from askew.ship.onnx import save_onnx, session
from askew.ship.runtime import load

# name -> (the net that ships, the float net a rival would run in its place, side of the image)
NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], int]] = {
    "VGG-small W1A1": (lambda: VGGSmall(activation=Sign, pool_first=True), VGGSmall, 32),
    "VGG-small W1A32": (VGGSmall, VGGSmall, 32),
    "ResNet-18 W1A1": (lambda: ResNet18(200, "tiny", Sign), lambda: ResNet18(200, "tiny"), 64),
    "ResNet-18 W1A32": (lambda: ResNet18(200, "tiny"), lambda: ResNet18(200, "tiny"), 64),
}


def net_case(name: str, batch: int, threads: int, compiled: bool, folder: Path) -> Case:
    """One net at one batch size; rivals run the float net with ReLU, which suits them better than signs."""
    make, make_float, side = NETS[name]
    torch.manual_seed(0)
    shipped, floats = settled(make(), side, binary()), settled(make_float(), side, None)
    done = export(shipped, binary(), folder / "net.askew")
    net = load(done.path, threads)
    x = torch.randn(batch, 3, side, side)
    array = x.numpy()
    rivals: dict[str, Work] = torch_rivals(floats, x, compiled)
    sizes = {"bytes": done.bytes, "float_bytes": done.float_bytes, "times_smaller": done.ratio}
    rivals |= onnx_rivals(floats, array, threads, folder)
    contestants: dict[str, Work] = {"askew": lambda: net(array), **rivals}
    return Case(f"{name}, batch {batch}", name, contestants, about=sizes | onnx_size(shipped, done, folder))


@torch.no_grad()
def settled(model: nn.Module, side: int, levels: LevelSet | None) -> nn.Module:
    """The net with running statistics of random images, its weights on the levels if given."""
    for m in model.modules():
        if levels is not None and isinstance(m, (nn.Linear, nn.Conv2d)):
            m.weight.copy_(nearest(m.weight, levels))
    model.train()
    model(torch.randn(8, 3, side, side))
    return model.eval()


def torch_rivals(model: nn.Module, x: torch.Tensor, compiled: bool) -> dict[str, Work]:
    """float32, bfloat16, and float32 compiled; channels last, which is the faster layout here."""
    last: Any = {"memory_format": torch.channels_last}
    model, x = model.to(**last), x.contiguous(**last)

    def run(function: Any, value: torch.Tensor) -> Work:
        def work() -> Any:
            with torch.inference_mode():
                return function(value)

        return work

    def autocast() -> Any:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return model(x)

    found = {"torch fp32": run(model, x), "torch bf16": autocast}
    if compiled:
        found["torch.compile"] = run(torch.compile(model), x)
    return found


def onnx_rivals(model: nn.Module, x: np.ndarray, threads: int, folder: Path) -> dict[str, Work]:
    """onnxruntime in float32 and with static 8-bit integers per channel; nothing where it is not installed."""
    try:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    except ImportError:
        return {}
    plain, small = folder / "float.onnx", folder / "int8.onnx"
    save_onnx(to_graph(model, None), plain)

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{"input": np.random.default_rng(i).normal(size=x.shape).astype("f4")} for i in range(4)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    with errors_alone():  # it advises pre-processing, which this graph has no use for
        quantize_static(
            plain,
            small,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    found = {}
    for name, path in (("onnxruntime fp32", plain), ("onnxruntime int8", small)):
        opened = session(path, threads)
        found[name] = lambda opened=opened: opened.run(None, {"input": x})
    return found


@contextmanager
def errors_alone() -> Iterator[None]:
    """Inside, the root logger takes errors alone; afterwards what it took before."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)


def onnx_size(model: nn.Module, done: Exported, folder: Path) -> dict[str, Any]:
    """The size of the shipped net as ONNX, where the package onnx is installed."""
    try:
        size = save_onnx(to_graph(model, binary()), folder / "packed.onnx")
    except ImportError:
        return {}
    return {"onnx_bytes": size, "onnx_times_smaller": done.float_bytes / size}


def temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="askew-bench-")
