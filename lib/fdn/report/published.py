"""The paper's six result tables, and how the seeds of a run compare with them.

`data/published_tables.csv` holds the 252 numbers as printed (Appendix F, one table per data set). The printed
digits matter: a number printed as 0.4 stands for anything from 0.35 to 0.45.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_list_like

from fdn.data import PAPER_DATASETS as DATASETS
from fdn.errors import UserError
from fdn.models import FDN_MODELS, PAPER_MODELS, STOCHASTIC_MODELS
from fdn.paths import PUBLISHED_TABLES, REASONS

PUBLISHED_METRICS = ("spearman", "slope_b", "intercept_a", "aurc", "delta_var", "delta_mse", "delta_crps")
REPRESENTED_METRICS = ("mse_ood", "var_ood", "delta_crps", "aurc")

CENTRAL, RANGE, OUTSIDE = VERDICTS = ("inside 5-95 %", "inside min-max", "outside")
NOT_COMPUTED = "not computed"

_STATISTICS = ["median", "min", "max", "q05", "q95", "place"]
_KEY = ["dataset", "model", "metric"]
_ROUNDING = 1e-12  # relative; makes closed ends closed in binary arithmetic


def rows_of(metrics: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows that hold these values, each one or one of several, such as ``dataset="step", model=FDN_MODELS``."""
    is_in = [metrics[name].isin(v) if is_list_like(v) else metrics[name] == v for name, v in values.items()]
    return metrics[np.logical_and.reduce(is_in)]


