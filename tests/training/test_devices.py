"""Training on a device: the buffered and replayed step, all seeds in one call, scores, and what a person is told.

Without a GPU: the step runs from its buffers on the CPU; a recorder of PyTorch's operations stands in for CUDA graphs,
with everything but the buffers' contents frozen as there; whole trainings by these give the CPU's numbers; and a device
without numbers, in a process of its own, raises where something was left on the CPU. With one: the GPU's numbers are
the CPU's.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from recording import Recording

from fdn import devices, metrics
from fdn.cli import main
from fdn.models import MODEL_NAMES, ModelSpec, Noise, build_network, model_spec
from fdn.models.stacking import Stack
from fdn.protocol import AS_WRITTEN, PUBLISHED
from fdn.runs import experiment
from fdn.streams import Streams, seed_sequence
from fdn.training import loop, steps
from fdn.training.fused import FusedStep
from fdn.training.loop import fit
from fdn.training.objectives import HomoscedasticGaussian
from fdn.training.prediction import noise_kind, predict_outputs
from fdn.training.steps import AutogradStep, ReplayedStep
from fdn_kernels import loops

LIKELIHOOD = HomoscedasticGaussian(0.5)
PROTOCOLS = {
    "published": PUBLISHED,
    "as_written": AS_WRITTEN,
    "iwae": replace(PUBLISHED, objective="iwae", train_draws=3),
    "float32": replace(PUBLISHED, dtype="float32"),
}
BATCHES = (9, 9, 4, 9, 9, 4, 9, 4, 4, 9, 4, 9)  # of two sizes, each more often than the warm-up
SEEDS = 3
TENSOR_OPERATIONS = (loops, "is_plain", lambda t: False)  # throughout, as on a GPU, and no compiled loops


def _stack(name: str, protocol) -> Stack:
    torch.manual_seed(0)
    hyper = 3 if "Hyper" in name or "FDN" in name else None
    spec = ModelSpec(name, (6, 5), hyper, 2 if name == "GaussHyperNet" else None, 2 if name == "DeepEnsembleNet" else 1)
    lead = (SEEDS, 2) if spec.members > 1 else (SEEDS,)
    networks = [build_network(spec, 2, protocol).to(getattr(torch, protocol.dtype)) for _ in range(math.prod(lead))]
    return Stack(networks, lead)


def _trained(name: str, protocol, wrap) -> torch.Tensor:
    """Parameters after steps of changing data, noise and beta."""
    stack = _stack(name, protocol)
    lead, dtype = stack.flat.shape[:-1], stack.flat.dtype
    step = wrap(AutogradStep(stack, protocol, LIKELIHOOD))
    roots = [seed_sequence("d", name, seed, "train") for seed in range(math.prod(lead))]
    streams, kind = Streams(roots, lead, dtype), noise_kind(protocol.noise, protocol.objective == "iwae")
    generator = torch.Generator().manual_seed(1)
    for i, batch in enumerate(BATCHES):
        x, y = (torch.randn(*lead, batch, *d, dtype=dtype, generator=generator) for d in ((2,), ()))
        noise = stack.network.draw_noise(streams, kind, protocol.train_draws, batch, training=True)
        constant = protocol.rate_schedule == "constant"
        step(x, y, noise, 0.1 * i, protocol.learning_rate if constant else 2.0**-10 * i)
    return stack.flat.detach()


@pytest.fixture
def recorder(monkeypatch):
    """The calls of PyTorch's CUDA that a replayed step makes, with a recorder in place of graphs; counts recordings."""
    made = []

    @contextlib.contextmanager
    def graph(recording, stream):
        step = stream.step
        held = [step.flat, *(t for state in step.optimizer.state.values() for t in state.values())]
        before = [t.detach().clone() for t in held]
        with recording:
            yield
        with torch.no_grad():  # nothing is computed while a CUDA graph is recorded
            for t, value in zip(held, before):
                t.copy_(value)
        made.append(recording)

    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "CUDAGraph": Recording, "graph": graph, "Stream": lambda device: stream,
        "current_stream": lambda device: stream, "stream": lambda stream: contextlib.nullcontext(),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def wrap(step):
        stream.step = step
        return ReplayedStep(step, graph=True)

    return SimpleNamespace(wrap=wrap, made=made)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_step_from_buffers_is_the_step_to_the_bit(name, protocol):
    protocol = PROTOCOLS[protocol]
    expected = _trained(name, protocol, lambda step: step)
    assert torch.equal(_trained(name, protocol, functools.partial(ReplayedStep, graph=False)), expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_recorded_step_is_the_step_to_the_bit(name, protocol, recorder, monkeypatch):
    """Everything a step reads is in its buffers: whatever were not would be that of the recorded step."""
    monkeypatch.setattr(*TENSOR_OPERATIONS)
    protocol = PROTOCOLS[protocol]
    expected = _trained(name, protocol, lambda step: step)
    assert torch.equal(_trained(name, protocol, recorder.wrap), expected)
    assert len(recorder.made) == 2  # one for each batch size


def _copied(noise: Noise) -> Noise:
    return Noise(noise.kind, tuple(torch.tensor(e.tolist(), dtype=e.dtype) for e in noise.eps), noise.masks)


def test_what_a_recording_would_freeze_is_noticed(recorder, monkeypatch):
    monkeypatch.setattr(*TENSOR_OPERATIONS)
    protocol = replace(PUBLISHED, rate_schedule="one_cycle")
    expected = _trained("LP-FDNet", protocol, lambda step: step)
    arguments = steps._Held.arguments.fget
    frozen = {
        "beta as a float": lambda held: (*arguments(held)[:3], float(held.beta), *arguments(held)[4:]),
        "the rate as a float": lambda held: (*arguments(held)[:4], float(held.rate), held.weight),
        "a copy of x": lambda held: (torch.tensor(held.x.tolist(), dtype=held.x.dtype), *arguments(held)[1:]),
        "a copy of the noise": lambda held: (*arguments(held)[:2], _copied(held.noise), *arguments(held)[3:]),
    }
    for wrong in frozen.values():
        monkeypatch.setattr(steps._Held, "arguments", property(wrong))
        assert not torch.equal(_trained("LP-FDNet", protocol, recorder.wrap), expected)


@pytest.mark.parametrize("protocol", ["published", "as_written"])
@pytest.mark.parametrize("name", [name for name in MODEL_NAMES if name != "MLPDropoutNet"])
def test_all_seeds_in_one_call_are_the_seeds_one_by_one(name, protocol):
    protocol = PROTOCOLS[protocol]
    stack, kind = _stack(name, protocol), noise_kind(protocol.noise)
    flat, members = stack.flat, math.prod(stack.flat.shape[1:-1])
    roots = [[seed_sequence("d", name, seed, "test", m) for m in range(members)] for seed in range(SEEDS)]
    x = torch.randn(40, 2, dtype=torch.float64)
    streams = Streams([root for own in roots for root in own], flat.shape[:-1], flat.dtype)
    together = predict_outputs(stack, flat, x, streams, 5, kind)
    for r in range(SEEDS):
        alone = predict_outputs(stack, flat[r], x, Streams(roots[r], flat.shape[1:-1], flat.dtype), 5, kind)
        torch.testing.assert_close(together[r], alone, rtol=1e-12, atol=1e-13)


def test_scores_are_those_of_the_metrics():
    torch.manual_seed(0)
    draws, y = torch.randn(3, 7, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    draws[0, :4] = 0.5  # ties
    torch.testing.assert_close(devices.crps(draws, y), torch.from_numpy(metrics.crps(draws.numpy(), y.numpy())))
    draws[1, 2, 3], draws[2, 0, 1] = math.nan, math.inf
    found, expected = devices.crps(draws, y).numpy(), metrics.crps(draws.numpy(), y.numpy())
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    for k in (1, 7):
        score = metrics.crps if k > 1 else metrics.mse
        np.testing.assert_allclose(devices.mean_score(draws[0, :k], y), score(draws[0, :k].numpy(), y.numpy()).mean())


def test_nothing_is_left_on_the_cpu():
    """Long, for every operation of every model goes through Python.

    In a process of its own, for it defines a device.
    """
    checks = str(Path(__file__).parent / "device_checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider", checks]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path, capsys):
    run = ["run", "--dataset", "step", "--models", "MLPNet", "--seeds", "0", "--epochs", "1", "--workers", "1"]
    for command in (run, ["bench", "--quick"]):
        assert main([*command, "--device", "cuda", "--out", str(tmp_path / "none")]) == 2
        said = capsys.readouterr()
        assert said.err.startswith("fdn: the device cuda needs an NVIDIA GPU") and said.err.count("\n") == 1
        assert not (tmp_path / "none").exists()
    assert main([*run, "--device", "gpu", "--out", str(tmp_path / "none")]) == 2
    assert "unknown device 'gpu'; choose from cpu, cuda, auto" in capsys.readouterr().err
    assert main([*run, "--device", "auto", "--out", str(tmp_path)]) == 0
    assert "no GPU" in capsys.readouterr().err
    [sidecar] = tmp_path.glob("sidecar/**/*.json")
    assert json.loads(sidecar.read_text(encoding="utf-8"))["environment"]["device"] == "cpu"
    assert main([*run, "--out", str(tmp_path / "cpu")]) == 0
    assert "GPU" not in capsys.readouterr().err


def _fits(name: str, protocol, device, monkeypatch, changes):
    """A training on the CPU, and after these changes of the program one on the device."""
    members = 2 if name == "DeepEnsembleNet" else 1
    protocol = replace(protocol, epochs=3 * members, eval_draws=20, ensemble_members=members)
    data, spec = experiment.load_dataset("step", protocol), model_spec(name, 1, protocol)
    expected = fit(spec, data, protocol, (0, 5))
    for change in changes:
        monkeypatch.setattr(*change)
    return data, expected, fit(spec, data, protocol, (0, 5), device=device)


def _assert_same(data, expected, found) -> None:
    torch.testing.assert_close(found.flat.cpu(), expected.flat, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-9)
    assert list(found.best_epoch) == list(expected.best_epoch)
    ours, theirs = found.predict(5, data.x_test), expected.predict(5, data.x_test)
    torch.testing.assert_close(ours.draws, theirs.draws, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("protocol", ["published", "as_written", "iwae"])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_program_of_a_gpu_gives_the_numbers_of_the_cpu(name, protocol, recorder, monkeypatch):
    """With the CPU in the GPU's place, and the recorder in that of its graphs."""
    changes = [
        (loop, "ReplayedStep", recorder.wrap), TENSOR_OPERATIONS, (loop, "mean_score", _score),
        (FusedStep, "supports", staticmethod(lambda *_: False)),
    ]  # fmt: skip
    place = torch.device("cpu", 0)  # which is not the device "cpu"
    _assert_same(*_fits(name, PROTOCOLS[protocol], place, monkeypatch, changes))
    assert len(recorder.made) == 1


def _score(draws: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    score = devices.crps(draws, y) if draws.shape[-2] > 1 else (draws - y).square().mean(-2)
    return score.mean(-1).numpy()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("protocol", ["published", "as_written", "iwae"])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_gpu_gives_the_numbers_of_the_cpu(name, protocol, graph, monkeypatch):
    changes = [(loop, "ReplayedStep", functools.partial(ReplayedStep, graph=graph))]
    data, expected, found = _fits(name, PROTOCOLS[protocol], "cuda", monkeypatch, changes)
    assert found.flat.is_cuda
    _assert_same(data, expected, found)


@pytest.mark.parametrize("name", [torch.device("meta"), torch.device("mps"), torch.device("cuda", 99), 3, [], None])
def test_a_device_that_is_not_there_is_refused_however_it_is_named(name):
    with pytest.raises(ValueError, match="unknown device"):
        devices.choose_device(name)
    assert devices.choose_device(torch.device("cpu")) == torch.device("cpu")
