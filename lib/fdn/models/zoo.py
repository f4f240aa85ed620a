"""The eight models as choices of q(theta | x): one network skeleton, and for each model its layers and widths."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from fdn.devices import undisturbed
from fdn.errors import UserError
from fdn.models import posteriors
from fdn.models.network import Network
from fdn.models.posteriors import FDNLinear, GaussianLinear, HyperLinear, LatentGaussianLinear, PointLinear
from fdn.models.structures import StructuredFDNLinear
from fdn.protocol import PUBLISHED, PUBLISHED_SEEDS, Protocol
from fdn.settings import Count, check_fields, checked, choose
from fdn.streams import seed_sequence

BASELINE = "TrainingMean"  # predicts the mean of the training targets
NOISE_RHO = -1.0  # a standard deviation of 0.31 of the target's, where its learning starts


@dataclass(frozen=True)
class ModelSpec:
    """Name and widths of a model; ``hidden`` may hold any number of layers."""

    name: str
    hidden: tuple[Count, ...]
    hyper: Count | None = None  # width of each hypernetwork
    latent: Count | None = None  # width of each latent vector
    members: Count = 1  # independently trained networks whose outputs are the draws

    def __post_init__(self) -> None:
        check_fields(self)
        check_model(self.name)
        for width in ("hyper", "latent"):
            if getattr(MODELS[self.name], width) is not None and getattr(self, width) is None:
                raise UserError(f"{self.name} needs the width {width!r}, as in {published_spec(self.name, PUBLISHED)}")


class At(NamedTuple):
    """Where in a network a layer stands."""

    d_in: int
    d_out: int
    n_features: int  # width of the network's input
    hyper: int  # widths of its hypernetwork and latent vector, 0 where the model has none
    latent: int
    last: bool  # whether it makes the network's outputs


def _point(at: At, p: Protocol) -> nn.Module:
    return PointLinear(at.d_in, at.d_out)


def _hyper(at: At, p: Protocol) -> nn.Module:
    return HyperLinear(at.d_in, at.d_out, at.hyper)


def _bayes(at: At, p: Protocol) -> nn.Module:
    return GaussianLinear(at.d_in, at.d_out, p.global_scale, p.floor, p.prior_scale)


def _latent(at: At, p: Protocol) -> nn.Module:
    return LatentGaussianLinear(at.d_in, at.d_out, at.hyper, at.latent, p.global_scale, p.floor, p.prior_scale)


def _fdn(at: At, p: Protocol, condition: str) -> nn.Module:
    arguments = at.d_in, at.d_out, at.hyper, condition, at.n_features, p.floor, p.prior_scale
    given: dict[str, Any] = {"init_sigma": p.init_sigma, "activation": p.hyper_activation, "frequencies": p.frequencies}
    if (p.structure, p.rank, p.residual) == ("full", None, False):
        return FDNLinear(*arguments, **given)
    return StructuredFDNLinear(*arguments, structure=p.structure, rank=p.rank, residual=p.residual, **given)


_ic = functools.partial(_fdn, condition="input")
_lp = functools.partial(_fdn, condition="layer")


@dataclass(frozen=True)
class Model:
    """All that is particular to one model.

    Attributes:
        layer: makes the layer at a place of the network.
        hidden, hyper, latent: widths of the published runs (paper, table "Model configurations").
        style: colour and marker, the same in every figure (Okabe-Ito colours).
        in_paper: whether the paper's result tables have it; these are the default wherever models are chosen.
        stochastic: whether two predictions differ.
        ensemble: whether its draws are independently trained members.
        drops: whether dropout masks are drawn in prediction as in training.
        cost: of a seed's run, rough and relative, to start the longest first.
    """

    layer: Callable[[At, Protocol], nn.Module]
    hidden: int
    hyper: int | None = None
    latent: int | None = None
    style: tuple[str, str] = ("#666666", ".")
    in_paper: bool = False
    stochastic: bool = True
    ensemble: bool = False
    drops: bool = False
    cost: float = 1.0


MODELS = {
    "MLPNet": Model(_point, 333, style=("#888888", "X"), stochastic=False),
    "HyperNet": Model(_hyper, 25, 9, style=("#000000", "*"), stochastic=False),
    "MLPDropoutNet": Model(_point, 333, style=("#E69F00", "o"), in_paper=True, drops=True, cost=2.0),
    # 33: the table prints 64, which contradicts P = 1000
    "DeepEnsembleNet": Model(_point, 33, style=("#56B4E9", "s"), in_paper=True, ensemble=True, cost=0.3),
    "BayesNet": Model(_bayes, 166, style=("#009E73", "^"), in_paper=True, cost=2.0),
    "GaussHyperNet": Model(_latent, 24, 5, 9, style=("#CC79A7", "D"), in_paper=True),
    "IC-FDNet": Model(_ic, 23, 6, style=("#0072B2", "v"), in_paper=True, cost=2.0),
    "LP-FDNet": Model(_lp, 24, 5, style=("#D55E00", "P"), in_paper=True, cost=3.0),
}
MODEL_NAMES = tuple(MODELS)
STOCHASTIC_MODELS = tuple(name for name, model in MODELS.items() if model.stochastic)
PAPER_MODELS = tuple(name for name, model in MODELS.items() if model.in_paper)
FDN_MODELS = tuple(name for name in PAPER_MODELS if MODELS[name].layer in (_ic, _lp))
ENSEMBLES = tuple(name for name, model in MODELS.items() if model.ensemble)


def check_model(name: str, known: tuple[str, ...] = MODEL_NAMES) -> None:
    """Raise UserError unless the name is one of ``known``, by default a model's."""
    choose(name, known, "model")


