"""Draws from a trained network, and what can be said from them: mean, variance and its two parts, a mixture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from fdn import metrics
from fdn.devices import CPU
from fdn.errors import UserError
from fdn.models.stacking import Stack
from fdn.streams import Streams
from fdn.training import fused

PART_ELEMENTS = 1 << 20  # hidden activations (members x draws x examples x width) alive at once
# draws x examples x width, where noise or masks are drawn part after part: their draws depend on these sizes
NOISE_PART_ELEMENTS, MASKED_PART_ELEMENTS = 1 << 17, 1 << 22
FACTORS = np.geomspace(1e-3, 10, 81)  # of the noise variance
DEVICE_ELEMENTS = 1 << 26  # in place of PART_ELEMENTS on a GPU, which needs more of them to be busy


def noise_kind(noise: str, sampled_weights: bool = False) -> str:
    """How a protocol's noise is computed.

    Independent noise as ``local``, the same distribution, where weights need not exist.
    """
    return "local" if noise == "independent" and not sampled_weights else noise


def as_numbers(
    values: object, name: str, columns: int | None, dtype: torch.dtype = torch.float64, device: torch.device = CPU
) -> Tensor:
    """A copy of what a person passes as numbers: an array of any strides, a list, table or tensor.

    Args:
        name: for messages.
        columns: d, for ``(N, d)`` with N of at least 0; None for ``(N,)``.
        dtype: of the result.
        device: of the result.

    Raises:
        UserError: for another shape, for values that are no numbers, missing, or not finite in the type.
    """
    expected = "(N,)" if columns is None else f"(N, {columns})"
    try:
        if isinstance(values, Tensor):
            array = np.asarray((values.detach().double() if values.is_floating_point() else values.detach()).cpu())
        elif isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "biuf":
            array = np.ma.filled(values.astype(np.float64), np.nan)
        else:
            array = np.asarray(values)
        if array.dtype == object and array.ndim and all(isinstance(value, Real) for value in array.flat):
            array = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # rows of different lengths, a tensor without numbers
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        given = f"a {type(values).__name__} of {array.dtype} values"
        raise UserError(f"{name} is {given}; expected numbers of shape {expected}")
    if array.ndim != len(expected.split()) or columns is not None and array.shape[1] != columns:
        hint = ""
        if array.ndim == 1 and columns is not None and columns in (1, len(array)):
            hint = f": use reshape({'-1, 1' if columns == 1 else '1, -1'})"
        raise UserError(f"{name} has shape {array.shape}; expected {expected}{hint}")
    with np.errstate(over="ignore"):
        numbers = np.array(array, dtype=str(dtype).removeprefix("torch."), order="C")
    if not np.isfinite(numbers).all():
        first = tuple(map(int, np.argwhere(~np.isfinite(numbers))[0]))
        bad = f"{name} is {numbers[first]} at {first}"
        raise UserError(f"{bad}; expected finite numbers: fill it in, or leave the row out")
    return torch.as_tensor(numbers, device=device)


def predict_outputs(stack: Stack, row: Tensor, x: Tensor, streams: Streams, draws: int, kind: str) -> Tensor:
    """Network outputs of one seed, or of several, for all x.

    Args:
        row: parameters, ``(n,)``, or ``(M, n)`` for an ensemble; of R seeds ``(R, n)`` or ``(R, M, n)``, where no masks
            are drawn.
        x: inputs ``(N, d)``, on the device of the parameters.
        streams: noise of the shape of the parameters' replicates, ``()``, ``(M,)`` ...
        draws: K; a deterministic network gives one.
        kind: ``"shared"``, ``"independent"`` or ``"local"``.

    Returns:
        ``(K, N, n_outputs)`` or ``(M, K, N, n_outputs)``, after R if that was given. With shared noise draw k is one
        function over all of x.
    """
    network = stack.network
    draws = draws if network.stochastic else 1
    width = max([layer.d_out for layer in network.layers])
    if network.dropout > 0 and network.predict_with_dropout:
        elements = MASKED_PART_ELEMENTS
    elif kind != "shared" and network.per_example_noise:
        elements = NOISE_PART_ELEMENTS
    elif not row.is_cpu:
        elements = DEVICE_ELEMENTS // row[..., 0].numel()
    else:  # where all weights are global, hidden activations are not held
        elements = PART_ELEMENTS // row[..., 0].numel() * (width if network.global_weights else 1)
    size = max(16, elements // (draws * width))
    # made once: many small parts between large temporaries would spread over a multiple of their memory
    outputs = row.new_empty(*row.shape[:-1], draws, len(x), network.n_outputs)
    x = x if network.global_weights else x.expand(*row.shape[:-1], *x.shape)
    noise = None
    with torch.no_grad():
        for part, out in zip(x.split(size, dim=-2), outputs.split(size, dim=-2)):
            if network.draws_masks_late and not streams.lead:
                out.copy_(stack.bind(row).predict_with_masks(part, streams, draws))
                continue
            noise = network.draw_noise(streams, kind, draws, part.shape[-2], training=False, same_pass=noise)
            noise = noise.to(row.device)
            if not fused.draws(stack, row, part, noise, out):
                out.copy_(stack(row, part, noise)[0])  # (..., K, b, n_outputs)
    return outputs


@dataclass(frozen=True)
class Prediction:
    """Monte Carlo predictions at N inputs.

    Attributes:
        draws: f_theta_k(x), ``(K, N)``, without observation noise.
        observation_variance: sigma_theta_k(x)^2, ``(K, N)``: the likelihood's.

    Source: paper, appendix D ("Predictive variance decomposition", "Monte Carlo estimators").
    """

    draws: Tensor
    observation_variance: Tensor

    def observed(self, streams: Streams) -> Tensor:
        """A draw of Y for each draw of f, with the likelihood's noise, ``(K, N)``."""
        eps = streams.normal(self.draws.numel() // max(1, math.prod(streams.lead))).reshape(self.draws.shape)
        return self.draws + self.observation_variance.sqrt() * eps.to(self.draws.device)

    def observation_factor(self, y: Tensor) -> float:
        """The factor of the noise variance with which targets y ``(N,)`` are the likeliest, of ``FACTORS``.

        A variance learned with one draw at a time is that of the target and of the weights' own spread.
        """
        draws, variance, targets = (t.cpu().double().numpy() for t in (self.draws, self.observation_variance, y))
        return float(min(FACTORS, key=lambda factor: metrics.nll(draws, targets, factor * variance).mean()))

    @property
    def mean(self) -> Tensor:
        """Predictive mean, ``(N,)``."""
        return self.draws.mean(-2)

    @property
    def epistemic(self) -> Tensor:
        """Var_theta f_theta(x): population variance over the draws, ``(N,)``."""
        return self.draws.var(-2, correction=0) if self.draws.numel() else self.mean  # which warns of no rows

    @property
    def aleatoric(self) -> Tensor:
        """E_theta sigma_theta(x)^2, ``(N,)``."""
        return self.observation_variance.mean(-2)

    @property
    def variance(self) -> Tensor:
        """Var[Y | x] = aleatoric + epistemic, ``(N,)``."""
        return self.aleatoric + self.epistemic

    def mixture(self) -> MixtureSameFamily:
        """The predictive density as a ``torch.distributions`` object, batch ``(N,)``.

        It is (1/K) sum_k N(f_k(x), sigma_k(x)^2).
        """
        components = Normal(self.draws.mT, self.observation_variance.mT.sqrt())  # (N, K)
        checks = None if self.draws.numel() else False  # PyTorch's fail without rows
        weights = Categorical(logits=torch.zeros_like(self.draws.mT), validate_args=checks)
        return MixtureSameFamily(weights, components, validate_args=checks)
