"""Figures of one seed: each test point's error, variance and mean, model by model.

A plot reads the `points` of a :class:`fdn.report.findings.DatasetResults`: one frame per model with a row per test
point (columns z, y, region, mean, var, mse, crps). Plots compute nothing but what `fdn.metrics` does.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from fdn import metrics as measures
from fdn.errors import UserError
from fdn.models import MODELS
from fdn.report.diagram import layer_axes
from fdn.report.figures.drawing import (
    BAND,
    GREY,
    OUTLINE,
    FigureKind,
    Points,
    finite,
    fit_scale,
    in_region,
    is_positive,
    legend,
    name_panels,
    number,
    on_log_axes,
    panels,
    set_title,
    styled,
)
from fdn.report.findings import DatasetResults

CROWDED = 2500  # points of a panel from which on their density is shown in place of each of them
BARS = 300  # of +-2 standard deviations that a panel shows


@styled
def layer_diagram() -> Figure:
    """One FDN layer as boxes and arrows; see `fdn.report.diagram.layer_axes`."""
    fig = Figure(figsize=(7, 2.5), layout="constrained")
    layer_axes(fig.subplots())
    return fig


def _stochastic(points: Points) -> tuple[Points, str]:
    """The models whose variance is not constant, and the names of the others in words.

    Raises:
        UserError: if there is none.
    """
    shown = {model: frame for model, frame in points.items() if len(on_log_axes(frame))}
    if not shown:
        names = ", ".join(points)
        raise UserError(f"the variances of {names} are constant: expected a stochastic model, and positive numbers")
    constant = [model for model in points if model not in shown]
    return shown, f" (constant and omitted: {', '.join(constant)})" if constant else ""


def _diagonal(ax: Axes, limits: tuple[float, float]) -> None:
    """The dashed line MSE = Var on log axes with the same limits both ways, and few enough ticks."""
    ax.plot(limits, limits, color="black", linestyle="--", linewidth=0.9, zorder=1)
    ax.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    ax.minorticks_off()
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(numticks=3))


def _limits(frames: Points) -> tuple[float, float]:
    shown = pd.concat(frames.values())[["var", "mse"]]
    return shown.min(axis=None) / 2, shown.max(axis=None) * 2


def _dots(ax: Axes, x: pd.Series, y: pd.Series, colour: str, marker: str, crowded: bool) -> None:
    """A point each, or where there are too many their density, on axes of the same scale."""
    if crowded:
        shades = LinearSegmentedColormap.from_list(colour, ["#E4E4E4", colour])
        scale, ends = ax.get_xscale(), (*ax.get_xlim(), *ax.get_ylim())
        ax.hexbin(
            x, y, gridsize=22, bins="log", mincnt=1, cmap=shades, linewidths=0.1, zorder=2, rasterized=True,
            xscale=scale, yscale=scale, extent=np.log10(ends) if scale == "log" else ends,
        )  # fmt: skip
    else:
        ax.scatter(x, y, color=colour, marker=marker, s=4, alpha=0.35, linewidths=0, rasterized=True, zorder=2)


@styled
def mse_against_var(study: DatasetResults) -> Figure:
    """MSE_i against Var_i of each test point on log axes with the line MSE = Var: a column per model, a row per region.

    With rho over exactly these points. Log axes omit models of constant variance, which the x label names, and points
    at zero, which are counted. Source: Figures "toy-msevar-grid" and "real-msevar-grid"; ours is a panel per model.
    """
    shown, constant = _stochastic(study.points)
    limits = _limits({model: on_log_axes(frame) for model, frame in shown.items()})
    fig = Figure(figsize=(7.2, 3.5), layout="constrained")
    grid = fig.subplots(2, len(shown), sharex=True, sharey=True, squeeze=False)
    crowded = any(len(in_region(frame, "OOD")) > CROWDED for frame in shown.values())
    for row, region in zip(grid, ("ID", "OOD"), strict=True):
        for ax, (model, frame) in zip(row, shown.items(), strict=True):
            colour, marker = MODELS[model].style
            part = in_region(frame, region)
            drawn = on_log_axes(part)
            _diagonal(ax, limits)
            _dots(ax, drawn["var"], drawn["mse"], colour, marker, crowded)
            ax.text(0.96, 0.04, _rho(part, drawn), transform=ax.transAxes, ha="right", va="bottom")
        row[0].set_ylabel(f"{region}, n = {len(part)}")
    name_panels(grid[0], shown, narrow=True)
    fig.supxlabel(f"Var$_i${constant}")
    fig.supylabel("MSE$_i$")
    set_title(fig, study.title)
    return fig


def _rho(part: pd.DataFrame, drawn: pd.DataFrame) -> str:
    omitted = f"\n({len(part) - len(drawn)} omitted)" if len(drawn) < len(part) else ""
    return f"ρ = {number(measures.spearman(part['var'], part['mse']), 3)}{omitted}"


@styled
def mse_against_var_fit(study: DatasetResults) -> Figure:
    """MSE_i against Var_i of all test points with the fit MSE = a + b Var and the line MSE = Var, a panel per model.

    On linear axes, where a straight line is straight: on logarithmic ones it is flat where a dominates and ends where
    a + b Var is negative. Source: Figures "toy-msevar-3x1" and "real-msevar-3x1".
    """
    shown, constant = _stochastic(study.points)
    fig, axes = panels(list(shown), 1.85)
    for ax, model, colour, marker in axes:
        part = on_log_axes(shown[model])
        a, b = measures.linear_fit(shown[model]["var"], shown[model]["mse"])
        ends = np.array([0.0, part["var"].max()])
        ax.set(xlim=(-0.03 * ends[1], 1.05 * ends[1]), ylim=(-0.05 * part["mse"].max(), 1.05 * part["mse"].max()))
        _dots(ax, part["var"], part["mse"], colour, marker, len(part) > CROWDED)
        ax.plot(ends, ends, color=GREY, linestyle="--", linewidth=0.9, zorder=3)
        ax.plot(ends, finite(a + b * ends), color="black", linewidth=0.8, zorder=4)
        words = f"b = {number(b, 2)}, a = {number(a, 2)}\n{_rho(shown[model], part)}"
        ax.annotate(words, (0.03, 0.97), xycoords="axes fraction", va="top", path_effects=OUTLINE, zorder=5)
        ax.ticklabel_format(scilimits=(-2, 3), useMathText=True)
        ax.locator_params(nbins=4)
    fig.supxlabel(f"Var$_i${constant}; dashed: MSE = Var; line: MSE = a + b Var, ID and OOD together")
    fig.supylabel("MSE$_i$")
    set_title(fig, study.title)
    return fig


def risk_coverage_axes(ax: Axes, points: Points) -> Axes:
    """Mean MSE_i of the most confident fraction of the test points, with the AURC in the labels.

    Source: Figure "toy-aurc-3x1", Appendix H "Risk-coverage".
    """
    curves = {model: measures.risk_coverage(frame["var"], frame["mse"]) for model, frame in points.items()}
    if not any(is_positive(risk).any() for _, risk in curves.values()):
        raise UserError(f"the risks of {', '.join(points)} are no positive numbers, which a logarithmic axis needs")
    for model, frame in points.items():
        colour, marker = MODELS[model].style
        coverage, risk = curves[model][0], finite(curves[model][1])
        label = f"{model}: {number(measures.aurc(frame['var'], frame['mse']), 2)}"
        ax.plot(coverage, risk, color=colour, marker=marker, markevery=max(len(risk) // 10, 1), label=label)
    ax.set(xlabel="coverage (fraction of points kept, smallest Var first)", ylabel="risk (mean MSE)")
    risks = np.concatenate([risk[is_positive(risk)] for _, risk in curves.values()])
    if risks.max() < 1.001 * risks.min():  # a range that only rounding gives
        ax.set(ylim=(risks.min() / 2, risks.max() * 2))
    ax.set(xlim=(0, 1), yscale="log")
    return ax


@styled
def risk_coverage(study: DatasetResults) -> Figure:
    """Risk-coverage curves of all models over all test points; see `risk_coverage_axes`."""
    fig = Figure(layout="constrained")
    risk_coverage_axes(fig.subplots(), study.points)
    legend(fig, loc="outside right center", title="AURC")
    set_title(fig, study.title)
    return fig


@styled
def calibration(study: DatasetResults) -> Figure:
    """Mean MSE_i against mean Var_i in 10 quantile bins of Var_i, on log axes, with the line MSE = Var.

    Source: Appendix H, "variance-MSE calibration curves".
    """
    shown, constant = _stochastic(study.points)
    fig = Figure(figsize=(5, 3.6), layout="constrained")
    ax, curves = fig.subplots(), {}
    for model, frame in shown.items():
        colour, marker = MODELS[model].style
        part = on_log_axes(frame)
        var, mse = measures.calibration_curve(part["var"], part["mse"])
        curves[model] = pd.DataFrame({"var": var, "mse": mse})
        omitted = f" ({len(frame) - len(part)} omitted)" if len(part) < len(frame) else ""
        ax.plot(var, mse, color=colour, marker=marker, label=model + omitted)
    _diagonal(ax, _limits(curves))
    ax.set(xlabel=f"mean Var of the bin{constant}", ylabel="mean MSE of the bin", title="10 quantile bins of Var")
    legend(fig, loc="outside right center")
    set_title(fig, study.title)
    return fig


def _with_means(points: Points) -> Points:
    """The points whose mean, target and place are numbers that axes can show."""
    shown = {
        model: frame[np.isfinite(finite(frame[["mean", "y", "z"]])).all(axis=1)] for model, frame in points.items()
    }
    shown = {model: frame for model, frame in shown.items() if frame.loc[frame["region"] == "ID", "z"].nunique() > 1}
    if not shown:
        raise UserError(
            f"the predictive means of {', '.join(points)} are no numbers inside the band, or at one place only"
        )
    return shown


def means(study: DatasetResults) -> Figure:
    """Predictive means of a toy task (:func:`means_of_function`) or of any other data (:func:`means_of_data`)."""
    return means_of_data(study) if study.true_function is None else means_of_function(study)


@styled
def means_of_function(study: DatasetResults) -> Figure:
    """Predictive means of a toy task with its true function: the whole test range, and the ID band magnified.

    Source: Figure "toy-mean-3x1"; the magnified panel is ours.
    """
    points = _with_means(study.points)
    fig = Figure(figsize=(7, 3.6), layout="constrained")
    whole, inside = fig.subplots(1, 2)
    band = in_region(next(iter(points.values())), "ID")["z"]
    low, high = band.min() - 0.1 * np.ptp(band), band.max() + 0.1 * np.ptp(band)
    for ax, limits in ((whole, (-np.inf, np.inf)), (inside, (low, high))):
        for index, (model, frame) in enumerate(points.items()):
            colour, marker = MODELS[model].style
            line = frame[frame["z"].between(*limits)].sort_values("z")
            step = max(len(line) // 9, 1)
            style = {"color": colour, "marker": marker, "markevery": (index * step // 6, step)}
            ax.plot(line["z"], line["mean"], linewidth=0.9, label=model, **style)
        ax.plot(line["z"], study.true_function(line["z"]), color="black", linestyle=":", label="true function")
        ax.axvspan(band.min(), band.max(), color=BAND, zorder=0)
        ax.set(xlabel="x")
        if line["z"].nunique() > 1:
            ax.set(xlim=(line["z"].min(), line["z"].max()))
    fit_scale(whole, points)
    whole.set(title="all test points, ID band shaded", ylabel="predictive mean")
    inside.set(title="around the ID band")
    handles, labels = whole.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=4)
    set_title(fig, study.title)
    return fig


@styled
def means_of_data(study: DatasetResults) -> Figure:
    """Predictive means at the test points against the split feature, the targets behind them, a panel per model.

    Source: Figure "real-mean-3x1".
    """
    points = _with_means(study.points)
    fig, axes = panels(list(points), sharex=True, sharey=True)
    for ax, model, colour, marker in axes:
        frame = points[model]
        _targets(ax, frame)
        dots = {"linewidths": 0, "rasterized": True, "alpha": 0.6 if len(frame) < CROWDED else 0.15}
        ax.scatter(frame["z"], frame["mean"], color=colour, marker=marker, s=5, label=model, **dots)
    fit_scale(fig.axes[0], points)
    fig.supylabel("predictive mean")
    fig.supxlabel("split feature (standardised); ID band shaded, targets in grey")
    set_title(fig, study.title)
    return fig


def _targets(ax: Axes, frame: pd.DataFrame) -> None:
    """The targets in grey behind all else, on the shaded ID band: a line if they are one function of z, else points."""
    band = frame.loc[frame["region"] == "ID", "z"]
    ax.axvspan(band.min(), band.max(), color=BAND, zorder=0)
    if frame["z"].is_unique:
        line = frame.sort_values("z")
        ax.plot(line["z"], line["y"], color="black", linewidth=0.7, zorder=3)
    else:
        ax.scatter(frame["z"], frame["y"], color="#9A9A9A", s=4, linewidths=0, rasterized=True, zorder=0.5)


@styled
def uncertainty(study: DatasetResults) -> Figure:
    """Predictive mean and +-2 standard deviations of the draws with the targets behind, a panel per model.

    A band where the targets are a function of z, else a bar at each of evenly chosen test points. Source: ours.
    """
    points = _with_means(study.points)
    fig, axes = panels(list(points), sharex=True, sharey=True)
    for ax, model, colour, _ in axes:
        frame = points[model].sort_values("z")
        _targets(ax, frame)
        frame = frame if frame["z"].is_unique else frame.iloc[:: -(-len(frame) // BARS)]
        spread = 2 * np.sqrt(frame["var"])
        low, high = finite(frame["mean"] - spread), finite(frame["mean"] + spread)
        if frame["z"].is_unique and len(frame) > BARS:
            ax.fill_between(frame["z"], low, high, color=colour, alpha=0.25, linewidth=0)
            ax.plot(frame["z"], frame["mean"], color=colour, linewidth=1)
        else:
            ax.vlines(frame["z"], low, high, color=colour, alpha=0.25, linewidth=0.8)
            ax.scatter(frame["z"], frame["mean"], color=colour, s=4, linewidths=0, zorder=4)
    fit_scale(fig.axes[0], {m: f.assign(mean=f["mean"].abs() + 2 * np.sqrt(f["var"])) for m, f in points.items()})
    fig.supylabel("mean ± 2 sd of the draws")
    fig.supxlabel("split feature; ID band shaded, targets in black or grey")
    set_title(fig, study.title)
    return fig


FIGURES = {  # by the end of their files' names
    "uncertainty": FigureKind(
        uncertainty,
        "Mean and spread",
        "Predictive mean and two standard deviations of the draws of one seed, with the targets, a panel per model",
    ),
    "mse_var": FigureKind(
        mse_against_var,
        "MSE against variance",
        "MSE against predicted variance of every test point, inside and outside the band, a panel per model, with the "
        "line MSE = Var",
    ),
    "mse_var_fit": FigureKind(
        mse_against_var_fit,
        "Linear fit",
        "MSE against predicted variance of all test points with each model's fit MSE = a + b Var",
    ),
    "means": FigureKind(
        means,
        "Predictive means",
        "Predictive mean of each model over the inputs, with the targets",
    ),
    "risk_coverage": FigureKind(
        risk_coverage,
        "Risk and coverage",
        "Mean MSE of the most confident fraction of the test points, a curve per model",
    ),
    "calibration": FigureKind(
        calibration,
        "Calibration",
        "Mean MSE against mean variance in ten quantile bins of the variance, a curve per model",
    ),
}
