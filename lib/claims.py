"""The paper's claims about its results, each with a criterion that numbers can meet or miss.

The words are the paper's, the criteria are ours. A criterion compares models within one table, so that it can
be put to the published table and to every one of our seeds alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.models import BASELINE, STOCHASTIC_MODELS
from lib.published import REPRESENTED_MODELS, load_published
from lib.tables import DASH, corrected_mean_error
from lib.typesetting import Table

FDN = list(REPRESENTED_MODELS)
OTHERS = [model for model in STOCHASTIC_MODELS if model not in FDN]
TOY, UCI = ("step", "sine", "quad"), ("airfoil", "ccpp", "energy")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about some data sets, and what would have to be true of the numbers.

    ``holds`` takes a frame with a row per model, among them ``models``, and ``metrics`` among its columns.
    """

    datasets: tuple[str, ...]
    words: str
    criterion: str
    metrics: tuple[str, ...]
    holds: Callable[[pd.DataFrame], bool]
    models: Sequence[str] = STOCHASTIC_MODELS

    def judge(self, frame: pd.DataFrame) -> bool | None:
        """Whether the claim holds; None if the frame lacks a model or a metric."""
        if not set(self.models) <= set(frame.index) or not set(self.metrics) <= set(frame.columns):
            return None
        return bool(self.holds(frame))


def _off_one(b: pd.Series) -> pd.Series:
    """|ln b|: how far a slope is from 1, alike for b and 1/b; infinite for b <= 0."""
    return np.log(b.where(b > 0, np.inf)).abs()


def _over_best(metric: str) -> Callable[[pd.DataFrame], bool]:
    return lambda t: t.loc[FDN, metric].min() > t.loc[OTHERS, metric].min()


def _comparable(metric: str) -> Callable[[pd.DataFrame], bool]:
    return lambda t: t.loc[FDN, metric].max() <= 2 * t.loc[OTHERS, metric].max()


def _somewhat_larger(metric: str) -> Callable[[pd.DataFrame], bool]:
    return lambda t: t.loc[OTHERS, metric].min() < t.loc[FDN, metric].min() and (
        t.loc[FDN, metric].max() <= 2 * t.loc[OTHERS, metric].min()
    )


def _large_delta_var(t: pd.DataFrame) -> bool:
    return t.loc[FDN, "delta_var"].min() > max(0, t.loc[OTHERS, "delta_var"].median())


