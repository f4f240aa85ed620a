"""The paper's sentences about its result tables, each with a criterion that the numbers meet or miss.

The words are the paper's, the criteria are ours. A :class:`Claim` compares the rows of one table, so that it can be put
to the published table and to every one of our seeds alike. The same word has the same bar everywhere: "high" and
"strong" are rank correlations from 0.9, "near 1" and "excellent" from 0.95; "competitive" is at most twice the median
of the others, "comparable" within a factor of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from fdn.metrics import spearman
from fdn.models import BASELINE, FDN_MODELS, PAPER_MODELS
from fdn.report.published import DATASETS
from fdn.runs.extras import ABLATED

FDN, SIX = list(FDN_MODELS), list(PAPER_MODELS)
OTHERS = [model for model in SIX if model not in FDN]
DETERMINISTIC, SHARP = ["MLPNet", "HyperNet"], ["DeepEnsembleNet", "BayesNet"]
CLASSICAL, NEAR = ["MLPDropoutNet", *SHARP], ["MLPDropoutNet", "DeepEnsembleNet"]
TOY, UCI = ("step", "sine", "quad"), ("airfoil", "ccpp", "energy")
SMOOTH, SINE, TWO = ("step", "quad"), ("sine",), ("ccpp", "energy")
Said = Literal["always", "often", "can", "alike"]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about some data sets, and what would have to be true of the numbers.

    ``holds`` takes a frame with a row per model, among them ``models``, and ``metrics`` among its columns. A model
    under changed settings is a row of its own, :func:`variant`. With ``across``, the frame has the rows of all
    ``datasets``, named "airfoil/LP-FDNet", and the claim is judged once. ``said`` is how much the words say: of all
    runs, "often" of most ("typically"), "can" of some ("potentially", "not always"), and "alike" that two things are
    about as large ("comparable", "competitive", "similar").
    """

    section: str
    datasets: tuple[str, ...]
    words: str
    criterion: str
    metrics: tuple[str, ...]
    holds: Callable[[pd.DataFrame], bool]
    models: Sequence[str] = PAPER_MODELS
    across: bool = False
    said: Said = "always"

    def judge(self, frame: pd.DataFrame) -> bool | None:
        """Whether the claim holds; None if the frame lacks a model or a metric, or :meth:`tells` nothing."""
        if not set(self.models) <= set(frame.index) or not set(self.metrics) <= set(frame.columns):
            return None
        return bool(self.holds(frame)) if self.tells(frame) else None

    def tells(self, frame: pd.DataFrame) -> bool:
        """Whether the errors of the mean that are compared are above 0, that is above what K draws can resolve."""
        return "mean_error_id" not in self.metrics or not (frame.loc[list(self.models), "mean_error_id"] <= 0).any()


def variant(model: str, **settings: object) -> str:
    """The name of a model's row under the published protocol with settings changed.

    >>> variant("LP-FDNet", beta_max=0.1)
    'LP-FDNet+beta_max=0.1'
    """
    return "+".join([model, *(f"{name}={value}" for name, value in settings.items())])


def _variants(*changes: dict[str, object]) -> list[str]:
    return [variant(model, **settings) for settings in changes for model in FDN]


def _fdn(t: pd.DataFrame, metric: str) -> pd.Series:
    return t.loc[FDN, metric]


def _others(t: pd.DataFrame, metric: str) -> pd.Series:
    return t.loc[OTHERS, metric]


def _off_one(b: pd.Series) -> pd.Series:
    """|ln b|: how far a slope is from 1, alike for b and 1/b; infinite for b <= 0."""
    return np.log(b.where(b > 0, np.inf)).abs()


# Criteria: in words, the metrics and how they are compared, and the models if other than the paper's six

Criterion = tuple  # (criterion, metrics, holds, models, across) of a Claim, the last two may be left out


def _ranks(rho: float) -> Criterion:
    return f"ρ ≥ {rho:g} for both FDNs", ("spearman",), lambda t: _fdn(t, "spearman").min() >= rho


def _slopes(low: float, high: float) -> Criterion:
    return f"{low:g} ≤ b ≤ {high:g} for both FDNs", ("slope_b",), lambda t: _fdn(t, "slope_b").between(low, high).all()


