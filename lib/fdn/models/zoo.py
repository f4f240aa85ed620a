"""The eight models as choices of q(theta | x): one network skeleton, and for each model its layers and widths."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fdn.devices import undisturbed
from fdn.errors import UserError
from fdn.models.network import Network
from fdn.models.posteriors import (
    FDNLinear,
    GaussianLinear,
    HyperLinear,
    LatentGaussianLinear,
    PointLinear,
)
from fdn.protocol import PUBLISHED_SEEDS, Protocol
from fdn.streams import seed_sequence

BASELINE = "TrainingMean"  # predicts the mean of the training targets


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
    """A freshly initialised network of the model (one member of it, for an ensemble).

    As any PyTorch module it comes from torch's global random state, in its default type and on its default device.
    """
    widths = [n_features, *spec.hidden, n_outputs]
    layers = [_LAYERS[spec.name](a, b, n_features, spec, protocol) for a, b in zip(widths[:-1], widths[1:])]
    if spec.name == "MLPDropoutNet":
        return Network(layers, dropout=protocol.dropout, predict_with_dropout=True)
    return Network(layers, dropout=protocol.ensemble_dropout if spec.members > 1 else 0.0)


_ONE_AT_A_TIME = threading.Lock()  # PyTorch draws the weights of all threads from one generator


@undisturbed()
def initial_network(
    spec: ModelSpec, dataset: str, n_features: int, protocol: Protocol, seed: int, member: int = 0, n_outputs: int = 1
) -> Network:
    """The network that a run of a data set, seed and member starts from, in the protocol's type.

    Raises:
        UserError: where the protocol begins with a data set's published seed and there is none.
    """
    dtype, own = getattr(torch, protocol.dtype), protocol.initialisation == "own"
    if not own and dataset not in PUBLISHED_SEEDS:
        known = ", ".join(PUBLISHED_SEEDS)
        raise UserError(f"{dataset} has no published seed to start from; there are those of {known}")
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        if own:
            start = int(seed_sequence(dataset, spec.name, seed, "init", member).generate_state(1)[0])
        else:
            start = PUBLISHED_SEEDS[dataset] + member
            torch.set_default_dtype(dtype)  # the type of the random numbers too; ours are float32
        torch.default_generator.manual_seed(start)  # and no GPU's, as torch.manual_seed would
        return build_network(spec, n_features, protocol, n_outputs).to(dtype)


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
