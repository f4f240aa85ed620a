"""FDN as recommended: beside what people use, and what each of its settings is worth.

What notebooks 10 and 11 and the page data/rivals/README.md say of the tables beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fdn import data
from fdn.report.layers import HEADINGS, mean_and_half
from fdn.runs import rivals
from fdn.runs.rivals import FDN
from fdn.typesetting import Table

SETS = (*data.DEVELOPMENT_SETS, *data.VERDICT_SETS)
REGIONS = {"id": "in distribution", "ood": "out of distribution"}
WHERE = {"id": "inside", "ood": "outside"}  # the same in short
METRICS = ("crps", "coverage_90", "width_90", "nll", "rmse")
LOWER = ("crps", "rmse", "nll")  # is better
INTERVALS = "intervals that should hold 0.9 of the targets."
CAPTIONS = {"coverage_90": f"Share of targets in {INTERVALS}", "width_90": f"Of {INTERVALS}",
            "nll": "Of methods with a density; lower is better."}  # fmt: skip
LEVEL = 0.9  # of intervals over seeds
HEAD = """# FDN as recommended, beside what people use

[Notebook 11](../../notebooks/11_rivals.ipynb) shows how each method is fitted, and computes [the table](results.csv)
and this page. Columns are data sets. By {development} settings may have been chosen; by {verdict} none was. Each set is
split by the band of one feature; all numbers are in units of its standardised target. CRPS, coverage and width come
from 99 quantiles of the prediction, by the same function for every method. A cell is the mean over up to {seeds} seeds
± half of its {level:g} % interval by Student's t; a method whose numbers depend on no seed has one number. Bold is the
best mean.
"""


# Beside what people use


def summary(frame: pd.DataFrame, metric: str, region: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean of a metric and half of its interval (NaN for one seed): methods, FDN first, against data sets."""
    of = frame[frame["region"].eq(region) & frame[metric].notna()].groupby(["method", "dataset"])[metric]
    found = pd.DataFrame({key: mean_and_half(values.to_numpy(), LEVEL) for key, values in of}, ["mean", "half"]).T
    order = [FDN, *rivals.METHODS]
    methods = sorted(frame["method"].unique(), key=lambda method: [not method.startswith(name) for name in order])
    sets = [name for name in SETS if name in set(frame["dataset"])]
    return tuple(found[column].unstack().reindex(methods, columns=sets) for column in ("mean", "half"))


def table(frame: pd.DataFrame, metric: str, region: str) -> Table:
    """Methods against data sets."""

    def number(value: float) -> str:
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"

    mean, half = summary(frame, metric, region)
    cells = mean.map(number, na_action="ignore") + half.map(lambda h: f" ± {number(h)}" if h > 0 else "")
    if metric in LOWER:
        cells = cells.where(mean.ne(mean.min()), "**" + cells + "**")
    heading, caption = HEADINGS[metric], CAPTIONS.get(metric, "Lower is better.")
    title = f"{heading[0].upper()}{heading[1:]} {REGIONS[region]}"
    return _table(f"rivals_{metric}_{region}", title, caption, cells)


def times(frame: pd.DataFrame) -> Table:
    """Medians of processor time."""
    middle = frame.groupby(["method", "dataset"])[["fit_s", "predict_s"]].median().map("{:.2g}".format)
    mean, _ = summary(frame, "crps", "id")
    cells = (middle["fit_s"] + " / " + middle["predict_s"]).unstack().reindex_like(mean)
    caption = "Seconds of processor time, medians over seeds: to train, choices included / to predict the test rows."
    return _table("rivals_times", "Times", caption, cells)


def _table(
    name: str, title: str, caption: str, cells: pd.DataFrame, heading: str = "method", align: str = "r"
) -> Table:
    rows = tuple(cells.fillna("—").itertuples(name=None))
    return Table(name, title, caption, (heading, *cells), rows, "l" + align * len(cells.columns))


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names) or "none"


def losses(frame: pd.DataFrame) -> list[str]:
    """Sentences: where FDN's CRPS is worse than others' by more than the intervals allow, then where it is the best."""
    said = []
    for region, where in REGIONS.items():
        mean, half = summary(frame, "crps", region)
        worse = []
        for name in mean:
            apart = mean.loc[FDN, name] - mean[name]
            beaten = apart[apart > np.hypot(half.loc[FDN, name], half[name].fillna(0))].sort_values(ascending=False)
            worse += [f"on {name} to {_joined(list(beaten.index))}"] if len(beaten) else []
        best = [name for name in mean if mean[name].idxmin() == FDN]
        least = f"{_joined(best)} ({len(best)} of {len(mean.columns)})"
        said.append(
            f"**{where.capitalize()}** {FDN} loses in CRPS {'; '.join(worse) or 'on no set'}. Its mean is the least of "
            f"all on {least}."
        )
    return said


