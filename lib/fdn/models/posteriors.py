"""The family of weight distributions q(theta | x) for one layer (paper, appendix A).

Every class is one linear layer written for one network. Activations are ``(..., k, B, d)`` with k Monte Carlo draws
(1 while nothing has been drawn); parameters may carry leading replicate dimensions (see
:mod:`fdn.models.stacking`). ``forward(a, x, noise, eps, kl)`` takes the previous activation, the network's input, the
kind of noise and the noise itself, and returns the layer's output ``(..., K, B, d_out)`` and its KL ``(..., k, b)`` or
None.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fdn.errors import UserError
from fdn.settings import NonNegative, Positive, Scale, Whole, checked
from fdn.streams import Streams
from fdn_kernels import WeightGaussian, affine, dropout_linear, fdn_linear, matvec, relu_affine
from fdn_kernels.reference import hypernet_order, kl_term

Output = tuple[Tensor, Tensor | None]


class Hypernet(nn.Module):
    """Linear - ReLU - Linear from a conditioning signal to a layer's weights or their parameters.

    Args:
        width: of the hidden layer, or a hidden layer that several hypernetworks share (paper, appendix G).
        activation: ``"relu"``, or ``"tanh"``, with which weights stay bounded far away from the data.
    """

    def __init__(self, d_signal: int, width: int | nn.Linear, n_outputs: int, activation: str = "relu") -> None:
        super().__init__()
        self.activation = checked("activation", activation, Literal["relu", "tanh"])
        self.hidden = width if isinstance(width, nn.Module) else nn.Linear(d_signal, width)
        self.output = nn.Linear(self.hidden.out_features, n_outputs)

    def hidden_activation(self, s: Tensor) -> Tensor:
        """z = relu(V s + v): s (..., k, B, d_signal) to (..., k, B, width)."""
        if self.activation == "tanh":
            return affine(s, self.hidden.weight, self.hidden.bias).tanh()
        return relu_affine(s, self.hidden.weight, self.hidden.bias)

    def forward(self, s: Tensor) -> Tensor:
        """U z + c: (..., k, B, n_outputs)."""
        return affine(self.hidden_activation(s), self.output.weight, self.output.bias)


def check_columns(layer: nn.Module, a: Tensor) -> None:
    """For layers whose parameters would also fit another number of inputs and outputs."""
    if a.shape[-1] != layer.d_in:
        expected = f"(..., k, B, {layer.d_in})"
        raise ValueError(f"a layer of {layer.d_in} inputs takes activations {expected}, not {tuple(a.shape)}")


class PointLinear(nn.Module):
    """q = delta(theta - theta_hat): an ordinary linear layer (MLP, dropout, ensemble members)."""

    sampled = False

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.d_in, self.d_out = d_in, d_out
        self.linear = nn.Linear(d_in, d_out)

    def forward(self, a: Tensor, x: Tensor, noise: str, eps: Tensor | None, kl: str) -> Output:
        return affine(a, self.linear.weight, self.linear.bias), None

    def sample(self, noise: str, eps: Tensor | None, kl: str) -> Output:
        """The layer's parameters, ``(..., 1, 1, P)``, and no KL."""
        return torch.cat([self.linear.weight.flatten(-2), self.linear.bias], -1)[..., None, None, :], None

    def after_dropout(self, a: Tensor, streams: Streams, rate: float, draws: int) -> Tensor:
        """The layer on a masked anew for each draw and example: a ``(1 or K, B, d_in)`` to ``(K, B, d_out)``."""
        masks = functools.partial(streams.subsets, rate)
        return dropout_linear(a, masks, rate, self.linear.weight, self.linear.bias, draws)


class HyperLinear(nn.Module):
    """q = delta(theta - G(s)): the deterministic hypernetwork, s the layer's own input."""

    sampled = False

    def __init__(self, d_in: int, d_out: int, hyper: int) -> None:
        super().__init__()
        self.d_in, self.d_out = d_in, d_out
        self.hypernet = Hypernet(d_in, hyper, d_out * (d_in + 1))

    def forward(self, a: Tensor, x: Tensor, noise: str, eps: Tensor | None, kl: str) -> Output:
        return matvec(self.hypernet(a), a), None  # theta (..., k, B, P)


