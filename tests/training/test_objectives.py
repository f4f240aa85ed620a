"""Losses against their definitions, and the schedules of beta."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest
import torch

from fdn.errors import UserError
from fdn.protocol import Protocol
from fdn.training.objectives import (
    LIKELIHOODS,
    HeteroscedasticGaussian,
    HomoscedasticGaussian,
    beta_at,
    beta_elbo,
    iwae,
)

K, B = 3, 4


@pytest.fixture
def case():
    torch.manual_seed(0)
    output = torch.randn(2, K, B, 2, dtype=torch.float64)  # (R, K, B, n_outputs)
    y = torch.randn(2, B, dtype=torch.float64)
    kl = torch.rand(2, K, B, dtype=torch.float64)
    return output, y, kl


@pytest.mark.parametrize("variance", [0.5, 0.2])
def test_two_sigma_squared_elbo_is_mse_plus_beta_kl_plus_a_constant(case, variance):
    """Appendix D: 2 sigma^2 ELBO = MSE + 2 sigma^2 KL + sigma^2 log(2 pi sigma^2)."""
    output, y, kl = case
    likelihood = HomoscedasticGaussian(variance)
    elbo = -likelihood.log_prob(output, y).mean((-2, -1)) + kl.mean((-2, -1))
    loss = beta_elbo(output, y, kl, 2 * variance, likelihood)
    torch.testing.assert_close(2 * variance * elbo, loss + variance * math.log(2 * math.pi * variance))


def test_loss_is_mse_plus_beta_kl_per_replicate(case):
    output, y, kl = case
    loss = beta_elbo(output, y, kl, 0.3, HomoscedasticGaussian())
    for r in range(2):
        expected = sum((y[r, b] - output[r, k, b, 0]) ** 2 + 0.3 * kl[r, k, b] for k in range(K) for b in range(B))
        torch.testing.assert_close(loss[r], expected / (K * B))


def test_a_global_kl_enters_undivided_whatever_the_batch(case):
    output, y, _ = case
    kl = torch.full((2, 1, 1), 7.0, dtype=torch.float64)
    for batch in (1, B):
        with_kl = beta_elbo(output[:, :, :batch], y[:, :batch], kl, 0.5, HomoscedasticGaussian())
        without = beta_elbo(output[:, :, :batch], y[:, :batch], None, 0.5, HomoscedasticGaussian())
        torch.testing.assert_close(with_kl - without, torch.full((2,), 3.5, dtype=torch.float64))


def test_log_prob_against_torch_distributions(case):
    output, y, _ = case
    normal = torch.distributions.Normal(output[..., 0], 0.3**0.5).log_prob(y.unsqueeze(-2))
    torch.testing.assert_close(HomoscedasticGaussian(0.3).log_prob(output, y), normal)
    scale = 1e-3 + torch.nn.functional.softplus(output[..., 1])
    normal = torch.distributions.Normal(output[..., 0], scale).log_prob(y.unsqueeze(-2))
    torch.testing.assert_close(HeteroscedasticGaussian().log_prob(output, y), normal)
    torch.testing.assert_close(HeteroscedasticGaussian().data_term(output, y), -normal)


def test_iwae_is_minus_the_log_of_the_mean_weight(case):
    output, y, log_ratio = case
    likelihood = HomoscedasticGaussian()
    weights = (likelihood.log_prob(output, y) - log_ratio).exp()  # (R, K, B)
    torch.testing.assert_close(iwae(output, y, log_ratio, likelihood), -weights.mean(-2).log().mean(-1))


def test_iwae_with_one_draw_is_the_elbo_with_the_sampled_kl_and_more_draws_never_worse(case):
    output, y, log_ratio = case
    likelihood = HomoscedasticGaussian()
    one = iwae(output[:, :1], y, log_ratio[:, :1], likelihood)
    elbo = -likelihood.log_prob(output[:, :1], y).mean((-2, -1)) + log_ratio[:, :1].mean((-2, -1))
    torch.testing.assert_close(one, elbo)
    singles = [iwae(output[:, k : k + 1], y, log_ratio[:, k : k + 1], likelihood) for k in range(K)]
    assert (iwae(output, y, log_ratio, likelihood) <= torch.stack(singles).mean(0)).all()  # Jensen


def test_iwae_survives_weights_that_underflow():
    output = torch.full((1, 2, 1, 1), 1e4, dtype=torch.float64)
    assert iwae(output, torch.zeros(1, 1, dtype=torch.float64), None, HomoscedasticGaussian()).isfinite().all()


@pytest.mark.parametrize("schedule", ["linear", "cosine", "sigmoid"])
def test_schedules_rise_from_near_zero_to_beta_max_at_the_warmup(schedule):
    values = [beta_at(t, schedule, 200, beta_max=2.0) for t in range(1, 260)]
    assert 0 < values[0] < 0.05 and values[199:] == pytest.approx([2.0] * 60)
    assert all(a <= b for a, b in zip(values, values[1:])) and values[99] == pytest.approx(1.0)


def test_constant_schedule_no_warmup_and_unknown_names():
    assert beta_at(1, "constant", 200, 0.7) == 0.7
    assert beta_at(1, "linear", 0) == 1.0
    with pytest.raises(UserError, match="unknown beta schedule 'quadratic'"):
        beta_at(1, "quadratic", 10)


def test_every_likelihood_that_a_protocol_may_name_is_there():
    assert set(get_args(get_type_hints(Protocol)["likelihood"])) == set(LIKELIHOODS)
