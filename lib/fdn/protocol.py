"""Every setting in which runs can differ, as data: ``PUBLISHED``, ``AS_WRITTEN``, and ``replace`` for ablations.

``PUBLISHED`` holds what the paper's published numbers were computed with, ``AS_WRITTEN`` the paper read literally;
the page of differences lists them side by side. An ablation is ``replace(PUBLISHED, warmup=50)``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fdn.errors import UserError

# "Model seeds" of the published tables (table of hyperparameters); of the author's random numbers, not of ours
PUBLISHED_SEEDS = {"step": 13, "sine": 19, "quad": 6, "airfoil": 64, "ccpp": 2, "energy": 2}


@dataclass(frozen=True)
class Protocol:
    """Settings of data, models, training and evaluation (paper, table of hyperparameters and section 3).

    Raises:
        UserError: for a value outside its range, naming the field.
    """

    base: str  # the named protocol this one is, or started from
    # data
    toy_functions: str = "published"  # "published" or "printed" toy targets
    toy_validation: str = "published"  # 256 ID + 256 OOD validation points, or "printed": 512 ID
    # models
    widths: str = "published"  # the same widths on every data set, or "budget": solved for `budget` parameters
    budget: int = 1000  # target parameter count P
    budget_tolerance: float = 0.05
    hyper_factor: float = 1.0  # width of every hypernetwork in published ones, rounded
    ensemble_members: int = 10  # M
    ensemble_dropout: float = 0.1  # members' dropout while training
    dropout: float = 0.1  # MLPDropoutNet, always on
    global_scale: str = "exp"  # sigma of BayesNet and GaussHyperNet: exp(log sigma), or "softplus" with the floor
    floor: float = 1e-3  # sigma = floor + softplus(rho)
    initialisation: str = "own"  # every run its own, or "published": all runs of a data set torch's for its published seed
    # objective
    objective: str = "elbo"  # "elbo" (B.A) or "iwae" (B.B)
    train_draws: int = 1  # K while training
    noise_variance: float = 0.5  # sigma^2 of the likelihood; beta = 2 sigma^2 turns the ELBO into MSE + beta KL
    prior_scale: float = 1.0  # sigma_0
    beta_schedule: str = "linear"  # constant, linear, cosine, sigmoid
    beta_max: float = 1.0
    warmup: int = 200
    warmup_unit: str = "epochs"  # or "updates"
    # noise of the FDN layers, in training, validation and test alike
    noise: str = "shared"  # one draw per weight and pass for all examples, or "independent": fresh per example
    # optimisation
    epochs: int = 400  # divided by the number of members for the ensemble
    learning_rate: float = 1e-3
    batch_size: int = 64
    clip_norm: float | None = 1.0  # gradient norm, per network
    ensemble_order: str = "common"  # members see the same minibatches, or "own"
    dtype: str = "float64"
    # validation and test
    eval_draws: int = 100  # K for validation and test
    variance_offset: float = 1e-6  # added to Var_i

    def __post_init__(self) -> None:
        choices = {
            "toy_functions": ("published", "printed"),
            "toy_validation": ("published", "printed"),
            "widths": ("published", "budget"),
            "global_scale": ("exp", "softplus"),
            "initialisation": ("own", "published"),
            "objective": ("elbo", "iwae"),
            "beta_schedule": ("constant", "linear", "cosine", "sigmoid"),
            "warmup_unit": ("epochs", "updates"),
            "noise": ("shared", "independent"),
            "ensemble_order": ("common", "own"),
            "dtype": ("float32", "float64"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise UserError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")
        positive = ("budget", "ensemble_members", "train_draws", "epochs", "batch_size", "eval_draws")
        for name in (*positive, "hyper_factor", "learning_rate", "prior_scale", "noise_variance"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}; expected a positive number")
        for name in ("warmup", "beta_max", "floor", "variance_offset"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}; expected zero or more")
        for name in ("dropout", "ensemble_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; expected a rate in [0, 1)")

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

PROTOCOLS = {"published": PUBLISHED, "as_written": AS_WRITTEN}


def get_protocol(name: str, **changes: object) -> Protocol:
    """The named protocol, with the fields in ``changes`` that are not None replaced.

    >>> get_protocol("published", epochs=3).label
    'published+epochs=3'

    Raises:
        UserError: for an unknown name or an invalid value.
    """
    if name not in PROTOCOLS:
        raise UserError(f"unknown protocol {name!r}; expected one of {', '.join(PROTOCOLS)}")
    return dataclasses.replace(PROTOCOLS[name], **{k: v for k, v in changes.items() if v is not None})
