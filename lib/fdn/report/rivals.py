"""FDN as recommended: beside what people use, and what each of its settings is worth.

What notebooks 10 and 11 say of the tables in data/rivals.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fdn.report.findings import listing
from fdn.report.layers import HEADINGS, mean_and_half
from fdn.runs import rivals
from fdn.runs.rivals import FDN
from fdn.typesetting import Table

JUDGING = ("bikeshare", "diamonds", "friedman1", "heteroscedastic_sine")  # sets by which no setting was chosen
SETS = ("airfoil", "energy", "ccpp", "diabetes", *JUDGING)
REGIONS = {"id": "in distribution", "ood": "out of distribution"}
WHERE = {"id": "inside", "ood": "outside"}  # the same in short
METRICS = ("crps", "coverage_90", "width_90", "nll", "rmse")
LOWER = ("crps", "rmse", "nll")  # is better
INTERVALS = "intervals that should hold 0.9 of the targets."
CAPTIONS = {"coverage_90": f"Share of targets in {INTERVALS}", "width_90": f"Of {INTERVALS}",
            "nll": "Of methods with a density; lower is better."}  # fmt: skip
LEVEL = 0.9  # of intervals over seeds


def summary(frame: pd.DataFrame, metric: str, region: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean of a metric and half of its interval (NaN for one seed): methods, FDN first, against data sets."""
    of = frame[frame["region"].eq(region) & frame[metric].notna()].groupby(["method", "dataset"])[metric]
    found = pd.DataFrame({key: mean_and_half(values.to_numpy(), LEVEL) for key, values in of}, ["mean", "half"]).T
    order = [FDN, *rivals.METHODS]  # by the first words: "10 MLPs + noise" comes with "10 MLPs"
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


def losses(frame: pd.DataFrame) -> list[str]:
    """Sentences: where FDN's CRPS is worse than others' by more than the intervals allow, then where it is the best."""
    said = []
    for region, where in REGIONS.items():
        mean, half = summary(frame, "crps", region)
        half = half.fillna(0)  # of one number
        worse = []
        for name in mean:
            apart = mean.loc[FDN, name] - mean[name]
            beaten = apart[apart > np.hypot(half.loc[FDN, name], half[name])].sort_values(ascending=False)
            worse += [f"on {name} to {listing(list(beaten.index))}"] if len(beaten) else []
        best = [name for name in mean if mean[name].idxmin() == FDN]
        least = f"{listing(best) or 'none'} ({len(best)} of {len(mean.columns)})"
        said.append(
            f"**{where.capitalize()}** {FDN} loses in CRPS {'; '.join(worse) or 'on no set'}. Its mean is the least of "
            f"all on {least}."
        )
    return said


def aims(frame: pd.DataFrame) -> Table:
    """What was wanted of FDN before the table was there, and whether it is so."""
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
    found = pd.DataFrame(kept).T
    cells = found.replace({True: "yes", False: "no"})
    for heading, of in {"sets that judge": found[found.columns.intersection(JUDGING)], "all": found}.items():
        cells[heading] = of.apply(lambda row: f"{row.sum()} of {len(row)}", axis=1)
    caption = f"Before the table was there. The sets that judge are {listing(JUDGING)}."
    return _table("rivals_aims", "What was wanted of FDN", caption, cells, "", "c")


def crps_intervals(frame: pd.DataFrame, reference: str | None = None) -> pd.DataFrame:
    """Geometric mean over seeds of the CRPS, or of its ratio to the reference's under the same seed, and its interval.

    ``mean``, ``low``, ``high`` by data set, region and method.
    """
    logs = np.log(frame.set_index(["dataset", "region", "method", "seed"])["crps"])
    if reference is not None:
        logs = (logs - logs.xs(reference, level="method")).reorder_levels(logs.index.names).drop(reference, level=2)
    found = {}
    for key, of in logs.groupby(level=[0, 1, 2], sort=False):
        mean, half = mean_and_half(of.to_numpy(), LEVEL)
        found[key] = {"mean": np.exp(mean), "low": np.exp(mean - half), "high": np.exp(mean + half)}
    return pd.DataFrame(found).T.rename_axis(["dataset", "region", "method"])
