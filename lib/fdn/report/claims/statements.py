"""The paper's claims about its results, each with a criterion that numbers can meet or miss.

The words are the paper's, the criteria are ours. A :class:`Claim` compares the rows of one table, so that it can be put
to the published table and to every one of our seeds alike; a :class:`Fact` is one statement about counts, settings,
times or all seeds together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fdn.metrics import spearman
from fdn.models import BASELINE, FDN_MODELS, PAPER_MODELS, model_spec
from fdn.protocol import PUBLISHED
from fdn.report import published
from fdn.report.published import DATASETS
from fdn.report.tables import DASH, plain_number
from fdn.runs import extras
from fdn.timing import latency
from fdn.timing.latency import BASE_MLP

FDN = list(FDN_MODELS)
OTHERS = [model for model in PAPER_MODELS if model not in FDN]
TOY, UCI = ("step", "sine", "quad"), ("airfoil", "ccpp", "energy")
SMOOTH, ABLATED = ("step", "quad"), extras.ABLATED
DETERMINISTIC, SHARP = ["MLPNet", "HyperNet"], ["DeepEnsembleNet", "BayesNet"]
CLASSICAL = ["MLPDropoutNet", *SHARP]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about some data sets, and what would have to be true of the numbers.

    ``holds`` takes a frame with a row per model, among them ``models``, and ``metrics`` among its columns. A model
    under changed settings is a row of its own, :func:`variant`. With ``across``, the frame has the rows of all
    ``datasets``, named "airfoil/LP-FDNet", and the claim is judged once.
    """

    section: str
    datasets: tuple[str, ...]
    words: str
    criterion: str
    metrics: tuple[str, ...]
    holds: Callable[[pd.DataFrame], bool]
    models: Sequence[str] = PAPER_MODELS
    across: bool = False

    def judge(self, frame: pd.DataFrame) -> bool | None:
        """Whether the claim holds; None if the frame lacks a model or a metric."""
        if not set(self.models) <= set(frame.index) or not set(self.metrics) <= set(frame.columns):
            return None
        return bool(self.holds(frame))


@dataclass(frozen=True)
class Evidence:
    """What facts are judged by: all metrics under the published protocol, and the measured times, if there are any."""

    metrics: pd.DataFrame
    times: pd.DataFrame | None

    def time(self, quantity: str, model: str, size: float | None = None) -> float:
        """One measured ratio or exponent of :func:`fdn.timing.latency.measure`; NaN if it was not measured."""
        if self.times is None:
            return np.nan
        rows = self.times[(self.times["quantity"] == quantity) & (self.times["model"] == model)]
        rows = rows[rows["size"].isna()] if size is None else rows[rows["size"] == size]
        return float(rows["ratio"].iloc[0]) if len(rows) else np.nan


@dataclass(frozen=True)
class Fact:
    """A sentence about counts, settings, times or all seeds at once.

    ``judge`` returns whether it holds (None if it was not measured) and the numbers in words.
    """

    section: str
    words: str
    criterion: str
    judge: Callable[[Evidence], tuple[bool | None, str]]
    published: str = DASH


def variant(model: str, **settings: object) -> str:
    """The name of a model's row under the published protocol with settings changed.

    >>> variant("LP-FDNet", beta_max=0.1)
    'LP-FDNet+beta_max=0.1'
    """
    return "+".join([model, *(f"{name}={value}" for name, value in settings.items())])


def _fdn(**settings: object) -> list[str]:
    return [variant(model, **settings) for model in FDN]


def _off_one(b: pd.Series) -> pd.Series:
    """|ln b|: how far a slope is from 1, alike for b and 1/b; infinite for b <= 0."""
    return np.log(b.where(b > 0, np.inf)).abs()


def _over_best(metric: str) -> Callable[[pd.DataFrame], bool]:
    return lambda t: t.loc[FDN, metric].min() > t.loc[OTHERS, metric].min()


def _comparable(metric: str) -> Callable[[pd.DataFrame], bool]:
    return lambda t: t.loc[FDN, metric].max() <= 2 * t.loc[OTHERS, metric].max()


def _competitive(metric: str) -> Callable[[pd.DataFrame], bool]:
    return lambda t: t.loc[FDN, metric].max() <= 2 * t.loc[OTHERS, metric].median()


def _somewhat_larger(metric: str) -> Callable[[pd.DataFrame], bool]:
    return lambda t: (
        t.loc[OTHERS, metric].min() < t.loc[FDN, metric].min()
        and (t.loc[FDN, metric].max() <= 2 * t.loc[OTHERS, metric].min())
    )


def _within(metric: str, models: Sequence[str], factor: float) -> Callable[[pd.DataFrame], bool]:
    return lambda t: t.loc[models, metric].max() <= factor * t.loc[models, metric].min()


