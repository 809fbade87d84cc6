"""How MethodOptimizer drives every method: latents, closures, hooks, resume, snapped weights."""

import copy
import io
from collections import Counter

import pytest
import torch
from method_support import NAMES, STEPS, Problem, train, wrap
from torch import Tensor

from askew.core import binary, ternary
from askew.core.oracle import nearest
from askew.methods.base import Method, Site
from askew.methods.binaryconnect import BinaryConnect
from askew.methods.proxquant import ProxQuant
from askew.methods.registry import METHODS
from askew.optim import MethodOptimizer, snapped

CUT = 7  # steps before the checkpoint: nothing has settled yet


def by_hand(problem: Problem, base: torch.optim.Optimizer, w: torch.nn.Parameter, steps: int) -> Tensor:
    """BinaryConnect in plain torch; returns the latents."""
    latent = w.detach().clone()
    for _ in range(steps):
        with torch.no_grad():
            w.copy_(torch.where(latent >= 0, 1.0, -1.0))
        base.zero_grad()
        problem.loss(w).backward()
        with torch.no_grad():
            w.copy_(latent)
        base.step()
        with torch.no_grad():
            latent = w.clamp(-1, 1).clone()
    return latent


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.5}),
        (torch.optim.SGD, {"lr": 0.3, "momentum": 0.9, "weight_decay": 1e-2}),
        (torch.optim.Adam, {"lr": 0.05}),
    ],
)
def test_binaryconnect_equals_a_hand_written_loop_bit_for_bit(kind, options):
    problem = Problem()
    plain, wrapped = problem.parameter(), problem.parameter()
    expected = by_hand(problem, kind([plain], **options), plain, STEPS)
    optimizer = MethodOptimizer(kind([wrapped], **options), BinaryConnect(), levels=binary(), fused=False)
    train(problem, wrapped, optimizer, STEPS)
    assert torch.equal(optimizer.underlying(wrapped), expected)
    assert torch.equal(wrapped.detach(), torch.where(expected >= 0, 1.0, -1.0))
    assert not torch.equal(expected.sign(), problem.start.sign())  # the run did flip signs


@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_a_closure_is_evaluated_at_the_forward_weights(base):
    problem = Problem()
    w, v = problem.parameter(), problem.parameter()
    plain, closed = wrap("binaryconnect", w, base), wrap("binaryconnect", v, base)
    train(problem, w, plain, 20)
    seen = []

    def closure() -> Tensor:
        seen.append(v.detach().clone())
        closed.zero_grad()
        loss = problem.loss(v)
        loss.backward()
        return loss

    for _ in range(20):
        closed.step(closure)
    assert len(seen) == 20
    assert all(bool((x.abs() == 1).all()) for x in seen)
    assert torch.equal(plain.underlying(w), closed.underlying(v))


class Counting(Method):
    """Counts calls of its hooks, and remembers what they were given."""

    name = "counting"
    latent = True

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.clocks: list[int] = []

    def direction(self, gradient: Tensor, w: Tensor, site: Site) -> Tensor:
        self.calls["direction"] += 1
        self.clocks.append(site.clock.step)
        self.given = w.clone()
        return gradient

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        self.calls["retract"] += 1
        return w.clamp(-1, 1)

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        self.calls["forward"] += 1
        return w.sign()


def test_each_hook_fires_once_a_step():
    problem, method = Problem(), Counting()
    w = problem.parameter()
    optimizer = wrap(method, w)
    assert method.calls == {"forward": 1}  # at the start, for the first forward pass
    hooks: Counter[str] = Counter()
    optimizer.register_step_pre_hook(lambda *_: hooks.update(["pre"]))
    optimizer.register_step_post_hook(lambda *_: hooks.update(["post"]))
    optimizer.base.register_step_post_hook(lambda *_: hooks.update(["base post"]))
    before = problem.start.clone()
    for step in range(1, 6):
        train(problem, w, optimizer, 1)
        assert torch.equal(method.given, before)  # direction sees the latents, not the forward weights
        before = optimizer.underlying(w).clone()
        assert method.calls == {"forward": step + 1, "direction": step, "retract": step}
        assert hooks == {"pre": step, "post": step, "base post": step}
    assert method.clocks == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("base", ["sgd", "adam"])