class GlobalGaussianLinear(nn.Module, ABC):
    """A Gaussian that does not depend on x; subclasses say where its (mu, rho) come from.

    One theta is drawn per pass and used for every example: the paper amortises sampling over inputs (appendix A).

    Args:
        link: ``"exp"`` (sigma = exp(rho)) or ``"softplus"`` (sigma = floor + softplus(rho)).
        prior_scale: sigma_0.

    Raises:
        UserError: for an unknown link, a negative floor or a prior scale that is not positive.
    """

    sampled = True
    per_example = False

    def __init__(self, d_in: int, d_out: int, link: str, floor: float, prior_scale: float | str) -> None:
        super().__init__()
        self.d_in, self.d_out = d_in, d_out
        self.link = checked("link", link, Literal["exp", "softplus"])
        self.floor, self.prior_scale = checked("floor", floor, NonNegative), prior_scale_of(prior_scale, d_in)

    @abstractmethod
    def mean_and_rho(self) -> tuple[Tensor, Tensor]:
        """The Gaussian's parameters, each ``(..., P)``, weights first."""

    def gaussian(self) -> WeightGaussian:
        """The layer's weight distribution, ``(..., 1, 1, P)``."""
        mean, rho = self.mean_and_rho()
        scale = rho.exp() if self.link == "exp" else self.floor + F.softplus(rho)
        return WeightGaussian(mean[..., None, None, :], scale[..., None, None, :])

    def sample(self, noise: str, eps: Tensor | None, kl: str) -> Output:
        """One theta per draw, ``(..., K, 1, P)``, the mean for noise ``"none"``, and the KL, ``(..., k, 1)``."""
        q = self.gaussian()
        theta = q.mean if noise == "none" else torch.addcmul(q.mean, q.scale, eps)
        return theta, kl_term(q, kl, eps, self.prior_scale)

    def forward(self, a: Tensor, x: Tensor, noise: str, eps: Tensor | None, kl: str) -> Output:
        check_columns(self, a)
        theta, term = self.sample(noise, eps, kl)
        return matvec(theta, a), term


class GaussianLinear(GlobalGaussianLinear):
    """q = N(mu, sigma^2), free parameters (BayesNet); mu ~ N(0, 0.1^2) and rho = -3 at the start."""

    def __init__(self, d_in: int, d_out: int, link: str, floor: float, prior_scale: float | str) -> None:
        super().__init__(d_in, d_out, link, floor, prior_scale)
        n = d_out * (d_in + 1)
        self.mean = nn.Parameter(0.1 * torch.randn(n))
        self.rho = nn.Parameter(torch.full((n,), -3.0))

    def mean_and_rho(self) -> tuple[Tensor, Tensor]:
        return self.mean, self.rho


class LatentGaussianLinear(GlobalGaussianLinear):
    """q = N(mu(h), sigma(h)^2), a hypernetwork of one trained latent vector h (GaussHyperNet).

    H ~ N(0, 1) at the start.
    """

    def __init__(
        self, d_in: int, d_out: int, hyper: int, latent: int, link: str, floor: float, prior_scale: float | str
    ) -> None:
        super().__init__(d_in, d_out, link, floor, prior_scale)
        self.hypernet = Hypernet(latent, hyper, 2 * d_out * (d_in + 1))
        self.latent = nn.Parameter(torch.randn(latent))

    def mean_and_rho(self) -> tuple[Tensor, Tensor]:
        outputs = self.hypernet(self.latent[..., None, None, :])[..., 0, 0, :]  # (..., 2 P)
        return hypernet_order(outputs, self.d_in, -1)


def prior_scale_of(prior_scale: float | str, d_in: int) -> float:
    """sigma_0 of a layer of d_in inputs: a number, or ``"fan_in"`` for 1 / sqrt(d_in)."""
    return d_in**-0.5 if prior_scale == "fan_in" else checked("prior_scale", prior_scale, Scale)


def initial_rho(init_sigma: float | str, d_in: int, floor: float) -> float:
    """The rho of weights whose standard deviation floor + softplus(rho) is ``init_sigma``.

    ``"auto"`` is 0.1 / sqrt(d_in), twice the floor at least: where the weights are of size 1 / sqrt(d_in), a draw moves
    the layer's output by a tenth of its size.

    Raises:
        UserError: for a number that is not above the floor.
    """
    if init_sigma == "auto":
        init_sigma = max(0.1 * d_in**-0.5, 2 * floor)
    sigma = checked("init_sigma", init_sigma, Positive)
    if sigma <= floor:
        raise UserError(f"init_sigma is {sigma:g}; expected a number above the floor {floor:g}")
    return sigma - floor + math.log(-math.expm1(floor - sigma))  # softplus(rho) = sigma - floor


def fourier_features(s: Tensor, frequencies: int) -> Tensor:
    """s, sin(2^j pi s) and cos(2^j pi s) for j = 0 .. frequencies - 1: ``(..., (2 frequencies + 1) d)``.

    A signal in which a small hypernetwork sees oscillations (B. Mildenhall et al., NeRF, 2020, section 5.1).
    """
    if frequencies == 0:
        return s
    angles = torch.cat([s * (2**j * math.pi) for j in range(frequencies)], -1)
    return torch.cat([s, angles.sin(), angles.cos()], -1)