def of_stochastic(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each stochastic model that has some, in the order of the models."""
    return {model: here for model in STOCHASTIC_MODELS if len(here := rows[rows["model"] == model])}


def _read(path: Path, what: str, last: str) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the {what} from {path}: {error}") from error
    if list(table.columns) != [*_KEY, last]:
        raise UserError(f"{path} has columns {list(table.columns)}, expected dataset,model,metric,{last}")
    return table


def _require(metrics: pd.DataFrame, columns: Sequence[str]) -> None:
    needed = ["dataset", "model", "protocol", "seed", *columns]
    if missing := [column for column in needed if column not in metrics]:
        raise UserError(f"the metrics have no column {missing[0]!r}; expected {', '.join(needed)}")


def load_published(path: Path = PUBLISHED_TABLES) -> pd.DataFrame:
    """The 252 published numbers: dataset, model, metric, printed (str), published (float), half_unit (float).

    half_unit is half a unit of the last printed digit: 0.05 for "1.1", 0.0005 for "0.990". Rows come in the
    order of DATASETS, PAPER_MODELS and PUBLISHED_METRICS. UserError if the file does not hold exactly these, each once.
    Source: the result tables of Appendix F.
    """
    table = _read(path, "published numbers", "published").rename(columns={"published": "printed"})
    for column, known in zip(_KEY, (DATASETS, PAPER_MODELS, PUBLISHED_METRICS)):
        if unknown := sorted(set(table[column]) - set(known)):
            raise UserError(f"{path} has the unknown {column} {unknown[0]!r}, expected {', '.join(known)}")
    expected = pd.MultiIndex.from_product([DATASETS, PAPER_MODELS, PUBLISHED_METRICS], names=_KEY)
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


def compare(metrics_df: pd.DataFrame, protocol: str = "published") -> pd.DataFrame:
    """Published against reproduced: one row for each of the 252 published numbers.

    Columns: dataset, model, metric, published (float), printed (str), half_unit; over the seeds of `protocol`
    n_seeds, median, min, max, q05, q95; place, the share of seeds below the published value, those that agree
    with it to half a unit of its last digit counted half; and verdict: "inside 5-95 %" if
    published +- half_unit meets [q05, q95], else "inside min-max" if it meets [min, max], else "outside".
    Seeds where the number is NaN or infinite do not count; where none is left the statistics are NaN and the
    verdict "not computed". Data sets and models outside the tables are ignored.
    UserError for a missing column or a seed that occurs twice. Source: Appendix F; the verdicts are ours.
    """
    cells = _cells(metrics_df, protocol)
    rows = []
    for number in load_published().itertuples(index=False):
        values = np.empty(0)
        if (number.dataset, number.model) in cells:
            values = cells[number.dataset, number.model][number.metric].to_numpy(dtype=np.float64)  # (seeds,)
            values = values[np.isfinite(values)]
        rows.append(number._asdict() | {"n_seeds": len(values)} | _statistics(number, values))
    columns = [*_KEY, "published", "printed", "half_unit", "n_seeds", *_STATISTICS, "verdict"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(_STATISTICS, "float64"))


def _cells(metrics_df: pd.DataFrame, protocol: str) -> dict[tuple[str, str], pd.DataFrame]:
    _require(metrics_df, PUBLISHED_METRICS)
    chosen = rows_of(metrics_df, protocol=protocol)
    if (repeated := chosen.duplicated(["dataset", "model", "seed"])).any():
        cell = chosen.loc[repeated, ["dataset", "model", "seed"]].iloc[0]
        raise UserError("the metrics hold seed {seed} of {model} on {dataset} twice".format(**cell))
    return dict(list(chosen.groupby(["dataset", "model"])))


def _statistics(number: NamedTuple, values: np.ndarray) -> dict[str, object]:
    if not len(values):
        return {"verdict": NOT_COMPUTED}
    low, q05, median, q95, high = np.quantile(values, [0, 0.05, 0.5, 0.95, 1])
    slack = _ROUNDING * max(1.0, abs(number.published), abs(low), abs(high))
    reach = number.half_unit + slack
    below, above = values < number.published - reach, values > number.published + reach
    meets = lambda left, right: number.published + reach >= left and number.published - reach <= right
    verdict = CENTRAL if meets(q05, q95) else RANGE if meets(low, high) else OUTSIDE
    place = (1 + below.mean() - above.mean()) / 2
    return {"median": median, "min": low, "max": high, "q05": q05, "q95": q95, "place": place, "verdict": verdict}


def score(comparison: pd.DataFrame) -> pd.DataFrame:
    """How many published numbers the seeds reach: one row per data set, model and metric, and the total.

    Columns: by ("dataset", "model", "metric" or "total"), name; n, the numbers that could be compared, and
    missing, those that could not; central and minmax, how many of the n lie inside 5-95 % and inside min-max
    (which contains the former), outside the rest; expected_central and expected_minmax, the shares that chance
    alone gives, means over the n numbers of 0.9 (s - 1) / (s + 1) and (s - 1) / (s + 1) for s seeds: the chance
    that one more seed lies between the 5 % and 95 % quantiles, or the ends, of s others (continuous values, the
    printed rounding aside; the former exact for uniform ones). NaN where n = 0.
    Source: ours, for the tables of Appendix F.

    >>> number = {"dataset": "step", "model": "BayesNet", "metric": "aurc", "n_seeds": 3, "verdict": RANGE}
    >>> total = score(pd.DataFrame([number])).iloc[-1]
    >>> print(total["n"], total["central"], total["minmax"], total["outside"], total["expected_minmax"])
    1 0 1 0 0.5
    """
    rows = []
    for by, names in (("dataset", DATASETS), ("model", PAPER_MODELS), ("metric", PUBLISHED_METRICS)):
        rows += [{"by": by, "name": name} | _count(comparison[comparison[by] == name]) for name in names]
    return pd.DataFrame([*rows, {"by": "total", "name": "total"} | _count(comparison)])


def _count(numbers: pd.DataFrame) -> dict[str, float]:
    compared = numbers[numbers["n_seeds"] > 0]
    verdicts = compared["verdict"].value_counts()
    central, middle, outside = (int(verdicts.get(name, 0)) for name in VERDICTS)
    expected = float(((compared["n_seeds"] - 1) / (compared["n_seeds"] + 1)).mean())
    return {
        "n": len(compared), "missing": len(numbers) - len(compared),
        "central": central, "minmax": central + middle, "outside": outside,
        "expected_central": 0.9 * expected, "expected_minmax": expected,
    }  # fmt: skip


def _places(metrics_df: pd.DataFrame, protocol: str) -> dict[tuple[str, str], np.ndarray]:
    """Of each (data set, model) the place of every run's numbers among the other runs', (1 + seeds, metrics).

    The published run comes first.
    """
    cells, found = _cells(metrics_df, protocol), {}
    for group, numbers in load_published().groupby(["dataset", "model"], sort=False):
        if group not in cells:
            continue
        seeds = cells[group][list(numbers["metric"])].to_numpy(dtype=np.float64)  # (seeds, 7)
        seeds = seeds[np.isfinite(seeds).all(axis=1)]
        digits = np.round(-np.log10(2 * numbers["half_unit"])).astype(int)  # as many decimals as are printed
        runs = np.vstack([numbers["published"], seeds])  # (1 + seeds, 7)
        runs = np.column_stack([np.round(column, d) for column, d in zip(runs.T, digits)])
        if len(seeds):
            found[group] = (pd.DataFrame(runs).rank().to_numpy() - 1) / len(seeds)
    return found


def uniformity(metrics_df: pd.DataFrame, protocol: str = "published", resamples: int = 20_000) -> pd.DataFrame:
    """Does the published run look like one more seed? A randomisation test with (data set, model) as the unit.

    Every run of a (data set, model), the published one and each of our seeds, gets the places of its seven
    numbers among the other runs (rounded as printed; ties half), and from them one distance: the mean over the
    seven of |2 place - 1|, 0 in the middle of the others, 1 beyond them all. If the published run is one more
    seed, it is any of these runs with equal chance, whatever ties its seven numbers together. p is the chance
    of a distance, averaged over the groups, of at least the published one, when each group's run is picked at
    random, independently of the others (`resamples` picks from a fixed stream); for a single group it is
    counted exactly. A small p says that the published runs lie too far out.

    Columns: by ("total", "dataset", "model" or "group"), name, groups, distance, expected (its mean over all
    picks), p. Seeds with a number that is not finite are left out.
    Source: ours, for the tables of Appendix F.
    """
    groups = _places(metrics_df, protocol)
    apart = {group: np.abs(2 * places - 1).mean(axis=1) for group, places in groups.items()}  # (1 + seeds,) each
    rng = np.random.default_rng(0)
    picks = {group: rng.choice(distances, resamples) for group, distances in apart.items()}
    sets = [("total", "total", list(groups))]
    sets += [("dataset", name, [group for group in groups if group[0] == name]) for name in DATASETS]
    sets += [("model", name, [group for group in groups if group[1] == name]) for name in PAPER_MODELS]
    sets += [("group", " ".join(group), [group]) for group in groups]
    rows = []
    for by, name, members in sets:
        if not members:
            continue
        distances = [apart[group] for group in members]
        distance, expected = np.mean([d[0] for d in distances]), np.mean([d.mean() for d in distances])
        chance = np.mean([picks[group] for group in members], axis=0) if len(members) > 1 else distances[0][1:]
        p = (1 + (chance >= distance - _ROUNDING).sum()) / (1 + len(chance))
        rows.append((by, name, len(members), distance, expected, p))
    return pd.DataFrame(rows, columns=["by", "name", "groups", "distance", "expected", "p"])


def fifths(metrics_df: pd.DataFrame, protocol: str = "published") -> pd.DataFrame:
    """How the published numbers spread over the five fifths of the places, beside what our own seeds give.

    Columns: fifth (1 to 5), published, expected: the mean count when each (data set, model) takes any of its
    runs with equal chance, as in :func:`uniformity`. Source: ours.
    """
    published, expected = np.zeros(5, int), np.zeros(5)
    for places in _places(metrics_df, protocol).values():
        fifth = np.minimum((5 * places).astype(int), 4)  # (1 + seeds, metrics)
        counts = (fifth[..., None] == np.arange(5)).sum(axis=1)  # (1 + seeds, 5)
        published, expected = published + counts[0], expected + counts.mean(axis=0)
    return pd.DataFrame({"fifth": np.arange(1, 6), "published": published, "expected": expected})


def diagnosis(metrics_df: pd.DataFrame, dataset: str, model: str, protocol: str = "published") -> pd.DataFrame:
    """One (data set, model) seed by seed, to find out why its numbers are where they are.

    A row per metric: published (float), printed, place, verdict; scale, "log" where the published value and
    every seed's are positive, else "linear"; z, the published value in standard deviations of the seeds from
    their mean on that scale; then a column per seed with its value, and in `z_seeds` an array of the seeds' own
    z. UserError if there are fewer than two seeds. Source: ours.
    """
    comparison = compare(metrics_df, protocol)
    rows = rows_of(comparison, dataset=dataset, model=model)
    runs = _cells(metrics_df, protocol).get((dataset, model))
    if rows.empty or runs is None or len(runs) < 2:
        raise UserError(
            f"no two seeds of {model} on {dataset} under protocol {protocol}; give one of the paper's data sets and "
            "models that has results"
        )
    runs, out = runs.set_index("seed").sort_index(), []
    for row in rows.itertuples(index=False):
        values = runs[row.metric].to_numpy(dtype=np.float64)  # (seeds,)
        log = row.published > 0 and (values > 0).all()
        scaled, value = (np.log(values), np.log(row.published)) if log else (values, row.published)
        centre, spread = np.nanmean(scaled), np.nanstd(scaled, ddof=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            z, z_seeds = (value - centre) / spread, (scaled - centre) / spread
        known = {name: getattr(row, name) for name in ("metric", "published", "printed", "place", "verdict")}
        known |= {"scale": "log" if log else "linear", "z": z, "z_seeds": z_seeds}
        out.append(known | dict(zip(runs.index, values)))
    return pd.DataFrame(out)


def load_reasons(path: Path = REASONS) -> pd.DataFrame:
    """Why published numbers lie outside the seeds' range: dataset, model, metric, reason; kept by hand.

    UserError for other columns, a number that is none of the 252, one given twice, or an empty reason.
    """
    table = _read(path, "reasons", "reason")
    known = set(product(DATASETS, PAPER_MODELS, PUBLISHED_METRICS))
    for row, repeated in zip(table.itertuples(index=False), table.duplicated(_KEY)):
        faults = {"a second time": repeated, "but it is not published": row[:3] not in known,
                  "without a reason": not row.reason.strip()}  # fmt: skip
        if wrong := [fault for fault, found in faults.items() if found]:
            expected = "expected published numbers, each once, with a reason"
            raise UserError(f"{path} names {', '.join(row[:3])} {wrong[0]}; {expected}")
    return table


def with_reasons(comparison: pd.DataFrame, reasons: pd.DataFrame | None = None) -> pd.DataFrame:
    """The comparison with a column reason: that of :func:`load_reasons` for a number outside, "" elsewhere."""
    given = (load_reasons() if reasons is None else reasons).set_index(_KEY)["reason"]
    keys = pd.MultiIndex.from_frame(comparison[_KEY])
    reason = given.reindex(keys).fillna("").to_numpy()
    return comparison.assign(reason=np.where(comparison["verdict"] == OUTSIDE, reason, ""))


def stale_reasons(comparison: pd.DataFrame, reasons: pd.DataFrame) -> pd.DataFrame:
    """The reasons whose number is not outside."""
    outside = pd.MultiIndex.from_frame(comparison.loc[comparison["verdict"] == OUTSIDE, _KEY])
    return reasons[~pd.MultiIndex.from_frame(reasons[_KEY]).isin(outside)]


def representative_seed(metrics_df: pd.DataFrame, dataset: str, protocol: str = "published") -> int:
    """The seed whose FDN runs are the most typical ones of a data set; figures of one seed show it.

    argmin_s sum_m sum_j (v_smj - median_s v_smj)^2, over the models m = IC-FDNet, LP-FDNet and the metrics
    j = mse_ood, var_ood, delta_crps, aurc, not normalised; ties go to the smallest seed. Seeds that lack a
    model or a finite value are no candidates. UserError if a model has no results or no seed is complete.
    Source: section 4, "Representative seed selection", which leaves open how the two models are combined.
    """
    _require(metrics_df, REPRESENTED_METRICS)
    chosen = rows_of(metrics_df, dataset=dataset, protocol=protocol)
    distance = 0.0
    for model in FDN_MODELS:
        vectors = rows_of(chosen, model=model).set_index("seed")[list(REPRESENTED_METRICS)]  # (seeds, 4)
        if vectors.empty:
            raise UserError(
                f"no results of {model} on {dataset} under protocol {protocol}: "
                f"the representative seed needs {' and '.join(FDN_MODELS)}, run both"
            )
        distance = distance + ((vectors - vectors.median()) ** 2).sum(axis=1, skipna=False)  # (seeds,)
    distance = distance[np.isfinite(distance)]
    if distance.empty:
        raise UserError(
            f"no seed has finite results of both {' and '.join(FDN_MODELS)} "
            f"on {dataset} under protocol {protocol}: run both with the same seeds"
        )
    closest = distance.index[distance <= distance.min() * (1 + 1e-9)]  # equal but for rounding
    return int(closest.min())
