"""The eight models as choices of q(theta | x): one network skeleton, and for each model its layers and widths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fdn_kernels import mlp
from lib.devices import to_device
from lib.errors import UserError
from lib.noise import Dropped, Streams, seed_sequence
from lib.posteriors import (
    FDNLinear,
    GaussianLinear,
    HyperLinear,
    LatentGaussianLinear,
    PointLinear,
    noise_shape,
)
from lib.protocol import PUBLISHED_SEEDS, Protocol

BASELINE = "TrainingMean"  # predicts the mean of the training targets


class Noise(NamedTuple):
    """The random numbers of one forward pass."""

    kind: str  # "shared", "independent", "local" or "none"
    eps: tuple[Tensor | None, ...] = ()  # per layer, (..., K, 1 or B, P or d_out)
    masks: tuple[Tensor | Dropped | None, ...] = ()  # per hidden activation, (..., K, B, d), True where kept

    def to(self, device: torch.device) -> Noise:
        """The same numbers on a device; masks that are drawn when they are used stay on the host."""
        if device.type == "cpu":
            return self
        eps = tuple(None if e is None else to_device(e, device) for e in self.eps)
        return Noise(self.kind, eps, tuple(to_device(m, device) if isinstance(m, Tensor) else m for m in self.masks))


class Network(nn.Module):
    """Layer, ReLU, layer, ... , layer; the layers say how their weights are distributed.

    Args:
        layers: weight posteriors of :mod:`lib.posteriors`, first to last.
        dropout: rate on hidden activations in training.
        predict_with_dropout: whether masks are drawn in prediction too.
    """

    def __init__(self, layers: list[nn.Module], dropout: float = 0.0, predict_with_dropout: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dropout, self.predict_with_dropout = dropout, predict_with_dropout

    @property
    def stochastic(self) -> bool:
        """Whether two predictions differ."""
        return any(layer.sampled for layer in self.layers) or self.draws_masks_late

    @property
    def draws_masks_late(self) -> bool:
        """Whether predictions draw dropout masks, which is done for one replicate at a time."""
        return self.dropout > 0 and self.predict_with_dropout

    @property
    def per_example_noise(self) -> bool:
        """Whether some layer's weight distribution depends on the example (so that noise can be fresh per example)."""
        return any(layer.sampled and layer.per_example for layer in self.layers)

    @property
    def global_weights(self) -> bool:
        """Whether every layer's weights are the same for all examples."""
        return all(hasattr(layer, "sample") for layer in self.layers)

    def draw_noise(
        self, streams: Streams, kind: str, draws: int, batch: int, training: bool, same_pass: Noise | None = None
    ) -> Noise:
        """Noise of the given kind for ``draws`` Monte Carlo draws over ``batch`` examples.

        ``same_pass`` is the noise of earlier examples of the same pass: what is drawn once per pass is taken from it.
        """
        eps, hidden = [], [layer.d_out for layer in list(self.layers)[:-1]]
        for i, layer in enumerate(self.layers):
            shape = noise_shape(layer, kind, draws, batch)
            once = kind == "shared" or not (layer.sampled and layer.per_example)
            if same_pass is not None and once:
                eps.append(same_pass.eps[i])
            else:
                eps.append(None if shape is None else streams.normal(*shape))
        masked = self.dropout > 0 and (training or self.predict_with_dropout)
        if masked and not training and not streams.lead:
            masks = tuple(Dropped(streams, draws) for d in hidden)
        else:
            masks = tuple(streams.keep(self.dropout, draws, d, batch).mT if masked else None for d in hidden)
        return Noise(kind, tuple(eps), masks)

    def forward(self, x: Tensor, noise: Noise | None = None, kl: str = "none") -> tuple[Tensor, Tensor | None]:
        """Outputs and KL.

        Args:
            x: inputs, ``(..., B, d_in)``.
            noise: from :meth:`draw_noise`; None propagates the mean weights.
            kl: ``"analytic"``, ``"sampled"`` or ``"none"``.

        Returns:
            outputs ``(..., K, B, d_out)`` and the KL summed over layers, ``(..., k, b)`` with k in {1, K}, b in {1, B};
            None where it was not asked for or no layer has one.

        Source: paper, algorithm 1 (inner loop over layers).
        """
        noise = noise or Noise("none")
        eps, masks = noise.eps or (None,) * len(self.layers), noise.masks or (None,) * len(self.layers)
        if self.global_weights and not any(isinstance(m, Dropped) for m in masks):
            drawn = [layer.sample(noise.kind, e, kl) for layer, e in zip(self.layers, eps)]
            widths = [self.layers[0].d_in, *(layer.d_out for layer in self.layers)]
            terms = [term for _, term in drawn if term is not None]
            return mlp(x, [theta for theta, _ in drawn], widths, masks, self.dropout), sum(terms) if terms else None
        x = x.unsqueeze(-3)  # (..., 1, B, d_in)
        a, total = x, None
        for i, layer in enumerate(self.layers):
            if i > 0 and isinstance(masks[i - 1], Dropped):
                a, term = layer.after_dropout(a, masks[i - 1], self.dropout), None
            else:
                a, term = layer(a, x, noise.kind, eps[i], kl)  # (..., K, B, d_out), (..., k, b)
            if term is not None:
                total = term if total is None else total + term
            if i == len(self.layers) - 1:
                break
            a = a.relu() if torch.is_grad_enabled() else a.relu_()  # (..., K, B, d)
            if isinstance(masks[i], Tensor):
                a = a * masks[i] / (1 - self.dropout)
        return a, total


