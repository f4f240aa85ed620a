"""What one seed does not show: whether Var says anything of the error of the mean, what intervals cover, what ranks.

Tables give the median and the 5 to 95 % band over seeds. Sentences are made from the numbers. ``metrics`` are those of
:func:`fdn.runs.extras.read`, ``bands`` those of :mod:`fdn.runs.bands`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fdn.data import PAPER_DATASETS
from fdn.models import BASELINE, FDN_MODELS, STOCHASTIC_MODELS
from fdn.report.findings import listing
from fdn.report.published import rows_of
from fdn.report.tables import MISSING, band, band_text, corrected_mean_error, plain_number
from fdn.typesetting import Table, literal

# Var against the squared error of the mean


def _number(bands: pd.DataFrame, dataset: str, model: str, kind: str, region: str, x: float = 0) -> tuple:
    """(middle, low, high) of a number; NaN if it is not there."""
    rows = rows_of(bands, dataset=dataset, model=model, kind=kind, region=region)
    rows = rows[np.isclose(rows["x"], x)]
    return tuple(rows.iloc[0][["middle", "low", "high"]]) if len(rows) else (np.nan,) * 3


def _counts(bands: pd.DataFrame, dataset: str, model: str) -> str:
    return str(int(rows_of(bands, dataset=dataset, model=model)["seeds"].max()))


def _groups(bands: pd.DataFrame) -> list[tuple[str, str]]:
    known = set(zip(bands["dataset"], bands["model"]))
    datasets = [*PAPER_DATASETS, *sorted({d for d, _ in known} - set(PAPER_DATASETS))]
    return [(dataset, model) for dataset in datasets for model in STOCHASTIC_MODELS if (dataset, model) in known]


def bias_table(bands: pd.DataFrame) -> Table:
    """Over seeds: what Var says about MSE, which contains it, and about the squared error of the mean."""
    kinds = [("share", "ID"), ("share", "OOD"), ("rho_mse", "all"),
             *(("rho_bias2", r) for r in ("all", "ID", "OOD")), ("slope_bias2", "all")]  # fmt: skip
    rows = [
        (literal(dataset), model, _counts(bands, dataset, model),
         *(band_text(*_number(bands, dataset, model, *kind)) for kind in kinds))
        for dataset, model in _groups(bands)
    ]  # fmt: skip
    return Table(
        name="bias_over_seeds",
        title="Var against the squared error of the predictive mean",
        caption="Median and 5 to 95 % band over seeds, protocol `published`. MSE = Var + Bias², so that b = 1 + b′ "
        "with b′ the slope of Bias², the squared error of the mean of the draws, against Var: for errors as large as "
        "the spread says, b′ = 1.",
        columns=("Data set", "Model", "Seeds", "Var/MSE, ID", "Var/MSE, OOD", "ρ(Var, MSE)", "ρ(Var, Bias²)",
                 "the same, ID", "the same, OOD", "b′"),
        rows=tuple(rows),
        align="llr" + "r" * 7,
    )  # fmt: skip


def bias_sentence(bands: pd.DataFrame) -> str:
    """Where errors of the mean are larger at larger Var, and where that is not told: for the FDNs, and for others."""
    kinds: dict[str, list[str]] = {"above 0": [], "on both sides of 0": [], "below 0": []}
    inside: list[float] = []
    others: dict[str, list[str]] = {}
    for dataset, model in _groups(bands):
        rho, low, high = _number(bands, dataset, model, "rho_bias2", "all")
        if model not in FDN_MODELS:
            if low > 0:
                others.setdefault(model, []).append(dataset)
            continue
        own = _number(bands, dataset, model, "rho_mse", "all")[0]
        kind = "above 0" if low > 0 else "below 0" if high < 0 else "on both sides of 0"
        kinds[kind].append(f"{model} on {dataset} ({band_text(rho, low, high)}; with MSE {plain_number(own)})")
        inside.append(_number(bands, dataset, model, "rho_bias2", "ID")[0])
    if not inside:
        return "There are no FDNs to judge."
    said = [f"{kind} for {listing(some)}" for kind, some in kinds.items() if some]
    above = listing([f"{model} on {listing(where)}" for model, where in others.items()])
    also = f" Of the other models the band over all points lies above 0 for {above}." if above else ""
    return (
        "Does a larger Var go with a larger squared error of the predictive mean? ρ(Var, Bias²) is 1 if Var puts these "
        "errors in their order, and about 0 if it says nothing of them. Over all test points its band over seeds is "
        f"{'; '.join(said)}. Inside the training band the medians lie between {plain_number(min(inside))} and "
        f"{plain_number(max(inside))}.{also}"
    )


# Intervals


def interval_table(bands: pd.DataFrame, dataset: str) -> Table:
    """Coverage and width of the draws' central intervals inside and outside, over seeds."""
    levels = sorted(rows_of(bands, kind="coverage")["x"].unique())
    rows = [
        (model, region, _counts(bands, dataset, model),
         *(band_text(*_number(bands, dataset, model, kind, region, level))
           for kind in ("coverage", "width") for level in levels))
        for d, model in _groups(bands) if d == dataset for region in ("ID", "OOD")
    ]  # fmt: skip
    return Table(
        name=f"intervals_{dataset}",
        title=f"Central intervals of the draws on {literal(dataset)}",
        caption="Share of the targets inside, and mean width: median and 5 to 95 % band over seeds. The intervals hold "
        "no observation noise; an ensemble has ten draws, whose widest interval should hold 9/11 of the targets.",
        columns=("Model", "Region", "Seeds", *(f"{what} {level:.0%}" for what in ("in", "width") for level in levels)),
        rows=tuple(rows),
        align="llr" + "r" * 2 * len(levels),
    )


