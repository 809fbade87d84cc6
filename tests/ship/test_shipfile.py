"""Truncated, corrupted, renamed, oversized and hostile files: a clear error or the same net, never anything else."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ship_kit import settled
from torch import nn

import askew
from askew.nn import Sign, quantize_activations
from askew.ship.check import check
from askew.ship.file import parse, read, save
from askew.ship.graph import Graph, Node, ShipError, Weight
from askew.ship.runtime import Net

MUTATIONS = 10_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 9, 3, padding=1, groups=3),
        Sign(),
        nn.Conv2d(9, 5, 3, padding=1, bias=False),
        nn.BatchNorm2d(5),
        Sign(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(20, 7),
        nn.ReLU(),
        quantize_activations(nn.Sequential(nn.Linear(7, 3)), 4),
    )
    settled(model, (2, 5, 5))
    path = tmp_path_factory.mktemp("file") / "net.askew"
    askew.export(model, askew.binary(), path, input_shape=(2, 5, 5))
    return path.read_bytes()


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def with_graph(data: bytes, change: Any) -> bytes:
    header, body = split(data)
    graph = json.loads(header["__metadata__"]["askew"])
    change(graph)
    header["__metadata__"]["askew"] = json.dumps(graph)
    return joined(header, body)


def test_the_file_as_it_is(data: bytes) -> None:
    net = Net(parse(data), 1)
    assert net(np.zeros((1, 2, 5, 5), np.float32)).shape == (1, 3)


def test_ten_thousand_mutations_end_in_an_error_or_in_a_net(data: bytes) -> None:
    rng = random.Random(0)
    x = np.random.default_rng(0).normal(size=(1, 2, 5, 5)).astype(np.float32)
    survived = refused = 0
    for _ in range(MUTATIONS):
        try:
            net = Net(parse(mutated(data, rng)), 1)
            net(x)
            survived += 1
        except ShipError:
            refused += 1
    assert survived > MUTATIONS // 20 and refused > MUTATIONS // 2  # a changed weight is a net as well


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Cut, lengthened, changed in its length field, header or data, or with a value of the graph changed."""
    out, head = bytearray(data), 8 + struct.unpack("<Q", data[:8])[0]
    kind = rng.randrange(7)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        at = rng.randrange(len(data))
        return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:]
    if kind == 2:
        out[rng.randrange(8)] = rng.randrange(256)
    elif kind == 3:
        digits = [i for i in range(8, head) if chr(data[i]).isdigit()]
        out[rng.choice(digits)] = rng.choice(b"0123456789")
    elif kind == 4:
        for _ in range(rng.randrange(1, 4)):
            out[rng.randrange(8, head)] = rng.choice(b'0123456789,:"[]{}-.eE ')
    elif kind == 5:
        out[rng.randrange(head, len(data))] ^= 1 << rng.randrange(8)
    else:
        return with_graph(data, lambda graph: change_somewhere(graph, rng))
    return bytes(out)


