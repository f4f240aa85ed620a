"""Likelihoods of several targets, losses, and the decomposition of the predictive covariance (appendix D)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from fdn.errors import UserError
from fdn.nn import FDNLinear, GaussianHead, elbo_loss, forward, iwae_loss
from fdn.training import objectives

KINDS = ("fixed", "isotropic", "diagonal", "full")


def covariance(head: GaussianHead, row: torch.Tensor) -> torch.Tensor:
    """Sigma of one row of outputs, written out."""
    d = head.n_targets
    if head.covariance == "fixed":
        return head.root.double() @ head.root.double().T

    def sigma(rho: float) -> float:
        return head.floor + math.log1p(math.exp(rho))

    rho = row[d:].tolist()
    if head.covariance == "isotropic":
        return sigma(rho[0]) ** 2 * torch.eye(d, dtype=torch.float64)
    root = torch.zeros(d, d, dtype=torch.float64)
    below = iter(rho[d:])
    for i in range(d):
        root[i, i] = sigma(rho[i])
        for j in range(i if head.covariance == "full" else 0):
            root[i, j] = next(below)
    return root @ root.T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d", [1, 2, 4])
def test_the_likelihood_is_the_normal_density(kind, d):
    head = GaussianHead(d, kind, variance=0.7)
    formula = {"fixed": d, "isotropic": d + 1, "diagonal": 2 * d, "full": d * (d + 3) // 2}[kind]
    assert head.n_outputs == formula  # D_y
    output = torch.randn(3, 5, head.n_outputs, dtype=torch.float64)
    y = torch.randn(5, d, dtype=torch.float64)
    nll = head.nll(output, y)
    for k in range(3):
        for b in range(5):
            row, apart = output[k, b], y[b] - output[k, b, :d]
            sigma = covariance(head, row)
            expected = 0.5 * (apart @ torch.linalg.inv(sigma) @ apart + torch.logdet(2 * math.pi * sigma))
            torch.testing.assert_close(nll[k, b], expected, rtol=1e-7, atol=1e-7)
    exact = MultivariateNormal(output[0, 0, :d], covariance(head, output[0, 0])).log_prob(y[0])
    torch.testing.assert_close(-nll[0, 0], exact, rtol=1e-7, atol=1e-7)


def test_one_target_is_the_heteroscedastic_likelihood_of_the_study():
    head, study = GaussianHead(1, "diagonal"), objectives.HeteroscedasticGaussian()
    output, y = torch.randn(4, 6, 2, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    torch.testing.assert_close(-head.nll(output, y[:, None]), study.log_prob(output, y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_losses_are_those_of_autograd_in_float64(kind):
    """By finite differences, through the head and both bounds."""
    head = GaussianHead(2, kind, variance=0.7, rho_decay=0.1).double()
    output = torch.randn(3, 4, head.n_outputs, dtype=torch.float64, requires_grad=True)
    y, kl = torch.randn(4, 2, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda o, k: elbo_loss(head.nll(o, y), k, 10, 0.3), (output, kl))
    assert torch.autograd.gradcheck(lambda o, k: iwae_loss(head(o).log_prob(y), k), (output, kl))


@pytest.mark.parametrize("kind", KINDS)
def test_the_predictive_covariance_is_that_of_the_mixture(kind):
    """Against 400,000 targets drawn from the mixture of 50 likelihoods."""
    head = GaussianHead(2, kind, variance=torch.tensor([[1.0, 0.3], [0.3, 0.5]]) if kind == "fixed" else 1.0).double()
    outputs = torch.randn(50, 1, head.n_outputs, dtype=torch.float64)
    found = head.predictive(outputs)
    y = head(outputs).sample((8000,))[:, :, 0].flatten(0, 1)  # (400,000, 2)
    torch.testing.assert_close(found.mean[0], y.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(found.covariance[0], torch.cov(y.T), rtol=0.02, atol=0.03)
    each = torch.stack([covariance(head, row) for row in outputs[:, 0]])
    torch.testing.assert_close(found.aleatoric[0], each.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.epistemic[0], torch.cov(outputs[:, 0, :2].T, correction=0))


def test_a_fixed_covariance_may_be_a_number_a_vector_or_a_matrix():
    matrix = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    for variance, expected in (
        (0.5, 0.5 * torch.eye(2)),
        (torch.tensor([1.0, 4.0]), torch.diag(torch.tensor([1.0, 4.0]))),
        (matrix, matrix),
    ):
        head = GaussianHead(2, "fixed", variance=variance)
        torch.testing.assert_close(head(torch.zeros(3, 2)).covariance_matrix[0], expected)


def test_the_stability_tricks_do_what_they_say():
    head = GaussianHead(1, "diagonal", log_variance_range=(-2.0, 1.0), rho_decay=0.5)
    free = GaussianHead(1, "diagonal")
    output = torch.tensor([[0.0, -30.0], [0.0, 30.0], [0.0, 0.1]])
    logs = 2 * head(output).base_dist.scale.log()[:, 0]
    torch.testing.assert_close(logs[:2], torch.tensor([-2.0, 1.0]))
    torch.testing.assert_close(logs[2], 2 * free(output).base_dist.scale.log()[2, 0])
    y = torch.zeros(3, 1)
    unclipped = GaussianHead(1, "diagonal", rho_decay=0.5)
    torch.testing.assert_close(
        unclipped.nll(output, y) - free.nll(output, y), 0.5 * output[:, 1].square(), rtol=1e-5, atol=1e-4
    )


def test_the_elbo_is_the_studys_and_scales_the_kl_once():
    likelihood = objectives.HomoscedasticGaussian(0.5)
    output, y = torch.randn(3, 8, 1, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    kl = torch.rand(3, 8, dtype=torch.float64)
    ours = elbo_loss(-likelihood.log_prob(output, y), kl, n_train=1, beta=0.25)
    expected = (-likelihood.log_prob(output, y)).mean() + 0.25 * kl.mean()
    torch.testing.assert_close(ours, expected)
    # sigma^2 = 1/2: MSE + beta KL, less a constant, is the same loss with beta
    mse = objectives.beta_elbo(output, y, kl, 0.25, likelihood)
    torch.testing.assert_close(ours - mse, torch.tensor(0.5 * math.log(math.pi), dtype=torch.float64))
    halves = elbo_loss(torch.zeros(8), torch.ones(8), n_train=50, beta=2.0)
    torch.testing.assert_close(halves, torch.tensor(0.04))


def test_every_layer_may_have_a_beta_of_its_own():
    model = nn.Sequential(FDNLinear(3, 4), nn.ReLU(), FDNLinear(4, 1))
    x, g = torch.randn(6, 3), torch.Generator()
    y, kl = forward(model, x, g.manual_seed(1), per_layer=True)
    nll = torch.zeros(6)
    loss = elbo_loss(nll, kl, 10, beta=[0.5, 2.0])
    torch.testing.assert_close(loss, (0.5 * kl[:, 0] + 2 * kl[:, 1]).mean() / 10)
    with pytest.raises(UserError, match="beta has 3 weights"):
        elbo_loss(nll, kl, 10, beta=[1.0, 1.0, 1.0])


def test_the_importance_weighted_bound_is_between_the_elbo_and_the_evidence():
    """A conjugate layer, whose evidence is known: y = w x + b + noise with w, b ~ N(0, sigma_0^2)."""
    torch.manual_seed(0)
    layer = FDNLinear(1, 1, init_sigma=0.8, prior_scale=1.0, dtype=torch.float64)
    x, y = torch.tensor([[0.5], [-1.0]]).double(), torch.tensor([[0.3], [0.8]]).double()
    head = GaussianHead(1, "fixed", variance=0.5).double()
    evidence = torch.distributions.Normal(0.0, (0.5 + 1 + x.square()).sqrt()).log_prob(y)[:, 0].mean()
    with torch.no_grad():
        output, ratio = forward(layer, x, draws=50_000, noise="independent", kl="sampled")
        log_prob = head(output).log_prob(y)
        bounds = [-iwae_loss(log_prob[:k], ratio[:k]) for k in (50_000,)]
        short = -torch.stack([iwae_loss(log_prob[i : i + 5], ratio[i : i + 5]) for i in range(0, 20_000, 5)]).mean()
        elbo = -elbo_loss(-log_prob, ratio, 1)
    assert elbo < short < bounds[0] + 0.01
    torch.testing.assert_close(bounds[0], evidence, rtol=0, atol=0.02)
    one = log_prob[:1], ratio[:1]
    torch.testing.assert_close(iwae_loss(*one), elbo_loss(-one[0], one[1], 1))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: GaussianHead(0), "n_targets is 0"),
        (lambda: GaussianHead(2, "banded"), "covariance is 'banded'"),
        (lambda: GaussianHead(2, "fixed", variance=torch.ones(3)), r"variance has shape \(3,\)"),
        (lambda: GaussianHead(2, "fixed", variance=-torch.eye(2)), "not positive definite"),
        (lambda: GaussianHead(2, log_variance_range=(1.0, -1.0)), r"expected \(low, high\)"),
        (lambda: GaussianHead(2)(torch.zeros(5, 3)), r"expected \(..., 4\)"),
        (lambda: GaussianHead(1).nll(torch.zeros(5, 2), torch.zeros(5)), r"targets \(5,\) do not fit"),
        (lambda: GaussianHead(1).nll(torch.zeros(5, 2), torch.zeros(1, 1)), r"targets \(1, 1\) do not fit"),
        (lambda: elbo_loss(torch.zeros(5, 1), torch.zeros(5), 10), "not of the same B examples"),
        (lambda: elbo_loss(torch.zeros(5), torch.zeros(5), 0), "n_train is 0"),
        (lambda: iwae_loss(torch.zeros(5), torch.zeros(5)), r"two tensors \(K, B\)"),
    ],
)
def test_what_does_not_fit_is_answered_in_a_sentence(call, said):
    with pytest.raises(UserError, match=said):
        call()