def _near_ensembles(metric: str) -> Callable[[pd.DataFrame], bool]:
    near = ["MLPDropoutNet", "DeepEnsembleNet"]
    return lambda t: (
        t.loc[DETERMINISTIC, metric].max() <= 2 * t.loc[near, metric].max()
        and t.loc[DETERMINISTIC, metric].min() >= t.loc[near, metric].min() / 2
    )


def _slopes(low: float, high: float) -> Callable[[pd.DataFrame], bool]:
    return lambda t: t.loc[FDN, "slope_b"].between(low, high).all()


def _ranks(rho: float, models: Sequence[str] = FDN) -> Callable[[pd.DataFrame], bool]:
    return lambda t: t.loc[models, "spearman"].min() >= rho


def _widens(t: pd.DataFrame) -> bool:
    return t.loc[FDN, "delta_var"].min() > 0


def _large_delta_var(t: pd.DataFrame) -> bool:
    return t.loc[FDN, "delta_var"].min() > max(0, t.loc[OTHERS, "delta_var"].median())


def _under_median(t: pd.DataFrame) -> bool:
    return _off_one(t.loc[FDN, "slope_b"]).max() <= _off_one(t.loc[OTHERS, "slope_b"]).median()


def _draw_beats_mean(t: pd.DataFrame) -> bool:
    return t.loc[FDN, "mse_id"].max() < t.at[BASELINE, "mse_id"]


def _trade_off(settings: Sequence[dict[str, float]], rising: bool) -> Callable[[pd.DataFrame], bool]:
    """From each setting to the next, Var inside and outside move in the same direction; upwards if ``rising``."""

    def holds(t: pd.DataFrame) -> bool:
        moves = [
            np.sign(np.diff([t.at[variant(model, **setting), metric] for setting in settings]))
            for model in FDN for metric in ("var_id", "var_ood")
        ]  # fmt: skip
        inside, outside = moves[::2], moves[1::2]
        return all(
            (a == b).all() and (abs(a.sum()) == len(a)) and (a[0] > 0 or not rising) for a, b in zip(inside, outside)
        )

    return holds


def _nll_follows(metric: str) -> Callable[[pd.DataFrame], bool]:
    def holds(t: pd.DataFrame) -> bool:
        nll, other = (
            np.concatenate([t.loc[list(PAPER_MODELS), f"{name}_{region}"] for region in ("id", "ood")])
            for name in ("nll", metric)
        )  # (12,)
        return spearman(nll, other) >= 0.8

    return holds


def _nll_is_more_extreme(t: pd.DataFrame) -> bool:
    nll, crps = (t.loc[list(PAPER_MODELS), f"{name}_ood"] for name in ("nll", "crps"))
    return nll.max() / nll.median() >= 2 * crps.max() / crps.median()


def _moderate(t: pd.DataFrame) -> bool:
    return all(
        t.at[f"{dataset}/{model}", metric] < t.at[f"airfoil/{model}", metric]
        for dataset in ("ccpp", "energy") for model in FDN for metric in ("delta_mse", "delta_crps")
    )  # fmt: skip


_BETAS = [{"beta_max": 0.1}, {}, {"beta_max": 10.0}]
_HYPERS = [{"hyper_factor": 0.5}, {}, {"hyper_factor": 2.0}]
_OBJECTIVES = [(k, {"train_draws": k} if k > 1 else {}) for k in (1, 5, 20)]