CLAIMS = (
    Claim(
        (*TOY, *UCI), "FDN is ID-competitive",
        "ID MSE of one draw of both FDNs below that of predicting the training mean", ("mse_id",),
        lambda t: t.loc[FDN, "mse_id"].max() < t.at[BASELINE, "mse_id"], models=(*FDN, BASELINE),
    ),
    Claim(
        (*TOY, *UCI), "FDN is ID-competitive",
        "ID error of the mean (corrected for Var / K) of both FDNs at most the median of the others",
        ("mean_error_id",),
        lambda t: t.loc[FDN, "mean_error_id"].max() <= t.loc[OTHERS, "mean_error_id"].median(),
    ),
    Claim(
        ("step", "quad"), "MSE–Var slopes closer to the ideal b ≈ 1",
        "both FDNs closer to b = 1 than all four others, by |ln b|", ("slope_b",),
        lambda t: _off_one(t.loc[FDN, "slope_b"]).max() < _off_one(t.loc[OTHERS, "slope_b"]).min(),
    ),
    Claim(
        ("step", "quad"), "with strong rank agreement (Spearman ρ close to 1)", "ρ ≥ 0.95 for both FDNs",
        ("spearman",), lambda t: t.loc[FDN, "spearman"].min() >= 0.95,
    ),
    Claim(
        ("step", "quad"), "and large positive ΔVar",
        "ΔVar of both FDNs positive and above the median of the others", ("delta_var",), _large_delta_var,
    ),
    Claim(
        ("step",), "at the cost of higher AURC […] than the sharpest baselines",
        "AURC of both FDNs above the lowest of the others", ("aurc",), _over_best("aurc"),
    ),
    Claim(
        ("step",), "[higher] ΔCRPS than the sharpest baselines",
        "ΔCRPS of both FDNs above the lowest of the others", ("delta_crps",), _over_best("delta_crps"),
    ),
    Claim(
        ("quad",), "their AURC [is] broadly comparable",
        "AURC of both FDNs at most twice the highest of the others", ("aurc",), _comparable("aurc"),
    ),
    Claim(
        ("quad",), "[their] ΔCRPS [is] broadly comparable",
        "ΔCRPS of both FDNs at most twice the highest of the others", ("delta_crps",),
        _comparable("delta_crps"),
    ),
    Claim(
        ("step", "quad"),
        "Deep Ensembles, BayesNet […] much steeper MSE–Var fits (b ≫ 1) and smaller increases in variance",
        "b of both above b of both FDNs, ΔVar below", ("slope_b", "delta_var"),
        lambda t: t.loc[["DeepEnsembleNet", "BayesNet"], "slope_b"].min() > t.loc[FDN, "slope_b"].max()
        and t.loc[["DeepEnsembleNet", "BayesNet"], "delta_var"].max() < t.loc[FDN, "delta_var"].min(),
    ),
    Claim(
        ("sine",), "FDN preserves excellent ranking (Spearman ρ near 1)", "ρ ≥ 0.95 for both FDNs",
        ("spearman",), lambda t: t.loc[FDN, "spearman"].min() >= 0.95,
    ),
    Claim(
        ("sine",), "raises variance substantially OOD (large ΔVar)",
        "ΔVar of both FDNs positive and above the median of the others", ("delta_var",), _large_delta_var,
    ),
    Claim(
        ("sine",), "its error grows faster than its variance (large b, large ΔMSE)",
        "b > 1 and ΔMSE > ΔVar for both FDNs", ("slope_b", "delta_mse", "delta_var"),
        lambda t: t.loc[FDN, "slope_b"].min() > 1
        and (t.loc[FDN, "delta_mse"] > t.loc[FDN, "delta_var"]).all(),
    ),
    Claim(
        ("sine",), "Deep ensembles show smaller ΔMSE and hence better AURC",
        "ΔMSE and AURC of DeepEnsembleNet below those of both FDNs", ("delta_mse", "aurc"),
        lambda t: all(t.at["DeepEnsembleNet", m] < t.loc[FDN, m].min() for m in ("delta_mse", "aurc")),
    ),
    Claim(
        ("sine",), "but their ranking can be weaker", "ρ of DeepEnsembleNet below that of both FDNs",
        ("spearman",), lambda t: t.at["DeepEnsembleNet", "spearman"] < t.loc[FDN, "spearman"].min(),
    ),
    Claim(
        UCI, "typically exhibits large positive ΔVar",
        "ΔVar of both FDNs positive and above the median of the others", ("delta_var",), _large_delta_var,
    ),
    Claim(
        ("airfoil",), "somewhat larger ΔMSE […] than the sharpest baselines on Airfoil",
        "ΔMSE of both FDNs above the lowest of the others, at most twice as large", ("delta_mse",),
        _somewhat_larger("delta_mse"),
    ),
    Claim(
        ("airfoil",), "[somewhat larger] ΔCRPS than the sharpest baselines on Airfoil",
        "ΔCRPS of both FDNs above the lowest of the others, at most twice as large", ("delta_crps",),
        _somewhat_larger("delta_crps"),
    ),
    Claim(
        ("airfoil",), "FDN’s ID scatter lies close to the ideal MSE=Var line",
        "ID mean MSE at most 1.5 times the ID mean Var, for both FDNs", ("mse_id", "var_id"),
        lambda t: (t.loc[FDN, "mse_id"] <= 1.5 * t.loc[FDN, "var_id"]).all(),
    ),
    Claim(
        ("airfoil",), "with strong Spearman correlation", "ρ ≥ 0.95 for both FDNs", ("spearman",),
        lambda t: t.loc[FDN, "spearman"].min() >= 0.95,
    ),
    Claim(
        ("ccpp", "energy"), "the predictive variances remain shift-aware", "ΔVar of both FDNs positive",
        ("delta_var",), lambda t: t.loc[FDN, "delta_var"].min() > 0,
    ),
    Claim(
        ("ccpp", "energy"), "and provide useful selective-risk behavior",
        "AURC of both FDNs below their mean MSE, the risk of a random order", ("aurc", "mse_all"),
        lambda t: (t.loc[FDN, "aurc"] < t.loc[FDN, "mse_all"]).all(),
    ),
)  # fmt: skip


def published_frame(dataset: str) -> pd.DataFrame:
    """A published result table: a row per model, a column per metric."""
    table = load_published()
    return table[table["dataset"] == dataset].pivot(index="model", columns="metric", values="published")


def claims_table(metrics: pd.DataFrame, dataset: str, protocol: str) -> Table:
    """The claims about a data set, judged by the published table and by each of our seeds.

    A dash is a claim about numbers that the published table does not print, or that no seed has.
    Source of the words: abstract and section 4.5, "Results".
    """
    chosen = metrics[(metrics["dataset"] == dataset) & (metrics["protocol"] == protocol)]
    chosen = chosen.assign(mean_error_id=corrected_mean_error(chosen, "id"))
    seeds = [runs.set_index("model") for _, runs in chosen.groupby("seed")]
    verdicts = {True: "yes", False: "no", None: DASH}
    rows = []
    for claim in CLAIMS:
        if dataset in claim.datasets:
            judged = [verdict for verdict in map(claim.judge, seeds) if verdict is not None]
            ours = f"{sum(judged)} of {len(judged)} seeds" if judged else DASH
            theirs = verdicts[claim.judge(published_frame(dataset))]
            rows.append((f"“{claim.words}”", claim.criterion, theirs, ours))
    return Table(
        name=f"claims_{dataset}",
        title=f"What the paper says about {dataset}",
        caption=f"The words are the paper's, the criteria ours (protocol `{protocol}`)."
        if rows else "Nothing: it is not a data set of the paper.",
        columns=("The paper's words", "Our criterion", "Published table", "Reproduced"),
        rows=tuple(rows),
        align="llcc",
        notes=(f"{DASH}: not printed, or not computed.",) if any(DASH in row for row in rows) else (),
    )  # fmt: skip
