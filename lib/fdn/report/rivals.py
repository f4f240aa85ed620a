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
from fdn.runs.recommended import FDN
from fdn.typesetting import Table

SETS = (*data.DEVELOPMENT_SETS, *data.VERDICT_SETS)
REGIONS = {"id": "in distribution", "ood": "out of distribution"}
METRICS = ("crps", "coverage_90", "width_90", "nll", "rmse")
LOWER = ("crps", "rmse", "nll")  # is better
INTERVALS = "intervals that should hold 0.9 of the targets."
CAPTIONS = {"coverage_90": f"Share of targets in {INTERVALS}", "width_90": f"Of {INTERVALS}",
            "nll": "Of methods with a density; lower is better."}  # fmt: skip
LEVEL = 0.9  # of intervals over seeds
HEAD = """# FDN as recommended, beside what people use

`fdn rivals --out data/rivals` computes this page and [its table](results.csv); rows that are there are kept. Columns
are data sets. By {development} settings may have been chosen; by {verdict} none was. Each set is split by the band of
one feature; all numbers are in units of its standardised target. CRPS, coverage and width come from 99 quantiles of the
prediction, by the same function for every method. A cell is the mean over up to {seeds} seeds ± half of its {level:g} %
interval by Student's t; a method whose numbers depend on no seed has one number. Bold is the best mean.
"""
METHODS = """Choices are made by the validation rows; boosting, forest and Gaussian process then learn from these too.
Networks have two hidden layers of {WIDTH}, learn by Adam in batches of {BATCH} at a rate of {RATE}, and stop after
{PATIENCE} epochs without progress, {EPOCHS} at most; rates of dropout: {DROPOUT}. Boosting takes {ITERATIONS} rounds,
NGBoost {ROUNDS} at most. A forest has {TREES} trees, with at least {LEAVES} rows in a leaf. A Gaussian process has its
hyperparameters from at most {GP_TUNED} rows, and predicts from at most {GP_ROWS}."""


def _sets(frame: pd.DataFrame) -> list[str]:
    return [name for name in SETS if name in set(frame["dataset"])]


def _methods(frame: pd.DataFrame) -> list[str]:
    """FDN first, the others in the order of ``METHODS``."""
    order = [FDN, *rivals.METHODS]
    return sorted(frame["method"].unique(), key=lambda method: [not method.startswith(name) for name in order])


def summary(frame: pd.DataFrame, metric: str, region: str) -> pd.DataFrame:
    """Mean and half of its interval (NaN for one seed) of a metric: a row for each method and data set."""
    rows = [
        (method, dataset, *mean_and_half(of[metric].to_numpy(), LEVEL))
        for (method, dataset), of in frame[frame["region"] == region].groupby(["method", "dataset"], sort=False)
    ]
    found = pd.DataFrame(rows, columns=["method", "dataset", "mean", "half"]).set_index(["method", "dataset"])
    return found.dropna(subset="mean")


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def table(frame: pd.DataFrame, metric: str, region: str) -> Table:
    """Methods against data sets."""
    found, sets = summary(frame, metric, region), _sets(frame)
    best = found["mean"].groupby("dataset").min() if metric in LOWER else {}
    rows = []
    for method in _methods(frame):
        cells = dict.fromkeys(sets, "—")
        for dataset, mean, half in found.query("method == @method").reset_index("dataset").itertuples(index=False):
            cell = _number(mean) + (f" ± {_number(half)}" if np.isfinite(half) else "")
            cells[dataset] = f"**{cell}**" if metric in LOWER and mean == best[dataset] else cell
        rows.append((method, *cells.values()))
    heading, columns = HEADINGS[metric], ("method", *sets)
    title = f"{heading[0].upper()}{heading[1:]} {REGIONS[region]}"
    caption = CAPTIONS.get(metric, "Lower is better.")
    return Table(f"rivals_{metric}_{region}", title, caption, columns, tuple(rows), "l" + "r" * len(sets))


