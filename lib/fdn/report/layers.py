"""What FDN layers change in networks that were trained without them: tables, sentences and figures of data/layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.special import stdtrit

from fdn.report.figures import styled
from fdn.runs.adapters import BETAS, DROPOUT, ENSEMBLE, PLAIN
from fdn.typesetting import Table

HEADINGS = {
    "rmse": "RMSE", "crps": "CRPS", "nll": "NLL", "coverage_90": "coverage", "width_90": "width",
    "accuracy": "accuracy", "ece": "ECE", "nll_tempered": "NLL, tempered", "ece_tempered": "ECE, tempered",
    "id": "ID", "ood": "OOD",
}  # fmt: skip
HIGHER = ("accuracy",)  # is better; of the others lower, and of the coverage what is nearer to 0.9
COLOURS = dict(zip((PLAIN, DROPOUT, ENSEMBLE), ("#000000", "#E69F00", "#0072B2")))
FDN_COLOURS = "#D55E00", "#CC79A7", "#009E73"


def mean_and_half(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Mean over seeds, and half the width of its interval by Student's t."""
    n = len(values)
    half = stdtrit(n - 1, (1 + level) / 2) * np.std(values, ddof=1) / n**0.5 if n > 1 else np.nan
    return float(np.mean(values)), float(half)


def part_of(frame: pd.DataFrame) -> str:
    """The column that divides the test rows: ``"angle"`` of digits, ``"region"`` of a table."""
    return "angle" if "angle" in frame else "region"


def heading(metric: str, part: object) -> str:
    return f"{HEADINGS[metric]}, {HEADINGS.get(part, f'{part} deg')}"


def results_table(frame: pd.DataFrame, metrics: Sequence[str], parts: Sequence[object]) -> Table:
    """Mean ± half of the 95 % interval over seeds: a row for each method, columns for metrics and parts."""
    cell = lambda values: "{:.3f} ± {:.3f}".format(*mean_and_half(values.to_numpy()))
    found = {part: of.groupby("method", sort=False) for part, of in frame.groupby(part_of(frame))}
    cells = pd.DataFrame({heading(m, part): found[part][m].agg(cell) for m in metrics for part in parts})
    name, align = frame["dataset"].iloc[0], "l" + "r" * len(cells.columns)
    caption = f"Mean ± half of the 95 % interval over {frame['seed'].nunique()} seeds."
    return Table(f"layers_{name}", name, caption, ("method", *cells), tuple(cells.itertuples(name=None)), align)


def worst_table(frame: pd.DataFrame, metric: str, parts: Sequence[object]) -> Table:
    """Median and worst seed, and in how many seeds a method is worse than the plain network: what a mean hides."""
    values = frame.pivot_table(metric, [part_of(frame), "seed"], "method", sort=False)
    sign = -1 if metric in HIGHER else 1
    rows = []
    for method in frame["method"].unique():
        cells = []
        for part in parts:
            own, plain = values.loc[part, method], values.loc[part, PLAIN]
            count = "—" if method == PLAIN else f"{(sign * own > sign * plain).sum()} of {len(own)}"
            cells += [f"{own.median():.3f}", f"{sign * (sign * own).max():.3f}", count]
        rows.append((method, *cells))
    columns = ["method"]
    for part in parts:
        columns += [f"{heading(metric, part)}: median", "worst seed", "worse than plain"]
    name = frame["dataset"].iloc[0]
    caption = f"{HEADINGS[metric]}, seed by seed."
    return Table(f"layers_{name}_worst", name, caption, tuple(columns), tuple(rows), "l" + "r" * (len(columns) - 1))


def cost_table(frame: pd.DataFrame, seconds: Mapping[str, float]) -> Table:
    """Parameters, what the validation rows chose, and seconds of training."""
    rows = []
    for method, of_method in frame.groupby("method", sort=False):
        chosen = of_method.drop_duplicates("seed")["chosen"].value_counts().sort_index()
        said = ", ".join(f"{value:g} ({n}×)" for value, n in chosen.items()) if chosen.index.any() else "—"
        rows.append((str(method), f"{of_method['parameters'].iloc[0]:,}", said, f"{seconds[method]:.1f}"))
    columns = "method", "parameters", "beta or dropout rate chosen", "training [s], all choices"
    caption = "Parameters of all networks; medians of processor time."
    return Table("layers_costs", frame["dataset"].iloc[0], caption, columns, tuple(rows), "lrlr")


def edges(frame: pd.DataFrame) -> str:
    """How often the validation rows chose the least or the largest beta of those tried: a wider choice might help."""
    once = frame[frame["method"].str.startswith("FDN")].drop_duplicates(["method", "seed"])
    at_edge = once["chosen"].isin([min(BETAS), max(BETAS)]).groupby(once["method"], sort=False)
    said = "; ".join(f"{method}: in {edge.sum()} of {len(edge)} seeds" for method, edge in at_edge)
    return f"The least or the largest beta tried was chosen for {said}."


