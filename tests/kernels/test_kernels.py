"""The op against its definition: every output and gradient, all noises, both conditionings, odd and single sizes."""

from __future__ import annotations

import itertools

import pytest
import torch

from fdn_kernels import WeightGaussian, fdn_linear, gaussian_linear, reference
from fdn_kernels.ops import NOISES

FLOAT64 = {"dtype": torch.float64}


def _noise(noise: str, lead: tuple[int, ...], draws: int, batch: int, d_in: int, d_out: int) -> torch.Tensor | None:
    shapes = {
        "shared": (draws, 1, d_out * (d_in + 1)),
        "independent": (draws, batch, d_out * (d_in + 1)),
        "local": (draws, batch, d_out),
    }
    return torch.randn(*lead, *shapes[noise], **FLOAT64) if noise in shapes else None


def _case(lead: tuple[int, ...], a_draws: int, z_draws: int, batch: int, d_in: int, d_out: int, h: int):
    n = 2 * d_out * (d_in + 1)
    return (
        torch.randn(*lead, a_draws, batch, d_in, **FLOAT64),
        torch.randn(*lead, z_draws, batch, h, **FLOAT64),
        torch.randn(*lead, n, h, **FLOAT64),
        torch.randn(*lead, n, **FLOAT64),
    )


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("lead", [(), (3,), (2, 2)])
@pytest.mark.parametrize("conditioning", ["IC", "LP"])
def test_outputs_and_gradients_equal_the_reference(noise, lead, conditioning):
    torch.manual_seed(0)
    for draws, batch, d_in, d_out, h in itertools.product((1, 4), (1, 5), (1, 3), (1, 4), (1, 2)):
        for a_draws in {1, draws}:
            inputs = _case(lead, a_draws, draws if conditioning == "LP" else 1, batch, d_in, d_out, h)
            eps = _noise(noise, lead, draws, batch, d_in, d_out)
            found = []
            for backend in ("reference", "torch"):
                leaves = [t.clone().requires_grad_() for t in inputs]
                y, kl = fdn_linear(*leaves, noise=noise, eps=eps, backend=backend)
                weights = torch.arange(1.0, 1 + y.numel(), **FLOAT64).view_as(y).sin()
                kl_weights = torch.arange(1.0, 1 + kl.numel(), **FLOAT64).view_as(kl).cos()
                gradients = torch.autograd.grad((weights * y).sum() + (kl_weights * kl).sum(), leaves)
                with torch.no_grad():  # the path of predictions, in chunks
                    predicted = fdn_linear(*inputs, noise=noise, eps=eps, backend=backend)
                found.append((y, kl, *gradients, *predicted))
            for expected, got in zip(*found):
                torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("noise", ["shared", "independent", "local"])
def test_gradcheck(noise):
    torch.manual_seed(1)
    eps = _noise(noise, (2,), 2, 3, 2, 2)
    leaves = [t.requires_grad_() for t in _case((2,), 2, 2, 3, 2, 2, 3)]
    assert torch.autograd.gradcheck(lambda *t: fdn_linear(*t, noise=noise, eps=eps), leaves)


@pytest.mark.parametrize("kind", ["shared", "independent"])
def test_sampled_kl_is_log_q_minus_log_prior_and_averages_to_the_kl(kind):
    torch.manual_seed(2)
    q = WeightGaussian(torch.randn(1, 3, 6, **FLOAT64), torch.rand(1, 3, 6, **FLOAT64) + 0.2)
    eps = torch.randn(20_000, 1 if kind == "shared" else 3, 6, **FLOAT64)
    theta = q.mean + q.scale * eps
    expected = torch.distributions.Normal(q.mean, q.scale).log_prob(theta).sum(-1)
    prior = torch.distributions.Normal(
        torch.zeros(6, **FLOAT64), torch.full((6,), 1.5, **FLOAT64)
    )  # of numbers it were float32
    expected -= prior.log_prob(theta).sum(-1)
    sampled = reference.sampled_kl(q, eps, prior_scale=1.5)
    torch.testing.assert_close(sampled, expected)
    standard_error = sampled.std(0) / len(sampled) ** 0.5
    assert ((sampled.mean(0) - reference.gaussian_kl(q, 1.5)).abs() < 5 * standard_error).all()


def test_kl_against_torch_distributions():
    torch.manual_seed(3)
    mean, scale = torch.randn(2, 1, 4, 7, **FLOAT64), torch.rand(2, 1, 4, 7, **FLOAT64) + 1e-3
    prior = torch.distributions.Normal(torch.zeros(7, **FLOAT64), 0.7)
    expected = torch.distributions.kl_divergence(torch.distributions.Normal(mean, scale), prior).sum(-1)
    torch.testing.assert_close(reference.gaussian_kl(WeightGaussian(mean, scale), 0.7), expected)