def _aims(frame: pd.DataFrame) -> pd.DataFrame:
    """Whether what was wanted of FDN is so: a row for each aim, a column for each data set."""
    inside, outside = (summary(frame, "crps", region)[0] for region in REGIONS)
    covered = {region: summary(frame, "coverage_90", region)[0].loc[FDN] for region in REGIONS}
    others = outside.drop(FDN).min()
    kept = {
        "CRPS inside at most 1.1 times that of 10 MLPs": inside.loc[FDN] <= 1.1 * inside.loc["10 MLPs"],
        "CRPS outside below all others'": outside.loc[FDN] < others,
        "CRPS outside at most 1.1 times the best": outside.loc[FDN] <= 1.1 * others,
        "coverage inside 0.85 to 0.95": covered["id"].between(0.85, 0.95),
        "coverage outside at least 0.8": covered["ood"] >= 0.8,
    }
    return pd.DataFrame(kept).T


def _share(of: pd.Series) -> str:
    return f"{of.sum()} of {len(of)}"


def aims(frame: pd.DataFrame) -> Table:
    """What was wanted of FDN before the table was there, and whether it is so."""
    found = _aims(frame)
    judging = found[[name for name in found if name in data.VERDICT_SETS]]
    cells = found.replace({True: "yes", False: "no"})
    cells["sets that judge"], cells["all"] = judging.apply(_share, axis=1), found.apply(_share, axis=1)
    caption = f"Before the table was there. The sets that judge are {_joined(data.VERDICT_SETS)}."
    return _table("rivals_aims", "What was wanted of FDN", caption, cells, "", "c")


def verdict(frame: pd.DataFrame) -> str:
    """The aims on the sets that judge alone, and how far the intervals fail where they fail most, in words."""
    found = _aims(frame)
    judging = found[[name for name in found if name in data.VERDICT_SETS]]
    kept = "; ".join(f"{aim}: {share}" for aim, share in judging.apply(_share, axis=1).items())
    covered = summary(frame, "coverage_90", "ood")[0].loc[FDN]
    return (f"On the sets that judge: {kept}. Outside, the intervals that should hold 0.9 of the targets hold "
            f"{covered.min():.2f} on {covered.idxmin()}, the worst of all {len(covered)} sets.")  # fmt: skip


def page(frame: pd.DataFrame) -> str:
    """The Markdown of the page."""
    sets = {"development": _joined(data.DEVELOPMENT_SETS), "verdict": _joined(data.VERDICT_SETS)}
    head = HEAD.format(**sets, level=100 * LEVEL, seeds=frame["seed"].nunique())
    tables = [aims(frame), *(table(frame, metric, region) for metric in METRICS for region in REGIONS), times(frame)]
    said = [head.strip(), verdict(frame), *losses(frame), *(it.to_markdown().strip() for it in tables)]
    return "\n\n".join(said) + "\n"


def write(folder: Path | None = None) -> list[Path]:
    """README.md beside the table, once it has rows of all methods."""
    frame, path = rivals.load(folder), rivals.table(folder).with_name("README.md")
    if not {FDN, *rivals.METHODS} <= set(frame["method"]):
        return []
    path.write_text(page(frame), encoding="utf-8", newline="\n")
    return [path]


# What each setting is worth


def means(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Geometric mean over seeds and its interval: ``mean``, ``low``, ``high`` by data set, region and method."""
    return _intervals(frame, np.log(frame[metric]))


def ratios(frame: pd.DataFrame, reference: str, metric: str = "crps") -> pd.DataFrame:
    """The same of the ratio to the reference under the same seed."""
    keys = ["dataset", "region", "seed"]
    own = frame[frame["method"].eq(reference)].set_index(keys)[metric]
    others = frame[~frame["method"].eq(reference)]
    return _intervals(others, np.log(others[metric] / own.reindex(pd.MultiIndex.from_frame(others[keys])).to_numpy()))


def _intervals(frame: pd.DataFrame, logs: pd.Series) -> pd.DataFrame:
    found = {}
    for key, of in logs.groupby([frame["dataset"], frame["region"], frame["method"]], sort=False):
        mean, half = mean_and_half(of.dropna().to_numpy(), LEVEL)
        found[key] = np.exp([mean, mean - half, mean + half])
    index = pd.MultiIndex.from_tuples(found, names=["dataset", "region", "method"])
    return pd.DataFrame(found.values(), index=index, columns=["mean", "low", "high"])


def told_apart(found: pd.DataFrame) -> list[str]:
    """A sentence for each method of :func:`ratios`: where its interval leaves 1 out; and how often chance would."""
    said = []
    apart = (found["low"] > 1) | (found["high"] < 1)
    for method, of in found["mean"].groupby(level="method", sort=False):
        kinds: dict[str, list[str]] = {"worse": [], "better": []}
        for (name, region, _), mean in of[apart].items():
            kinds["worse" if mean > 1 else "better"].append(f"{name} {WHERE[region]} (x {mean:.2f})")
        parts = "; ".join(f"{kind} on {', '.join(places)}" for kind, places in kinds.items() if places)
        said.append(f"**{method}**: {parts or 'not told apart'}.")
    chance = f"if nothing differed, about {(1 - LEVEL) * len(found):.1f} would"
    return [*said, f"Of these {len(found)} intervals {apart.sum()} leave 1 out; {chance}."]
