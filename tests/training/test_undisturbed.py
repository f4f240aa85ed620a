"""Results depend on their arguments only: no setting of the caller's reaches them, and none is changed."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from small_models import toy2

from fdn import data
from fdn.models import ModelSpec, count_parameters, initial_network
from fdn.protocol import AS_WRITTEN, PUBLISHED
from fdn.runs import experiment, results
from fdn.streams import Streams, seed_sequence
from fdn.timing.plain import plain_fit
from fdn.training.loop import fit
from fdn_kernels import fdn_linear, mlp

SMALL = {"epochs": 2, "warmup": 3, "eval_draws": 7, "ensemble_members": 2, "batch_size": 16}
PROTOCOLS = replace(PUBLISHED, **SMALL), replace(AS_WRITTEN, **SMALL, dtype="float32")
SPECS = (
    ModelSpec("HyperNet", (6,), 3), ModelSpec("MLPDropoutNet", (6,)), ModelSpec("DeepEnsembleNet", (6,), members=2),
    ModelSpec("BayesNet", (6,)), ModelSpec("GaussHyperNet", (6,), 3, 2), ModelSpec("LP-FDNet", (6,), 3),
)  # fmt: skip


@contextlib.contextmanager
def _setting(change: Callable[[object], None], value: object, before: object) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


@contextlib.contextmanager
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def _other_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        numpys, pythons = np.random.get_state(), random.getstate()
        torch.manual_seed(99), np.random.seed(99), random.seed(99)
        try:
            yield
        finally:
            np.random.set_state(numpys), random.setstate(pythons)


STATES = {
    "default type": partial(_setting, torch.set_default_dtype, torch.float64, torch.float32),
    "default device": partial(_setting, torch.set_default_device, "meta", None),
    "device context": partial(torch.device, "meta"),
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "deterministic": partial(_setting, torch.use_deterministic_algorithms, True, False),
    "threads": partial(_setting, torch.set_num_threads, 3, 1),
    "products of float32": partial(_setting, torch.set_float32_matmul_precision, "medium", "highest"),
    "random numbers": _other_random_numbers,
    "errstate": partial(np.errstate, all="raise"),
    "anomalies": partial(torch.autograd.set_detect_anomaly, True),
    "warnings": _warnings_are_errors,
}  # fmt: skip


def _state() -> list[object]:
    """All that a caller may have set."""
    numpys = np.random.get_state()
    return [
        torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled(), torch.get_float32_matmul_precision(),
        torch.default_generator.get_state().numpy().tobytes(), numpys[1].tobytes(), numpys[2:], random.getstate(),
        np.geterr(), list(warnings.filters),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    return toy2(40)


def _numbers(dataset) -> list[np.ndarray]:
    """Everything that is computed for a small study."""
    found = []
    for spec in SPECS:
        for protocol in PROTOCOLS:
            trained = fit(spec, dataset, protocol, [0, 3])
            prediction = trained.predict(3, dataset.x_test)
            start = initial_network(spec, dataset.name, 2, protocol, 5)
            found += [
                trained.flat,
                trained.scores,
                trained.best_epoch,
                prediction.draws,
                prediction.observation_variance,
            ]
            found += [*trained.network(3).parameters(), *start.parameters(), count_parameters(spec, 2, protocol)]
    diverged = fit(SPECS[0], dataset, replace(PROTOCOLS[0], learning_rate=1e300), [0])
    assert not np.isfinite(diverged.scores).all()
    found += [diverged.flat, diverged.scores]
    assert not any(t.requires_grad or t.is_inference() for t in found if isinstance(t, torch.Tensor) and not t.is_leaf)
    return [np.asarray(t.detach() if isinstance(t, torch.Tensor) else t) for t in found]


@pytest.fixture(scope="module")
def expected(dataset) -> list[np.ndarray]:
    return _numbers(dataset)


@pytest.mark.parametrize("name", STATES)
def test_a_setting_of_the_caller_neither_reaches_results_nor_changes(name, dataset, expected):
    with STATES[name]():
        before = _state()
        found = _numbers(dataset)
        assert _state() == before
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", STATES)
def test_cells_and_the_plain_program_do_not_see_them_either(name, dataset, tmp_path):
    block = experiment.Block(dataset, "IC-FDNet", PROTOCOLS[0], (0, 1))
    experiment.run_block(block, tmp_path / "before")
    first = plain_fit(SPECS[-1], dataset, PROTOCOLS[0], 0, program_noise=True)
    with STATES[name]():
        before = _state()
        experiment.run_block(block, tmp_path / "after")
        second = plain_fit(SPECS[-1], dataset, PROTOCOLS[0], 0, program_noise=True)
        assert _state() == before
    assert torch.equal(first.history, second.history)
    one, other = (results.collect(tmp_path / folder) for folder in ("before", "after"))
    assert one.equals(other)


def test_an_exception_brings_the_settings_back_too(dataset):
    with STATES["default type"](), STATES["threads"](), torch.no_grad():
        before = _state()
        with pytest.raises(ValueError, match="seeds are"):
            fit(SPECS[0], dataset, PROTOCOLS[0], [])
        assert _state() == before


def test_threads_that_start_networks_do_not_share_random_numbers():
    starts = [initial_network(SPECS[3], "toy2", 2, PROTOCOLS[0], seed) for seed in range(40)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda seed: initial_network(SPECS[3], "toy2", 2, PROTOCOLS[0], seed), range(40)))
    finally:
        sys.setswitchinterval(before)
    for one, other in zip(starts, found):
        assert all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("name", ["default type", "default device", "deterministic", "threads", "warnings", "errstate"])
def test_the_ops_depend_on_the_types_and_devices_of_their_arguments_only(name):
    torch.manual_seed(0)
    options = {"dtype": torch.float64}
    a, z, weight, bias = (torch.randn(*shape, **options) for shape in ((1, 4, 2), (1, 4, 3), (18, 3), (18,)))
    thetas, x = [torch.randn(2, 1, n, **options) for n in (15, 6)], torch.randn(4, 2, **options)
    eps = torch.randn(5, 1, 9, **options)

    def results_of_ops():
        streams = Streams([seed_sequence("d", "m", 0, "train")], (), torch.float64)
        leaves = [t.clone().requires_grad_() for t in (a, z, weight, bias)]
        y, kl = fdn_linear(*leaves, noise="shared", eps=eps)
        found = [y, kl, *torch.autograd.grad(y.sum() + kl.sum(), leaves)]
        for noise in ("shared", "local"):
            found += fdn_linear(*(t.float() for t in (a, z, weight, bias)), noise=noise, seed=3, draws=5)
        for masks in ((), (streams.keep(0.5, 2, 4, 5),)):
            leaves = [t.clone().requires_grad_() for t in thetas]
            y = mlp(x, leaves, (2, 5, 1), masks, 0.5)
            found += [y, *torch.autograd.grad(y.sum(), leaves)]
        return [t.detach().numpy() for t in (*found, streams.normal(7), streams.permutations(5))]

    expected = results_of_ops()
    with STATES[name]():
        found = results_of_ops()
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()