CLAIMS = (
    Claim(
        "Abstract", DATASETS, "FDN remains competitive in accuracy with strong Bayesian, ensemble, dropout, and "
        "hypernetwork baselines",
        "ID error of the mean (corrected for Var / K) of both FDNs at most twice the median of the others",
        ("mean_error_id",), _competitive("mean_error_id"),
    ),
    Claim(
        "Abstract", DATASETS, "providing strongly input-dependent, shift-aware uncertainty",
        "OOD mean Var of both FDNs at least twice the ID mean Var", ("var_id", "var_ood"),
        lambda t: (t.loc[FDN, "var_ood"] >= 2 * t.loc[FDN, "var_id"]).all(),
    ),
    Claim(
        "Abstract", DATASETS, "and competitive calibration under matched parameter and update budgets",
        "|ln b| of both FDNs at most the median of the others", ("slope_b",), _under_median,
    ),
    Claim(
        "1 Introduction", DATASETS, "[Bayesian networks, dropout, ensembles] can still under-react under shift",
        "ΔMSE more than twice ΔVar for at least two of the three", ("delta_mse", "delta_var"),
        lambda t: (t.loc[CLASSICAL, "delta_mse"] > 2 * t.loc[CLASSICAL, "delta_var"]).sum() >= 2,
    ),
    Claim(
        "1 Introduction", DATASETS, "FDN is ID-competitive",
        "ID MSE of one draw of both FDNs below that of predicting the training mean", ("mse_id",),
        _draw_beats_mean, models=(*FDN, BASELINE),
    ),
    Claim(
        "1 Introduction", DATASETS, "FDN is ID-competitive",
        "ID error of the mean (corrected for Var / K) of both FDNs at most the median of the others",
        ("mean_error_id",),
        lambda t: t.loc[FDN, "mean_error_id"].max() <= t.loc[OTHERS, "mean_error_id"].median(),
    ),
    Claim(
        "1 Introduction", DATASETS, "and exhibits strong calibration under shift",
        "ρ ≥ 0.9 and 0.5 ≤ b ≤ 2 for both FDNs", ("spearman", "slope_b"),
        lambda t: _ranks(0.9)(t) and _slopes(0.5, 2)(t),
    ),
    Claim(
        "1 Introduction", TOY, "On controlled 1D regression tasks, predictive variance closely tracks error growth in- and "
        "out-of-distribution",
        "ρ ≥ 0.95, and ΔVar between half and twice ΔMSE, for both FDNs", ("spearman", "delta_var", "delta_mse"),
        lambda t: _ranks(0.95)(t) and (t.loc[FDN, "delta_var"] / t.loc[FDN, "delta_mse"]).between(0.5, 2).all(),
    ),
    Claim(
        "1 Introduction", ("sine",), "on more challenging oscillatory shifts FDN preserves rank calibration",
        "ρ ≥ 0.95 for both FDNs", ("spearman",), _ranks(0.95),
    ),
    Claim(
        "1 Introduction", ("sine",), "and increases uncertainty OOD, albeit with some under-scaling",
        "ΔVar positive and b > 1 for both FDNs", ("delta_var", "slope_b"),
        lambda t: _widens(t) and t.loc[FDN, "slope_b"].min() > 1,
    ),
    Claim(
        "1 Introduction", UCI, "it typically widens uncertainty under feature-based shifts", "ΔVar of both FDNs positive",
        ("delta_var",), _widens,
    ),
    Claim(
        "1 Introduction", UCI, "while maintaining competitive accuracy and calibration",
        "ID error of the mean of both FDNs at most twice the median of the others, |ln b| at most the median",
        ("mean_error_id", "slope_b"), lambda t: _competitive("mean_error_id")(t) and _under_median(t),
    ),
    Claim(
        "2 Related work", DATASETS, "This input-aware weight stochasticity is what enables FDN to widen uncertainty under "
        "distributional shift",
        "ΔVar of both FDNs above that of GaussHyperNet, whose weights do not see the input", ("delta_var",),
        lambda t: t.loc[FDN, "delta_var"].min() > t.at["GaussHyperNet", "delta_var"],
    ),
    Claim(
        "3.2 Method", DATASETS, "the two variants achieve similar in-distribution accuracy across our benchmarks",
        "ID MSE of one draw within a factor of 1.5", ("mse_id",), _within("mse_id", FDN, 1.5), models=FDN,
    ),
    Claim(
        "3.2 Method", DATASETS, "LP-FDNet often produces somewhat larger increases in predictive variance under "
        "distribution shift (larger ΔVar)",
        "ΔVar of LP-FDNet above that of IC-FDNet", ("delta_var",),
        lambda t: t.at["LP-FDNet", "delta_var"] > t.at["IC-FDNet", "delta_var"], models=FDN,
    ),
    Claim(
        "3.2 Method", DATASETS, "at comparable MSE", "ΔMSE of the two within a factor of 2", ("delta_mse",),
        _within("delta_mse", FDN, 2), models=FDN,
    ),
    Claim(
        "4.3 Fairness", DATASETS, "[MLP and HyperNet:] their ID […] MSE is comparable to Ensembles/Dropout",
        "ID MSE of both at most twice the larger, at least half the smaller of DeepEnsembleNet and MLPDropoutNet",
        ("mse_id",), _near_ensembles("mse_id"), models=(*DETERMINISTIC, "MLPDropoutNet", "DeepEnsembleNet"),
    ),
    Claim(
        "4.3 Fairness", DATASETS, "[MLP and HyperNet:] their […] OOD MSE is comparable to Ensembles/Dropout",
        "OOD MSE of both at most twice the larger, at least half the smaller of DeepEnsembleNet and MLPDropoutNet",
        ("mse_ood",), _near_ensembles("mse_ood"), models=(*DETERMINISTIC, "MLPDropoutNet", "DeepEnsembleNet"),
    ),
    Claim(
        "4.3 Fairness", DATASETS, "MLPDropoutNet uses widened hidden layers, increasing capacity […] and potentially "
        "improving ID MSE",
        "ID MSE of MLPDropoutNet the lowest of the six", ("mse_id",),
        lambda t: t.loc[list(PAPER_MODELS), "mse_id"].idxmin() == "MLPDropoutNet",
    ),
    Claim(
        "4.5 Results", SMOOTH, "MSE–Var slopes closer to the ideal b ≈ 1",
        "both FDNs closer to b = 1 than all four others, by |ln b|", ("slope_b",),
        lambda t: _off_one(t.loc[FDN, "slope_b"]).max() < _off_one(t.loc[OTHERS, "slope_b"]).min(),
    ),
    Claim(
        "4.5 Results", SMOOTH, "with strong rank agreement (Spearman ρ close to 1)", "ρ ≥ 0.95 for both FDNs",
        ("spearman",), _ranks(0.95),
    ),
    Claim(
        "4.5 Results", SMOOTH, "and large positive ΔVar",
        "ΔVar of both FDNs positive and above the median of the others", ("delta_var",), _large_delta_var,
    ),
    Claim(
        "4.5 Results", ("step",), "at the cost of higher AURC […] than the sharpest baselines",
        "AURC of both FDNs above the lowest of the others", ("aurc",), _over_best("aurc"),
    ),
    Claim(
        "4.5 Results", ("step",), "[higher] ΔCRPS than the sharpest baselines",
        "ΔCRPS of both FDNs above the lowest of the others", ("delta_crps",), _over_best("delta_crps"),
    ),
    Claim(
        "4.5 Results", ("quad",), "their AURC [is] broadly comparable",
        "AURC of both FDNs at most twice the highest of the others", ("aurc",), _comparable("aurc"),
    ),
    Claim(
        "4.5 Results", ("quad",), "[their] ΔCRPS [is] broadly comparable",
        "ΔCRPS of both FDNs at most twice the highest of the others", ("delta_crps",), _comparable("delta_crps"),
    ),
    Claim(
        "4.5 Results", SMOOTH, "several classical baselines that fit ID sharply (e.g., Deep Ensembles, BayesNet)",
        "ID MSE of one draw of both below that of both FDNs", ("mse_id",),
        lambda t: t.loc[SHARP, "mse_id"].max() < t.loc[FDN, "mse_id"].min(),
    ),
    Claim(
        "4.5 Results", SMOOTH,
        "Deep Ensembles, BayesNet […] much steeper MSE–Var fits (b ≫ 1) and smaller increases in variance",
        "b of both above b of both FDNs, ΔVar below", ("slope_b", "delta_var"),
        lambda t: t.loc[SHARP, "slope_b"].min() > t.loc[FDN, "slope_b"].max()
        and t.loc[SHARP, "delta_var"].max() < t.loc[FDN, "delta_var"].min(),
    ),
    Claim(
        "4.5 Results", SMOOTH, "even when they rank hard points reasonably well", "ρ of both at least 0.9", ("spearman",),
        _ranks(0.9, SHARP),
    ),
    Claim(
        "4.5 Results", ("sine",), "On the highly oscillatory sine shift, all methods degrade",
        "ΔMSE and ΔCRPS of all six positive", ("delta_mse", "delta_crps"),
        lambda t: t.loc[list(PAPER_MODELS), ["delta_mse", "delta_crps"]].min(axis=None) > 0,
    ),
    Claim(
        "4.5 Results", ("sine",), "FDN preserves excellent ranking (Spearman ρ near 1)", "ρ ≥ 0.95 for both FDNs",
        ("spearman",), _ranks(0.95),
    ),
    Claim(
        "4.5 Results", ("sine",), "raises variance substantially OOD (large ΔVar)",
        "ΔVar of both FDNs positive and above the median of the others", ("delta_var",), _large_delta_var,
    ),
    Claim(
        "4.5 Results", ("sine",), "its error grows faster than its variance (large b, large ΔMSE)",
        "b > 1 and ΔMSE > ΔVar for both FDNs", ("slope_b", "delta_mse", "delta_var"),
        lambda t: t.loc[FDN, "slope_b"].min() > 1
        and (t.loc[FDN, "delta_mse"] > t.loc[FDN, "delta_var"]).all(),
    ),
    Claim(
        "4.5 Results", ("sine",), "yielding worse AURC", "AURC of both FDNs above the median of the others", ("aurc",),
        lambda t: t.loc[FDN, "aurc"].min() > t.loc[OTHERS, "aurc"].median(),
    ),
    Claim(
        "4.5 Results", ("sine",), "Deep ensembles show smaller ΔMSE and hence better AURC",
        "ΔMSE and AURC of DeepEnsembleNet below those of both FDNs", ("delta_mse", "aurc"),
        lambda t: all(t.at["DeepEnsembleNet", m] < t.loc[FDN, m].min() for m in ("delta_mse", "aurc")),
    ),
    Claim(
        "4.5 Results", ("sine",), "but their ranking can be weaker", "ρ of DeepEnsembleNet below that of both FDNs",
        ("spearman",), lambda t: t.at["DeepEnsembleNet", "spearman"] < t.loc[FDN, "spearman"].min(),
    ),
    Claim(
        "4.5 Results", SMOOTH, "calibrated scaling on smooth or piecewise-smooth shifts", "0.5 ≤ b ≤ 2 for both FDNs",
        ("slope_b",), _slopes(0.5, 2),
    ),
    Claim(
        "4.5 Results", SMOOTH, "where many baselines remain overconfident", "b > 2 for at least two of the four others",
        ("slope_b",), lambda t: (t.loc[OTHERS, "slope_b"] > 2).sum() >= 2,
    ),
    Claim(
        "4.5 Results", DATASETS, "consistently high rank correlation across tasks", "ρ ≥ 0.95 for both FDNs",
        ("spearman",), _ranks(0.95),
    ),
    Claim(
        "4.5 Results", DATASETS, "which makes FDN a strong triage signal",
        "AURC of both FDNs at most half their mean MSE, the risk of a random order", ("aurc", "mse_all"),
        lambda t: (t.loc[FDN, "aurc"] <= t.loc[FDN, "mse_all"] / 2).all(),
    ),
    Claim(
        "4.5 Results", UCI, "FDN achieves reasonable in-distribution MSE",
        "ID MSE of one draw of both FDNs below that of predicting the training mean", ("mse_id",),
        _draw_beats_mean, models=(*FDN, BASELINE),
    ),
    Claim(
        "4.5 Results", UCI, "typically exhibits large positive ΔVar",
        "ΔVar of both FDNs positive and above the median of the others", ("delta_var",), _large_delta_var,
    ),
    Claim(
        "4.5 Results", ("airfoil",), "somewhat larger ΔMSE […] than the sharpest baselines on Airfoil",
        "ΔMSE of both FDNs above the lowest of the others, at most twice as large", ("delta_mse",),
        _somewhat_larger("delta_mse"),
    ),
    Claim(
        "4.5 Results", ("airfoil",), "[somewhat larger] ΔCRPS than the sharpest baselines on Airfoil",
        "ΔCRPS of both FDNs above the lowest of the others, at most twice as large", ("delta_crps",),
        _somewhat_larger("delta_crps"),
    ),
    Claim(
        "4.5 Results", UCI, "but more moderate values on CCPP and Energy",
        "ΔMSE and ΔCRPS of both FDNs below those on Airfoil", ("delta_mse", "delta_crps"), _moderate,
        models=[f"{dataset}/{model}" for dataset in UCI for model in FDN], across=True,
    ),
    Claim(
        "4.5 Results", ("ccpp", "energy"), "so calibration degrades gradually rather than catastrophically",
        "0.5 ≤ b ≤ 2 for both FDNs", ("slope_b",), _slopes(0.5, 2),
    ),
    Claim(
        "4.5 Results", ("airfoil",), "FDN’s ID scatter lies close to the ideal MSE=Var line",
        "ID mean MSE at most 1.5 times the ID mean Var, for both FDNs", ("mse_id", "var_id"),
        lambda t: (t.loc[FDN, "mse_id"] <= 1.5 * t.loc[FDN, "var_id"]).all(),
    ),
    Claim(
        "4.5 Results", ("airfoil",), "with strong Spearman correlation", "ρ ≥ 0.95 for both FDNs", ("spearman",),
        _ranks(0.95),
    ),
    Claim(
        "4.5 Results", ("ccpp", "energy"), "the predictive variances remain shift-aware", "ΔVar of both FDNs positive",
        ("delta_var",), _widens,
    ),
    Claim(
        "4.5 Results", ("ccpp", "energy"), "and provide useful selective-risk behavior",
        "AURC of both FDNs below their mean MSE, the risk of a random order", ("aurc", "mse_all"),
        lambda t: (t.loc[FDN, "aurc"] < t.loc[FDN, "mse_all"]).all(),
    ),
    Claim(
        "4.5 Results", ("ccpp", "energy"), "the absolute scale is not always better than the strongest baselines",
        "at least one FDN farther from b = 1 than the nearest of the others", ("slope_b",),
        lambda t: _off_one(t.loc[FDN, "slope_b"]).max() > _off_one(t.loc[OTHERS, "slope_b"]).min(),
    ),
    Claim(
        "4.5 Results", ABLATED, "[FDN] can be tuned via β […] to trade off in-distribution sharpness against OOD conservatism",
        "from β = 0.1 to 1 to 10 both ID and OOD mean Var rise, for both FDNs", ("var_id", "var_ood"),
        _trade_off(_BETAS, rising=True), models=[name for setting in _BETAS for name in _fdn(**setting)],
    ),
    Claim(
        "4.5 Results", ABLATED, "[FDN] can be tuned via […] hypernetwork capacity to trade off in-distribution sharpness "
        "against OOD conservatism",
        "from half to once to twice the width of the hypernetworks ID and OOD mean Var move in one direction, for both FDNs",
        ("var_id", "var_ood"), _trade_off(_HYPERS, rising=False),
        models=[name for setting in _HYPERS for name in _fdn(**setting)],
    ),
    Claim(
        "5 Limitations", ABLATED, "[FDN] can overfit spurious cues if β is too small",
        "OOD CRPS of both FDNs at β = 0.01 above that at β = 1 (spurious cues themselves: not measured)", ("crps_ood",),
        lambda t: all(t.at[variant(m, beta_max=0.01), "crps_ood"] > t.at[m, "crps_ood"] for m in FDN),
        models=[*FDN, *_fdn(beta_max=0.01)],
    ),
    Claim(
        "5 Limitations", ABLATED, "making careful KL scheduling […] important",
        "without warm-up, ID MSE of both FDNs at least 20 % larger", ("mse_id",),
        lambda t: all(t.at[variant(m, warmup=0), "mse_id"] >= 1.2 * t.at[m, "mse_id"] for m in FDN),
        models=[*FDN, *_fdn(warmup=0)],
    ),
    Claim(
        "5 Limitations", ("sine",), "FDN can under-scale variance in highly oscillatory OOD regimes (e.g., the sine task)",
        "b > 1 for at least one FDN", ("slope_b",), lambda t: t.loc[FDN, "slope_b"].max() > 1,
    ),
    Claim(
        "6 Conclusion", DATASETS, "predictive densities that remain sharp in-distribution",
        "ID mean Var of both FDNs below the squared error of predicting the training mean", ("var_id", "mse_id"),
        lambda t: t.loc[FDN, "var_id"].max() < t.at[BASELINE, "mse_id"], models=(*FDN, BASELINE),
    ),
    Claim("6 Conclusion", DATASETS, "and expand under shift", "ΔVar of both FDNs positive", ("delta_var",), _widens),
    Claim(
        "6 Conclusion", DATASETS, "FDN achieves strong rank calibration across tasks", "ρ ≥ 0.9 for both FDNs",
        ("spearman",), _ranks(0.9),
    ),
    Claim(
        "6 Conclusion", SMOOTH, "near-ideal scale calibration on smooth and piecewise-smooth shifts",
        "0.8 ≤ b ≤ 1.25 for both FDNs", ("slope_b",), _slopes(0.8, 1.25),
    ),
    Claim(
        "6 Conclusion", DATASETS, "FDN is competitive with Bayesian, ensemble, dropout, and hypernetwork baselines on both "
        "1D toy functions and UCI-style regression benchmarks",
        "CRPS over all test points of both FDNs at most twice the median of the others", ("crps_all",),
        _competitive("crps_all"),
    ),
    Claim(
        "6 Conclusion", DATASETS, "while providing uncertainty suitable for abstention and risk-aware inference",
        "AURC of both FDNs below their mean MSE, the risk of a random order", ("aurc", "mse_all"),
        lambda t: (t.loc[FDN, "aurc"] < t.loc[FDN, "mse_all"]).all(),
    ),
    Claim(
        "Appendix A", DATASETS, "[BayesNet’s uncertainty] can under-react off-support compared to input-conditional "
        "alternatives",
        "ΔVar of BayesNet below that of both FDNs", ("delta_var",),
        lambda t: t.at["BayesNet", "delta_var"] < t.loc[FDN, "delta_var"].min(),
    ),
    Claim(
        "Appendix B", ABLATED, "We report main results with [the β-ELBO] for simplicity and stability",
        "ID CRPS after training with the β-ELBO at most that after IWAE with as many draws (1, 5, 20), for both FDNs",
        ("crps_id",),
        lambda t: all(
            t.at[variant(m, **elbo), "crps_id"] <= t.at[variant(m, objective="iwae", **elbo), "crps_id"]
            for m in FDN for _, elbo in _OBJECTIVES
        ),
        models=[name for _, elbo in _OBJECTIVES for name in (*_fdn(**elbo), *_fdn(objective="iwae", **elbo))],
    ),
    Claim(
        "Appendix H", DATASETS, "Under shift we typically expect CRPS_OOD > CRPS_ID", "ΔCRPS of all six positive",
        ("delta_crps",), lambda t: t.loc[list(PAPER_MODELS), "delta_crps"].min() > 0,
    ),
    Claim(
        "Appendix H", DATASETS, "[NLL] was (i) strongly correlated with CRPS",
        "rank correlation at least 0.8 over the six models' ID and OOD means", ("nll_id", "nll_ood", "crps_id", "crps_ood"),
        _nll_follows("crps"),
    ),
    Claim(
        "Appendix H", DATASETS, "[NLL was (i) strongly correlated with …] MSE",
        "rank correlation at least 0.8 over the six models' ID and OOD means", ("nll_id", "nll_ood", "mse_id", "mse_ood"),
        _nll_follows("mse"),
    ),
    Claim(
        "Appendix H", DATASETS, "[NLL was] (ii) much more sensitive to occasional extreme errors",
        "the largest OOD value of the six models over their median at least twice as large for NLL as for CRPS",
        ("nll_ood", "crps_ood"), _nll_is_more_extreme,
    ),
)  # fmt: skip


