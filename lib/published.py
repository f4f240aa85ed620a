"""The paper's six result tables, and how the seeds of a run compare with them.

`data/published_tables.csv` holds the 252 numbers as printed (Appendix F, one table per data set). The printed
digits matter: a number printed as 0.4 stands for anything from 0.35 to 0.45.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from lib.errors import UserError
from lib.paths import PUBLISHED_TABLES

DATASETS = ("step", "sine", "quad", "airfoil", "ccpp", "energy")
MODELS = ("MLPDropoutNet", "DeepEnsembleNet", "BayesNet", "GaussHyperNet", "IC-FDNet", "LP-FDNet")
METRICS = ("spearman", "slope_b", "intercept_a", "aurc", "delta_var", "delta_mse", "delta_crps")
REPRESENTED_MODELS = ("IC-FDNet", "LP-FDNet")
REPRESENTED_METRICS = ("mse_ood", "var_ood", "delta_crps", "aurc")

_KEY = ["dataset", "model", "metric"]
_ROUNDING = 1e-12  # relative; makes closed ends closed in binary arithmetic


def load_published(path: Path = PUBLISHED_TABLES) -> pd.DataFrame:
    """The 252 published numbers: dataset, model, metric, printed (str), published (float), half_unit (float).

    half_unit is half a unit of the last printed digit: 0.05 for "1.1", 0.0005 for "0.990". Rows come in the
    order of DATASETS, MODELS and METRICS. UserError if the file does not hold exactly these, each once.
    Source: the result tables of Appendix F.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False).rename(columns={"published": "printed"})
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the published numbers from {path}: {error}") from error
    if list(table.columns) != [*_KEY, "printed"]:
        raise UserError(f"{path} has columns {list(table.columns)}, expected dataset,model,metric,published")
    for column, known in zip(_KEY, (DATASETS, MODELS, METRICS)):
        if unknown := sorted(set(table[column]) - set(known)):
            raise UserError(f"{path} has the unknown {column} {unknown[0]!r}, expected {', '.join(known)}")
    expected = pd.MultiIndex.from_tuples(product(DATASETS, MODELS, METRICS), names=_KEY)
    table = table.set_index(_KEY)["printed"]
    repeated, missing = table.index[table.index.duplicated()], expected.difference(table.index, sort=False)
    if len(repeated) or len(missing):
        wrong = f"repeats {', '.join(repeated[0])}" if len(repeated) else f"lacks {', '.join(missing[0])}"
        raise UserError(f"{path} {wrong}; expected each of the {len(expected)} published numbers once")
    table = table.loc[expected].reset_index()
    try:
        digits = [Decimal(printed) for printed in table["printed"]]
    except InvalidOperation as error:
        raise UserError(f"{path} holds a published value that is not a number: {error}") from error
    table["published"] = [float(number) for number in digits]
    table["half_unit"] = [float(f"0.5e{number.as_tuple().exponent}") for number in digits]
    return table


def _overlaps(published: float, half_unit: float, low: float, high: float) -> bool:
    slack = _ROUNDING * max(1.0, abs(published), abs(low), abs(high))
    return bool(published + half_unit >= low - slack and published - half_unit <= high + slack)


def _widening(metric: str, low: float, high: float) -> float:
    return 0.05 if metric == "spearman" else 0.3 * max(abs(low), abs(high)) + 0.06


def compare(metrics_df: pd.DataFrame, protocol: str = "published") -> pd.DataFrame:
    """Published against reproduced: one row for each of the 252 published numbers.

    Columns: dataset, model, metric, published (float), printed (str), half_unit; over the seeds of `protocol`
    n_seeds, median, min, max, q05, q95; and two marks.
    inside_minmax: published +- half_unit meets [min, max].
    inside_widened: it meets [min - w, max + w], with w = 0.3 max(|min|, |max|) + 0.06, for Spearman w = 0.05.
    Seeds where the number is NaN or infinite do not count; where none is left the statistics are NaN and both
    marks are NA. Data sets and models outside the tables are ignored.
    UserError for a missing column or a seed that occurs twice. Source: Appendix F; the two rules are ours.
    """
    needed = ["dataset", "model", "protocol", "seed", *METRICS]
    if missing := [column for column in needed if column not in metrics_df]:
        raise UserError(f"the metrics have no column {missing[0]!r}; expected {', '.join(needed)}")
    chosen = metrics_df[metrics_df["protocol"] == protocol]
    if (repeated := chosen.duplicated(["dataset", "model", "seed"])).any():
        cell = chosen.loc[repeated, ["dataset", "model", "seed"]].iloc[0]
        raise UserError("the metrics hold seed {seed} of {model} on {dataset} twice".format(**cell))
    cells = dict(list(chosen.groupby(["dataset", "model"])))
    rows = []
    for number in load_published().itertuples(index=False):
        cell = cells.get((number.dataset, number.model), chosen.iloc[:0])
        values = cell[number.metric].to_numpy(dtype=np.float64)  # (seeds,)
        values = values[np.isfinite(values)]
        row = number._asdict() | {"n_seeds": len(values)}
        if len(values):
            low, high = values.min(), values.max()
            wide = _widening(number.metric, low, high)
            q05, median, q95 = np.quantile(values, [0.05, 0.5, 0.95])
            row |= {"median": median, "min": low, "max": high, "q05": q05, "q95": q95}
            row["inside_minmax"] = _overlaps(number.published, number.half_unit, low, high)
            row["inside_widened"] = _overlaps(number.published, number.half_unit, low - wide, high + wide)
        rows.append(row)
    statistics = ["median", "min", "max", "q05", "q95"]
    marks = ["inside_minmax", "inside_widened"]
    columns = [*_KEY, "published", "printed", "half_unit", "n_seeds", *statistics, *marks]
    comparison = pd.DataFrame(rows, columns=columns)
    return comparison.astype({name: "float64" for name in statistics} | {name: "boolean" for name in marks})


