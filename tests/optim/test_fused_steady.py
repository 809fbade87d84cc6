"""What a fused step may reuse from the last one, what makes it look again; CUDA's tables with pretended kernels."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from optim_kit import differing
from torch import nn
from torch.optim import SGD, Adam

import askew
from askew.optim import fused, fused_cuda, fused_native
from askew.optim.checks import NonFiniteGradientError

native = pytest.mark.skipif(fused_native.library() is None, reason="the native library was not built")


class Pretended:
    """A Triton kernel that notes its calls; compiled, it is called by its grid with all arguments in order."""

    packed_metadata = ()

    def __init__(self):
        self.compiled, self.direct = [], []

    def __getitem__(self, grid):
        assert len(grid) == 3
        return self._call

    def _call(self, *arguments, **constants):
        if not constants:
            self.direct.append(arguments)
            return None
        self.compiled.append((arguments, constants))
        return self


@pytest.fixture
def kernels(monkeypatch):
    """CUDA's form on the CPU, its kernels pretended."""
    names = "step_kernel", "count_kernel", "bad_kernel", "show_kernel"
    found = SimpleNamespace(**{name: Pretended() for name in names})
    monkeypatch.setattr(fused_cuda, "kernels", lambda: found)
    monkeypatch.setitem(fused.DEVICES, "cpu", fused_cuda)
    return found


def make(base=Adam, nonfinite="ignore", **options):
    ps = [nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(0, 4))]
    free = nn.Parameter(torch.randn(16))
    groups = [{"params": ps, "levels": askew.binary()}, {"params": [free], "levels": None}]
    opt = askew.ASkew(base(groups, lr=0.1, **options), total_steps=100, nonfinite=nonfinite, fused=True)
    new_gradients([*ps, free])
    return [*ps, free], opt


def new_gradients(ps):
    for p in ps:
        p.grad = torch.randn_like(p)


def prepared(opt, monkeypatch) -> list[int]:
    """Counts how often steps are prepared anew from here on."""
    calls: list[int] = []
    plain = fused.Fusion._prepare
    monkeypatch.setattr(fused.Fusion, "_prepare", lambda self, *a: (calls.append(opt.steps), plain(self, *a))[1])
    return calls


@native
def test_steps_with_new_gradients_and_scalars_are_steady(monkeypatch):
    ps, opt = make()
    opt.step()
    calls = prepared(opt, monkeypatch)
    keep = []
    for k in range(5):
        keep.append([p.grad for p in ps])
        new_gradients(ps)
        opt.param_groups[0]["lr"] = 0.1 / (k + 1)
        opt.param_groups[1]["betas"] = (0.5, 0.9)
        opt.step()
    assert calls == []


@native
@pytest.mark.parametrize("scale", ["none", "abs-mean", "sawb"])
def test_scales_that_follow_the_step_leave_it_steady_until_the_last(scale, monkeypatch):
    """They are measured into the same place each time; the last step has frozen ones, and so other work."""
    runs = []
    for form in (True, False):
        torch.manual_seed(0)
        ps = [nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(5, 3))]
        schedule = askew.LevelFirst(start=0.0, end=0.8, reversible=True)
        base = Adam([{"params": ps, "levels": askew.uniform(2, "symmetric")}], lr=0.1)
        opt = askew.ASkew(base, schedule, scale=scale, total_steps=8, nonfinite="ignore", fused=form)
        calls = prepared(opt, monkeypatch)
        for _ in range(8):
            new_gradients(ps)
            opt.step()
        assert not form or calls == ([1] if scale == "none" else [1, 8])
        runs.append([p.detach() for p in ps])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


CHANGES = {
    "moments": lambda ps, opt: opt.state[ps[0]].update(exp_avg=torch.zeros(4, 8)),
    "state": lambda ps, opt: opt.state.pop(ps[1]),
    "all states": lambda ps, opt: opt.state.clear(),
    "no gradient": lambda ps, opt: setattr(ps[0], "grad", None),
    "gradient's dtype": lambda ps, opt: (setattr(ps[0], "grad_dtype", None), setattr(ps[0], "grad", ps[0].bfloat16())),
    "memory order": lambda ps, opt: setattr(ps[1], "grad", torch.randn(4, 4).t()),
    "weights elsewhere": lambda ps, opt: setattr(ps[0], "data", ps[0].detach().clone()),
    "a new group": lambda ps, opt: opt.add_param_group({"params": [nn.Parameter(torch.ones(2))], "levels": None}),
    "clamp": lambda ps, opt: opt.param_groups[0].update(clamp=False),
    "a loaded state": lambda ps, opt: opt.load_state_dict(copy.deepcopy(opt.state_dict())),
}