@dataclass(frozen=True)
class ModelSpec:
    """Name and widths of a model; ``hidden`` may hold any number of layers."""

    name: str
    hidden: tuple[int, ...]
    hyper: int | None = None  # width of each hypernetwork
    latent: int | None = None  # width of each latent vector
    members: int = 1  # independently trained networks whose outputs are the draws

    def __post_init__(self) -> None:
        widths = [*self.hidden, self.members, *(w for w in (self.hyper, self.latent) if w is not None)]
        if self.name not in _LAYERS or min(widths, default=1) < 1:
            raise UserError(f"{self!r} is no model: names are {', '.join(MODEL_NAMES)}, widths are positive integers")


def _point(d_in: int, d_out: int, d_x: int, spec: ModelSpec, p: Protocol) -> nn.Module:
    return PointLinear(d_in, d_out)


def _hyper(d_in: int, d_out: int, d_x: int, spec: ModelSpec, p: Protocol) -> nn.Module:
    return HyperLinear(d_in, d_out, spec.hyper)


def _bayes(d_in: int, d_out: int, d_x: int, spec: ModelSpec, p: Protocol) -> nn.Module:
    return GaussianLinear(d_in, d_out, p.global_scale, p.floor, p.prior_scale)


def _latent(d_in: int, d_out: int, d_x: int, spec: ModelSpec, p: Protocol) -> nn.Module:
    return LatentGaussianLinear(d_in, d_out, spec.hyper, spec.latent, p.global_scale, p.floor, p.prior_scale)


def _ic(d_in: int, d_out: int, d_x: int, spec: ModelSpec, p: Protocol) -> nn.Module:
    return FDNLinear(d_in, d_out, spec.hyper, "input", d_x, p.floor, p.prior_scale)


def _lp(d_in: int, d_out: int, d_x: int, spec: ModelSpec, p: Protocol) -> nn.Module:
    return FDNLinear(d_in, d_out, spec.hyper, "previous", d_x, p.floor, p.prior_scale)


_LAYERS: dict[str, Callable[[int, int, int, ModelSpec, Protocol], nn.Module]] = {
    "MLPNet": _point,
    "HyperNet": _hyper,
    "MLPDropoutNet": _point,
    "DeepEnsembleNet": _point,
    "BayesNet": _bayes,
    "GaussHyperNet": _latent,
    "IC-FDNet": _ic,
    "LP-FDNet": _lp,
}
MODEL_NAMES = tuple(_LAYERS)
STOCHASTIC_MODELS = MODEL_NAMES[2:]  # the six of the paper's tables

_WIDTHS = {  # hidden, hyper, latent of the published runs (paper, table "Model configurations")
    "MLPNet": (333, None, None),
    "HyperNet": (25, 9, None),
    "MLPDropoutNet": (333, None, None),
    "DeepEnsembleNet": (33, None, None),  # the table prints 64, which contradicts P = 1000
    "BayesNet": (166, None, None),
    "GaussHyperNet": (24, 5, 9),
    "IC-FDNet": (23, 6, None),
    "LP-FDNet": (24, 5, None),
}


def published_spec(name: str, protocol: Protocol) -> ModelSpec:
    """The model with the published widths, hypernetworks as many times as wide as the protocol says.

    Raises:
        UserError: for an unknown name.
    """
    if name not in _WIDTHS:
        raise UserError(f"unknown model {name!r}; expected one of {', '.join((*MODEL_NAMES, BASELINE))}")
    hidden, hyper, latent = _WIDTHS[name]
    hyper = hyper and max(1, round(protocol.hyper_factor * hyper))
    members = protocol.ensemble_members if name == "DeepEnsembleNet" else 1
    return ModelSpec(name, (hidden,), hyper, latent, members)


