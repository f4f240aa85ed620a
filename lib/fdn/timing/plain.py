"""The study as one would first write it in PyTorch: what the stacked program is checked against and timed against.

One module, one optimiser, one seed at a time, an ensemble's members one after the other; weights are drawn and
multiplied in the open, torch's defaults throughout. The K draws of a prediction are one batch where memory allows.
Nothing here uses the op or the stack: initial parameters come from :mod:`fdn.models`, so that both start alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from fdn import metrics
from fdn.data.dataset import Dataset
from fdn.devices import undisturbed
from fdn.errors import UserError
from fdn.models import ModelSpec, initial_network
from fdn.protocol import Protocol
from fdn.streams import Streams, seed_sequence
from fdn.timing.clocks import processor_clock
from fdn.training.objectives import beta_at
from fdn.training.prediction import as_numbers

POINT_MODELS = "MLPNet", "MLPDropoutNet", "DeepEnsembleNet"
BATCH_ELEMENTS = 1 << 26  # of a prediction's largest tensor, half a gigabyte: beyond it the draws are cut into groups


class Source(ABC):
    """Where one network's random numbers come from."""

    def begin(self, purpose: str) -> None:
        """Say what the next numbers are for: ``"train"`` or ``"validate"``."""

    @abstractmethod
    def permutation(self, n: int) -> Tensor:
        """A permutation of 0..n-1, ``(n,)``."""

    @abstractmethod
    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, float64."""

    @abstractmethod
    def dropout(self, a: Tensor, rate: float) -> Tensor:
        """``a`` with its elements dropped at this rate and the others scaled up."""


class TorchSource(Source):
    """Torch's generator, as in any program: the source that is timed."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def permutation(self, n: int) -> Tensor:
        return torch.randperm(n)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=self.dtype)

    def dropout(self, a: Tensor, rate: float) -> Tensor:
        return F.dropout(a, rate)


class ProgramSource(Source):
    """The stacked program's own streams, so that both can be compared number by number.

    Masks are the program's in training only: how it draws those of a prediction is its own affair.
    """

    def __init__(self, dataset: str, model: str, seed: int, member: int, dtype: torch.dtype) -> None:
        self.streams = {
            purpose: Streams([seed_sequence(dataset, model, seed, purpose, member)], (), dtype)
            for purpose in ("shuffle", "train", "validate")
        }
        self.current = self.streams["train"]

    def begin(self, purpose: str) -> None:
        self.current = self.streams[purpose]

    def permutation(self, n: int) -> Tensor:
        return self.streams["shuffle"].permutations(n)

    def normal(self, *shape: int) -> Tensor:
        return self.current.normal(*shape)

    def dropout(self, a: Tensor, rate: float) -> Tensor:
        if self.current is self.streams["validate"]:
            return F.dropout(a, rate)
        return a * self.current.keep(rate, *a.mT.shape).mT / (1 - rate)


def apply(theta: Tensor, a: Tensor) -> Tensor:
    """W a + b, weights first in theta: ``(k, b, P)`` and ``(k, B, d_in)`` to ``(K, B, d_out)``."""
    d_in = a.shape[-1]
    d_out = theta.shape[-1] // (d_in + 1)
    weight, bias = theta.split([d_out * d_in, d_out], dim=-1)
    if theta.shape[1] == 1:  # one matrix for all examples
        return a @ weight.view(len(theta), d_out, d_in).mT + bias
    return torch.einsum("kboi,kbi->kbo", weight.unflatten(-1, (d_out, d_in)), a) + bias


def kl_to_prior(mean: Tensor, scale: Tensor, prior_scale: float) -> Tensor:
    """KL(N(mean, scale^2) || N(0, prior_scale^2)) summed over weights, averaged over draws and examples: a scalar."""
    kl = math.log(prior_scale) - scale.log() + (scale**2 + mean**2) / (2 * prior_scale**2) - 0.5
    return kl.sum(-1).mean()