def published_spec(name: str, protocol: Protocol) -> ModelSpec:
    """The model with the published widths, hypernetworks as many times as wide as the protocol says.

    Raises:
        UserError: for an unknown name.
    """
    check_model(name)
    model, p = MODELS[name], protocol
    hyper = model.hyper and max(1, round(p.hyper_factor * model.hyper))
    if name in FDN_MODELS:
        return ModelSpec(name, (p.width or model.hidden,), p.hyper or hyper, model.latent, p.members)
    return ModelSpec(name, (model.hidden,), hyper, model.latent, p.ensemble_members if model.ensemble else 1)


def model_spec(name: str, n_features: int, protocol: Protocol) -> ModelSpec:
    """The model as the protocol wants it for inputs of this width: published widths, or widths solved for the budget.

    On one input the published widths are the paper's table, which already meets the budget.
    """
    spec, n_features = published_spec(name, protocol), checked("n_features", n_features, Count)
    in_budget = n_features == 1 and protocol.budget == 1000 and protocol.hyper_factor == 1
    own = name in FDN_MODELS and protocol.width is not None
    if protocol.widths == "published" or in_budget or own:
        return spec
    return solve_widths(spec, n_features, protocol.budget, protocol)


def build_network(spec: ModelSpec, n_features: int, protocol: Protocol, n_outputs: int = 1) -> Network:
    """A freshly initialised network of the model (one member of it, for an ensemble).

    As any PyTorch module it comes from torch's global random state, in its default type and on its default device.
    """
    pairs = list(itertools.pairwise([n_features, *spec.hidden, n_outputs]))
    own, last = (spec.hyper or 0, spec.latent or 0), len(pairs) - 1
    model, places = MODELS[spec.name], [At(*pair, n_features, *own, i == last) for i, pair in enumerate(pairs)]
    layers: list[Any] = [model.layer(at, protocol) for at in places]
    if protocol.shared_hypernet and spec.name in FDN_MODELS:
        if any(layer.condition != "input" for layer in layers):
            raise UserError(f"{spec.name} cannot share a hypernetwork: its layers see signals of different widths")
        for layer in layers[1:]:
            layer.hypernet.hidden = layers[0].hypernet.hidden
    kl_weights = [protocol.layer_beta ** (i / max(1, len(layers) - 1)) for i in range(len(layers))]
    of_members = protocol.ensemble_dropout if model.ensemble and spec.members > 1 else 0.0
    noise_rho = NOISE_RHO if protocol.likelihood == "learned" else None
    dropout = protocol.dropout if model.drops else of_members
    return Network(layers, dropout, model.drops, kl_weights, protocol.temperature, noise_rho)


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


def solve_widths(spec: ModelSpec, n_features: int, budget: int, protocol: Protocol) -> ModelSpec:
    """The model whose parameter count is nearest the budget P.

    Hyper and latent widths are kept and the (common) hidden width is varied; if no hidden width is within the
    protocol's tolerance, the hyper width is lowered by one, and so on.

    Raises:
        UserError: if no widths are within the tolerance of the budget.
    """

    def counted(hidden: int, hyper: int | None) -> tuple[int, ModelSpec]:
        candidate = dataclasses.replace(spec, hidden=(hidden,) * len(spec.hidden), hyper=hyper)
        return count_parameters(candidate, n_features, protocol), candidate

    hypers = [None] if spec.hyper is None else range(spec.hyper, 0, -1)
    for hyper in hypers:
        widths = range(1, budget + 1)  # the count grows with the width, and is at least as large
        i = bisect.bisect_left(widths, budget, key=lambda hidden: counted(hidden, hyper)[0])  # the first that reaches P
        count, best = min((counted(h, hyper) for h in widths[max(0, i - 1) : i + 1]), key=lambda c: abs(c[0] - budget))
        if abs(count - budget) <= protocol.budget_tolerance * budget:
            return best
    raise UserError(
        f"{spec.name} has no hidden width within {protocol.budget_tolerance:.0%} of {budget} parameters for "
        f"{n_features} inputs; the nearest has {count}: ask for more"
    )


def multiply_accumulates(spec: ModelSpec, n_features: int, protocol: Protocol) -> tuple[int, int]:
    r"""Multiply-accumulates of one forward pass: per (draw, point), and once per pass whatever the points.

    In an ensemble a draw is one member. Biases, activations and the sampling itself are element-wise and not counted.
    Source: Appendix G.

    >>> from fdn.protocol import PUBLISHED
    >>> multiply_accumulates(model_spec("LP-FDNet", 1, PUBLISHED), 1, PUBLISHED)
    (903, 0)
    """
    with torch.device("meta"):
        network = build_network(spec, n_features, protocol)
    per_point, per_pass = zip(*map(posteriors.multiply_accumulates, network.layers), strict=True)
    return sum(per_point), sum(per_pass)


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
