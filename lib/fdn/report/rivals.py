"""FDN as recommended beside what people use: the page data/rivals/README.md from the table beside it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fdn import data, paths
from fdn.report.layers import HEADINGS, mean_and_half
from fdn.runs import rivals
from fdn.typesetting import Table

FDN = "FDN, recommended"
SETS = (*data.DEVELOPMENT_SETS, *data.VERDICT_SETS)
REGIONS = {"id": "in distribution", "ood": "out of distribution"}
LOWER = ("crps", "rmse", "nll")  # is better
LEVEL = 0.9  # of intervals over seeds
HEAD = """# FDN as recommended, beside what people use

`fdn rivals --out data/rivals` computes this page and [its table](results.csv); rows that are there are kept. Columns
are data sets. By {development} settings may have been chosen; by {verdict} none was. Each set is split by the band of
one feature; all numbers are in units of its standardised target. CRPS, coverage and width come from 99 quantiles of the
prediction, by the same function for every method. A cell is the mean over {n} ± half of its {level:g} % interval
by Student's t; a method whose numbers depend on no seed has one number. Of CRPS, RMSE and NLL the best mean is bold.
"""


def _sets(frame: pd.DataFrame) -> list[str]:
    return [name for name in SETS if name in set(frame["dataset"])]


def _seeds(frame: pd.DataFrame) -> str:
    """How many there are of methods that have more than one, in words."""
    counts = frame.groupby(["method", "dataset"])["seed"].nunique()
    least, most = counts[counts > 1].min() if (counts > 1).any() else 1, counts.max()
    return f"{most} seeds" if least == most else f"{least} to {most} seeds"


def _methods(frame: pd.DataFrame) -> list[str]:
    """FDN first, the others in the order of the table."""
    return sorted(frame["method"].unique(), key=lambda method: method != FDN)


def summary(frame: pd.DataFrame, metric: str, region: str) -> pd.DataFrame:
    """Mean and half of its interval (0 for one seed) of a metric: a row for each method and data set."""
    rows = [
        (method, dataset, *mean_and_half(of[metric].to_numpy(), LEVEL))
        for (method, dataset), of in frame[frame["region"] == region].groupby(["method", "dataset"], sort=False)
    ]
    found = pd.DataFrame(rows, columns=["method", "dataset", "mean", "half"]).set_index(["method", "dataset"])
    return found.assign(half=found["half"].fillna(0.0)).dropna()


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def table(frame: pd.DataFrame, metric: str, region: str) -> Table:
    """Methods against data sets."""
    found, sets = summary(frame, metric, region), _sets(frame)
    best = found["mean"].groupby("dataset").min() if metric in LOWER else {}
    rows = []
    for method in _methods(frame):
        cells = []
        for dataset in sets:
            if (method, dataset) not in found.index:
                cells.append("—")
                continue
            mean, half = found.loc[(method, dataset)]
            cell = _number(mean) + (f" ± {_number(half)}" if half else "")
            cells.append(f"**{cell}**" if metric in LOWER and mean == best[dataset] else cell)
        rows.append((method, *cells))
    title = f"{HEADINGS[metric]} {REGIONS[region]}"
    said = {"nll": "Of methods with a density.", "coverage_90": "Of intervals that should hold 0.9 of the targets."}
    return Table(f"rivals_{metric}_{region}", title, said.get(metric, ""), ("method", *sets), tuple(rows),
                 "l" + "r" * len(sets))  # fmt: skip


def times(frame: pd.DataFrame) -> Table:
    """Medians of processor time."""
    middle, sets = frame.groupby(["method", "dataset"])[["fit_s", "predict_s"]].median(), _sets(frame)
    rows = [
        (method, *(" / ".join(f"{s:.2g}" for s in middle.loc[(method, name)]) if (method, name) in middle.index else "—"
                   for name in sets))
        for method in _methods(frame)
    ]  # fmt: skip
    caption = "Seconds of processor time, medians over seeds: to train, choices included / to predict the test rows."
    return Table("rivals_times", "Times", caption, ("method", *sets), tuple(rows), "l" + "r" * len(sets))


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names) or "none"


def losses(frame: pd.DataFrame) -> list[str]:
    """Sentences: where FDN's CRPS is worse than others' by more than the intervals allow, then where it is the best."""
    said = []
    for region, where in REGIONS.items():
        found = summary(frame, "crps", region)
        mean, half = found["mean"].unstack(), found["half"].unstack()
        sets = [name for name in _sets(frame) if FDN in mean.index and np.isfinite(mean.loc[FDN].get(name, np.nan))]
        if not sets:
            best = mean.idxmin()
            said.append(f"The least CRPS {where}: {_joined([f'{name} {best[name]}' for name in _sets(frame)])}.")
            continue
        lost = {}
        for name in sets:
            apart = mean.loc[FDN, name] - mean[name].drop(FDN)
            beaten = apart > np.hypot(half.loc[FDN, name], half[name].drop(FDN))
            lost[name] = list(apart[beaten].sort_values(ascending=False).index)
        worse = [f"on {name} to {_joined(methods)}" for name, methods in lost.items() if methods]
        best = [name for name in sets if mean[name].idxmin() == FDN]
        said.append(
            f"**{where.capitalize()}** {FDN} loses in CRPS {'; '.join(worse) if worse else 'on no set'}. "
            f"Its mean is the least of all on {_joined(best)} ({len(best)} of {len(sets)})."
        )
    return said


def aims(frame: pd.DataFrame) -> Table:
    """What was wanted of FDN before the table was there, and whether it is so."""
    inside, outside = (summary(frame, "crps", region)["mean"].unstack() for region in REGIONS)
    covered = {region: summary(frame, "coverage_90", region)["mean"].unstack().loc[FDN] for region in REGIONS}
    sets = [name for name in _sets(frame) if np.isfinite(inside.loc[FDN].get(name, np.nan))]
    mlps, others = inside.loc["10 MLPs"], outside.drop(FDN).min()
    kept = {
        "CRPS inside at most 1.1 times that of 10 MLPs": lambda name: inside.loc[FDN, name] <= 1.1 * mlps[name],
        "CRPS outside below all others'": lambda name: outside.loc[FDN, name] < others[name],
        "CRPS outside at most 1.1 times the best": lambda name: outside.loc[FDN, name] <= 1.1 * others[name],
        "coverage inside 0.85 to 0.95": lambda name: 0.85 <= covered["id"][name] <= 0.95,
        "coverage outside at least 0.8": lambda name: covered["ood"][name] >= 0.8,
    }
    rows = []
    for aim, holds in kept.items():
        found = [bool(holds(name)) for name in sets]
        rows.append((aim, *("yes" if one else "no" for one in found), f"{sum(found)} of {len(found)}"))
    return Table(
        "rivals_aims", "What was wanted of FDN", "", ("", *sets, "sets"), tuple(rows), "l" + "c" * len(sets) + "r"
    )


def page(frame: pd.DataFrame) -> str:
    """The Markdown of the page."""
    head = HEAD.format(
        development=_joined(data.DEVELOPMENT_SETS), verdict=_joined(data.VERDICT_SETS), level=100 * LEVEL,
        n=_seeds(frame),
    )  # fmt: skip
    about = [f"- **{name}**: {' '.join(inspect.getdoc(fit).split())}" for name, fit in rivals.METHODS.items()]
    tables = [table(frame, metric, region) for metric in ("crps", *rivals.COLUMNS) for region in REGIONS]
    tables = [*dict.fromkeys(tables), times(frame)]
    if FDN in set(frame["method"]):
        tables.insert(0, aims(frame))
    return "\n\n".join([head.strip(), *losses(frame), *(it.to_markdown().strip() for it in tables),
                        "## The methods", "\n".join(about)]) + "\n"  # fmt: skip


def write(folder: Path | None = None) -> Path:
    """README.md beside the table."""
    path = Path(folder or paths.RIVALS) / "README.md"
    path.write_text(page(rivals.load(folder)), encoding="utf-8", newline="\n")
    return path