def _verdict(numbers: Iterable[float], test: Callable[[float], bool]) -> bool | None:
    numbers = list(numbers)
    return None if not numbers or np.isnan(numbers).any() else all(map(test, numbers))


def _named(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {plain_number(value)}" for name, value in numbers.items())


def _parameters(evidence: Evidence) -> tuple[bool | None, str]:
    m = evidence.metrics
    runs = m[(m["protocol"] == PUBLISHED.label) & m["model"].isin(PAPER_MODELS) & m["dataset"].isin(DATASETS)]
    counts = runs.groupby("dataset")["n_params"].agg(["min", "max"]).reindex(DATASETS).dropna().astype(int)
    words = ", ".join(f"{row.Index} {row.min} to {row.max}" for row in counts.itertuples())
    return _verdict(counts.to_numpy().ravel(), lambda count: 950 <= count <= 1050), f"of the published runs: {words}"


def _updates(evidence: Evidence) -> tuple[bool | None, str]:
    members, epochs = PUBLISHED.ensemble_members, PUBLISHED.epochs
    each = epochs // members
    return members * each == epochs, f"{epochs} epochs of each model; {members} members of {each} epochs"


def _draws(evidence: Evidence) -> tuple[bool | None, str]:
    return PUBLISHED.eval_draws == PUBLISHED.ensemble_members, (
        f"K = {PUBLISHED.eval_draws} draws, but {PUBLISHED.ensemble_members} members of the ensemble"
    )


def _step_costs(evidence: Evidence) -> tuple[bool | None, str]:
    models = [model for model in PAPER_MODELS if model != latency.ENSEMBLE]
    ratios = {model: evidence.time("step", model) / evidence.time("step", "BayesNet") for model in models}
    spread = max(ratios.values()) / min(ratios.values())
    return _verdict([spread], lambda value: value <= 2), f"training step in units of BayesNet's: {_named(ratios)}"


def _exponents(
    quantity: str, models: Sequence[str], low: float, high: float
) -> Callable[[Evidence], tuple[bool | None, str]]:
    def judge(evidence: Evidence) -> tuple[bool | None, str]:
        found = {model: evidence.time(quantity, model) for model in models}
        return _verdict(found.values(), lambda value: low <= value <= high), f"fitted {quantity}: {_named(found)}"

    return judge


def _overhead(evidence: Evidence) -> tuple[bool | None, str]:
    ratios = {
        f"{model} over {base}": evidence.time("step", model) / evidence.time("step", base)
        for model in FDN for base in (BASE_MLP, "MLPNet")
    }  # fmt: skip
    return _verdict(ratios.values(), lambda value: value <= 4), f"training step: {_named(ratios)}"


def _no_cubic(evidence: Evidence) -> tuple[bool | None, str]:
    kinds = ("width exponent", "parameter exponent")
    found = {f"{model}, {kind.split()[0]}": evidence.time(kind, model) for model in FDN for kind in kinds}
    shown = {name.replace("width", "time").replace("parameter", "parameters"): value for name, value in found.items()}
    return _verdict(found.values(), lambda value: value <= 2.3), f"fitted exponents of the width: {_named(shown)}"


def _latency_of_lp(evidence: Evidence) -> tuple[bool | None, str]:
    ratio = evidence.time("prediction", "LP-FDNet", 1) / evidence.time("prediction", BASE_MLP, 1)
    return _verdict([ratio], lambda value: value > 1), f"one draw over {BASE_MLP}: {plain_number(ratio)}"


def _latency_of_draws(evidence: Evidence) -> tuple[bool | None, str]:
    growth = {m: evidence.time("prediction", m, 100) / evidence.time("prediction", m, 1) for m in FDN}
    slopes = {f"exponent {m}": evidence.time("prediction exponent", m) for m in FDN}
    return _verdict(growth.values(), lambda value: value > 2), f"100 draws over one: {_named(growth)}; {_named(slopes)}"


def _hyper_compute(evidence: Evidence) -> tuple[bool | None, str]:
    ratio = evidence.time("step", "HyperNet") / evidence.time("step", "MLPNet")
    return _verdict([ratio], lambda value: value > 1), f"training step over MLPNet's: {plain_number(ratio)}"


def _hyper_products(evidence: Evidence) -> tuple[bool | None, str]:
    ratios = {}
    for model in FDN:
        spec = model_spec(model, 1, PUBLISHED)
        widths = (1, *spec.hidden, 1)
        for i, (a, b) in enumerate(zip(widths, widths[1:]), 1):
            ratios[f"{model} layer {i}"] = spec.hyper * 2 * (a * b + b) / (a * b)
    return max(ratios.values()) <= 3, f"h P over d d on one input: {_named(ratios)}"


def _representative(evidence: Evidence) -> tuple[bool | None, str]:
    m = evidence.metrics
    runs = m[(m["dataset"] == "airfoil") & (m["protocol"] == PUBLISHED.label) & m["model"].isin(FDN)]
    if runs.groupby("model")["seed"].nunique().reindex(FDN).fillna(0).min() < 5:
        return None, ""
    seed, off = published.representative_seed(runs, "airfoil"), {}
    for model, cells in runs.groupby("model"):
        x, y = (np.log(cells.set_index("seed")[f"{name}_ood"]) for name in ("mse", "var"))
        if x.nunique() < 2:
            return None, ""
        residual = y - np.polynomial.Polynomial.fit(x, y, 1)(x)
        off[model] = float(abs(residual[seed]) / residual.std())
    return max(off.values()) <= 1, f"seed {seed}, distance in residual standard deviations: {_named(off)}"


def _unmeasured(why: str) -> Callable[[Evidence], tuple[bool | None, str]]:
    return lambda evidence: (None, why)


def _few_draws(evidence: Evidence) -> tuple[bool | None, str]:
    draws = max(PUBLISHED.train_draws, PUBLISHED.eval_draws)
    return draws <= 10, f"K = {PUBLISHED.train_draws} in training, {PUBLISHED.eval_draws} in validation and test"


def _one_draw(evidence: Evidence) -> tuple[bool | None, str]:
    same = PUBLISHED.train_draws == PUBLISHED.eval_draws == 1
    return same, f"K = {PUBLISHED.train_draws} in training, {PUBLISHED.eval_draws} in validation and test"


FACTS = (
    Fact("1 Introduction", "Under matched parameter, update, and predictive-sample budgets",
         "as many draws as the ensemble has members", _draws, "no: K = 100, M = 10"),
    Fact("4.3 Fairness", "fix the parameter budget to P ≈ 1000 (±5%) for all models", "950 to 1050 parameters on every task",
         _parameters, "yes: 994 to 1011"),
    Fact("4.3 Fairness", "the total number of parameter updates matched across models",
         "members times their epochs = epochs of the others", _updates, "yes: epochs divided by M"),
    Fact("4.3 Fairness", "keeping per-step cost comparable", "the slowest of the five single models at most twice the fastest",
         _step_costs),
    Fact("4.3 Complexity", "For all models, the per-epoch training cost scales linearly in the number of examples N",
         "fitted exponent of an epoch's time between 0.8 and 1.2 for all", _exponents("examples exponent", latency.SINGLE, 0.8, 1.2)),
    Fact("4.3 Complexity", "and quadratically in the layer widths", "fitted exponent of a training step's time at most 2.3 for all",
         _exponents("width exponent", latency.SINGLE, -np.inf, 2.3)),
    Fact("5 Limitations", "LP-FDN samples weights layer-by-layer, introducing additional latency relative to a deterministic "
         "forward pass", "one draw takes longer than the deterministic network of the same width", _latency_of_lp),
    Fact("5 Limitations", "test-time sampling also incurs a compute–latency trade-off with the number of Monte Carlo samples K",
         "100 draws take more than twice as long as one, for both FDNs", _latency_of_draws),
    Fact("5 Limitations", "though we keep K small in our experiments", "K at most 10", _few_draws,
         "no: 100 for validation and test"),
    Fact("Appendix A", "[Ensembles:] Inference cost scales linearly with M",
         "fitted exponent of the prediction's time between 0.8 and 1.2",
         _exponents("prediction exponent", [latency.ENSEMBLE], 0.8, 1.2)),
    Fact("Appendix A", "[A deterministic hypernetwork] can increase per-example compute",
         "a training step of HyperNet takes longer than MLPNet's", _hyper_compute),
    Fact("Appendix A", "matching ensemble-like diversity typically requires larger posterior variances or multiple posterior "
         "samples", DASH, _unmeasured("diversity of weights is not among the paper's metrics")),
    Fact("Appendix B", "[IWAE:] tighter bound […] typically needs no extra β", DASH,
         _unmeasured("a property of the objective, not of its results; results under both are in data/extras")),
    Fact("Appendix D", "To mitigate variance blow-up in early training […] use a short β warm-up", DASH,
         _unmeasured("about a heteroscedastic head, which the experiments do not have")),
    Fact("Appendix F", "the representative seed used in the main-text plots lies close to the overall across-seed trend",
         "on airfoil, within one residual standard deviation of the line of log Var_OOD against log MSE_OOD, for both FDNs",
         _representative),
    Fact("Appendix G", "In all experiments we use K = 1", "K = 1 in training, validation and test", _one_draw,
         "no: 100 for validation and test"),
    Fact("Appendix G", "making h_hyp P_ℓ comparable to d_{ℓ−1} d_ℓ", "at most three times as large in every layer",
         _hyper_products),
    Fact("Appendix G", "the training cost of IC-/LP-FDN remains linear in N",
         "fitted exponent of an epoch's time between 0.8 and 1.2", _exponents("examples exponent", FDN, 0.8, 1.2)),
    Fact("Appendix G", "the runtime overhead relative to a deterministic MLP is a small constant factor (typically 2–4×)",
         "a training step at most four times as long as that of an MLP of the same width, and of the same size", _overhead),
    Fact("Appendix G", "there is no cubic dependence on layer width", "fitted exponents of time and parameters at most 2.3",
         _no_cubic),
    Fact("Appendix G", "[adapter-style] overhead of FDN remains a small fraction of the backbone", DASH,
         _unmeasured("no backbone is deep enough here")),
)  # fmt: skip
