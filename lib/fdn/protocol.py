"""Every setting in which runs can differ, as data: three named protocols, and ``replace`` for ablations.

``PUBLISHED`` holds what the paper's published numbers were computed with, ``AS_WRITTEN`` the paper read literally;
the page of differences lists them side by side. ``RECOMMENDED`` is ours, for data of one's own. An ablation is
``replace(PUBLISHED, warmup=50)``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from fdn.settings import Count, Factor, NonNegative, Positive, Rate, Scale, Whole, check_fields, choose, kinds

# "Model seeds" of the published tables (table of hyperparameters); of the author's random numbers, not of ours
PUBLISHED_SEEDS = {"step": 13, "sine": 19, "quad": 6, "airfoil": 64, "ccpp": 2, "energy": 2}
# of the whole study, as :func:`fdn.arguments.parse_seeds` reads them
STUDY_SEEDS = {"step": "0:20", "sine": "0:20", "quad": "0:20", "airfoil": "0:100", "ccpp": "0:3", "energy": "0:3"}


@dataclass(frozen=True)
class Protocol:
    """Settings of data, models, training and evaluation (paper, table of hyperparameters and section 3).

    Raises:
        UserError: for a value outside its range, naming the field.
    """

    base: Literal["published", "as_written", "recommended"]  # the named protocol this one is, or started from
    # data
    toy_functions: Literal["published", "printed"] = "published"  # toy targets
    toy_validation: Literal["published", "printed"] = "published"  # validation points: 256 ID + 256 OOD, or 512 ID
    # models
    widths: Literal["published", "budget"] = "published"  # the same for every data set, or solved for `budget`
    budget: Count = 1000  # target parameter count P
    budget_tolerance: NonNegative = 0.05  # of P
    hyper_factor: Factor = 1.0  # width of every hypernetwork in published ones, rounded
    width: Count | None = None  # of an FDN's hidden layer, in place of `widths`
    hyper: Count | None = None  # of its hypernetworks
    members: Count = 1  # of an FDN, started apart and trained side by side: their draws are one mixture
    ensemble_members: Count = 10  # M
    ensemble_dropout: Rate = 0.1  # members' dropout while training
    dropout: Rate = 0.1  # MLPDropoutNet, always on
    global_scale: Literal["exp", "softplus"] = "exp"  # BayesNet, GaussHyperNet: exp(log sigma), or as an FDN's
    floor: NonNegative = 1e-3  # sigma = floor + softplus(rho)
    initialisation: Literal["own", "published"] = "own"  # its own, or torch's for the data set's published seed
    # FDN layers beyond the published ones: lib/fdn/models/posteriors.py and structures.py
    structure: Literal["full", "low_rank", "rows", "columns"] = "full"  # what a hypernetwork makes
    rank: Count | None = None  # of "low_rank"
    residual: bool = False  # ordinary weights, perturbed by the generated ones
    shared_hypernet: bool = False  # IC: one hidden layer for the hypernetworks of all layers
    hyper_activation: Literal["relu", "tanh"] = "relu"
    frequencies: Whole = 0  # Fourier features of the conditioning signal
    init_sigma: Positive | Literal["auto"] | None = None  # of the weights at the start; none: as PyTorch begins
    # objective
    objective: Literal["elbo", "iwae"] = "elbo"  # B.A or B.B
    train_draws: Count = 1  # K while training
    likelihood: Literal["homoscedastic", "heteroscedastic", "learned"] = "homoscedastic"  # of the observations
    observation_variance: Positive = (
        0.5  # sigma^2 of the likelihood; beta = 2 sigma^2 turns the ELBO into MSE + beta KL
    )
    prior_scale: Scale | Literal["fan_in"] = 1.0  # sigma_0; "fan_in": 1 / sqrt(d_in) of each layer
    beta_schedule: Literal["constant", "linear", "cosine", "sigmoid"] = "linear"
    beta_max: NonNegative | Literal["auto"] = 1.0  # "auto": chosen from the training rows, fdn.training.recipe
    layer_beta: NonNegative = 1.0  # beta of the last layer's KL, as a share of the first one's; between them geometric
    warmup: Whole = 200
    warmup_unit: Literal["epochs", "updates"] = "epochs"
    # noise of the FDN layers, in training, validation and test alike
    noise: Literal["shared", "independent"] = "shared"  # one draw per weight and pass, or fresh per example
    # optimisation
    epochs: Count = 400  # divided by the number of members for the ensemble
    most_updates: Count | None = None  # fewer epochs where these would be more updates
    learning_rate: Positive = 1e-3
    rate_schedule: Literal["constant", "one_cycle"] = "constant"  # up to `learning_rate` and down to nothing
    batch_size: Count = 64
    clip_norm: Positive | None = 1.0  # gradient norm, per network
    ensemble_order: Literal["common", "own"] = "common"  # the minibatches that members see
    dtype: Literal["float32", "float64"] = "float64"  # on the CPU the faster: the loops are compiled for it alone
    # validation and test
    keep: Literal["best", "last"] = "best"  # the epoch of the smallest validation score, or the last one
    look: Count = 1  # epochs between looks at the validation points; the last one is always looked at
    patience: Count | None = None  # epochs without a better score after which a seed's training ends
    score: Literal["function", "observation"] = "function"  # CRPS of f(x), or with the likelihood's noise
    fit_observation_noise: bool = (
        False  # multiply the likelihood's variance, once trained, by what suits the validation points
    )
    eval_draws: Count = 100  # K for validation and test
    variance_offset: NonNegative = 1e-6  # added to Var_i
    temperature: NonNegative = 1.0  # factor of the weights' standard deviation in prediction

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def label(self) -> str:
        """Name under which results are stored: the base protocol plus every field that differs from it."""
        reference = PROTOCOLS[self.base]
        changed = [
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != getattr(reference, f.name)
        ]
        return "+".join([self.base, *changed])


PUBLISHED = Protocol(base="published")

AS_WRITTEN = Protocol(
    base="as_written",
    toy_functions="printed",
    toy_validation="printed",
    widths="budget",
    ensemble_dropout=0.0,
    global_scale="softplus",
    warmup_unit="updates",
    noise="independent",
    clip_norm=None,
    ensemble_order="own",
    variance_offset=0.0,
)

# Ours, for data of one's own; what each setting brings: notebook 10
RECOMMENDED = Protocol(
    base="recommended",
    width=50,
    hyper=8,
    members=5,
    hyper_activation="tanh",
    init_sigma="auto",
    prior_scale="fan_in",
    likelihood="heteroscedastic",
    beta_schedule="constant",
    beta_max="auto",
    noise="independent",
    epochs=300,
    most_updates=3000,
    learning_rate=3e-3,
    rate_schedule="one_cycle",
    clip_norm=None,
    dtype="float32",
    look=5,
    score="observation",
    fit_observation_noise=True,
)

PAPER_PROTOCOLS: dict[str, Protocol] = {protocol.base: protocol for protocol in (PUBLISHED, AS_WRITTEN)}
PROTOCOLS = {**PAPER_PROTOCOLS, RECOMMENDED.base: RECOMMENDED}


def get_protocol(name: str, **changes: Any) -> Protocol:
    """The named protocol with fields replaced.

    >>> get_protocol("published", epochs=3).label
    'published+epochs=3'

    Raises:
        UserError: for an unknown name or setting, or an invalid value.
    """
    for change in changes:
        choose(change, kinds(Protocol), "setting")
    return dataclasses.replace(PROTOCOLS[choose(name, PROTOCOLS, "protocol")], **changes)