def mlp(d_in: int, width: int, d_out: int) -> nn.Sequential:
    """A hypernetwork."""
    return nn.Sequential(nn.Linear(d_in, width), nn.ReLU(), nn.Linear(width, d_out))


class Layer(nn.Module, ABC):
    """One layer: what its weights are is the subclass's."""

    width = 0  # numbers per draw and example that a pass holds, apart from its outputs

    @abstractmethod
    def forward(self, a: Tensor, x: Tensor, source: Source, draws: int) -> tuple[Tensor, Tensor | float]:
        """Outputs ``(K, B, d_out)`` of a ``(k, B, d_in)`` at inputs x ``(1, B, d)``; in training the KL, a scalar."""


class Point(Layer):
    """An ordinary layer."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_in, d_out)

    def forward(self, a, x, source, draws):
        return self.linear(a), 0.0


class Hyper(Layer):
    """Weights from a hypernetwork of the layer's input."""

    def __init__(self, d_in: int, d_out: int, width: int) -> None:
        super().__init__()
        self.hypernet = mlp(d_in, width, d_out * (d_in + 1))

    def forward(self, a, x, source, draws):
        return apply(self.hypernet(a), a), 0.0


class Global(Layer):
    """One Gaussian over the weights for all inputs: free parameters, or from a hypernetwork of a latent vector."""

    def __init__(self, d_in: int, d_out: int, spec: ModelSpec, protocol: Protocol) -> None:
        super().__init__()
        n = d_out * (d_in + 1)
        self.protocol, self.split = protocol, [d_out * d_in, d_out * d_in, d_out, d_out]
        if spec.name == "BayesNet":
            self.mean, self.rho = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(n))
        else:
            self.latent = nn.Parameter(torch.zeros(spec.latent))
            self.hypernet = mlp(spec.latent, spec.hyper, 2 * n)

    def forward(self, a, x, source, draws):
        p = self.protocol
        if hasattr(self, "latent"):
            weight_mean, weight_rho, bias_mean, bias_rho = self.hypernet(self.latent).split(self.split)
            mean, rho = torch.cat([weight_mean, bias_mean]), torch.cat([weight_rho, bias_rho])
        else:
            mean, rho = self.mean, self.rho
        scale = rho.exp() if p.global_scale == "exp" else p.floor + F.softplus(rho)
        theta = mean + scale * source.normal(draws, 1, len(mean))  # (K, 1, P)
        return apply(theta, a), kl_to_prior(mean, scale, p.prior_scale) if self.training else 0.0


class FDN(Layer):
    """A Gaussian over the weights for every input (paper, section 3.2)."""

    def __init__(self, d_in: int, d_out: int, d_x: int, spec: ModelSpec, protocol: Protocol) -> None:
        super().__init__()
        self.protocol, self.on_input = protocol, spec.name == "IC-FDNet"
        self.width, self.split = d_out * (d_in + 1), [d_out * d_in, d_out * d_in, d_out, d_out]
        self.hypernet = mlp(d_x if self.on_input else d_in, spec.hyper, 2 * self.width)

    def forward(self, a, x, source, draws):
        p = self.protocol
        out = self.hypernet(x if self.on_input else a)  # (k, B, 2P)
        weight_mean, weight_rho, bias_mean, bias_rho = out.split(self.split, dim=-1)
        mean = torch.cat([weight_mean, bias_mean], -1)  # (k, B, P)
        scale = p.floor + F.softplus(torch.cat([weight_rho, bias_rho], -1))
        if p.noise == "shared":
            y = apply(mean + scale * source.normal(draws, 1, self.width), a)
        else:  # weights fresh for every example: the outputs are independent Gaussians, drawn as such
            variance = apply(scale**2, a**2)
            y = apply(mean, a) + variance.sqrt() * source.normal(draws, *variance.shape[1:])
        return y, kl_to_prior(mean, scale, p.prior_scale) if self.training else 0.0


