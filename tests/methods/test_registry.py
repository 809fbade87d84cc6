import json
import subprocess
import sys

import pytest
import torch
from method_support import NAMES, OPTIONS, STEPS, Problem, train, wrap

from askew.core import Clock
from askew.methods.base import Method
from askew.methods.pace import grown, periods
from askew.methods.registry import METHODS, method
from askew.optim import snapped


@pytest.mark.parametrize("name", NAMES)
def test_every_name_gives_its_method_with_plain_options(name):
    made = method(name, **OPTIONS.get(name, {}))
    assert isinstance(made, Method)
    described = made.describe()
    assert name in {described["method"] + end for end in ("", "-stochastic", "-hard", "-fixed")}
    assert described.get("stochastic", False) == name.endswith("-stochastic")
    assert described.get("hard", False) == name.endswith("-hard")
    assert json.loads(json.dumps(described)) == described
    for key, value in OPTIONS.get(name, {}).items():
        assert described[key] == value


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="no method named 'sgd'; known: full-precision, binaryconnect, "):
        method("sgd")
    with pytest.raises(TypeError, match="beta"):
        method("binaryconnect", beta=1)
    assert {"parq", "parq-hard", "md-tanh", "askew", "askew-level-first"} < set(METHODS)


def test_torchao_is_imported_only_when_asked_for():
    code = "import sys, askew.methods.registry; sys.exit(any(m.startswith('torchao') for m in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("base", ["sgd", "adam"])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_finds_the_signs_of_a_logistic_regression(name, base):
    torch.manual_seed(0)
    for seed in range(3):
        problem = Problem(seed)
        assert int((problem.start.sign() != problem.truth).sum()) >= 2  # there is something to learn
        w = problem.parameter()
        optimizer = wrap(name, w, base)
        train(problem, w, optimizer, STEPS)
        with snapped(optimizer):
            assert torch.equal(w.detach().sign(), problem.truth), seed


def test_periods_and_growth():
    assert [periods(Clock(t), 10) for t in (0, 9, 10, 30)] == [0, 0, 1, 3]
    assert [periods(Clock(t, 50), 0.1) for t in (0, 4, 5, 49)] == [0, 0, 1, 9]
    assert periods(Clock(7, 100), 0.07) == 1  # .07 * 100 is a little more than 7 in floats
    with pytest.raises(ValueError, match="total_steps"):
        periods(Clock(1), 0.1)
    assert grown(1.0, 1.5, 2, 100) == 2.25
    assert grown(1.0, 1.5, 10**6, 100) == 100  # 1.5^(10^6) would overflow
    assert grown(5.0, 1.0, 10**6, 100) == 5 and grown(200.0, 1.0, 0, 100) == 100