def model_spec(name: str, n_features: int, protocol: Protocol) -> ModelSpec:
    """The model as the protocol wants it for inputs of this width: published widths, or widths solved for the budget.

    On one input the published widths are the paper's table, which already meets the budget.
    """
    spec = published_spec(name, protocol)
    in_budget = n_features == 1 and protocol.budget == 1000 and protocol.hyper_factor == 1
    if protocol.widths == "published" or in_budget:
        return spec
    return solve_widths(spec, n_features, protocol.budget, protocol)


def build_network(spec: ModelSpec, n_features: int, protocol: Protocol, n_outputs: int = 1) -> Network:
    """A freshly initialised network of the model (one member of it, for an ensemble), from torch's global random state."""
    widths = [n_features, *spec.hidden, n_outputs]
    layers = [_LAYERS[spec.name](a, b, n_features, spec, protocol) for a, b in zip(widths[:-1], widths[1:])]
    if spec.name == "MLPDropoutNet":
        return Network(layers, dropout=protocol.dropout, predict_with_dropout=True)
    return Network(layers, dropout=protocol.ensemble_dropout if spec.members > 1 else 0.0)


def initial_network(
    spec: ModelSpec, dataset: str, n_features: int, protocol: Protocol, seed: int, member: int = 0, n_outputs: int = 1
) -> Network:
    """The network that a run of a data set, seed and member starts from, in the protocol's type.

    Raises:
        UserError: where the protocol begins with a data set's published seed and there is none.
    """
    dtype, default = getattr(torch, protocol.dtype), torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        if protocol.initialisation == "own":
            torch.manual_seed(int(seed_sequence(dataset, spec.name, seed, "init", member).generate_state(1)[0]))
            return build_network(spec, n_features, protocol, n_outputs).to(dtype)
        if dataset not in PUBLISHED_SEEDS:
            raise UserError(f"{dataset} has no published seed to start from; there are those of {', '.join(PUBLISHED_SEEDS)}")
        torch.manual_seed(PUBLISHED_SEEDS[dataset] + member)
        torch.set_default_dtype(dtype)
        try:
            return build_network(spec, n_features, protocol, n_outputs)
        finally:
            torch.set_default_dtype(default)


def count_parameters(spec: ModelSpec, n_features: int, protocol: Protocol) -> int:
    """Number of all trainable parameters of the model, hypernetworks, latents and members included (the paper's P)."""
    with torch.device("meta"):
        network = build_network(spec, n_features, protocol)
    return spec.members * sum(p.numel() for p in network.parameters())


def solve_widths(spec: ModelSpec, n_features: int, target: int, protocol: Protocol) -> ModelSpec:
    """The model whose parameter count is nearest ``target``.

    Hyper and latent widths are kept and the (common) hidden width is varied; if no hidden width is within the protocol's
    tolerance, the hyper width is lowered by one, and so on.

    Raises:
        UserError: if no widths are within the tolerance of the target.
    """

    def counted(hidden: int, hyper: int | None) -> tuple[int, ModelSpec]:
        candidate = dataclasses.replace(spec, hidden=(hidden,) * len(spec.hidden), hyper=hyper)
        return count_parameters(candidate, n_features, protocol), candidate

    hypers = [None] if spec.hyper is None else range(spec.hyper, 0, -1)
    for hyper in hypers:
        low, high = 1, 1
        while counted(high, hyper)[0] < target:
            low, high = high, 2 * high
        while high - low > 1:  # the count grows with the hidden width
            middle = (low + high) // 2
            low, high = (middle, high) if counted(middle, hyper)[0] < target else (low, middle)
        count, best = min((counted(h, hyper) for h in (low, high)), key=lambda c: abs(c[0] - target))
        if abs(count - target) <= protocol.budget_tolerance * target:
            return best
    raise UserError(
        f"{spec.name} has no hidden width within {protocol.budget_tolerance:.0%} of {target} parameters for {n_features} "
        f"inputs; the nearest has {count}: raise the target"
    )


def model_grid(n_features: int, protocol: Protocol) -> list[dict[str, object]]:
    """Rows of the paper's model table for inputs of this width: model, hidden, hyper, latent, members, n_params."""
    specs = [model_spec(name, n_features, protocol) for name in MODEL_NAMES]
    return [
        {
            "model": s.name,
            "hidden": s.hidden[0],
            "hyper": s.hyper,
            "latent": s.latent,
            "members": s.members,
            "n_params": count_parameters(s, n_features, protocol),
        }
        for s in specs
    ]
