"""What makes FDN work: the path from the published model to the recommended one, and what each setting is worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fdn.report.figures import styled
from fdn.report.layers import mean_and_half
from fdn.typesetting import Table

LEVEL = 0.9  # of intervals over seeds
REGIONS = {"id": "inside", "ood": "outside"}
COLOURS = {"id": "#0072B2", "ood": "#D55E00"}


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


def path_table(frame: pd.DataFrame) -> Table:
    """A row a step: CRPS inside and outside, on every data set."""
    crps = means(frame, "crps")["mean"]
    columns = [(name, region) for name in frame["dataset"].unique() for region in REGIONS]
    rows = [
        (step, *(f"{crps[*key, step]:.3f}" if (*key, step) in crps.index else "—" for key in columns))
        for step in frame["method"].unique()
    ]
    headings = [f"{name}, {REGIONS[region]}" for name, region in columns]
    caption = f"CRPS, geometric means over {frame['seed'].nunique()} seeds."
    return Table("recipe_path", "From the published model to the recommended one", caption, ("step", *headings),
                 tuple(rows), "l" + "r" * len(columns))  # fmt: skip


@styled
def means_figure(frame: pd.DataFrame, methods: Sequence[str], title: str, reference: str | None = None) -> Figure:
    """CRPS of the methods, top to bottom, inside and outside, a panel a data set; or ratios to a reference."""
    found = means(frame, "crps") if reference is None else ratios(frame, reference)
    sets = [name for name in frame["dataset"].unique() if name in found.index.get_level_values("dataset")]
    fig = Figure(layout="constrained", figsize=(3.2 + 1.9 * len(sets), 0.9 + 0.3 * len(methods)))
    axes = fig.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for ax, name in zip(axes, sets):
        if reference is not None:
            ax.axvline(1, color="black", linewidth=0.7)
        for region, colour in COLOURS.items():
            rows = [(i, *found.loc[key]) for i, m in enumerate(methods) if (key := (name, region, m)) in found.index]
            y, mean, low, high = np.array(rows).T
            spread = np.abs(np.array([mean - low, high - mean]))
            shift = -0.12 if region == "id" else 0.12
            ax.errorbar(mean, y + shift, xerr=spread, fmt="o", color=colour, label=REGIONS[region])
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("CRPS" if reference is None else "ratio of CRPS")
        ax.set_title(name)
    axes[0].set_yticks(range(len(methods)), methods)
    axes[0].invert_yaxis()
    axes[-1].legend()
    fig.suptitle(title)
    return fig


@styled
def beta_figure(frame: pd.DataFrame, chosen: dict[str, float]) -> Figure:
    """CRPS inside and outside against beta, a panel a data set; the line is the beta that the rehearsal chose."""
    sets = list(frame["dataset"].unique())
    fig = Figure(layout="constrained", figsize=(2.6 * len(sets), 2.8))
    found = means(frame.assign(method=frame["chosen"].str.removeprefix("beta ").astype(float)), "crps").sort_index()
    for ax, name in zip(fig.subplots(1, len(sets), squeeze=False)[0], sets):
        for region, colour in COLOURS.items():
            of = found.loc[(name, region)]
            ax.fill_between(of.index, of["low"], of["high"], color=colour, alpha=0.2, linewidth=0)
            ax.plot(of.index, of["mean"], "o-", color=colour, label=REGIONS[region])
        ax.axvline(chosen[name], color="black", linewidth=0.8, linestyle="--", label="chosen")
        ax.set(xscale="log", yscale="log", xlabel=r"$\beta$", ylabel="CRPS", title=name)
    fig.axes[-1].legend()
    return fig


def verdicts(found: pd.DataFrame) -> list[str]:
    """A sentence for each method of :func:`ratios`: where its interval leaves 1 out; and how often chance would."""
    said, told_apart = [], 0
    for method, of in found.groupby(level="method", sort=False):
        kinds: dict[str, list[str]] = {"worse": [], "better": []}
        for (name, region, _), (mean, low, high) in of.iterrows():
            if low > 1 or high < 1:
                kinds["worse" if low > 1 else "better"].append(f"{name} {REGIONS[region]} (x {mean:.2f})")
        told_apart += sum(map(len, kinds.values()))
        parts = "; ".join(f"{kind} on {', '.join(places)}" for kind, places in kinds.items() if places)
        said.append(f"**{method}**: {parts or 'not told apart'}.")
    n = len(found)
    by_chance = (1 - LEVEL) * n
    return [
        *said,
        f"Of these {n} intervals {told_apart} leave 1 out; if nothing differed, about {by_chance:.1f} would.",
    ]