class PlainNetwork(nn.Module):
    """Layer, ReLU, layer, ... for any of the eight models."""

    def __init__(self, spec: ModelSpec, n_features: int, protocol: Protocol) -> None:
        super().__init__()
        widths = [n_features, *spec.hidden, 1]
        self.layers = nn.ModuleList(_layer(a, b, n_features, spec, protocol) for a, b in zip(widths[:-1], widths[1:]))
        self.always_drops = spec.name == "MLPDropoutNet"
        self.rate = protocol.dropout if self.always_drops else protocol.ensemble_dropout if spec.members > 1 else 0.0
        self.stochastic = self.always_drops or any(isinstance(layer, Global | FDN) for layer in self.layers)
        self.width = max(*spec.hidden, *(layer.width for layer in self.layers))

    def forward(self, x: Tensor, source: Source, draws: int = 1) -> tuple[Tensor, Tensor | float]:
        """Outputs ``(K, B)`` at inputs ``(B, d)``, and in training the KL, a scalar."""
        x = x[None]  # (1, B, d)
        a, total = x, 0.0
        for i, layer in enumerate(self.layers):
            if i > 0:
                a = F.relu(a)
                if self.rate > 0 and (self.training or self.always_drops):
                    a = source.dropout(a.expand(draws, -1, -1), self.rate)
            a, kl = layer(a, x, source, draws)  # (K, B, d_out)
            total = total + kl
        return a[..., 0], total


def _layer(d_in: int, d_out: int, d_x: int, spec: ModelSpec, protocol: Protocol) -> Layer:
    if spec.name in ("BayesNet", "GaussHyperNet"):
        return Global(d_in, d_out, spec, protocol)
    if spec.name in ("IC-FDNet", "LP-FDNet"):
        return FDN(d_in, d_out, d_x, spec, protocol)
    if spec.name == "HyperNet":
        return Hyper(d_in, d_out, spec.hyper)
    if spec.name in POINT_MODELS:
        return Point(d_in, d_out)
    raise UserError(f"the plain program does not know the model {spec.name}")


def _initialised(spec: ModelSpec, dataset: Dataset, protocol: Protocol, seed: int, member: int) -> PlainNetwork:
    """A network with the parameters that the program starts this seed and member with."""
    start = initial_network(spec, dataset.name, dataset.n_features, protocol, seed, member)
    with torch.random.fork_rng(devices=[]):
        network = PlainNetwork(spec, dataset.n_features, protocol).to(getattr(torch, protocol.dtype))
    vector_to_parameters(parameters_to_vector(start.parameters()).detach(), network.parameters())
    return network


