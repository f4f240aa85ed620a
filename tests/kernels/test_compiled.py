"""The compiled loops of the CPU path against plain formulas.

ReLU networks of given weights, and dropout drawn by subsets of units.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from numba.core import caching
from numba.core.registry import CPUDispatcher
from scipy import stats

from fdn.streams import Streams, _subset_table, seed_sequence
from fdn_kernels import compiling, dropout_linear, given_weights, mlp, numba_networks, numba_ops, vector_math


@pytest.mark.parametrize("module", [numba_networks, numba_ops, vector_math])
def test_loops_called_by_loops_are_part_of_them(module):
    """Otherwise the first process, which compiles, gets other last digits than all later ones."""
    loops = {name: value for name, value in vars(module).items() if isinstance(value, CPUDispatcher)}
    called = {name for loop in loops.values() for name in loop.py_func.__code__.co_names if name in loops}
    assert loops and {name for name in called if not loops[name].targetoptions.get("forceinline")} == set()


def test_a_processor_that_is_named_keeps_its_own_features():
    """Numba's generic processor has none; those of this machine would make it another one."""
    program = "from numba import config; import fdn_kernels.compiling; print(repr(config.CPU_FEATURES))"
    environment = os.environ | {"NUMBA_CPU_NAME": "generic"}
    environment.pop("NUMBA_CPU_FEATURES", None)
    assert (
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, encoding="utf-8").stdout
        == "''\n"
    )


def _network(lead, draws, widths, dtype=torch.float64):
    sizes = [b * (a + 1) for a, b in itertools.pairwise(widths)]
    return [torch.randn(*lead, draws, 1, n, dtype=dtype) for n in sizes]