def change_somewhere(value: Any, rng: random.Random) -> None:
    """Walk down at random and replace, remove or double what is there."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        if isinstance(value[key], (dict, list)) and value[key] and rng.random() < 0.8:
            value = value[key]
            continue
        if rng.random() < 0.1:
            del value[key]
        elif isinstance(value, list) and rng.random() < 0.2:
            value.append(value[key])
        else:
            value[key] = rng.choice([0, 1, 2, 3, -1, 64, 10**9, 10**30, 0.5, True, None, "", "relu", "conv2d", [], {}])
        return


def refuse(data: bytes, message: str) -> None:
    with pytest.raises(ShipError, match=message):
        parse(data)


def test_truncation_and_length(data: bytes) -> None:
    refuse(b"", "shorter than")
    refuse(data[:-1], r"bytes .* of|truncated")
    refuse(data + b"x", "truncated or too long")
    refuse(struct.pack("<Q", 2**63) + data[8:], "a header of 9223372036854775808 bytes")
    refuse(b"PK\x03\x04" + data, "not a safetensors file|a header of")


def test_headers_that_lie(data: bytes) -> None:
    header, body = split(data)
    name = next(k for k in header if k.endswith(".weight"))
    for change, message in [
        ({"dtype": "F64"}, "dtype 'F64'"),
        ({"dtype": ["U8"]}, "dtype"),
        ({"shape": [10**18]}, "numbers"),
        ({"shape": [-1]}, "one length"),
        ({"data_offsets": [0, 2**70]}, "bytes 0"),
        ({"data_offsets": [True, 2]}, "two whole numbers"),
    ]:
        refuse(joined(header | {name: header[name] | change}, body), message)
    refuse(joined({**header, "more": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, body), "overlap|hole")
    refuse(
        joined({**header, "more": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, body), "no node uses: more"
    )
    refuse(joined({k: v for k, v in header.items() if k != name}, body), "hole")
    refuse(joined([], body), "object")
    refuse(struct.pack("<Q", 24) + b'{"a":1,"a":2,"__meta":{}}'[:24], "not JSON|twice")
    refuse(struct.pack("<Q", 200_000) + b"[" * 200_000, "not JSON")
    refuse(joined({"__metadata__": {"askew": "NaN"}}, b""), "NaN is not a number")
    refuse(joined({"__metadata__": {"askew": "{}"}}, b""), "not one that askew exported")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.update(version=2), "format version 2"),
        (lambda g: g.update(more=1), "must hold"),
        (lambda g: g["nodes"].insert(0, g["nodes"][0]), "the name is taken"),
        (lambda g: g["nodes"].reverse(), "missing|not an earlier node|first node"),
        (lambda g: g["nodes"][1].update(op="eval"), "no such operator"),
        (lambda g: g["nodes"][1].update(inputs=["nobody"]), "not an earlier node"),
        (lambda g: g["nodes"][1]["settings"].update(groups=0), "groups cannot be 0"),
        (lambda g: g["nodes"][1]["settings"].update(padding=[1024, 1024]), "reaches beyond the kernel"),
        (lambda g: g["nodes"][1]["settings"].update(groups=1 << 20), "groups cannot be"),
        (lambda g: g["nodes"][1]["settings"].update(stride=[0, 1]), "stride cannot be"),
        (lambda g: g["nodes"][1]["settings"].update(dilation=[True, 1]), "dilation cannot be"),
        (lambda g: g["nodes"][1]["weight"].update(shape=[6, 2, 3, 30]), "bytes for"),
        (lambda g: g["nodes"][1]["weight"].update(shape=[6, 3, 3, 2]), "gets 2|takes 3"),
        (lambda g: g["nodes"][1]["weight"].update(shape=[-6, 2, -3, 3]), "cannot have the shape"),
        (lambda g: g["nodes"][1]["weight"].update(levels=[1, -1]), "increase"),
        (lambda g: g["nodes"][1]["weight"].update(levels=[0]), "1 levels"),
        (lambda g: g["nodes"][1]["weight"].update(levels=list(range(5))), "bytes for"),
        (lambda g: g["nodes"][0]["settings"].update(shape=[2, 10**9, 5]), "shape cannot be"),
        (lambda g: g["nodes"][0]["settings"].update(dtype="int64"), "indices go into embeddings"),
        (lambda g: g["nodes"][1].update(name="x" * 300), "short texts"),
        (lambda g: g.update(nodes=[]), "no node uses|2 to"),
        (lambda g: g.update(nodes="abc"), "must be a list"),
    ],
)
def test_graphs_that_lie(data: bytes, change: Any, message: str) -> None:
    refuse(with_graph(data, change), message)


def test_a_giant_kernel_is_refused() -> None:
    weight = Weight.of_codes(np.zeros((1, 1, 65, 1), np.uint8), (-1.0, 1.0))
    settings = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    first = Node("input", "input", (), {"shape": (1, None, None), "dtype": "float32"})
    with pytest.raises(ShipError, match="a side of 64 at most"):
        check(Graph((first, Node("conv2d", "conv", ("input",), settings, {}, weight))))


def test_an_error_names_the_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.askew"
    path.write_bytes(data[:100])
    with pytest.raises(ShipError, match=r"cut\.askew: not a safetensors file"):
        read(path)


def test_save_is_atomic_and_the_same_twice(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "again.askew"
    save(parse(data), path)
    assert path.read_bytes() == data
