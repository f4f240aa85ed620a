"""Training objectives: likelihoods, the beta-ELBO, the IWAE bound and schedules of beta (paper, appendices B and D).

Network outputs are ``(..., K, B, n_outputs)``, targets ``(..., B)``; losses are one number per replicate, ``(...)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fdn.errors import UserError
from fdn.protocol import Protocol
from fdn.settings import Count, NonNegative, Positive, Whole, check_fields, checked


def _squared_error(output: Tensor, y: Tensor) -> Tensor:
    """(y - f_theta(x))^2, ``(..., K, B)``."""
    if y.shape[-1:] != output.shape[-2:-1] or y.dim() > output.dim() - 2:
        given = f"{tuple(y.shape)} do not fit outputs (..., K, B, n_outputs) = {tuple(output.shape)}"
        raise ValueError(f"targets (..., B) = {given}")
    return (y.unsqueeze(-2) - output[..., 0]).square()


@dataclass(frozen=True)
class HomoscedasticGaussian:
    r"""p(y | x, theta) = N(y; f_theta(x), sigma^2), one constant variance (paper, section 3.1 and appendix D)."""

    variance: Positive = 0.5
    n_outputs = 1

    def __post_init__(self) -> None:
        check_fields(self)

    def mean(self, output: Tensor) -> Tensor:
        """f_theta(x), ``(..., K, B)``."""
        return output[..., 0]

    def observation_variance(self, output: Tensor) -> Tensor:
        """sigma^2, ``(..., K, B)``."""
        return output.new_full((), self.variance).expand(output.shape[:-1])

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """log N(y; f_theta(x), sigma^2), ``(..., K, B)``."""
        error = _squared_error(output, y)
        return -0.5 * error / self.variance - 0.5 * math.log(2 * math.pi * self.variance)

    def data_term(self, output: Tensor, y: Tensor) -> Tensor:
        """2 sigma^2 times the negative log-likelihood less its constant: the squared error, ``(..., K, B)``."""
        return _squared_error(output, y)


@dataclass(frozen=True)
class HeteroscedasticGaussian:
    """A Gaussian p(y | x, theta) of mean f and standard deviation floor + softplus(rho), both the network's outputs.

    Source: paper, appendix D.
    """

    floor: NonNegative = 1e-3
    n_outputs = 2

    def __post_init__(self) -> None:
        check_fields(self)

    def mean(self, output: Tensor) -> Tensor:
        """f_theta(x), ``(..., K, B)``."""
        return output[..., 0]

    def observation_variance(self, output: Tensor) -> Tensor:
        """sigma_theta(x)^2, ``(..., K, B)``."""
        return (self.floor + F.softplus(output[..., 1])).square()

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """log N(y; f_theta(x), sigma_theta(x)^2), ``(..., K, B)``."""
        variance, error = self.observation_variance(output), _squared_error(output, y)
        return -0.5 * (error / variance + (2 * math.pi * variance).log())

    def data_term(self, output: Tensor, y: Tensor) -> Tensor:
        """The negative log-likelihood, ``(..., K, B)``."""
        return -self.log_prob(output, y)


@dataclass(frozen=True)
class LearnedGaussian(HeteroscedasticGaussian):
    """The same with one rho for all inputs, learned, which :class:`fdn.models.Network` appends to its outputs."""

    n_outputs = 1


# A likelihood is added in these two places and in `Protocol.likelihood`. It has what the classes above have: n_outputs,
# mean, observation_variance, log_prob and data_term.
Likelihood = HomoscedasticGaussian | HeteroscedasticGaussian | LearnedGaussian
LIKELIHOODS: dict[str, Callable[[Protocol], Likelihood]] = {
    "homoscedastic": lambda p: HomoscedasticGaussian(p.observation_variance),
    "heteroscedastic": lambda p: HeteroscedasticGaussian(p.floor),
    "learned": lambda p: LearnedGaussian(p.floor),
}


def beta_elbo(
    output: Tensor, y: Tensor, kl: Tensor | None, beta: float | Tensor, likelihood: Likelihood,
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    r"""Negative beta-ELBO: mean over draws and examples of the data term + beta * mean of KL.

    With the homoscedastic likelihood this is MSE + beta KL (paper, section 3.1): 2 sigma^2 times the negative ELBO
    with beta = 2 sigma^2, less a constant (appendix D). The KL, ``(..., k, b)``, is already summed over all weights;
    here, and only here, it is averaged over draws and examples and scaled; a global posterior's enters undivided.
    Weights of the examples, ``(..., B)``, multiply their data terms.
    """
    data = likelihood.data_term(output, y)  # (..., K, B)
    data = (data if weight is None else data * weight.unsqueeze(-2)).mean((-2, -1))
    return data if kl is None else data + beta * kl.mean((-2, -1))


def iwae(output: Tensor, y: Tensor, log_ratio: Tensor | None, likelihood: Likelihood) -> Tensor:
    r"""Negative IWAE bound, -log (1/K) sum_k p0(theta_k) p(y | x, theta_k) / q(theta_k | x), mean over examples.

    ``log_ratio`` is log q - log p0 at the draws, ``(..., K, b)`` (the network's ``kl="sampled"``); None for models
    without a weight distribution. Source: paper, appendix B, equation (B).
    """
    return importance_bound(likelihood.log_prob(output, y), log_ratio)


def importance_bound(log_prob: Tensor, log_ratio: Tensor | None) -> Tensor:
    """:func:`iwae` of log p(y | x, theta_k), ``(..., K, B)``."""
    log_weight = log_prob if log_ratio is None else log_prob - log_ratio
    draws = log_weight.shape[-2]
    return -(log_weight.logsumexp(-2) - math.log(draws)).mean(-1)


@functools.lru_cache(typed=True)  # every step of an epoch asks for the same
def beta_at(step: int, schedule: str, warmup: int, beta_max: float = 1.0) -> float:
    """KL weight at a step (epoch or update) counted from 1: rises to ``beta_max`` at ``warmup`` and stays.

    ``constant``: beta_max throughout; ``linear``: step / warmup; ``cosine``: half a cosine; ``sigmoid``: a logistic of
    slope 12 / warmup, rescaled to run from 0 to 1.

    >>> [beta_at(t, "linear", 4) for t in (1, 2, 4, 9)]
    [0.25, 0.5, 1.0, 1.0]

    Raises:
        UserError: for an unknown schedule, or a number outside its range.

    Source: paper, appendix B ("simple warm-ups for beta") and the hyperparameter table ("linear").
    """
    step, warmup = checked("step", step, Count), checked("warmup", warmup, Whole)
    beta_max = checked("beta_max", beta_max, NonNegative)
    t = min(step / warmup, 1.0) if warmup > 0 else 1.0
    if schedule == "constant":
        return beta_max
    if schedule == "linear":
        return beta_max * t
    if schedule == "cosine":
        return beta_max * 0.5 * (1 - math.cos(math.pi * t))
    if schedule == "sigmoid":
        low, high, now = (1 / (1 + math.exp(-12 * (u - 0.5))) for u in (0.0, 1.0, t))
        return beta_max * (now - low) / (high - low)
    raise UserError(f"unknown beta schedule {schedule!r}; expected constant, linear, cosine or sigmoid")


def rate_at(update: int, updates: int, schedule: str, peak: float) -> float:
    """Learning rate at an update counted from 1.

    ``constant``: the peak; ``one_cycle``: from peak / 25 to the peak, by half a cosine over the first 30 % of the
    updates, and by another one down to peak / 250,000 (L. Smith and N. Topin, Super-Convergence, 2018; PyTorch's
    ``OneCycleLR``).

    >>> [round(rate_at(u, 101, "one_cycle", 1.0), 6) for u in (1, 30, 101)]
    [0.04, 0.999752, 4e-06]
    """
    if schedule == "constant" or updates == 1:
        return peak
    top, t = 0.3 * updates - 1, update - 1
    low, share = (peak / 25, t / top) if t <= top else (peak / 25e4, (updates - 1 - t) / (updates - 1 - top))
    return low + (peak - low) * 0.5 * (1 - math.cos(math.pi * share))