@pytest.mark.parametrize("widths", [(1, 1, 1), (1, 7, 1), (5, 166, 1), (3, 4, 9, 2), (2, 3)])
@pytest.mark.parametrize(("lead", "draws", "batch"), [((), 1, 1), ((), 3, 257), ((4,), 1, 64), ((2, 3), 2, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_networks_of_given_weights_equal_their_layers_with_every_gradient(widths, lead, draws, batch, masked):
    torch.manual_seed(0)
    thetas = _network(lead, draws, widths)
    masks = [torch.rand(*lead, draws, batch, d) > 0.3 for d in widths[1:-1]] if masked else []
    for x in (
        torch.randn(batch, widths[0], dtype=torch.float64),
        torch.randn(*lead, batch, widths[0], dtype=torch.float64),
    ):
        expected = given_weights._mlp_of_layers(x, thetas, masks, 0.3)
        torch.testing.assert_close(
            mlp(x, thetas, widths, masks, 0.3).expand_as(expected), expected
        )  # without gradients
        leaves, others = ([t.clone().requires_grad_() for t in thetas] for _ in range(2))
        found, plain = mlp(x, leaves, widths, masks, 0.3), given_weights._mlp_of_layers(x, others, masks, 0.3)
        incoming = torch.randn_like(plain)
        for one, two in zip(torch.autograd.grad(found, leaves, incoming), torch.autograd.grad(plain, others, incoming)):
            torch.testing.assert_close(one, two)


def test_networks_in_other_types_or_differentiated_twice_take_the_plain_way():
    thetas, x = _network((), 2, (2, 3, 1), torch.float32), torch.randn(4, 2)
    assert mlp(x, thetas, (2, 3, 1)).dtype == torch.float32
    x = x.double().requires_grad_()
    y = mlp(x, [t.double() for t in thetas], (2, 3, 1))
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    assert grad.shape == x.shape and grad.requires_grad


def test_nan_and_infinity_pass_through_networks():
    thetas = _network((), 1, (1, 5, 1))
    for value in (math.nan, math.inf):
        x = torch.tensor([[0.5], [value]], dtype=torch.float64)
        found, expected = mlp(x, thetas, (1, 5, 1)), given_weights._mlp_of_layers(x, thetas, [], 0.0)
        torch.testing.assert_close(found, expected, equal_nan=True)


def _masks_of_subsets(subsets: np.ndarray, a: torch.Tensor, draws: int) -> torch.Tensor:
    """The masks that subsets stand for, unit by unit."""
    keep, remaining = torch.ones(draws, *a.shape[1:], dtype=torch.bool), iter(subsets.tolist())
    for b in range(a.shape[1]):
        for shared in range(len(a)):
            live = torch.nonzero(a[shared, b]).flatten().tolist()
            for start in range(0, len(live), 8):
                for k in range(draws) if len(a) == 1 else [shared]:
                    subset = next(remaining)
                    for j, unit in enumerate(live[start : start + 8]):
                        keep[k, b, unit] = not subset >> j & 1
    assert next(remaining, None) is None  # all are used
    return keep


@pytest.mark.parametrize(("draws", "a_draws"), [(1, 1), (7, 1), (7, 7), (30, 1)])
@pytest.mark.parametrize(("batch", "d_in", "d_out"), [(1, 1, 1), (5, 3, 1), (4, 9, 3), (33, 40, 1)])
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_dropout_by_subsets_is_dropout_with_the_masks_they_stand_for(draws, a_draws, batch, d_in, d_out, rate):
    torch.manual_seed(1)
    streams = Streams([seed_sequence("d", "m", 0, "test")], (), torch.float64)
    a = torch.randn(a_draws, batch, d_in, dtype=torch.float64).relu()
    weight, bias = torch.randn(d_out, d_in, dtype=torch.float64), torch.randn(d_out, dtype=torch.float64)
    drawn = []

    def subsets(n: int) -> np.ndarray:
        drawn.append(streams.subsets(rate, n))
        return drawn[-1]

    y = dropout_linear(a, subsets, rate, weight, bias, draws)
    keep = _masks_of_subsets(drawn[0], a, draws)
    torch.testing.assert_close(y, (a * keep / (1 - rate)) @ weight.T + bias)
    live = a != 0
    written = (
        given_weights._kept(live, (live.sum(-1) + 7) // 8, torch.from_numpy(drawn[0]), draws) if len(drawn[0]) else keep
    )
    assert torch.equal(written | ~live, keep | ~live)  # as a GPU has them


def test_dropout_has_its_mean_and_variance_and_independent_masks():
    streams = Streams([seed_sequence("d", "m", 1, "test")], (), torch.float64)
    a, weight = torch.rand(1, 2, 50, dtype=torch.float64), torch.randn(1, 50, dtype=torch.float64)
    draws, rate = 40_000, 0.1
    y = dropout_linear(a, lambda n: streams.subsets(rate, n), rate, weight, torch.zeros(1, dtype=torch.float64), draws)[
        ..., 0
    ]
    terms = a[0] * weight  # (2, 50)
    variance = rate / (1 - rate) * terms.square().sum(1)
    assert ((y.mean(0) - terms.sum(1)) / (variance / draws).sqrt()).abs().max() < 4
    assert (y.var(0) / variance - 1).abs().max() < 0.05
    assert abs(torch.corrcoef(y.T)[0, 1]) < 4 / math.sqrt(draws)  # of two examples
    assert abs(torch.corrcoef(torch.stack([y[:-1, 0], y[1:, 0]]))[0, 1]) < 4 / math.sqrt(draws)  # of successive draws


@pytest.mark.parametrize("rate", [1e-12, 0.1, 0.5, 0.99])
def test_subsets_have_independent_units_of_the_rate(rate):
    streams = Streams([seed_sequence("d", "m", 2, "test")], (), torch.float64)
    n = 400_001
    subsets = streams.subsets(rate, n)
    assert subsets.shape == (n,) and subsets.dtype == np.uint8
    members = np.array([bin(s).count("1") for s in range(256)])
    probability = rate**members * (1 - rate) ** (8 - members)
    observed, often = np.bincount(subsets, minlength=256), probability * n > 5
    assert observed[probability * n < 1e-3].sum() == 0
    if rate > 1e-9:
        observed = np.append(observed[often], observed[~often].sum())
        expected = np.append(probability[often], probability[~often].sum()) * n
        assert stats.chisquare(observed + 1e-9, expected + 1e-9).pvalue > 1e-3
    again = Streams([seed_sequence("d", "m", 2, "test")], (), torch.float64)
    assert np.array_equal(subsets, again.subsets(rate, n))


@pytest.mark.parametrize("rate", [1e-12, 0.1, 0.37, 0.99])
def test_the_table_of_subsets_holds_their_probabilities(rate):
    table = _subset_table(rate)
    own = (table >> 8) / 2**24
    found = np.bincount(np.arange(256), own, 256) + np.bincount(table & 255, 1 - own, 256)
    members = np.array([bin(s).count("1") for s in range(256)])
    np.testing.assert_allclose(found / 256, rate**members * (1 - rate) ** (8 - members), atol=2.0**-31)


def _loop(folder, name="loop"):
    """A loop in a module of its own, as a new process would import it."""
    path = folder / f"{name}.py"
    path.write_text(
        "from fdn_kernels.compiling import EXACT, njit\n\n\n@njit(**EXACT)\ndef double(x):\n    return x + x\n",
        encoding="utf-8",
    )
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.double


@pytest.fixture
def said(monkeypatch, caplog):
    """What the cache has complained of."""
    monkeypatch.setattr(compiling._Cache, "_said", False)
    return caplog


def test_compiled_loops_are_found_by_the_next_process(tmp_path, said):
    first = _loop(tmp_path)
    assert first(2.0) == 4.0 and first(2) == 4  # two signatures
    second = _loop(tmp_path)
    assert second(3.0) == 6.0 and second(3) == 6
    assert sum(second.stats.cache_hits.values()) == 2 and not second.stats.cache_misses and not said.messages


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [
    lambda content: b"", lambda content: content[:100], lambda content: content[:-1], lambda content: b"x" * 5000,
    _flip,
])  # fmt: skip
def test_a_damaged_cache_is_written_anew(damage, tmp_path, said):
    assert _loop(tmp_path)(2.0) == 4.0
    [path] = tmp_path.glob("__pycache__/*.nbc")
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert _loop(tmp_path)(2.0) == 4.0
    healed = _loop(tmp_path)
    assert healed(2.0) == 4.0 and sum(healed.stats.cache_hits.values()) == 1 and not said.messages
    assert list(tmp_path.glob("__pycache__/*.nb*")) == [path]


def test_the_file_of_another_signature_or_source_does_not_count(tmp_path):
    first = _loop(tmp_path)
    first(2.0), first(2)
    one, other = tmp_path.glob("__pycache__/*.nbc")
    one.write_bytes(other.read_bytes())  # as processes that share an index can leave them
    second = _loop(tmp_path)
    assert second(1.5) == 3.0 and second(2) == 4 and sum(second.stats.cache_misses.values()) == 1
    (tmp_path / "loop.py").write_text(
        (tmp_path / "loop.py").read_text(encoding="utf-8").replace("x + x", "x * 5"), encoding="utf-8"
    )
    spec = importlib.util.spec_from_file_location("loop", tmp_path / "loop.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    assert module.double(2) == 10


def test_without_a_place_for_a_cache_loops_are_compiled_and_one_word_is_said(tmp_path, said, monkeypatch):
    monkeypatch.setattr(caching.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    monkeypatch.setattr(caching.config, "CACHE_DIR", "/dev/null/nowhere")
    loops = [_loop(tmp_path, name) for name in ("one", "two")]
    assert not said.messages  # what is not compiled needs no cache
    assert [loop(2.0) for loop in loops] == [4.0, 4.0]
    assert (
        len(said.messages) == 1 and "no locator available" in said.messages[0] and "NUMBA_CACHE_DIR" in said.messages[0]
    )


@pytest.mark.parametrize("name", ["__pycache__", "file"])
def test_a_cache_that_can_no_longer_be_written_is_done_without(name, tmp_path, said, monkeypatch):
    monkeypatch.setattr(caching.config, "CACHE_DIR", "" if name == "__pycache__" else str(tmp_path / name))
    loop = _loop(tmp_path)
    shutil.rmtree(tmp_path / name)
    (tmp_path / name).write_text("a file in the place of the folder", encoding="utf-8")
    assert loop(2.0) == 4.0 and len(said.messages) == 1


def test_no_module_uses_a_cache_that_may_not_fail():
    for module in (numba_networks, numba_ops, vector_math):
        loops = [value for value in vars(module).values() if isinstance(value, CPUDispatcher)]
        assert loops and {type(loop._cache) for loop in loops} == {compiling._Cache}


def test_every_command_starts_without_a_cache():
    """In a process of its own, since the loops are decorated when they are imported."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": "/dev/null/nowhere",
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    }
    done = subprocess.run(
        [sys.executable, "-m", "fdn", "data", "step"], env=environment, capture_output=True, encoding="utf-8"
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["step", "needs", "no", "file"], "")