def test_local_noise_has_the_distribution_of_independent_noise():
    torch.manual_seed(4)
    draws, batch, d_in, d_out = 40_000, 2, 3, 2
    a, z, weight, bias = _case((), 1, 1, batch, d_in, d_out, 2)
    found = {}
    for noise in ("independent", "local"):
        eps = _noise(noise, (), draws, batch, d_in, d_out)
        with torch.no_grad():
            y, _ = fdn_linear(a, z, weight, bias, noise=noise, eps=eps)  # (draws, B, d_out)
        found[noise] = y.flatten(1)
    q = reference.hypernet_gaussian(z, weight, bias, d_in, 1e-3)
    mean, var = (t.flatten() for t in reference.moments(a, q))
    for y in found.values():
        assert ((y.mean(0) - mean).abs() < 5 * (var / draws).sqrt()).all()
        assert ((y.var(0) / var - 1).abs() < 5 * (2 / draws) ** 0.5).all()
        correlation = torch.corrcoef(y.T) - torch.eye(batch * d_out, **FLOAT64)
        assert correlation.abs().max() < 5 / draws**0.5  # outputs and examples are independent


def test_shared_noise_makes_one_function_of_all_examples():
    torch.manual_seed(5)
    a, z, weight, bias = _case((), 1, 1, 1, 2, 1, 3)
    eps = _noise("shared", (), 6, 1, 2, 1)
    twice = [t.expand(1, 2, t.shape[-1]) for t in (a, z)]  # the same example twice
    y, _ = fdn_linear(*twice, weight, bias, noise="shared", eps=eps)
    assert torch.equal(y[:, 0], y[:, 1]) and y.std(0).min() > 0


@pytest.mark.parametrize("rho", [-200.0, 200.0])
@pytest.mark.parametrize("noise", ["shared", "local"])
def test_extreme_spreads_stay_finite(rho, noise):
    a, z = torch.ones(1, 2, 1, **FLOAT64), torch.zeros(1, 2, 1, **FLOAT64)
    weight = torch.zeros(4, 1, **FLOAT64, requires_grad=True)
    bias = torch.tensor([0.0, rho, 0.0, rho], **FLOAT64, requires_grad=True)
    eps = torch.ones(1, 1 if noise == "shared" else 2, 2 if noise == "shared" else 1, **FLOAT64)
    y, kl = fdn_linear(a, z, weight, bias, noise=noise, eps=eps)
    gradients = torch.autograd.grad(y.sum() + kl.sum(), [weight, bias])
    assert all(t.isfinite().all() for t in (y, kl, *gradients))
    scale = 1e-3 + max(rho, 0.0)
    expected = 2 * scale if noise == "shared" else 2**0.5 * scale
    torch.testing.assert_close(y, torch.full_like(y, expected))


def test_nan_passes_through_only_where_it_is():
    torch.manual_seed(6)
    a, z, weight, bias = _case((), 1, 1, 3, 2, 2, 2)
    a[0, 1, 0] = torch.nan
    y, _ = fdn_linear(a, z, weight, bias, noise="shared", eps=_noise("shared", (), 2, 3, 2, 2))
    assert y[:, 1].isnan().all() and y[:, [0, 2]].isfinite().all()


@pytest.mark.parametrize("b", [1, 3])
def test_gaussian_linear_equals_the_reference(b):
    torch.manual_seed(7)
    q = WeightGaussian(torch.randn(2, 1, b, 8, **FLOAT64), torch.rand(2, 1, b, 8, **FLOAT64))
    for noise, a_draws in itertools.product(NOISES, (1, 5)):
        a, eps = torch.randn(2, a_draws, 3, 3, **FLOAT64), _noise(noise, (2,), 5, 3, 3, 2)
        expected = gaussian_linear(a, q, noise=noise, eps=eps, backend="reference")
        torch.testing.assert_close(gaussian_linear(a, q, noise=noise, eps=eps), expected)


def test_clear_errors():
    a, z, weight, bias = _case((), 1, 1, 3, 2, 2, 2)
    with pytest.raises(ValueError, match="noise is 'white'; expected one of shared"):
        fdn_linear(a, z, weight, bias, noise="white")
    with pytest.raises(ValueError, match=r"shared noise .* has shape \(..., K, 1, 6\); given \(1, 3, 6\)"):
        fdn_linear(a, z, weight, bias, noise="shared", eps=_noise("independent", (), 1, 3, 2, 2))
    with pytest.raises(ValueError, match="a sampled KL needs sampled weights"):
        fdn_linear(a, z, weight, bias, noise="local", eps=_noise("local", (), 1, 3, 2, 2), kl="sampled")
    with pytest.raises(ValueError, match="must be a multiple"):
        fdn_linear(a, z, weight[:-1], bias[:-1], noise="none")
    with pytest.raises(ValueError, match="backend is 'fast'"):
        fdn_linear(a, z, weight, bias, noise="none", backend="fast")