def differences(frame: pd.DataFrame, metric: str, other: str = PLAIN) -> pd.DataFrame:
    """Of each method and part: mean over seeds of metric - that of ``other``, and half the 95 % interval.

    Of the coverage it is the distance from 0.9 that is compared.
    """
    values = frame.set_index([part_of(frame), "method", "seed"])[metric]
    values = (values - 0.9).abs() if metric == "coverage_90" else values
    apart = values.unstack("method").sub(values.xs(other, level="method"), axis=0)
    rows = [
        (method, part, *mean_and_half(of[method].to_numpy()))
        for part, of in apart.groupby(level=0) for method in frame["method"].unique() if method != other
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["method", "part", "difference", "half"])


def verdicts(frame: pd.DataFrame, metrics: Sequence[str], other: str = PLAIN) -> list[str]:
    """A sentence for each method with FDN layers: where the 95 % interval of its difference leaves 0 out.

    And a last one: in how many comparisons that is so, and in how many it would be by chance.
    """
    said, told_apart, n = [], 0, 0
    for method in frame["method"].unique():
        if not method.startswith("FDN"):
            continue
        kinds: dict[str, list[str]] = {"worse": [], "better": [], "not told apart": []}
        for metric in metrics:
            found: dict[str, list[str]] = {kind: [] for kind in kinds}
            of_method = differences(frame, metric, other).query("method == @method")
            for part, difference, half in of_method[["part", "difference", "half"]].itertuples(index=False):
                better = difference > 0 if metric in HIGHER else difference < 0
                kind = "not told apart" if not abs(difference) > half else "better" if better else "worse"
                found[kind].append(HEADINGS.get(part, f"{part} deg"))
                told_apart, n = told_apart + (kind != "not told apart"), n + 1
            for kind, parts in found.items():
                kinds[kind] += [f"{HEADINGS[metric]} ({', '.join(parts)})"] if parts else []
        listed = "; ".join(f"{kind}: {', '.join(w)}" for kind, w in kinds.items() if w)
        said.append(f"**{method}**, beside the {other}: {listed}.")
    return [*said, f"Of these {n} intervals {told_apart} leave 0 out; if nothing differed, about {0.05 * n:.1f} would."]


def _colours(methods: Sequence[str]) -> dict[str, str]:
    return COLOURS | dict(zip([m for m in methods if m not in COLOURS], FDN_COLOURS))


@styled
def differences_figure(frame: pd.DataFrame, metrics: Sequence[str] = ("rmse", "crps", "nll", "coverage_90")) -> Figure:
    """Differences from the plain network with 95 % intervals, in (filled) and out of distribution (hollow)."""
    fig = Figure(layout="constrained", figsize=(7, 2.6))
    axes = fig.subplots(1, len(metrics), sharey=True)
    methods = [method for method in frame["method"].unique() if method != PLAIN]
    colours = _colours(methods)
    for ax, metric in zip(axes, metrics):
        ax.axvline(0, color="black", linewidth=0.7)
        for method, part, difference, half in differences(frame, metric).itertuples(index=False):
            y, inside = methods.index(method), part == "id"
            ax.errorbar(
                difference, y - 0.15 if inside else y + 0.15, xerr=half, fmt="o", color=colours[method],
                markerfacecolor=colours[method] if inside else "white",
            )  # fmt: skip
        said = "distance of coverage\nfrom 0.9" if metric == "coverage_90" else HEADINGS[metric]
        ax.set_xlabel(f"Δ {said}")
        ax.xaxis.set_major_locator(MaxNLocator(3))
    axes[0].set_yticks(range(len(methods)), methods)
    axes[0].invert_yaxis()
    name, n = frame["dataset"].iloc[0], frame["seed"].nunique()
    fig.suptitle(f"{name}: method - plain network, left is better; filled ID, hollow OOD; {n} seeds")
    return fig


@styled
def angles_figure(frame: pd.DataFrame, metrics: Sequence[str] = ("accuracy", "nll", "ece")) -> Figure:
    """Metrics of rotated digits against the angle: means over seeds and their 95 % intervals."""
    fig = Figure(layout="constrained", figsize=(7, 2.8))
    axes = fig.subplots(1, len(metrics))
    colours = _colours(frame["method"].unique())
    for ax, metric in zip(axes, metrics):
        for i, (method, of_method) in enumerate(frame.groupby("method", sort=False)):
            found = {angle: mean_and_half(of[metric].to_numpy()) for angle, of in of_method.groupby("angle")}
            mean, half = np.transpose(list(found.values()))
            at = np.array(list(found)) + 1.2 * (i - 2)  # beside each other
            ax.errorbar(at, mean, yerr=half, color=colours[method], marker="o", markersize=2.5, label=method)
        ax.set(xlabel="rotation [degrees]", ylabel=HEADINGS[metric], xticks=sorted(frame["angle"].unique()))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return fig
