"""Where the print and the published runs differ, and what each difference does to the numbers.

Differences that a protocol field expresses are measured: the published protocol with that field as printed, everything
else unchanged. The rest are recorded with the reason why there is nothing to run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fdn import paths
from fdn.models import FDN_MODELS, PAPER_MODELS
from fdn.protocol import AS_WRITTEN, PUBLISHED, Protocol

VARIATIONAL = ("BayesNet", "GaussHyperNet", *FDN_MODELS)
ENSEMBLE = ("DeepEnsembleNet",)


@dataclass(frozen=True)
class Difference:
    """One difference between the print and the published runs."""

    name: str
    where: str  # in the paper
    printed: str
    published: str
    field: str | None = None  # of Protocol
    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    remark: str = ""  # why there is nothing to run, or what to expect
    seeds: str = "0:5"

    @property
    def protocol(self) -> Protocol | None:
        """The published protocol with this one setting as printed."""
        return replace(PUBLISHED, **{self.field: getattr(AS_WRITTEN, self.field)}) if self.field else None

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """What is compared."""
        return (PUBLISHED, self.protocol) if self.protocol else ()


DIFFERENCES = (
    Difference(
        "Step target", "section 4.1, figure 2", "H(x): 0 or 1, H(0) = 1", "-1 for x <= 0, +1 for x > 0",
        "toy_functions", ("step",), FDN_MODELS,
    ),
    Difference(
        "Sine target", "section 4.1, figure 2", "1.54 sin(2.39 x): radians",
        "1.5441 sin(2 pi 2.38875 x): 2.39 is in cycles", "toy_functions", ("sine",), FDN_MODELS,
    ),
    Difference(
        "Quadratic target", "section 4.1, figure 2", "0.43 x^2 - 0.41", "the same before rounding to two digits",
        "toy_functions", ("quad",), FDN_MODELS,
    ),
    Difference(
        "Toy validation points", "section 4.1, table of split sizes", "512 from the interpolation region",
        "256 from the interpolation region, which decide the checkpoint, and 256 outside, which decide nothing",
        "toy_validation", ("step",), FDN_MODELS,
    ),
    Difference(
        "Parameter budget on the UCI sets", "section 4.3", "P about 1000 (within 5 %) for all models",
        "the toy widths were kept: 1,858 to 3,342 parameters", "widths", ("energy",), PAPER_MODELS,
    ),
    Difference(
        "Warm-up of beta", "hyperparameter table", "200 updates", "200 epochs", "warmup_unit", ("step", "energy"),
        VARIATIONAL,
    ),
    Difference(
        "Weight noise of the FDN layers", "algorithm 1", "drawn afresh for every example",
        "one draw per weight and pass, used for every example", "noise", ("step", "energy"), FDN_MODELS,
        "The marginal at one input is the same; the gradients are less noisy with fresh draws.",
    ),
    Difference(
        "Gradient clipping", "not mentioned", "none", "gradient norm clipped to 1", "clip_norm",
        ("step", "energy"), FDN_MODELS,
    ),
    Difference(
        "Scale of BayesNet and GaussHyperNet", "section 3.2, appendix B", "sigma = 1e-3 + softplus(rho)",
        "sigma = exp(log sigma); only the FDNs have the floor", "global_scale", ("step", "energy"),
        ("BayesNet", "GaussHyperNet"),
    ),
    Difference(
        "Ensemble members' dropout", "not mentioned", "none", "0.1 while training, off when predicting",
        "ensemble_dropout", ("step", "energy"), ENSEMBLE,
    ),
    Difference(
        "Ensemble members' minibatches", "appendix A", "typically a different data order per member",
        "all members see the same minibatches", "ensemble_order", ("step", "energy"), ENSEMBLE,
    ),
    Difference(
        "Variance", "appendix H", "population variance of the draws", "the same plus 1e-6", "variance_offset",
        ("quad", "energy"), ENSEMBLE,
    ),
    Difference(
        "Ensemble width", "model table", "hidden width 64 with P = 1000", "hidden width 33",
        remark="Ten members of width 64 have 1,930 parameters on one input; 64 contradicts the table's own count.",
    ),
    Difference(
        "Draws", "section 3.2, appendix H", "samples of the predictive distribution, observation noise included",
        "f_theta(x), without noise",
        remark="Noise of variance sigma^2 would add sigma^2 to every Var_i and MSE_i and leave b and the deltas of "
        "both alone.",
    ),
    Difference(
        "AURC", "appendix H", "integral of R(c) from c = 0", "trapezoid over coverage 1/T .. 1",
        remark="The missing piece is at most R(1/T) / T.",
    ),
    Difference(
        "KL in algorithm 1", "algorithm 1", "summed over the K draws, loss divided by N",
        "averaged over draws and the minibatch; a global posterior's KL undivided",
        remark="With K = 1, as trained, the sum over draws is the average; 1/N against the minibatch is read as "
        "a misprint.",
    ),
    Difference(
        "UCI splits", "section 4.2", "train, validation and test split by quantiles of z",
        "a random shuffle inside the 20-80 % band of z; all rows outside are OOD test rows",
        remark="The split sizes of the paper's table agree with the published runs.",
    ),
    Difference(
        "Hypernetwork output", "appendix G", "log sigma^2", "rho, as in section 3.2", remark="A slip of notation.",
    ),
    Difference(
        "Likelihood", "appendices B and D", "1 / (2 sigma^2) in front of the squared error",
        "MSE + beta KL, as in section 3.1",
        remark="The same thing with beta = 2 sigma^2.",
    ),
    Difference(
        "Seeds", "hyperparameter table", "13, 19, 6, 64, 2, 2", "the same",
        remark="They name streams of another generator; what can be reproduced is the distribution over seeds.",
    ),
    Difference(
        "Not in print", "-", "-", "dropout rate 0.1, BayesNet's initial mu ~ N(0, 0.1^2) and log sigma = -3, float64",
        remark="Both protocols use these.",
    ),
)  # fmt: skip

FOLDER = paths.ROOT / "data" / "differences"  # the page and the results behind it
MEASURED = tuple(difference for difference in DIFFERENCES if difference.field)