def _competitive(what: str, metric: str) -> Criterion:
    return (
        f"{what} of both FDNs at most twice the median of the others",
        (metric,),
        lambda t: _fdn(t, metric).max() <= 2 * _others(t, metric).median(),
    )


def _over_best(name: str, metric: str) -> Criterion:
    words = f"{name} of both FDNs above the lowest of the others"
    return words, (metric,), lambda t: _fdn(t, metric).min() > _others(t, metric).min()


def _somewhat_larger(name: str, metric: str) -> Criterion:
    words, metrics, larger = _over_best(name, metric)
    not_much = lambda t: _fdn(t, metric).max() <= 2 * _others(t, metric).min()
    return f"{words}, at most twice as large", metrics, lambda t: larger(t) and not_much(t)


def _comparable(name: str, metric: str) -> Criterion:
    words = f"{name} of both FDNs at most twice the highest of the others"
    return words, (metric,), lambda t: _fdn(t, metric).max() <= 2 * _others(t, metric).max()


def _within(words: str, metric: str, factor: float) -> Criterion:
    return words, (metric,), lambda t: _fdn(t, metric).max() <= factor * _fdn(t, metric).min(), FDN


def _near_ensembles(region: str) -> Criterion:
    metric = f"mse_{region.lower()}"

    def holds(t: pd.DataFrame) -> bool:
        ours, theirs = t.loc[DETERMINISTIC, metric], t.loc[NEAR, metric]
        return ours.max() <= 2 * theirs.max() and ours.min() >= theirs.min() / 2

    words = (
        f"{region} MSE of both at most twice the larger, at least half the smaller of DeepEnsembleNet and MLPDropoutNet"
    )
    return words, (metric,), holds, (*DETERMINISTIC, *NEAR)


def _trade_off(words: str, setting: str, values: Sequence[float], rising: bool) -> Criterion:
    """From each value of a setting to the next, Var inside and outside move in one direction; upwards if ``rising``."""
    settings = [{setting: value} if value != 1 else {} for value in values]  # of the published protocol: 1

    def holds(t: pd.DataFrame) -> bool:
        for model in FDN:
            rows = [variant(model, **changes) for changes in settings]
            inside, outside = (np.sign(np.diff(t.loc[rows, metric])) for metric in ("var_id", "var_ood"))
            one_way = (inside == outside).all() and abs(inside.sum()) == len(inside)
            if not one_way or rising and inside[0] <= 0:
                return False
        return True

    return words, ("var_id", "var_ood"), holds, _variants(*settings)


def _nll_follows(metric: str) -> Criterion:
    metrics = [[f"{name}_{region}" for region in ("id", "ood")] for name in ("nll", metric)]
    return (
        "rank correlation at least 0.8 over the six models' ID and OOD means",
        (*metrics[0], *metrics[1]),
        lambda t: spearman(*(t.loc[SIX, columns].to_numpy().ravel() for columns in metrics)) >= 0.8,
    )


def _iwae_is_no_better(t: pd.DataFrame) -> bool:
    return all(
        t.at[variant(m, **elbo), "crps_id"] <= t.at[variant(m, objective="iwae", **elbo), "crps_id"]
        for m in FDN for elbo in _DRAWS
    )  # fmt: skip


_DRAWS = [{}, {"train_draws": 5}, {"train_draws": 20}]

WIDENS = "ΔVar of both FDNs positive", ("delta_var",), lambda t: _fdn(t, "delta_var").min() > 0
WIDENS_MORE = (
    "ΔVar of both FDNs positive and above the median of the others", ("delta_var",),
    lambda t: _fdn(t, "delta_var").min() > max(0, _others(t, "delta_var").median()),
)  # fmt: skip
CALIBRATED = (
    "|ln b| of both FDNs at most the median of the others", ("slope_b",),
    lambda t: _off_one(_fdn(t, "slope_b")).max() <= _off_one(_others(t, "slope_b")).median(),
)  # fmt: skip
DRAW_BEATS_MEAN = (
    "ID MSE of one draw of both FDNs below that of predicting the training mean", ("mse_id",),
    lambda t: _fdn(t, "mse_id").max() < t.at[BASELINE, "mse_id"], (*FDN, BASELINE),
)  # fmt: skip
MEAN_IS_COMPETITIVE = _competitive("ID error of the mean (corrected for Var / K)", "mean_error_id")
BETTER_THAN_RANDOM = (
    "AURC of both FDNs below their mean MSE, the risk of a random order", ("aurc", "mse_all"),
    lambda t: (_fdn(t, "aurc") < _fdn(t, "mse_all")).all(),
)  # fmt: skip