def times(frame: pd.DataFrame) -> Table:
    """Medians of processor time."""
    middle, sets = frame.groupby(["method", "dataset"])[["fit_s", "predict_s"]].median(), _sets(frame)
    said = {at: " / ".join(f"{seconds:.2g}" for seconds in row) for at, row in zip(middle.index, middle.to_numpy())}
    rows = [(method, *(said.get((method, name), "—") for name in sets)) for method in _methods(frame)]
    caption = "Seconds of processor time, medians over seeds: to train, choices included / to predict the test rows."
    return Table("rivals_times", "Times", caption, ("method", *sets), tuple(rows), "l" + "r" * len(sets))


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names) or "none"


def losses(frame: pd.DataFrame) -> list[str]:
    """Sentences: where FDN's CRPS is worse than others' by more than the intervals allow, then where it is the best."""
    said = []
    for region, where in REGIONS.items():
        found = summary(frame, "crps", region)
        mean, half = found["mean"].unstack(), found["half"].unstack().fillna(0)
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
        said.append(f"**{where.capitalize()}** {FDN} loses in CRPS {'; '.join(worse) or 'on no set'}. "
                    f"Its mean is the least of all on {_joined(best)} ({len(best)} of {len(sets)}).")  # fmt: skip
    return said


def _aims(frame: pd.DataFrame) -> pd.DataFrame:
    """Whether what was wanted of FDN is so: a row for each aim, a column for each data set."""
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
    return pd.DataFrame([[bool(holds(name)) for name in sets] for holds in kept.values()], [*kept], sets)


def _share(of: pd.Series) -> str:
    return f"{of.sum()} of {len(of)}"


def aims(frame: pd.DataFrame) -> Table:
    """What was wanted of FDN before the table was there, and whether it is so."""
    found = _aims(frame)
    new = [name for name in found if name in data.VERDICT_SETS]
    rows = [(aim, *("yes" if it else "no" for it in of), _share(of[new]), _share(of)) for aim, of in found.iterrows()]
    columns = "", *found, "sets that judge", "all"
    caption = f"Before the table was there. The sets that judge are {_joined(data.VERDICT_SETS)}."
    align = "l" + "c" * len(found.columns) + "rr"
    return Table("rivals_aims", "What was wanted of FDN", caption, columns, tuple(rows), align)


def verdict(frame: pd.DataFrame) -> str:
    """The aims on the sets that judge alone, and how far the intervals fail where they fail most, in words."""
    found = _aims(frame)
    new = [name for name in found if name in data.VERDICT_SETS]
    kept = "; ".join(f"{aim}: {_share(of[new])}" for aim, of in found.iterrows())
    covered = summary(frame, "coverage_90", "ood")["mean"].unstack().loc[FDN].dropna()
    return (f"On the sets that judge: {kept}. Outside, the intervals that should hold 0.9 of the targets hold "
            f"{covered.min():.2f} on {covered.idxmin()}, the worst of all {len(covered)} sets.")  # fmt: skip


def page(frame: pd.DataFrame) -> str:
    """The Markdown of the page."""
    sets = {"development": _joined(data.DEVELOPMENT_SETS), "verdict": _joined(data.VERDICT_SETS)}
    head = HEAD.format(**sets, level=100 * LEVEL, seeds=frame["seed"].nunique())
    about = [f"- **{name}**: {' '.join(inspect.getdoc(fit).split())}" for name, fit in rivals.METHODS.items()]
    tables = [aims(frame)] if FDN in set(frame["method"]) else []
    tables += [table(frame, metric, region) for metric in METRICS for region in REGIONS]
    judged = [verdict(frame)] if FDN in set(frame["method"]) else []
    shown = [it.to_markdown().strip() for it in (*tables, times(frame))]
    said = [head.strip(), *judged, *losses(frame), *shown, "## The methods", METHODS.format(**vars(rivals))]
    return "\n\n".join([*said, "\n".join(about)]) + "\n"


def write(folder: Path | None = None) -> Path:
    """README.md beside the table."""
    path = Path(folder or paths.RIVALS) / "README.md"
    path.write_text(page(rivals.load(folder)), encoding="utf-8", newline="\n")
    return path