@native
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_step_depends_on_is_seen(change, monkeypatch):
    if change == "gradient's dtype" and not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("this torch has no gradients of another dtype")
    ps, opt = make()
    opt.step()
    opt.step()
    calls = prepared(opt, monkeypatch)
    CHANGES[change](ps, opt)
    opt.step()
    assert len(calls) == 1


@native
def test_momentum_may_come_later():
    """An option that decides which arrays there are, changed in the middle of a run."""
    runs = []
    for form in (True, False):
        torch.manual_seed(0)
        ps, opt = make(SGD)
        opt._fusion.wanted = form
        for k in range(4):
            opt.param_groups[0]["momentum"] = 0.0 if k < 2 else 0.9
            opt.step()
        runs.append([p.detach() for p in ps])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def lent_gradients(ps, bad=False):
    """Gradients in numpy's memory; each reference is dead once no tensor, nor a view of one, looks at it any more."""
    arrays = [np.full(p.shape, 0.5, np.float32) for p in ps]
    if bad:
        arrays[0][0, 0] = math.nan
    for p, array in zip(ps, arrays, strict=True):
        p.grad = torch.from_numpy(array) if p.numel() else torch.zeros_like(p)
    return [weakref.ref(array) for array in arrays if array.size]


@pytest.mark.parametrize("form", [pytest.param("native", marks=native), "pretended"])
def test_gradients_are_not_kept_alive(form, request):
    """Neither by a step that is prepared, nor by steady ones, nor by one that is skipped."""
    if form == "pretended":
        request.getfixturevalue("kernels")
    ps, opt = make(nonfinite="skip")
    for k in range(4):
        lent = lent_gradients(ps, bad=k == 3)
        assert all(reference() is not None for reference in lent)
        assert (opt._fusion.steady(opt) is not None) == (k > 0)
        opt.step()
        opt.zero_grad()
        gc.collect()
        assert [i for i, reference in enumerate(lent) if reference() is not None] == [], f"step {k}"
    assert opt.skipped == (1 if form == "native" else 0)  # a pretended kernel finds nothing


def test_the_first_call_compiles_and_the_others_are_direct(kernels):
    _, opt = make()
    for _ in range(4):
        opt.step()
    assert len(kernels.step_kernel.compiled) == 2 and len(kernels.step_kernel.direct) == 6  # two groups
    (arguments, constants), direct = kernels.step_kernel.compiled[0], kernels.step_kernel.direct[0]
    assert len(direct) == len(arguments) + len(constants) - 1  # num_warps is none of the kernel's own
    opt.param_groups[0]["lr"] = 0.01  # a number: the same kernel
    opt.step()
    assert len(kernels.step_kernel.compiled) == 2 and kernels.step_kernel.direct[-2][13] == 0.01
    opt.param_groups[0]["weight_decay"] = 0.1
    opt.param_groups[0]["betas"] = (0.3, 0.9)  # another form of the first moment: another kernel
    opt.step()
    assert len(kernels.step_kernel.compiled) == 3


def test_only_new_addresses_are_sent_and_the_last_few_are_kept(kernels):
    ps, opt = make()
    sets = []
    for _ in range(fused_cuda.REMEMBERED + 3):
        new_gradients(ps)
        sets.append([p.grad for p in ps])
        opt.step()
    batch = opt._fusion._batches[0][0]
    launches, tables = list(batch._launches), dict(batch._tables)
    assert len(tables) == fused_cuda.REMEMBERED
    for p, g in zip(ps, sets[-2], strict=True):
        p.grad = g
    opt.step()
    table = kernels.step_kernel.direct[-1][2]
    assert table is tables[tuple(g.data_ptr() for g in sets[-2])]
    assert table.tolist() == [g.data_ptr() for g in sets[-2]]
    assert all(a is b for a, b in zip(launches, batch._launches, strict=True))


def test_a_gradient_off_its_alignment_is_sorted_anew(kernels):
    ps, opt = make()
    opt.step()
    opt.step()
    batch = opt._fusion._batches[0][0]
    assert all(launch.kind.aligned for launch in batch._launches)
    ps[0].grad = torch.randn(33)[1:].reshape(4, 8)
    opt.step()
    assert sorted(launch.kind.aligned for launch in batch._launches) == [False, True, True]
    assert opt._fusion._batches[0][0] is batch