_CLAIMS: dict[str, tuple[tuple, ...]] = {  # data sets, words, criterion, and what is said if less than always
    "Abstract": (
        (DATASETS, "FDN remains competitive in accuracy with strong Bayesian, ensemble, dropout, and hypernetwork "
         "baselines", MEAN_IS_COMPETITIVE, "alike"),
        (DATASETS, "providing strongly input-dependent, shift-aware uncertainty",
         ("OOD mean Var of both FDNs at least twice the ID mean Var", ("var_id", "var_ood"),
          lambda t: (_fdn(t, "var_ood") >= 2 * _fdn(t, "var_id")).all())),
        (DATASETS, "and competitive calibration under matched parameter and update budgets", CALIBRATED, "alike"),
    ),
    "1 Introduction": (
        (DATASETS, "[Bayesian networks, dropout, ensembles] can still under-react under shift",
         ("ΔMSE more than twice ΔVar for at least two of the three", ("delta_mse", "delta_var"),
          lambda t: (t.loc[CLASSICAL, "delta_mse"] > 2 * t.loc[CLASSICAL, "delta_var"]).sum() >= 2), "can"),
        (DATASETS, "FDN is ID-competitive", DRAW_BEATS_MEAN),
        (DATASETS, "FDN is ID-competitive", MEAN_IS_COMPETITIVE, "alike"),
        (DATASETS, "and exhibits strong calibration under shift",
         ("ρ ≥ 0.9 and 0.5 ≤ b ≤ 2 for both FDNs", ("spearman", "slope_b"),
          lambda t: _fdn(t, "spearman").min() >= 0.9 and _fdn(t, "slope_b").between(0.5, 2).all())),
        (TOY, "On controlled 1D regression tasks, predictive variance closely tracks error growth in- and "
         "out-of-distribution",
         ("ρ ≥ 0.95, and ΔVar between half and twice ΔMSE, for both FDNs", ("spearman", "delta_var", "delta_mse"),
          lambda t: _fdn(t, "spearman").min() >= 0.95
          and (_fdn(t, "delta_var") / _fdn(t, "delta_mse")).between(0.5, 2).all())),
        (SINE, "on more challenging oscillatory shifts FDN preserves rank calibration", _ranks(0.9)),
        (SINE, "and increases uncertainty OOD, albeit with some under-scaling",
         ("ΔVar positive and b > 1 for both FDNs", ("delta_var", "slope_b"),
          lambda t: _fdn(t, "delta_var").min() > 0 and _fdn(t, "slope_b").min() > 1)),
        (UCI, "it typically widens uncertainty under feature-based shifts", WIDENS, "often"),
        (UCI, "while maintaining competitive accuracy and calibration",
         ("ID error of the mean of both FDNs at most twice the median of the others, |ln b| at most the median",
          ("mean_error_id", "slope_b"), lambda t: MEAN_IS_COMPETITIVE[2](t) and CALIBRATED[2](t)), "alike"),
    ),
    "2 Related work": (
        (DATASETS, "This input-aware weight stochasticity is what enables FDN to widen uncertainty under "
         "distributional shift",
         ("ΔVar of both FDNs above that of GaussHyperNet, whose weights do not see the input", ("delta_var",),
          lambda t: _fdn(t, "delta_var").min() > t.at["GaussHyperNet", "delta_var"])),
    ),
    "3.2 Method": (
        (DATASETS, "the two variants achieve similar in-distribution accuracy across our benchmarks",
         _within("ID MSE of one draw within a factor of 1.5", "mse_id", 1.5), "alike"),
        (DATASETS, "LP-FDNet often produces somewhat larger increases in predictive variance under distribution shift "
         "(larger ΔVar)",
         ("ΔVar of LP-FDNet above that of IC-FDNet", ("delta_var",),
          lambda t: t.at["LP-FDNet", "delta_var"] > t.at["IC-FDNet", "delta_var"], FDN), "often"),
        (DATASETS, "at comparable MSE", _within("ΔMSE of the two within a factor of 2", "delta_mse", 2), "alike"),
    ),
    "4.3 Fairness": (
        (DATASETS, "[MLP and HyperNet:] their ID […] MSE is comparable to Ensembles/Dropout", _near_ensembles("ID"),
         "alike"),
        (DATASETS, "[MLP and HyperNet:] their […] OOD MSE is comparable to Ensembles/Dropout", _near_ensembles("OOD"),
         "alike"),
        (DATASETS, "MLPDropoutNet uses widened hidden layers, increasing capacity […] and potentially improving ID MSE",
         ("ID MSE of MLPDropoutNet the lowest of the six", ("mse_id",),
          lambda t: t.loc[SIX, "mse_id"].idxmin() == "MLPDropoutNet"), "can"),
    ),
    "4.5 Results": (
        (SMOOTH, "MSE–Var slopes closer to the ideal b ≈ 1",
         ("both FDNs closer to b = 1 than the median of the others, by |ln b|", ("slope_b",),
          lambda t: _off_one(_fdn(t, "slope_b")).max() < _off_one(_others(t, "slope_b")).median())),
        (SMOOTH, "with strong rank agreement (Spearman ρ close to 1)", _ranks(0.95)),
        (SMOOTH, "and large positive ΔVar", WIDENS_MORE),
        (("step",), "at the cost of higher AURC […] than the sharpest baselines", _over_best("AURC", "aurc")),
        (("step",), "[higher] ΔCRPS than the sharpest baselines", _over_best("ΔCRPS", "delta_crps")),
        (("quad",), "their AURC [is] broadly comparable", _comparable("AURC", "aurc"), "alike"),
        (("quad",), "[their] ΔCRPS [is] broadly comparable", _comparable("ΔCRPS", "delta_crps"), "alike"),
        (SMOOTH, "several classical baselines that fit ID sharply (e.g., Deep Ensembles, BayesNet)",
         ("ID MSE of one draw of both below that of both FDNs", ("mse_id",),
          lambda t: t.loc[SHARP, "mse_id"].max() < _fdn(t, "mse_id").min())),
        (SMOOTH, "Deep Ensembles, BayesNet […] much steeper MSE–Var fits (b ≫ 1) and smaller increases in variance",
         ("b of both above b of both FDNs, ΔVar below", ("slope_b", "delta_var"),
          lambda t: t.loc[SHARP, "slope_b"].min() > _fdn(t, "slope_b").max()
          and t.loc[SHARP, "delta_var"].max() < _fdn(t, "delta_var").min())),
        (SMOOTH, "even when they rank hard points reasonably well",
         ("ρ of both at least 0.9", ("spearman",), lambda t: t.loc[SHARP, "spearman"].min() >= 0.9)),
        (SINE, "On the highly oscillatory sine shift, all methods degrade",
         ("ΔMSE and ΔCRPS of all six positive", ("delta_mse", "delta_crps"),
          lambda t: t.loc[SIX, ["delta_mse", "delta_crps"]].min(axis=None) > 0)),
        (SINE, "FDN preserves excellent ranking (Spearman ρ near 1)", _ranks(0.95)),
        (SINE, "raises variance substantially OOD (large ΔVar)", WIDENS_MORE),
        (SINE, "its error grows faster than its variance (large b, large ΔMSE)",
         ("b > 1 and ΔMSE > ΔVar for both FDNs", ("slope_b", "delta_mse", "delta_var"),
          lambda t: _fdn(t, "slope_b").min() > 1 and (_fdn(t, "delta_mse") > _fdn(t, "delta_var")).all())),
        (SINE, "yielding worse AURC",
         ("AURC of both FDNs above the median of the others", ("aurc",),
          lambda t: _fdn(t, "aurc").min() > _others(t, "aurc").median())),
        (SINE, "Deep ensembles show smaller ΔMSE and hence better AURC",
         ("ΔMSE and AURC of DeepEnsembleNet below those of both FDNs", ("delta_mse", "aurc"),
          lambda t: all(t.at["DeepEnsembleNet", m] < _fdn(t, m).min() for m in ("delta_mse", "aurc")))),
        (SINE, "but their ranking can be weaker",
         ("ρ of DeepEnsembleNet below that of both FDNs", ("spearman",),
          lambda t: t.at["DeepEnsembleNet", "spearman"] < _fdn(t, "spearman").min()), "can"),
        (SMOOTH, "calibrated scaling on smooth or piecewise-smooth shifts", _slopes(0.5, 2)),
        (SMOOTH, "where many baselines remain overconfident",
         ("b > 2 for at least two of the four others", ("slope_b",), lambda t: (_others(t, "slope_b") > 2).sum() >= 2)),
        (DATASETS, "consistently high rank correlation across tasks", _ranks(0.9)),
        (DATASETS, "which makes FDN a strong triage signal",
         ("AURC of both FDNs at most half their mean MSE, the risk of a random order", ("aurc", "mse_all"),
          lambda t: (_fdn(t, "aurc") <= _fdn(t, "mse_all") / 2).all())),
        (UCI, "FDN achieves reasonable in-distribution MSE", DRAW_BEATS_MEAN),
        (UCI, "FDN achieves reasonable in-distribution MSE",
         ("ID error of the mean (corrected for Var / K) of both FDNs below that of predicting the training mean",
          ("mean_error_id",), lambda t: _fdn(t, "mean_error_id").max() < t.at[BASELINE, "mean_error_id"],
          (*FDN, BASELINE))),
        (UCI, "typically exhibits large positive ΔVar", WIDENS_MORE, "often"),
        (("airfoil",), "somewhat larger ΔMSE […] than the sharpest baselines on Airfoil",
         _somewhat_larger("ΔMSE", "delta_mse"), "alike"),
        (("airfoil",), "[somewhat larger] ΔCRPS than the sharpest baselines on Airfoil",
         _somewhat_larger("ΔCRPS", "delta_crps"), "alike"),
        (UCI, "but more moderate values on CCPP and Energy",
         ("ΔMSE and ΔCRPS of both FDNs below those on Airfoil", ("delta_mse", "delta_crps"),
          lambda t: all(t.at[f"{dataset}/{model}", metric] < t.at[f"airfoil/{model}", metric]
                        for dataset in TWO for model in FDN for metric in ("delta_mse", "delta_crps")),
          [f"{dataset}/{model}" for dataset in UCI for model in FDN], True)),
        (TWO, "so calibration degrades gradually rather than catastrophically", _slopes(0.5, 2)),
        (("airfoil",), "FDN’s ID scatter lies close to the ideal MSE=Var line",
         ("ID mean MSE at most 1.5 times the ID mean Var, for both FDNs", ("mse_id", "var_id"),
          lambda t: (_fdn(t, "mse_id") <= 1.5 * _fdn(t, "var_id")).all())),
        (("airfoil",), "with strong Spearman correlation", _ranks(0.9)),
        (TWO, "the predictive variances remain shift-aware", WIDENS),
        (TWO, "and provide useful selective-risk behavior", BETTER_THAN_RANDOM),
        (TWO, "the absolute scale is not always better than the strongest baselines",
         ("at least one FDN farther from b = 1 than the nearest of the others", ("slope_b",),
          lambda t: _off_one(_fdn(t, "slope_b")).max() > _off_one(_others(t, "slope_b")).min()), "can"),
        (ABLATED, "[FDN] can be tuned via β […] to trade off in-distribution sharpness against OOD conservatism",
         _trade_off("from β = 0.1 to 1 to 10 both ID and OOD mean Var rise, for both FDNs",
                    "beta_max", (0.1, 1, 10.0), rising=True)),
        (ABLATED, "[FDN] can be tuned via […] hypernetwork capacity to trade off in-distribution sharpness against OOD "
         "conservatism",
         _trade_off("from half to once to twice the width of the hypernetworks ID and OOD mean Var move in one "
                    "direction, for both FDNs", "hyper_factor", (0.5, 1, 2.0), rising=False)),
    ),
    "5 Limitations": (
        (ABLATED, "[FDN] can overfit spurious cues if β is too small",
         ("OOD CRPS of both FDNs at β = 0.01 above that at β = 1 (spurious cues themselves: not measured)",
          ("crps_ood",), lambda t: all(t.at[variant(m, beta_max=0.01), "crps_ood"] > t.at[m, "crps_ood"] for m in FDN),
          _variants({}, {"beta_max": 0.01})), "can"),
        (ABLATED, "making careful KL scheduling […] important",
         ("without warm-up, ID MSE of both FDNs at least 20 % larger", ("mse_id",),
          lambda t: all(t.at[variant(m, warmup=0), "mse_id"] >= 1.2 * t.at[m, "mse_id"] for m in FDN),
          _variants({}, {"warmup": 0}))),
        (SINE, "FDN can under-scale variance in highly oscillatory OOD regimes (e.g., the sine task)",
         ("b > 1 for at least one FDN", ("slope_b",), lambda t: _fdn(t, "slope_b").max() > 1), "can"),
    ),
    "6 Conclusion": (
        (DATASETS, "predictive densities that remain sharp in-distribution",
         ("ID mean Var of both FDNs below the squared error of predicting the training mean", ("var_id", "mse_id"),
          lambda t: _fdn(t, "var_id").max() < t.at[BASELINE, "mse_id"], (*FDN, BASELINE))),
        (DATASETS, "and expand under shift", WIDENS),
        (DATASETS, "FDN achieves strong rank calibration across tasks", _ranks(0.9)),
        (SMOOTH, "near-ideal scale calibration on smooth and piecewise-smooth shifts", _slopes(0.8, 1.25)),
        (DATASETS, "FDN is competitive with Bayesian, ensemble, dropout, and hypernetwork baselines on both 1D toy "
         "functions and UCI-style regression benchmarks", _competitive("CRPS over all test points", "crps_all"),
         "alike"),
        (DATASETS, "while providing uncertainty suitable for abstention and risk-aware inference", BETTER_THAN_RANDOM),
    ),
    "Appendix A": (
        (DATASETS, "[BayesNet’s uncertainty] can under-react off-support compared to input-conditional alternatives",
         ("ΔVar of BayesNet below that of both FDNs", ("delta_var",),
          lambda t: t.at["BayesNet", "delta_var"] < _fdn(t, "delta_var").min()), "can"),
    ),
    "Appendix B": (
        (ABLATED, "We report main results with [the β-ELBO] for simplicity and stability",
         ("ID CRPS after training with the β-ELBO at most that after IWAE with as many draws (1, 5, 20), for both FDNs",
          ("crps_id",), _iwae_is_no_better, _variants(*_DRAWS, *({"objective": "iwae", **draws} for draws in _DRAWS)))),
    ),
    "Appendix H": (
        (DATASETS, "Under shift we typically expect CRPS_OOD > CRPS_ID",
         ("ΔCRPS of all six positive", ("delta_crps",), lambda t: t.loc[SIX, "delta_crps"].min() > 0), "often"),
        (DATASETS, "[NLL] was (i) strongly correlated with CRPS", _nll_follows("crps")),
        (DATASETS, "[NLL was (i) strongly correlated with …] MSE", _nll_follows("mse")),
        (DATASETS, "[NLL was] (ii) much more sensitive to occasional extreme errors",
         ("the largest OOD value of the six models over their median at least twice as large for NLL as for CRPS",
          ("nll_ood", "crps_ood"), lambda t: _extreme(t, "nll_ood") >= 2 * _extreme(t, "crps_ood"))),
    ),
}  # fmt: skip


def _extreme(t: pd.DataFrame, metric: str) -> float:
    values = t.loc[SIX, metric]
    return values.max() / values.median()


CLAIMS = tuple(
    Claim(section, datasets, words, *criterion, **({"said": said[0]} if said else {}))
    for section, claims in _CLAIMS.items()
    for datasets, words, criterion, *said in claims
)