def score(comparison: pd.DataFrame) -> pd.DataFrame:
    """How many published numbers the seeds reach: one row per model, data set and metric, and the total.

    Columns: by ("model", "dataset", "metric" or "total"), name; n, the numbers that could be compared, and
    missing, those that could not; inside_minmax and inside_widened, counts out of n; expected_share, the mean
    over the n numbers of (s - 1) / (s + 1), which is the chance that one more seed lies inside the range of s
    others (for continuous values, the printed rounding aside), NaN where n = 0.
    Source: ours, for the tables of Appendix F.

    >>> number = {"dataset": "step", "model": "BayesNet", "metric": "aurc", "n_seeds": 3}
    >>> marks = {"inside_minmax": False, "inside_widened": True}
    >>> print(score(pd.DataFrame([number | marks])).tail(1).to_string(index=False, header=False))
    total total 1 0 0 1 0.5
    """
    rows = []
    for by, names in (("model", MODELS), ("dataset", DATASETS), ("metric", METRICS)):
        rows += [{"by": by, "name": name} | _count(comparison[comparison[by] == name]) for name in names]
    return pd.DataFrame([*rows, {"by": "total", "name": "total"} | _count(comparison)])


def _count(numbers: pd.DataFrame) -> dict[str, float]:
    compared = numbers[numbers["n_seeds"] > 0]
    n_seeds = compared["n_seeds"]
    return {
        "n": len(compared),
        "missing": len(numbers) - len(compared),
        "inside_minmax": int(compared["inside_minmax"].sum()),
        "inside_widened": int(compared["inside_widened"].sum()),
        "expected_share": float(((n_seeds - 1) / (n_seeds + 1)).mean()),
    }


def representative_seed(metrics_df: pd.DataFrame, dataset: str, protocol: str = "published") -> int:
    """The seed whose FDN runs are the most typical ones of a data set; figures of one seed show it.

    argmin_s sum_m sum_j (v_smj - median_s v_smj)^2, over the models m = IC-FDNet, LP-FDNet and the metrics
    j = mse_ood, var_ood, delta_crps, aurc, not normalised; ties go to the smallest seed. Seeds that lack a
    model or a finite value are no candidates. UserError if a model has no results or no seed is complete.
    Source: section 4, "Representative seed selection", which leaves open how the two models are combined.
    """
    needed = ["dataset", "model", "protocol", "seed", *REPRESENTED_METRICS]
    if missing := [column for column in needed if column not in metrics_df]:
        raise UserError(f"the metrics have no column {missing[0]!r}; expected {', '.join(needed)}")
    chosen = metrics_df[(metrics_df["dataset"] == dataset) & (metrics_df["protocol"] == protocol)]
    distance = 0.0
    for model in REPRESENTED_MODELS:
        vectors = chosen[chosen["model"] == model].set_index("seed")[list(REPRESENTED_METRICS)]  # (seeds, 4)
        if vectors.empty:
            raise UserError(
                f"no results of {model} on {dataset} under protocol {protocol}: "
                f"the representative seed needs {' and '.join(REPRESENTED_MODELS)}, run both"
            )
        distance = distance + ((vectors - vectors.median()) ** 2).sum(axis=1, skipna=False)  # (seeds,)
    distance = distance[np.isfinite(distance)]
    if distance.empty:
        raise UserError(
            f"no seed has finite results of both {' and '.join(REPRESENTED_MODELS)} "
            f"on {dataset} under protocol {protocol}: run both with the same seeds"
        )
    closest = distance.index[distance <= distance.min() * (1 + 1e-9)]  # equal but for rounding
    return int(closest.min())