def test_every_element_has_one_block(kernels, monkeypatch):
    monkeypatch.setattr(fused_cuda, "BLOCK", 7)
    ps, opt = make()
    opt.step()
    blocks = [tuple(b) for launch in opt._fusion._batches[0][0]._launches for b in launch.tables.blocks.tolist()]
    assert sorted(blocks) == [(i, k) for i, p in enumerate(ps) for k in range(-(-p.numel() // 7))]


def test_counts_on_the_host_move_as_one_and_stay_the_states_own(kernels, monkeypatch):
    monkeypatch.setattr(fused_cuda, "_counted_by_host", lambda work: work.step is not None)
    ps, opt = make()
    for _ in range(3):
        opt.step()
    assert [float(opt.state[p]["step"]) for p in ps] == [3.0] * 4 and not kernels.count_kernel.compiled
    step, over_root = kernels.step_kernel.direct[-1][22:24]
    assert math.isclose(step, -0.1 / (1 - 0.9**3)) and math.isclose(over_root, 1 / math.sqrt(1 - 0.999**3))
    ps[1].grad = None
    opt.step()
    assert [float(opt.state[p]["step"]) for p in ps] == [4, 3, 4, 4]
    other_ps, other = make()
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    other.step()
    assert [float(other.state[p]["step"]) for p in other_ps] == [5, 4, 5, 5]
    assert [float(opt.state[p]["step"]) for p in ps] == [4, 3, 4, 4]


def test_counts_on_the_device_are_the_kernels_work(kernels):
    _, opt = make()
    opt.step()
    rows = sorted(r for arguments, _ in kernels.count_kernel.compiled for r in arguments[0].tolist())
    assert rows == [0, 1, 2, 3]  # also of the parameter without elements


@native
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_steady_step_still_looks_at_gradients(nonfinite):
    ps, opt = make(nonfinite=nonfinite)
    opt.step()
    opt.step()
    before = [p.detach().clone() for p in ps]
    ps[1].grad[2, 1] = -math.inf
    if nonfinite == "raise":
        with pytest.raises(NonFiniteGradientError, match="group 0, parameter 1"):
            opt.step()
    else:
        opt.step()
    assert opt.steps == 2 and differing(before, [p.detach() for p in ps]) == []
    ps[1].grad[2, 1] = 0.0
    opt.step()
    assert opt.steps == 3


@native
def test_a_sparse_gradient_is_named_after_dense_ones():
    table = nn.Parameter(torch.randn(5, 3))
    opt = askew.ASkew(SGD([{"params": [table], "levels": askew.binary()}], lr=0.1), total_steps=9, nonfinite="ignore")
    table.grad = torch.randn(5, 3)
    opt.step()
    opt.step()
    table.grad = torch.randn(5, 3).to_sparse()
    with pytest.raises(ValueError, match="sparse"):
        opt.step()


@pytest.mark.parametrize("aligned", [True, False])
def test_tables_sent_while_a_graph_is_captured_serve_that_graph_alone(aligned, kernels, monkeypatch):
    """They arrive when the graph is replayed: an eager step before that needs its own; the graph's are kept.

    The launches were there before, unless gradients lie otherwise now: those are the graph's alone, too.
    """
    ps, opt = make()
    opt.step()
    batch = opt._fusion._batches[0][0]
    new_gradients(ps)
    if not aligned:
        for p in ps:
            p.grad = torch.empty(p.numel() + 1)[1:].view_as(p).copy_(p.grad)
    monkeypatch.setattr(batch, "_capturing", lambda: True)
    opt.step()
    launches, table = batch._kept[-1]
    monkeypatch.undo()
    monkeypatch.setattr(fused_cuda, "kernels", lambda: kernels)
    opt.step()
    assert batch.captured and batch is opt._fusion._batches[0][0]
    assert batch._tables and all(later is not table for later in batch._tables.values())
    assert (
        batch._kept[-1] == (launches, table)
        and launches
        and all((launch in batch._launches) == aligned for launch in launches)
    )
    opt._fusion._tensors = None  # another batch, later
    monkeypatch.setitem(fused.DEVICES, "cpu", fused_cuda)
    opt.step()
    assert opt._fusion._captured == [batch]
