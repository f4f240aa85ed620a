"""The compiled training step against autograd and torch's Adam, for every model, depth and shape it takes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fdn.models import PAPER_MODELS, ModelSpec, build_network, model_spec
from fdn.models.stacking import Stack
from fdn.protocol import AS_WRITTEN, PUBLISHED
from fdn.runs import experiment
from fdn.streams import Streams, seed_sequence
from fdn.training import fused
from fdn.training.fused import FusedStep
from fdn.training.loop import fit
from fdn.training.objectives import HeteroscedasticGaussian, HomoscedasticGaussian, beta_elbo

LIKELIHOOD = HomoscedasticGaussian(0.5)
MODELS = "MLPNet", *PAPER_MODELS
SOFTPLUS = replace(PUBLISHED, global_scale="softplus", floor=0.02, prior_scale=0.7)


def _setting(name, hidden, lead, batch, d, protocol):
    torch.manual_seed(0)
    whole = model_spec(name, d, PUBLISHED)
    spec = ModelSpec(name, hidden or whole.hidden, whole.hyper, whole.latent)
    networks = [build_network(spec, d, protocol).double() for _ in range(math.prod(lead))]
    for network in networks:
        network.dropout = 0.2 if name in ("MLPDropoutNet", "DeepEnsembleNet") else 0.0
    stack = Stack(networks, lead)
    roots = [seed_sequence("d", name, seed, "train") for seed in range(math.prod(lead))]
    streams = Streams(roots, lead, torch.float64)
    noise = stack.network.draw_noise(streams, "shared", 1, batch, training=True)
    x, y = torch.randn(*lead, batch, d, dtype=torch.float64), torch.randn(*lead, batch, dtype=torch.float64)
    return stack, x, y, noise


def _gradient(stack, x, y, noise, beta):
    flat = stack.flat.clone().requires_grad_()
    output, kl = stack(flat, x, noise, "analytic")
    beta_elbo(output, y, kl, beta, LIKELIHOOD).sum().backward()
    return flat.grad


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("hidden", [None, (1,), (7,), (4, 3), (3, 5, 2)])
@pytest.mark.parametrize(("lead", "batch", "d"), [((1,), 1, 1), ((3,), 17, 2), ((2, 2), 64, 5)])
@pytest.mark.parametrize("protocol", [PUBLISHED, SOFTPLUS], ids=["published", "softplus"])
def test_gradient_is_that_of_autograd(name, hidden, lead, batch, d, protocol):
    stack, x, y, noise = _setting(name, hidden, lead, batch, d, protocol)
    assert FusedStep.supports(stack, protocol, LIKELIHOOD)
    found = FusedStep(stack, protocol).gradient(x, y, noise, 0.3)
    expected = _gradient(stack, x, y, noise, 0.3)
    torch.testing.assert_close(found.view_as(expected), expected, rtol=1e-9, atol=1e-11)


def test_members_may_share_their_minibatches():
    stack, x, y, noise = _setting("DeepEnsembleNet", None, (2, 3), 5, 1, PUBLISHED)
    x, y = x[:, :1], y[:, :1]
    expected = _gradient(stack, x, y, noise, 0.3)
    torch.testing.assert_close(FusedStep(stack, PUBLISHED).gradient(x, y, noise, 0.3).view_as(expected), expected)


@pytest.mark.parametrize("name", MODELS)
def test_one_workspace_serves_minibatches_of_all_sizes(name):
    stack, *_ = _setting(name, (4, 3), (2,), 1, 1, PUBLISHED)
    take_step, work = FusedStep(stack, PUBLISHED), []
    for batch in (64, 17, 65, 64, 1):
        _, x, y, noise = _setting(name, (4, 3), (2,), batch, 1, PUBLISHED)
        torch.testing.assert_close(
            take_step.gradient(x, y, noise, 0.3).view_as(stack.flat), _gradient(stack, x, y, noise, 0.3)
        )
        work.append(take_step.work)
    assert work[0] is work[1] and work[2] is work[3] is work[4]  # fresh memory is as slow as the step itself


@pytest.mark.parametrize("name", ["BayesNet", "GaussHyperNet", "IC-FDNet", "LP-FDNet"])
@pytest.mark.parametrize("hidden", [None, (1,), (4, 3)])
@pytest.mark.parametrize("protocol", [PUBLISHED, SOFTPLUS], ids=["published", "softplus"])
@pytest.mark.parametrize(("batch", "d", "draws"), [(1, 1, 1), (64, 1, 2), (65, 5, 7), (199, 2, 3), (104, 1, 67)])
def test_draws_are_those_of_the_layers(name, hidden, protocol, batch, d, draws):
    stack, *_ = _setting(name, hidden, (1,), 1, d, protocol)
    x = torch.randn(batch, d, dtype=torch.float64)
    noise = stack.network.draw_noise(
        Streams([seed_sequence("d", name, 0, "test")], (), torch.float64), "shared", draws, batch, False
    )
    found = torch.empty(draws, 2 * batch, 1, dtype=torch.float64)[:, :batch]  # not contiguous
    assert fused.draws(stack, stack.flat[0], x, noise, found)
    with torch.no_grad():
        torch.testing.assert_close(found, stack(stack.flat[0], x, noise)[0])
    if stack.network.global_weights:
        return
    for layer in stack.network.layers:
        layer.backend = "reference"
    assert not fused.draws(stack, stack.flat[0], x, noise, found)


@pytest.mark.parametrize("clip", [None, 1.0, 1e9])
@pytest.mark.parametrize("name", ["BayesNet", "LP-FDNet"])
def test_steps_are_those_of_clipping_and_adam(name, clip):
    protocol = replace(PUBLISHED, clip_norm=clip)
    stack, x, y, noise = _setting(name, None, (3,), 9, 1, protocol)
    plain = Stack([stack.extract(row) for row in stack.flat], (3,))
    parameters = [row.clone().requires_grad_() for row in stack.flat]  # one Adam for each replicate
    adams = [torch.optim.Adam([p], lr=protocol.learning_rate) for p in parameters]
    step = FusedStep(stack, protocol)
    for i in range(1, 8):
        plain.flat = torch.stack([p.detach() for p in parameters])
        grad = _gradient(plain, x, y, noise, 0.1 * i)
        for p, g, adam in zip(parameters, grad, adams):
            p.grad = g.clone()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([p], clip)
            adam.step()
        step(x, y, noise, 0.1 * i, protocol.learning_rate)
        torch.testing.assert_close(stack.flat, torch.stack([p.detach() for p in parameters]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_autograd(name, monkeypatch):
    protocol = replace(PUBLISHED, epochs=2, eval_draws=4, ensemble_members=2, batch_size=512)
    data = experiment.load_dataset("step", protocol)
    spec = model_spec(name, 1, protocol)
    found = fit(spec, data, protocol, (0, 5))
    monkeypatch.setattr(FusedStep, "supports", staticmethod(lambda *_: False))
    expected = fit(spec, data, protocol, (0, 5))
    torch.testing.assert_close(found.flat, expected.flat, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-8)


def test_only_what_the_loops_compute_is_taken():
    def taken(name, protocol=PUBLISHED, likelihood=LIKELIHOOD, change=None):
        stack, *_ = _setting(name, None, (2,), 3, 1, protocol)
        if change is not None:
            change(stack)
        return FusedStep.supports(stack, protocol, likelihood)

    assert taken("LP-FDNet") and taken("BayesNet", AS_WRITTEN)
    assert not taken("HyperNet")
    assert not taken("LP-FDNet", AS_WRITTEN)  # noise of its own for every example
    assert not taken("LP-FDNet", replace(PUBLISHED, objective="iwae"))
    assert not taken("LP-FDNet", replace(PUBLISHED, train_draws=2))
    assert taken("LP-FDNet", replace(PUBLISHED, floor=0.0))
    assert not taken("LP-FDNet", likelihood=HeteroscedasticGaussian())
    assert not taken("LP-FDNet", change=lambda stack: setattr(stack, "flat", stack.flat.float()))
    assert not taken("LP-FDNet", change=lambda stack: setattr(stack.network.layers[0], "backend", "reference"))


@pytest.mark.parametrize("rho", [-745.0, -200.0, 40.0, 200.0, 750.0])
def test_extreme_scales_have_the_gradient_of_autograd(rho):
    stack, x, y, noise = _setting("IC-FDNet", None, (1,), 3, 1, PUBLISHED)
    network = stack.extract(stack.flat[0])
    with torch.no_grad():
        network.layers[0].hypernet.output.bias[23:46] = rho
    stack = Stack([network], (1,))
    found, expected = FusedStep(stack, PUBLISHED).gradient(x, y, noise, 0.3), _gradient(stack, x, y, noise, 0.3)
    torch.testing.assert_close(found.view_as(expected), expected, rtol=1e-9, atol=1e-11)


def test_nan_and_infinity_are_not_hidden():
    stack, x, y, noise = _setting("LP-FDNet", None, (2,), 3, 1, PUBLISHED)
    x[1, 0, 0] = math.nan
    grad = FusedStep(stack, PUBLISHED).gradient(x, y, noise, 0.3)
    assert grad[0].isfinite().all() and grad[1].isnan().any()


@pytest.mark.parametrize("name", ["IC-FDNet", "LP-FDNet"])
def test_no_floor_is_needed(name):
    protocol = replace(PUBLISHED, floor=0.0)
    stack, x, y, noise = _setting(name, None, (2,), 9, 2, protocol)
    found, expected = FusedStep(stack, protocol).gradient(x, y, noise, 0.3), _gradient(stack, x, y, noise, 0.3)
    torch.testing.assert_close(found.view_as(expected), expected, rtol=1e-9, atol=1e-11)


def test_another_loss_is_not_taken_for_the_squared_error():
    class Halved(HomoscedasticGaussian):
        def data_term(self, output, y):
            return super().data_term(output, y) / 2

    stack, *_ = _setting("LP-FDNet", None, (1,), 1, 1, PUBLISHED)
    assert FusedStep.supports(stack, PUBLISHED, LIKELIHOOD)
    assert not FusedStep.supports(stack, PUBLISHED, Halved(0.5))