@pytest.mark.parametrize("name", NAMES)
def test_resume_is_bit_exact(name, base):
    """A run cut in two through a file goes on exactly as the whole one, the random draws too."""
    problem = Problem()
    w = problem.parameter()
    torch.manual_seed(7)
    optimizer = wrap(name, w, base)
    train(problem, w, optimizer, CUT)
    file = io.BytesIO()
    torch.save({"w": w.detach(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, file)
    latent = optimizer.underlying(w).detach().clone()
    expected = [*train(problem, w, optimizer, STEPS - CUT), w.detach(), optimizer.underlying(w).detach()]

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    v = torch.nn.Parameter(torch.randn(10))
    resumed = wrap(name, v, base)
    resumed.load_state_dict(saved["optimizer"])
    with torch.no_grad():
        v.copy_(saved["w"])
    torch.set_rng_state(saved["rng"])
    found = [*train(problem, v, resumed, STEPS - CUT), v.detach(), resumed.underlying(v).detach()]
    assert resumed.steps == STEPS
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(latent, expected[-1])  # the second part did something


@pytest.mark.parametrize("name", NAMES)
def test_snapped_shows_the_final_weights_and_restores(name):
    problem = Problem()
    w = problem.parameter()
    optimizer = wrap(name, w, "adam")
    train(problem, w, optimizer, 20)
    shown, latent = w.detach().clone(), optimizer.underlying(w).detach().clone()
    ((_, _, site),) = optimizer.weights()
    final = optimizer.method.final(latent, site)
    with snapped(optimizer):
        assert torch.equal(w.detach(), final)
        if name == "full-precision":
            assert torch.equal(w.detach(), latent)
        elif name in ("parq", "parq-hard"):
            v = float(latent.abs().mean())
            assert w.detach().abs().tolist() == pytest.approx([v] * 10, rel=1e-6)
            assert torch.equal(w.detach().sign(), torch.where(latent >= 0, 1.0, -1.0))
        else:
            s = 1.0 if site.scale is None else float(site.scale)
            assert w.tolist() == [s * nearest(q, (-1, 1)) for q in latent.tolist()]
    assert torch.equal(w.detach(), shown)
    assert torch.equal(optimizer.underlying(w), latent)


@pytest.mark.parametrize("name", NAMES)
def test_only_latent_methods_keep_a_second_copy_and_never_in_the_base_state(name):
    problem = Problem()
    w = problem.parameter()
    optimizer = wrap(name, w, "adam")
    train(problem, w, optimizer, 2)
    latent_methods = {"binaryconnect", "binaryconnect-stochastic", "adaste", "md-tanh", "parq", "parq-hard"}
    latent_methods |= {"askew-level-first-dithered", "askew-level-first-rounded", "parq-fixed", "luq", "lsq"}
    latent_methods |= {"askew-level-first-reversible"}
    assert (optimizer.underlying(w) is not w) == (name in latent_methods)
    assert set(optimizer.base.state[w]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_takes_other_levels_in_half_precision_and_a_scale(name):
    """Ternary (AdaSTE: binary) bfloat16 weights, a scale per channel: dtype and shape stay, final lies on levels."""
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(3, 4).bfloat16())
    scaled = {} if name.startswith("parq") else {"scale": "abs-mean", "per": "channel"}
    optimizer = wrap(name, w, "adam", levels=binary() if name == "adaste" else ternary(), **scaled)
    for _ in range(3):
        optimizer.zero_grad()
        (w.float() ** 2).sum().backward()
        optimizer.step()
    assert w.dtype == torch.bfloat16 and w.shape == (3, 4) and bool(w.isfinite().all())
    ((_, _, site),) = optimizer.weights()
    with snapped(optimizer):
        if name == "full-precision":
            return
        for i, row in enumerate(w.float().tolist()):
            top = max(abs(v) for v in row)
            if site.scale is not None:
                assert top in (0.0, pytest.approx(float(site.scale[i]), rel=1e-2))
            assert all(v == 0 or abs(v) == top for v in row)


def test_the_names_are_all_tested():
    assert [n.values[0] for n in NAMES] == list(METHODS)


@pytest.mark.parametrize("name", ["binaryconnect", "adaste", "md-tanh", "askew-level-first"])
def test_resume_works_too_when_the_model_is_loaded_before_the_optimizer_is_built(name):
    problem = Problem()
    w = problem.parameter()
    optimizer = wrap(name, w)
    train(problem, w, optimizer, 20)
    file, saved = w.detach().clone(), copy.deepcopy(optimizer.state_dict())
    expected = train(problem, w, optimizer, 20)
    again = torch.nn.Parameter(file.clone())
    resumed = wrap(name, again)
    resumed.load_state_dict(saved)
    assert torch.equal(again.detach(), file)
    for a, b in zip(expected, train(problem, again, resumed, 20), strict=True):
        assert torch.equal(a, b)


def test_a_state_of_other_options_is_refused():
    problem = Problem()
    w = problem.parameter()
    saved = wrap(ProxQuant(rate=1e-4), w).state_dict()
    with pytest.raises(ValueError, match=r"rate.*0\.0001.*this optimizer runs.*5\.0"):
        wrap(ProxQuant(rate=5.0), w).load_state_dict(saved)


@pytest.mark.parametrize("name", ["binaryconnect", "proxquant", "askew-level-first"])
def test_a_scale_that_follows_the_weights_does_not_shrink_them(name):
    """Clamping to a scale measured on the clamped weights would shrink both to nothing."""
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(50, 20))
    before = w.detach().abs().mean()
    optimizer = wrap(name, w, lr=1e-9, scale="abs-mean", total_steps=1000)
    for _ in range(50):
        w.grad = torch.randn_like(w)
        optimizer.step()
    assert optimizer.underlying(w).detach().abs().mean() == pytest.approx(float(before), rel=0.05)


def test_the_forward_weights_of_a_rival_carry_the_scale_of_their_own_latents():
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(8, 5))
    optimizer = wrap("binaryconnect", w, scale="abs-mean", lr=0.3)
    for _ in range(5):
        w.grad = torch.randn_like(w)
        optimizer.step()
        latent = optimizer.underlying(w).detach()
        torch.testing.assert_close(w.detach(), latent.abs().mean() * torch.where(latent >= 0, 1.0, -1.0))
