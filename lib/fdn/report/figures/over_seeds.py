"""Figures of all seeds at once: what does not depend on which of them is shown.

Bands are the 5 to 95 % quantiles over seeds of :mod:`fdn.runs.bands`, lines their medians.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from fdn import metrics as measures
from fdn.errors import UserError
from fdn.models import MODELS
from fdn.report.checkpoints import WITHOUT_BETA, beta_kept
from fdn.report.figures.drawing import (
    BAND,
    GREY,
    FigureKind,
    finite,
    is_positive,
    legend,
    name_panels,
    panels,
    set_title,
    styled,
)
from fdn.report.findings import DatasetResults
from fdn.report.published import PUBLISHED_METRICS, of_stochastic, rows_of

DELTAS = {column: f"Δ{measures.metric_of(column).heading}" for column in measures.DELTAS if column in PUBLISHED_METRICS}


@styled
def delta_bars(study: DatasetResults) -> Figure:
    """OOD mean less ID mean of MSE, Var and CRPS: bars of one seed, whiskers over all seeds.

    Source: Figure "bars-crps-vertical".
    """
    fig = Figure(layout="constrained")
    ax = fig.subplots()
    metrics = study.runs.assign(**{delta: finite(study.runs[delta]) for delta in DELTAS})
    shown = metrics[(metrics["seed"] == study.seed) & metrics[list(DELTAS)].notna().any(axis=1)]
    if shown.empty:
        raise UserError(f"the differences between OOD and ID of seed {study.seed} are no numbers")
    models = list(of_stochastic(shown))
    looks = ({"alpha": 1.0}, {"alpha": 0.35}, {"hatch": "/////", "fill": False})
    fills = dict(zip(DELTAS, looks, strict=True))
    for position, model in enumerate(models):
        runs = rows_of(metrics, model=model).set_index("seed")
        for offset, delta in zip((-0.27, 0, 0.27), DELTAS, strict=True):
            height, low, high = runs.at[study.seed, delta], runs[delta].min(), runs[delta].max()
            x, colour = position + offset, MODELS[model].style[0]
            ax.bar(x, height, width=0.25, color=colour, edgecolor=colour, **fills[delta])
            ax.vlines(x, low, high, color="black", linewidth=0.8)
    values = rows_of(metrics, model=models)[list(DELTAS)].abs().to_numpy()
    smallest = np.nanmin(values[values > 0], initial=1.0)
    ax.set_yscale("symlog", linthresh=max(1e-2, 10 ** np.floor(np.log10(smallest))))
    ax.axhline(0, color="black", linewidth=0.7)
    ax.set_xticks(range(len(models)), models)
    ax.set(xlim=(-0.5, len(models) - 0.5), ylabel="OOD mean − ID mean")
    ax.grid(axis="x", visible=False)
    grey = {"color": GREY, "edgecolor": GREY}
    keys = [ax.bar(np.nan, np.nan, **grey, **fills[delta]) for delta in DELTAS]
    fig.legend(keys, DELTAS.values(), loc="outside upper right", ncols=3)
    set_title(fig, f"Whiskers: all seeds; bars: {study.title}")
    return fig


@styled
def seeds_scatter(study: DatasetResults, title: str = "") -> Figure:
    """OOD MSE against OOD Var with a point per seed, the representative seed ringed.

    Source: Figure "seed-agg-mse-ood-var-ood".
    """
    fig = Figure(layout="constrained")
    ax = fig.subplots()
    shown = study.runs[is_positive(study.runs["var_ood"]) & is_positive(study.runs["mse_ood"])]
    if not (by_model := of_stochastic(shown)):
        raise UserError("no seed has a positive mean MSE and Var out of distribution, which logarithmic axes need")
    ring = {"facecolors": "none", "edgecolors": "black", "linewidths": 0.9}
    for model, runs in by_model.items():
        colour, marker = MODELS[model].style
        ax.scatter(
            runs["var_ood"], runs["mse_ood"], color=colour, marker=marker, s=22, alpha=0.7, linewidths=0,
            label=model,
        )  # fmt: skip
        chosen = rows_of(runs, seed=study.seed)
        ax.scatter(chosen["var_ood"], chosen["mse_ood"], s=60, **ring)
    ax.scatter([], [], label=f"representative seed {study.seed}", **ring)
    ax.set(xscale="log", yscale="log", xlabel="mean Var, OOD", ylabel="mean MSE, OOD")
    legend(fig, loc="outside right center")
    set_title(fig, title or f"{study.dataset}, all seeds, protocol {study.protocol}\n{study.places}")
    return fig


def _curve(study: DatasetResults, model: str, kind: str, region: str = "") -> pd.DataFrame:
    """A curve of a model: x, low, middle, high, shown."""
    return rows_of(study.bands, model=model, kind=kind, region=region)


def _models(study: DatasetResults) -> list[str]:
    models = [] if study.bands is None else list(of_stochastic(study.bands))
    if not models:
        raise UserError(f"there are no curves of all seeds of {study.dataset}; `fdn seeds` makes them of a run's fits")
    return models


def _over(study: DatasetResults, what: str) -> str:
    counts = sorted(study.bands["seeds"].unique())
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{study.dataset}, {what}, protocol {study.protocol}\nMedian and 5 to 95 % band over {seeds} seeds"


def _fill(ax: Axes, x: pd.Series | np.ndarray, curve: pd.DataFrame, colour: str, **options: object) -> None:
    ax.fill_between(x, finite(curve["low"]), finite(curve["high"]), color=colour, linewidth=0, **options)


@styled
def checkpoint(study: DatasetResults) -> Figure:
    """Validation score and beta against the epoch, a panel per model, with the kept epochs marked. Source: ours.

    The line is the representative seed, whose kept epoch is ringed; ticks at the bottom are the kept epochs of all.
    """
    fig, axes = panels(_models(study))
    for ax, model, colour, _ in axes:
        curve = _curve(study, model, "score")
        _fill(ax, curve["x"], curve, colour, alpha=0.2)
        ax.plot(curve["x"], finite(curve["shown"]), color=colour, linewidth=0.8)
        kept = rows_of(study.runs, model=model).set_index("seed")["best_epoch"]
        ax.plot(kept, np.full(len(kept), 0.03), "|", color=colour, transform=ax.get_xaxis_transform(), markersize=7)
        if study.seed in kept.index:
            _mark_kept(ax, curve, int(kept[study.seed]), model)
        positive = curve.loc[is_positive(curve["low"]), "low"]
        ax.set(yscale="log", ylim=(positive.min() / 1.5, None), xlim=(0, curve["x"].max() * 1.02))
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=5))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        if model not in WITHOUT_BETA:
            beta = ax.twinx()
            beta.plot(curve["x"], [beta_kept(epoch) for epoch in curve["x"]], color=GREY, linestyle=":")
            beta.set(ylim=(0, 1.05), yticks=(0, 0.5, 1))
            beta.grid(visible=False)
    fig.supylabel("validation CRPS")
    fig.supxlabel("epoch; dotted, right axis: β; ticks: kept epochs of all seeds")
    set_title(fig, f"{study.dataset}, seed {study.seed}, and the 5 to 95 % band of all, protocol {study.protocol}")
    return fig


def _mark_kept(ax: Axes, curve: pd.DataFrame, epoch: int, model: str) -> None:
    score = curve.loc[curve["x"] == epoch, "shown"]
    words = f"kept: epoch {epoch}" + ("" if model in WITHOUT_BETA else f", β = {beta_kept(epoch):.2f}")
    ax.plot(epoch, score, "o", markersize=7, markerfacecolor="none", markeredgecolor="black", zorder=5, clip_on=False)
    ax.set_title(f"{model}\n{words}", fontsize=8)


@styled
def uncertainty_seeds(study: DatasetResults) -> Figure:
    """The predictive mean over seeds with its band, and +-2 median standard deviations of the draws. Source: ours."""
    fig, axes = panels(_models(study), sharex=True, sharey=True)
    largest, size = 0.0, 0.0
    for ax, model, colour, _ in axes:
        mean, sd, target = (_curve(study, model, kind) for kind in ("mean", "sd", "target"))
        z, spread = mean["x"].to_numpy(), 2 * sd["middle"].to_numpy()
        middle = mean["middle"].to_numpy()
        _shade_band(ax, study)
        ax.fill_between(z, middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
        _fill(ax, z, mean, colour, alpha=0.45)
        ax.plot(z, middle, color=colour, linewidth=1)
        ax.plot(z, target["middle"], color="black", linewidth=0.7, zorder=3)
        largest, size = max(largest, np.nanmax(np.abs(middle) + spread)), max(size, np.abs(target["middle"]).max())
    if largest > 10 * size:
        fig.axes[0].set_yscale("symlog", linthresh=10 ** np.ceil(np.log10(size)), linscale=2)
    fig.supylabel("predictive mean")
    fig.supxlabel("split feature; dark band: the mean over seeds, light: ± 2 median sd of the draws; black: target")
    set_title(fig, _over(study, "predictive mean"))
    return fig


def _shade_band(ax: Axes, study: DatasetResults) -> None:
    """The ID band, as far as there are points to tell it."""
    inside = [frame.loc[frame["region"] == "ID", "z"] for frame in study.points.values()]
    if inside:
        ax.axvspan(min(z.min() for z in inside), max(z.max() for z in inside), color=BAND, zorder=0)


@styled
def mse_var_seeds(study: DatasetResults) -> Figure:
    """Mean MSE_i and mean Bias_i^2 in 10 quantile bins of Var_i over seeds, ID and OOD, a panel per model.

    MSE cannot lie below the dashed line MSE = Var, which it contains; Bias^2 can. Source: ours.
    """
    fig, axes = panels(_models(study), 2.05, sharex=True, sharey=True)
    values = rows_of(study.bands, kind=["bin_var", "bin_mse", "bin_bias2"])
    values = values.loc[is_positive(values["middle"]), "middle"]
    if values.empty:
        raise UserError(f"the bins of {study.dataset} hold no positive numbers, which logarithmic axes need")
    limits = values.min() / 2, values.max() * 2
    for ax, model, colour, _ in axes:
        ax.plot(limits, limits, color="black", linestyle="--", linewidth=0.9)
        for region, marker in (("ID", "o"), ("OOD", "^")):
            var = _curve(study, model, "bin_var", region)["middle"]
            for kind, shade in (("bin_mse", colour), ("bin_bias2", GREY)):
                curve = _curve(study, model, kind, region)
                _fill(ax, var, curve, shade, alpha=0.2)
                name = f"{'MSE' if kind == 'bin_mse' else 'Bias²'}, {region}"
                ax.plot(var, finite(curve["middle"]), color=shade, marker=marker, markersize=3, label=name)
        ax.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
        ax.minorticks_off()
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(numticks=5))
    for ax in fig.axes[-3:]:
        ax.set_xlabel("mean Var of the bin")
    handles, labels = fig.axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=4)
    fig.supylabel("mean of the bin; dashed: equal to Var")
    set_title(fig, _over(study, "MSE (coloured) and squared error of the mean (grey)"))
    return fig


@styled
def risk_coverage_seeds(study: DatasetResults) -> Figure:
    """Risk-coverage curves over seeds. Source: ours."""
    fig = Figure(layout="constrained")
    ax = fig.subplots()
    for model in _models(study):
        colour, marker = MODELS[model].style
        curve = _curve(study, model, "risk")
        _fill(ax, curve["x"], curve, colour, alpha=0.2)
        ax.plot(curve["x"], finite(curve["middle"]), color=colour, marker=marker, markevery=10, label=model)
    ax.set(xlabel="coverage (fraction of points kept, smallest Var first)", ylabel="risk (mean MSE)")
    ax.set(xlim=(0, 1), yscale="log")
    legend(fig, loc="outside right center")
    set_title(fig, _over(study, "risk"))
    return fig


@styled
def pit(study: DatasetResults) -> Figure:
    """PIT histograms over seeds and coverage of 90 % intervals: a column per model, a row per region. Source: ours."""
    models = _models(study)
    fig = Figure(figsize=(7.2, 3.4), layout="constrained")
    grid = fig.subplots(2, len(models), sharex=True, sharey="row", squeeze=False)
    for row, region in zip(grid, ("ID", "OOD"), strict=True):
        for ax, model in zip(row, models, strict=True):
            colour = MODELS[model].style[0]
            curve = _curve(study, model, "pit", region)
            low, middle, high = (len(curve) * curve[name].to_numpy() for name in ("low", "middle", "high"))
            centres = curve["x"].to_numpy() + 0.5 / len(curve)
            ax.bar(centres, middle, width=1 / len(curve), color=colour, alpha=0.45, linewidth=0)
            ax.vlines(centres, low, high, color=colour, linewidth=1)
            ax.axhline(1, color="black", linestyle="--", linewidth=0.8)
            covered = _curve(study, model, "coverage", region).set_index("x").loc[0.9, "middle"]
            ax.text(0.5, 0.97, f"{covered:.0%} in 90 %", transform=ax.transAxes, ha="center", va="top")
            ax.set(xlim=(0, 1), xticks=(0, 0.5, 1), xticklabels=("0", "0.5", "1"))
        highest = len(curve) * np.nanmax([_curve(study, m, "pit", region)["high"] for m in models], initial=0.1)
        row[0].set(ylabel=f"{region}, density", ylim=(0, 1.25 * highest))
    name_panels(grid[0], models, narrow=True)
    fig.supxlabel("place of the target among the draws; dashed: if it were one more draw")
    set_title(fig, _over(study, "PIT"))
    return fig


FIGURES = {  # by the end of their files' names
    "uncertainty_seeds": FigureKind(
        uncertainty_seeds,
        "Mean and spread over seeds",
        "Predictive mean over all seeds with its 5 to 95 % band, and the median spread of the draws",
        needs="bands",
    ),
    "checkpoint": FigureKind(
        checkpoint,
        "Kept epochs",
        "Validation score and the weight β of the KL term against the epoch, with the kept epochs marked",
        needs="bands",
    ),
    "seeds": FigureKind(
        seeds_scatter,
        "Seeds",
        "OOD MSE against OOD variance, a point per seed, the representative seed ringed",
        needs="runs",
    ),
    "mse_var_seeds": FigureKind(
        mse_var_seeds,
        "Error against variance over seeds",
        "MSE, and the squared error of the mean, in bins of the variance: median and 5 to 95 % band over seeds",
        needs="bands",
    ),
    "risk_coverage_seeds": FigureKind(
        risk_coverage_seeds,
        "Risk and coverage over seeds",
        "The same curves: median and 5 to 95 % band over seeds",
        needs="bands",
    ),
    "pit": FigureKind(
        pit,
        "PIT",
        "Where the targets lie among the draws, inside and outside the band, with the coverage of 90 % intervals",
        needs="bands",
    ),
    "deltas": FigureKind(
        delta_bars,
        "Deltas",
        "OOD mean less ID mean of MSE, variance and CRPS: bars of one seed, whiskers over all seeds",
        needs="runs",
        for_toy=False,
    ),
}
