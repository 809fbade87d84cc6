"""A model that is not ours, through askew.groups: a transformer encoder block of torch's with an embedding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import askew

B = askew.binary()


class Reader(nn.Module):
    """Tokens -> embedding + positions -> one encoder block -> mean -> classes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.positions = nn.Parameter(torch.zeros(5, 8))
        self.block = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens) + self.positions).mean(1))


def names(group):
    return [name for name, _ in group["params"]]


def test_which_weights_are_claimed():
    """Weights of Embedding and Linear modules and the joint q, k, v projection, which MultiheadAttention keeps
    as a bare parameter. Biases, LayerNorms and positions stay in full precision."""
    model = Reader()
    taken, rest = askew.groups(model, levels=B)
    assert names(taken) == [
        "embed.weight",
        "block.self_attn.in_proj_weight",
        "block.self_attn.out_proj.weight",
        "block.linear1.weight",
        "block.linear2.weight",
        "head.weight",
    ]
    assert set(names(rest)) == {
        "positions",
        "block.self_attn.in_proj_bias",
        "block.self_attn.out_proj.bias",
        "block.linear1.bias",
        "block.linear2.bias",
        "block.norm1.weight",
        "block.norm1.bias",
        "block.norm2.weight",
        "block.norm2.bias",
        "head.bias",
    }
    assert len(names(taken)) + len(names(rest)) == len(list(model.parameters()))


def test_skip_and_patterns():
    taken, rest = askew.groups(Reader(), levels=B, skip=["embed", "head"])
    parts = ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight")
    assert names(taken) == [f"block.{part}" for part in parts]
    assert {"embed.weight", "head.weight"} < set(names(rest))
    with pytest.raises(ValueError, match=r"levels pattern '\*\.norm1' matches no weight"):
        askew.groups(Reader(), {"*.norm1": B})


def test_it_trains_onto_the_levels():
    torch.manual_seed(0)
    model = Reader()
    base = torch.optim.Adam(askew.groups(model, levels=B, skip=["head", "*.in_proj_weight"]), lr=0.05)
    opt = askew.ASkew(base, askew.LevelFirst(), total_steps=60)
    tokens = torch.randint(11, (32, 5))
    target = tokens[:, 0] % 3
    for _ in range(60):
        opt.zero_grad()
        nn.functional.cross_entropy(model(tokens), target).backward()
        opt.step()
    for name in ("embed", "block.self_attn.out_proj", "block.linear1", "block.linear2"):
        assert (model.get_submodule(name).weight.abs() == 1).all(), name
    assert (model.eval()(tokens).argmax(1) == target).float().mean() > 0.6
    assert (model.block.self_attn.in_proj_weight.abs() != 1).any()