def predict(networks: Sequence[PlainNetwork], sources: Sequence[Source], x: Tensor, draws: int) -> Tensor:
    """Draws ``(K, N)`` at inputs ``(N, d)``: of the one network, or one of each member of an ensemble."""
    draws = draws if networks[0].stochastic else 1
    group = max(1, BATCH_ELEMENTS // max(1, len(x) * networks[0].width))
    sizes = [min(group, draws - first) for first in range(0, draws, group)]
    outputs = []
    with torch.no_grad():
        for network, source in zip(networks, sources):
            network.eval()
            source.begin("validate")
            outputs += [network(x, source, size)[0] for size in sizes]  # (K, N)
    return torch.cat(outputs)


@dataclass(frozen=True)
class PlainFit:
    """One seed, trained by :func:`plain_fit`.

    Attributes:
        networks: one, or an ensemble's members, with the parameters of the best epoch.
        history: parameters after every epoch, ``(epochs, M, n)``.
        scores: validation score of every epoch, ``(epochs,)``.
        best_epoch: counted from 1; 0 if no score was finite, and the last parameters are kept.
        seconds: processor time of ``training``, ``validation`` (the draws) and ``selection`` (their score, the best).
    """

    protocol: Protocol
    networks: tuple[PlainNetwork, ...]
    history: Tensor
    scores: np.ndarray
    best_epoch: int
    seconds: dict[str, float]
    n_features: int

    @undisturbed()
    def predict(self, x: object) -> Tensor:
        """Draws ``(K, N)`` at inputs as :meth:`fdn.training.loop.Fit.predict` takes them; torch's random numbers."""
        dtype = getattr(torch, self.protocol.dtype)
        sources = [TorchSource(dtype)] * len(self.networks)
        return predict(self.networks, sources, as_numbers(x, "x", self.n_features, dtype), self.protocol.eval_draws)


@undisturbed()
def plain_fit(
    spec: ModelSpec, dataset: Dataset, protocol: Protocol, seed: int, program_noise: bool = False
) -> PlainFit:
    """Train one seed with the beta-ELBO (paper, algorithm 1), as :func:`fdn.training.loop.fit` does a stack of seeds.

    Args:
        spec: model and widths.
        dataset: data.
        protocol: every setting; the objective is the beta-ELBO whatever it says.
        seed: decides the initial parameters.
        program_noise: take the stacked program's random numbers rather than torch's, and so its results to rounding.
    """
    p, dtype = protocol, getattr(torch, protocol.dtype)
    members = range(spec.members)
    networks = [_initialised(spec, dataset, p, seed, m) for m in members]
    sources: list[Source] = [
        ProgramSource(dataset.name, spec.name, seed, m, dtype) if program_noise else TorchSource(dtype) for m in members
    ]
    optimizers = [torch.optim.Adam(network.parameters(), lr=p.learning_rate) for network in networks]
    x_train, y_train = (torch.as_tensor(t, dtype=dtype) for t in (dataset.x_train, dataset.y_train))
    x_val = torch.as_tensor(dataset.x_val[dataset.id_val], dtype=dtype)
    y_val = dataset.y_val[dataset.id_val]
    updates = math.ceil(len(x_train) / p.batch_size)  # per epoch
    history, scores, seconds = [], [], {"training": 0.0, "validation": 0.0, "selection": 0.0}
    best, best_epoch = np.inf, 0
    for epoch in range(1, max(1, p.epochs // spec.members) + 1):
        times = [processor_clock()]
        order = sources[0].permutation(len(x_train))
        for m, network, source, optimizer in zip(members, networks, sources, optimizers):
            network.train()
            source.begin("train")
            if m > 0 and p.ensemble_order == "own":
                order = source.permutation(len(x_train))
            for i, batch in enumerate(order.split(p.batch_size), 1):
                step = epoch if p.warmup_unit == "epochs" else (epoch - 1) * updates + i
                output, kl = network(x_train[batch], source, p.train_draws)  # (K, B)
                loss = F.mse_loss(output, y_train[batch].expand_as(output))
                loss = loss + beta_at(step, p.beta_schedule, p.warmup, p.beta_max) * kl
                optimizer.zero_grad()
                loss.backward()
                if p.clip_norm is not None:
                    clip_grad_norm_(network.parameters(), p.clip_norm)
                optimizer.step()
        times.append(processor_clock())
        draws = predict(networks, sources, x_val, p.eval_draws).numpy()  # (K, N_val)
        times.append(processor_clock())
        scores.append((metrics.crps if len(draws) > 1 else metrics.mse)(draws, y_val).mean())
        history.append(torch.stack([parameters_to_vector(network.parameters()).detach() for network in networks]))
        if scores[-1] < best:
            best, best_epoch = scores[-1], epoch
        times.append(processor_clock())
        for phase, duration in zip(seconds, np.diff(times)):
            seconds[phase] += float(duration)
    for network, kept in zip(networks, history[best_epoch - 1]):
        vector_to_parameters(kept, network.parameters())
    return PlainFit(p, tuple(networks), torch.stack(history), np.array(scores), best_epoch, seconds, dataset.n_features)