class FDNLinear(nn.Module):
    """q = N(mu(s), sigma(s)^2), sigma = floor + softplus(rho): the FDN layer (paper, section 3.2).

    Args:
        condition: ``"input"`` (IC: s is the network's input, of width ``d_signal``) or ``"layer"`` (LP: s is the
            previous activation of the same draw, of width ``d_in``).
        prior_scale: sigma_0, or ``"fan_in"``: 1 / sqrt(d_in).
        init_sigma: None for PyTorch's initialisation of the hypernetwork, as in the published runs, which makes sigma
            about 0.69; else the weights' standard deviation at the start, a number or ``"auto"``
            (:func:`initial_rho`). Their mean is then that of an ``nn.Linear``, the same for every s.
        activation: of the hypernetwork, see :class:`Hypernet`.
        frequencies: of the signal's Fourier features (:func:`fourier_features`); 0 for the signal itself.
    """

    sampled = True
    per_example = True
    backend = "auto"  # of the op, see fdn_kernels.fdn_linear

    def __init__(
        self, d_in: int, d_out: int, hyper: int | nn.Linear, condition: str, d_signal: int, floor: float,
        prior_scale: float | str, *, init_sigma: float | str | None = None, activation: str = "relu",
        frequencies: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if condition not in ("input", "layer"):
            raise ValueError(f"condition is {condition!r}; expected 'input' or 'layer'")
        self.d_in, self.d_out, self.condition = d_in, d_out, condition
        self.floor, self.prior_scale = checked("floor", floor, NonNegative), prior_scale_of(prior_scale, d_in)
        self.frequencies = checked("frequencies", frequencies, Whole)
        d_signal = (d_signal if condition == "input" else d_in) * (2 * self.frequencies + 1)
        self.hypernet = Hypernet(d_signal, hyper, 2 * d_out * (d_in + 1), activation)
        if init_sigma is not None:
            with torch.no_grad():
                self.hypernet.output.weight.zero_()
                self.hypernet.output.bias.fill_(initial_rho(init_sigma, d_in, self.floor))
            linear = nn.Linear(d_in, d_out)
            self.start_at(linear.weight, linear.bias)

    @torch.no_grad()
    def start_at(self, weight: Tensor, bias: Tensor) -> None:
        """Give every s the mean ``weight`` ``(d_out, d_in)`` and ``bias`` ``(d_out,)``."""
        output = self.hypernet.output
        for first, mean in ((0, weight.flatten()), (2 * weight.numel(), bias)):
            place = slice(first, first + len(mean))
            output.weight[place] = 0
            output.bias[place] = mean

    def forward(self, a: Tensor, x: Tensor, noise: str, eps: Tensor | None, kl: str) -> Output:
        check_columns(self, a)
        s = fourier_features(x if self.condition == "input" else a, self.frequencies)
        z = self.hypernet.hidden_activation(s)  # (..., k, B, h)
        output = self.hypernet.output
        return fdn_linear(
            a, z, output.weight, output.bias,
            noise=noise, eps=eps, kl=kl, floor=self.floor, prior_scale=self.prior_scale, backend=self.backend,
        )  # fmt: skip


def multiply_accumulates(layer: nn.Module) -> tuple[int, int]:
    """Of a layer's products: per draw and point, and once per pass, as a hypernetwork that reads no input runs."""
    own, hyper = getattr(layer, "products", layer.d_in * layer.d_out), 0
    if hasattr(layer, "hypernet"):
        hidden, output = layer.hypernet.hidden.weight.numel(), layer.hypernet.output.weight.numel()
        hyper = hidden + output * getattr(layer, "pieces", 1)
    return (own, hyper) if isinstance(layer, GlobalGaussianLinear) else (own + hyper, 0)


def noise_shape(layer: nn.Module, noise: str, draws: int, batch: int) -> tuple[int, ...] | None:
    """Shape (K, 1 or B, P or d_out) of the standard normal numbers ``layer`` needs for one pass, None for none.

    A layer of another structure says how many weights it draws, and how many numbers its local noise takes.
    """
    if not layer.sampled or noise == "none":
        return None
    n_weights = getattr(layer, "n_weights", layer.d_out * (layer.d_in + 1))
    if noise == "shared" or not layer.per_example:
        return draws, 1, n_weights
    return draws, batch, {"independent": n_weights, "local": getattr(layer, "n_local", layer.d_out)}[noise]
