"""Training and prediction on a device that only claims to be one.

Run by tests/training/test_devices.py in a process of its own.

PyTorch takes a device defined in Python, and under ``FakeTensorMode`` its tensors have shapes, types and places but no
numbers. An operation between the CPU and the device raises, and so does reading a number of the device, which a
CUDA graph could not record either. The only ways out are those replaced below.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorDeviceMismatchError,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from fdn import devices
from fdn.models import MODEL_NAMES, Noise, model_spec
from fdn.models.stacking import Stack
from fdn.protocol import AS_WRITTEN, PUBLISHED
from fdn.runs import experiment
from fdn.training import loop
from fdn.training.loop import fit
from fdn.training.steps import AutogradStep, ReplayedStep
from fdn_kernels import given_weights

_setup_privateuseone_for_python_backend("gpu")
DEVICE = torch.device("gpu", 0)
SMALL = {"epochs": 1, "eval_draws": 5, "ensemble_members": 2, "batch_size": 600}  # batches of 600 and 424
PROTOCOLS = {
    "published": replace(PUBLISHED, **SMALL),
    "as_written": replace(AS_WRITTEN, **SMALL),
    "iwae": replace(PUBLISHED, **SMALL, objective="iwae", train_draws=3),
}


@pytest.fixture
def fake(monkeypatch):
    """A device without numbers; what leaves it is 0."""
    left = []

    def to_host(t: torch.Tensor) -> np.ndarray:
        assert t.device == DEVICE
        left.append(t.shape)
        return np.zeros(t.shape)

    initialised = loop._stack

    def stack(*arguments):  # on the CPU, with numbers
        with unset_fake_temporarily():
            return initialised(*arguments)

    monkeypatch.setattr(loop, "_stack", stack)
    monkeypatch.setattr(devices, "to_host", to_host)
    monkeypatch.setattr(given_weights, "_total", lambda counts: 4 * counts.numel())
    with FakeTensorMode(allow_non_fake_inputs=True):  # the host's numbers are real
        yield left


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_training_and_prediction_stay_on_the_device(fake, name, protocol):
    protocol = PROTOCOLS[protocol]
    data, spec = experiment.load_dataset("step", protocol), model_spec(name, 1, protocol)
    trained = fit(spec, data, protocol, (0, 5, 7), device=DEVICE)
    assert trained.flat.device == DEVICE
    assert fake == ([()] * 3 if name == "MLPDropoutNet" else [(3,)])  # the scores of all seeds
    prediction = trained.predict(5, data.x_test)
    draws = {"MLPNet": 1, "HyperNet": 1, "DeepEnsembleNet": 2}.get(name, 5)
    assert prediction.draws.shape == prediction.observation_variance.shape == (draws, len(data.x_test))
    assert prediction.draws.is_cpu and prediction.observation_variance.is_cpu


class _OnDevice(TorchDispatchMode):
    """Every tensor that an operation takes or makes is on the device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in tree_leaves((args, kwargs, result)):
            assert not isinstance(t, torch.Tensor) or t.device == DEVICE, f"{function} on {t.device}"
        return result


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_step_has_no_part_on_the_cpu(fake, name, monkeypatch):
    """As a recording wants it: nothing on the CPU, not even to be copied."""
    protocol, step, taken = PROTOCOLS["published"], AutogradStep.__call__, []

    def watched(self, *arguments):
        with _OnDevice():
            step(self, *arguments)
        taken.append(self)

    monkeypatch.setattr(AutogradStep, "__call__", watched)
    data, spec = experiment.load_dataset("step", protocol), model_spec(name, 1, protocol)
    fit(spec, data, protocol, (0, 5), device=DEVICE)
    assert len(taken) == 2


def _number(self, flat, x, noise, kl):
    output, term = original(self, flat, x, noise, kl)
    return output * output.sum().item(), term


original, as_tensor = Stack.__call__, torch.as_tensor
FORGOTTEN = {
    "training data": (loop.torch, "as_tensor", lambda data, dtype=None, device=None: as_tensor(data, dtype=dtype)),
    "noise of predictions": (Noise, "to", lambda self, device: self),
    "noise of training": (ReplayedStep, "__call__", lambda self, *arguments: self.step(*arguments)),
    "targets": (loop, "mean_score", lambda draws, y: devices.mean_score(draws, y.cpu())),
    "a number read": (Stack, "__call__", _number),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGOTTEN)
def test_what_is_forgotten_is_noticed(fake, what, monkeypatch):
    monkeypatch.setattr(*FORGOTTEN[what])
    protocol = PROTOCOLS["published"]
    data, spec = experiment.load_dataset("step", protocol), model_spec("LP-FDNet", 1, protocol)
    with pytest.raises((FakeTensorDeviceMismatchError, DataDependentOutputException, AssertionError)):
        fit(spec, data, protocol, (0, 5), device=DEVICE)