# Errors of the mean, and no ranking where intervals overlap


def errors(metrics: pd.DataFrame, dataset: str, protocol: str = "published") -> dict[str, tuple]:
    """Per model, (median, 5 %, 95 %) over seeds of the squared error of the mean inside the band, less Var / K."""
    here = rows_of(metrics, dataset=dataset, protocol=protocol)
    runs = {model: rows_of(here, model=model) for model in (BASELINE, *STOCHASTIC_MODELS)}
    return {model: band(corrected_mean_error(run, "id")) for model, run in runs.items() if len(run)}


def told_apart(bands: dict[str, tuple]) -> dict[str, int]:
    """Per name, 1 + how many others' intervals lie wholly below its own: names whose intervals overlap are not ranked.

    >>> told_apart({"a": (0.0, -1.0, 1.0), "b": (0.5, 0.0, 2.0), "c": (9.0, 8.0, 10.0)})
    {'a': 1, 'b': 1, 'c': 3}
    """
    return {name: 1 + sum(high < low for _, _, high in bands.values()) for name, (_, low, _) in bands.items()}


def error_table(metrics: pd.DataFrame, datasets: Sequence[str] = PAPER_DATASETS, protocol: str = "published") -> Table:
    """Squared error of the predictive mean inside the band, its interval over seeds, and a rank where it tells."""
    found = {dataset: errors(metrics, dataset, protocol=protocol) for dataset in datasets}
    ranks = {dataset: told_apart(some) for dataset, some in found.items()}
    models = [m for m in (BASELINE, *STOCHASTIC_MODELS) if any(m in some for some in found.values())]
    rows = []
    for model in models:
        cells = [
            f"{band_text(*found[d][model])}\n({ranks[d][model]})" if model in found[d] else MISSING for d in datasets
        ]
        rows.append((model, *cells))
    return Table(
        name="errors_of_the_mean",
        title="Squared error of the predictive mean inside the band",
        caption="Median and 5 to 95 % band over seeds, corrected for Var / K, the chance error of a mean of K draws: "
        "an interval that reaches 0 says that the error is below what the draws resolve. In brackets, 1 + how many "
        "models' intervals lie wholly below: models whose intervals overlap are not ranked.",
        columns=("Model", *map(literal, datasets)),
        rows=tuple(rows),
        align="l" + "r" * len(datasets),
    )
