"""BatchNorm folded away without touching a level: into scale and bias per channel, or before a sign into thresholds.

y = s z + b per channel after a layer whose own result is scale z' + bias: scale <- s scale, bias <- s bias + b.
Where z is a whole number (signs times signs), sign(s z + b) is a comparison: z >= t with t = ceil(-b / s) for s > 0,
and not z >= t with t = floor(-b / s) + 1 for s < 0 (flip); for s = 0 it is the sign of b whatever z.

Behind a max-pool a slope must not be negative to change places with it. Before a sign it can be made positive:
sign(s z + b) = -sign(-s z - b) but at 0 itself, and the minus goes into the weights that multiply the sign next.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from askew.ship.graph import Graph, Node, Weight

LAYERS = ("conv2d", "linear")
LIMIT = 2**31 - 1


def batchnorm(
    mean: np.ndarray, var: np.ndarray, eps: float, gamma: np.ndarray | None, beta: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """(s, b) in float64 with BatchNorm(z) = s z + b: s = gamma / sqrt(var + eps), b = beta - mean s."""
    s = 1 / np.sqrt(var.astype(np.float64) + eps)
    if gamma is not None:
        s = s * gamma.astype(np.float64)
    b = -mean.astype(np.float64) * s
    return s, b if beta is None else b + beta.astype(np.float64)


def thresholds(s: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(t int32, flip bool) with sign(s z + b) = +1 exactly where (z >= t) != flip, for whole z in float64."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        edge = -np.asarray(b, np.float64) / np.asarray(s, np.float64)
        t = np.where(s > 0, np.ceil(edge), np.floor(edge) + 1)
    t = np.where(s == 0, np.where(b >= 0, -LIMIT, LIMIT), t)
    return np.clip(t, -LIMIT, LIMIT).astype(np.int32), s < 0


def fold(graph: Graph) -> Graph:
    """The same function with fewer nodes: affine into layers, signs of whole numbers into thresholds."""
    return _to_thresholds(_into_layers(graph))


def _into_layers(graph: Graph) -> Graph:
    """Affine right after a layer that feeds nothing else, or with a max-pool between if no slope is negative."""
    nodes = {n.name: n for n in graph.nodes}
    users = graph.users()
    renamed: dict[str, str] = {}

    def sole(name: str) -> bool:
        return len(users[name]) == 1

    for n in graph.nodes:
        here = replace(nodes[n.name], inputs=tuple(renamed.get(i, i) for i in n.inputs))
        nodes[n.name] = here
        if here.op != "affine":
            continue
        source = nodes[here.inputs[0]]
        s, b = here.arrays["scale"], here.arrays["bias"]
        if source.op == "max_pool" and sole(source.name) and nodes[source.inputs[0]].op in LAYERS:
            turned = {} if (s >= 0).all() else _turned(s < 0, n.name, nodes, users)
            if turned is None:
                continue
            nodes |= turned
            s, b, source = np.abs(s), np.where(s < 0, -b, b), nodes[source.inputs[0]]
        if source.op in LAYERS and sole(source.name):
            nodes[source.name] = scaled(source, s, b)
            users[here.inputs[0]] = users[n.name]
            renamed[n.name] = here.inputs[0]
            del nodes[n.name]
    return graph.with_nodes([nodes[n.name] for n in graph.nodes if n.name in nodes])


def _turned(
    minus: np.ndarray, name: str, nodes: dict[str, Node], users: dict[str, list[str]]
) -> dict[str, Node] | None:
    """The layers that multiply the sign of `name`, with a minus for these channels; None if others see it."""
    (sign,) = users[name] if len(users[name]) == 1 else (None,)
    if sign is None or nodes[sign].op != "sign":
        return None
    found: dict[str, Node] = {}
    readers = list(users[sign])
    while readers:
        reader = nodes[readers.pop()]
        if reader.op == "flatten":
            readers += users[reader.name]
            continue
        layer = reader if reader.op in LAYERS and reader.settings.get("groups", 1) == 1 else None
        if layer is None or layer.weight is None or not (layer.weight.binary or not layer.weight.levels):
            return None
        found[reader.name] = replace(layer, weight=_negated(layer.weight, minus))
    return found


def _negated(weight: Weight, minus: np.ndarray) -> Weight:
    """The weight with a minus for some channels of its input; a flattened one has several columns for each."""
    channels = np.repeat(minus, weight.shape[1] // len(minus))
    where = channels.reshape(1, -1, *[1] * (len(weight.shape) - 2))
    if weight.levels:
        return Weight.of_codes(np.where(where, 1 - weight.codes(), weight.codes()).astype(np.uint8), weight.levels)
    return Weight.of_floats(np.where(where, -weight.dense(), weight.dense()))


def scaled(layer: Node, s: np.ndarray, b: np.ndarray) -> Node:
    """The layer with y -> s y + b per output behind it."""
    assert layer.weight is not None
    scale = layer.array("scale", layer.weight.shape[0], 1.0) * s
    bias = layer.array("bias", layer.weight.shape[0], 0.0) * s + b
    return replace(layer, arrays={"scale": scale, "bias": bias})


def signs_of(graph: Graph) -> set[str]:
    """Names of the values that are +1 or -1 throughout."""
    found: set[str] = set()
    for n in graph.nodes:
        if n.op in ("sign", "threshold") or (n.op in ("max_pool", "flatten") and n.inputs[0] in found):
            found.add(n.name)
    return found


def _to_thresholds(graph: Graph) -> Graph:
    """layer of signs (-> max-pool) -> sign: max and sign change places, as sign is monotone."""
    nodes = {n.name: n for n in graph.nodes}
    users, signed = graph.users(), signs_of(graph)
    order: list[str] = []
    for n in graph.nodes:
        order.append(n.name)
        if n.op != "sign":
            continue
        source = nodes[n.inputs[0]]
        pool = source if source.op == "max_pool" and len(users[source.name]) == 1 else None
        layer = nodes[pool.inputs[0]] if pool else source
        if not _whole(layer, signed, users):
            continue
        assert layer.weight is not None
        outputs = layer.weight.shape[0]
        t, flip = thresholds(layer.array("scale", outputs, 1.0), layer.array("bias", outputs, 0.0))
        arrays = {"threshold": t} | ({"flip": np.packbits(flip, bitorder="little")} if flip.any() else {})
        nodes[layer.name] = replace(layer, arrays={})
        if pool is None:
            nodes[n.name] = Node("threshold", n.name, (layer.name,), {}, arrays)
        else:  # the pool takes the sign's name, the threshold the pool's
            order[order.index(pool.name)] = pool.name
            nodes[pool.name] = Node("threshold", pool.name, (layer.name,), {}, arrays)
            nodes[n.name] = replace(pool, name=n.name, inputs=(pool.name,))
    return graph.with_nodes([nodes[name] for name in order])


def _whole(layer: Node, signed: set[str], users: dict[str, list[str]]) -> bool:
    """Whether the layer multiplies signs with signs, and nobody else looks at its result."""
    if layer.op not in LAYERS or layer.weight is None or len(users[layer.name]) != 1:
        return False
    return layer.weight.binary and layer.inputs[0] in signed
