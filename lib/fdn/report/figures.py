"""Every figure: functions of results that return a matplotlib `Figure`, `FIGURES`, which lists them, and `save`.

A plot reads `points`, one frame per model with a row per test point (columns z, y, region, mean, var, mse,
crps), or the metrics frame with a row per seed. Plots compute nothing but what `fdn.metrics` computes. A
model has the same colour and marker everywhere (Okabe-Ito colours). In a notebook, `%matplotlib inline` makes
a figure at the end of a cell show itself. A figure that would show nothing raises a UserError that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from fdn import metrics as measures
from fdn.data.dataset import Dataset
from fdn.errors import UserError
from fdn.models import MODELS, PAPER_MODELS, STOCHASTIC_MODELS
from fdn.paths import segment
from fdn.protocol import Protocol
from fdn.report.bands import band_panels
from fdn.report.diagram import layer_axes
from fdn.report.findings import DatasetResults
from fdn.report.published import representative_seed, rows_of
from fdn.runs import results
from fdn.typesetting import drawn

STYLE = ["default", str(Path(__file__).with_name("fdn.mplstyle"))]
BAND = "#F1F1E6"  # shading of the ID band
OUTLINE = [withStroke(linewidth=2.6, foreground="white")]
LARGEST = 1e50  # what axes show: matplotlib's own arithmetic overflows long before float64 does
DELTAS = {column: f"Δ{measures.metric_of(column).heading}" for column in measures.DELTAS}

Points = Mapping[str, pd.DataFrame]


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Decorator: draw in the project's style, lay out once, keep that layout however often it is shown."""

    @wraps(draw)
    def drawn(*args: object, **kwargs: object) -> Figure:
        with matplotlib.style.context(STYLE):
            fig = draw(*args, **kwargs)
            for _ in range(2):  # one pass leaves axes of fixed aspect with stale margins
                fig.get_layout_engine().execute(fig)
        fig.set_layout_engine("none")
        return fig

    return drawn


def save(fig: Figure, stem: Path) -> list[Path]:
    """Write STEM.pdf and STEM.png without dates or versions, so that the same figure gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    stamps = {".pdf": {"CreationDate": None, "Producer": None, "Creator": None}, ".png": {"Software": None}}
    written = []
    with matplotlib.style.context(STYLE):
        for suffix, metadata in stamps.items():
            path = stem.with_name(stem.name + suffix)
            fig.savefig(path, metadata=metadata)
            written.append(path)
    return written


@styled
def layer_diagram() -> Figure:
    """One FDN layer as boxes and arrows; see `fdn.report.diagram.layer_axes`."""
    fig = Figure(figsize=(7, 2.5), layout="constrained")
    layer_axes(fig.subplots())
    return fig


def _title(fig: Figure, text: str) -> None:
    text, options = drawn(text)
    fig.suptitle(text, x=0.01, horizontalalignment="left", **options)


def _number(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}e}" if abs(value) >= 1e9 else f"{value:z.{decimals}f}"
    return "—" if np.isnan(value) else text.replace("-", "−")


def _in_region(frame: pd.DataFrame, region: str | None) -> pd.DataFrame:
    return frame if region is None else frame[frame["region"] == region]


def _on_log_axes(frame: pd.DataFrame) -> pd.DataFrame:
    """Points that log axes can show; none where the variance is constant, as a deterministic model's is."""
    if frame["var"].nunique() < 2:
        return frame.iloc[:0]
    return frame[_is_positive(frame["var"]) & _is_positive(frame["mse"])]


def _is_positive(values: pd.Series) -> pd.Series:
    """Which numbers a logarithmic axis can show."""
    return (values > 1 / LARGEST) & (values < LARGEST)


def _finite(values: pd.Series | np.ndarray) -> pd.Series | np.ndarray:
    """The numbers that an axis can show; NaN, which is left out, in place of the others."""
    return np.where(np.abs(values) < LARGEST, values, np.nan)


def _omission(frame: pd.DataFrame) -> str:
    hidden = len(frame) - len(_on_log_axes(frame))
    return f" ({hidden} omitted)" if hidden else ""


def _legend(owner: Axes | Figure, **options: object) -> None:
    for handle in owner.legend(**options).legend_handles:
        handle.set_alpha(1)
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([24])


def _diagonal_axes(ax: Axes, points: Points, xlabel: str) -> None:
    """Log axes with the same limits both ways and the dashed line MSE = Var; names the models left out."""
    shown = pd.concat([_on_log_axes(frame)[["var", "mse"]] for frame in points.values()]).to_numpy()
    if not shown.size:
        raise UserError(
            f"the variances of {', '.join(points)} are constant: expected a stochastic model, and positive numbers"
        )
    constant = [model for model, frame in points.items() if _on_log_axes(frame).empty]
    if constant:
        xlabel += f" (constant and omitted: {', '.join(constant)})"
    limits = (shown.min() / 2, shown.max() * 2)
    ax.plot(limits, limits, color="black", linestyle="--", linewidth=0.9, zorder=1)
    ax.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal", xlabel=xlabel)
    ax.minorticks_off()


def mse_var_axes(ax: Axes, points: Points, region: str | None = None, fit: bool = False) -> Axes:
    """MSE_i against Var_i of each test point on log axes, with rho (and the linear fit's a, b) in the labels.

    Points of one region ("ID", "OOD") or all; rho, a and b are over exactly these. Log axes omit models of
    constant variance, which the x label names, and points at zero, which the legend counts. With `fit` the
    line MSE = a + b Var is drawn where it is positive.
    Source: Figures "toy-msevar-grid" (regions) and "toy-msevar-3x1" (all points).
    """
    for model, frame in points.items():
        if _on_log_axes(frame).empty:
            continue
        part = _in_region(frame, region)
        shown, (colour, marker) = _on_log_axes(part), MODELS[model].style
        label = f"{model}: ρ = {_number(measures.spearman(part['var'], part['mse']), 3)}"
        if fit:
            a, b = measures.linear_fit(part["var"], part["mse"])
            label += f", b = {_number(b, 2)}, a = {_number(a, 2)}"
            if len(shown):
                var = np.geomspace(shown["var"].min(), shown["var"].max(), 100)
                line = _finite(a + b * var)
                ax.plot(var[line > 0], line[line > 0], color=colour, path_effects=OUTLINE, zorder=4)
        ax.scatter(
            shown["var"], shown["mse"], color=colour, marker=marker, s=5, alpha=0.3, linewidths=0,
            rasterized=True, label=label + _omission(part), zorder=2,
        )  # fmt: skip
    _diagonal_axes(ax, points, r"Var$_i$")
    return ax


@styled
def mse_against_var(points: Points, title: str = "") -> Figure:
    """MSE_i against Var_i in an ID and an OOD panel with shared axes; see `mse_var_axes`."""
    fig = Figure(figsize=(7, 3.9), layout="constrained")
    for ax, region in zip(fig.subplots(1, 2, sharex=True, sharey=True), ("ID", "OOD"), strict=True):
        mse_var_axes(ax, points, region)
        ax.set_title(f"{region} ({len(_in_region(next(iter(points.values())), region))} points)")
        _legend(ax, loc="lower right")  # empty by construction: MSE_i >= Var_i
    fig.axes[0].set_ylabel(r"MSE$_i$")
    _title(fig, title)
    return fig


@styled
def mse_against_var_fit(points: Points, title: str = "") -> Figure:
    """MSE_i against Var_i of all test points with the linear fit of each model; see `mse_var_axes`."""
    fig = Figure(figsize=(6.6, 3.4), layout="constrained")
    ax = mse_var_axes(fig.subplots(), points, fit=True)
    ax.set(ylabel=r"MSE$_i$", title="ID and OOD together, lines: MSE = a + b Var")
    _legend(fig, loc="outside right center")
    _title(fig, title)
    return fig


def risk_coverage_axes(ax: Axes, points: Points) -> Axes:
    """Mean MSE_i of the most confident fraction of the test points, with the AURC in the labels.

    Source: Figure "toy-aurc-3x1", Appendix H "Risk-coverage".
    """
    curves = {model: measures.risk_coverage(frame["var"], frame["mse"]) for model, frame in points.items()}
    if not any(_is_positive(risk).any() for _, risk in curves.values()):
        raise UserError(f"the risks of {', '.join(points)} are no positive numbers, which a logarithmic axis needs")
    for model, frame in points.items():
        colour, marker = MODELS[model].style
        coverage, risk = curves[model][0], _finite(curves[model][1])
        label = f"{model}: {_number(measures.aurc(frame['var'], frame['mse']), 2)}"
        ax.plot(coverage, risk, color=colour, marker=marker, markevery=max(len(risk) // 10, 1), label=label)
    ax.set(xlabel="coverage (fraction of points kept, smallest Var first)", ylabel="risk (mean MSE)")
    risks = np.concatenate([risk[_is_positive(risk)] for _, risk in curves.values()])
    if risks.max() < 1.001 * risks.min():  # a range that only rounding gives
        ax.set(ylim=(risks.min() / 2, risks.max() * 2))
    ax.set(xlim=(0, 1), yscale="log")
    return ax


@styled
def risk_coverage(points: Points, title: str = "") -> Figure:
    """Risk-coverage curves of all models over all test points; see `risk_coverage_axes`."""
    fig = Figure(layout="constrained")
    risk_coverage_axes(fig.subplots(), points)
    _legend(fig, loc="outside right center", title="AURC")
    _title(fig, title)
    return fig


def calibration_axes(ax: Axes, points: Points) -> Axes:
    """Mean MSE_i against mean Var_i in 10 quantile bins of Var_i, on log axes, with the line MSE = Var.

    Source: Appendix H, "variance-MSE calibration curves".
    """
    curves = {}
    for model, frame in points.items():
        colour, marker = MODELS[model].style
        shown = curves[model] = _on_log_axes(frame)
        if len(shown):
            curve = measures.calibration_curve(shown["var"], shown["mse"])
            curves[model] = pd.DataFrame({"var": curve[0], "mse": curve[1]})
            ax.plot(*curve, color=colour, marker=marker, label=model + _omission(frame))
    _diagonal_axes(ax, curves, "mean Var of the bin")
    return ax


@styled
def calibration(points: Points, title: str = "") -> Figure:
    """Variance-MSE calibration curves of all models over all test points; see `calibration_axes`."""
    fig = Figure(figsize=(5, 3.4), layout="constrained")
    ax = calibration_axes(fig.subplots(), points)
    ax.set(ylabel="mean MSE of the bin", title="10 quantile bins of Var")
    _legend(fig, loc="outside right center")
    _title(fig, title)
    return fig


@styled
def delta_bars(metrics: pd.DataFrame, representative: int, title: str = "") -> Figure:
    """OOD mean less ID mean of MSE, Var and CRPS: bars of one seed, whiskers over all seeds.

    `metrics` holds the rows of one data set and protocol. Source: Figure "bars-crps-vertical".
    """
    fig = Figure(layout="constrained")
    ax = fig.subplots()
    metrics = metrics.assign(**{delta: _finite(metrics[delta]) for delta in DELTAS})
    shown = metrics[(metrics["seed"] == representative) & metrics[list(DELTAS)].notna().any(axis=1)]
    if shown.empty:
        raise UserError(f"the differences between OOD and ID of seed {representative} are no numbers")
    present = set(shown["model"])
    models = [model for model in STOCHASTIC_MODELS if model in present]
    looks = ({"alpha": 1.0}, {"alpha": 0.35}, {"hatch": "/////", "fill": False})
    fills = dict(zip(DELTAS, looks, strict=True))
    for position, model in enumerate(models):
        runs = metrics[metrics["model"] == model].set_index("seed")
        for offset, delta in zip((-0.27, 0, 0.27), DELTAS, strict=True):
            height, low, high = runs.at[representative, delta], runs[delta].min(), runs[delta].max()
            x, colour = position + offset, MODELS[model].style[0]
            ax.bar(x, height, width=0.25, color=colour, edgecolor=colour, **fills[delta])
            ax.vlines(x, low, high, color="black", linewidth=0.8)
    values = metrics.loc[metrics["model"].isin(models), list(DELTAS)].abs().to_numpy()
    smallest = np.nanmin(values[values > 0], initial=1.0)
    ax.set_yscale("symlog", linthresh=max(1e-2, 10 ** np.floor(np.log10(smallest))))
    ax.axhline(0, color="black", linewidth=0.7)
    ax.set_xticks(range(len(models)), models)
    ax.set(xlim=(-0.5, len(models) - 0.5), ylabel="OOD mean − ID mean")
    ax.grid(axis="x", visible=False)
    grey = {"color": "#555555", "edgecolor": "#555555"}
    keys = [ax.bar(np.nan, np.nan, **grey, **fills[delta]) for delta in DELTAS]
    fig.legend(keys, DELTAS.values(), loc="outside upper right", ncols=3)
    _title(fig, title)
    return fig


def _fit_scale(ax: Axes, points: Points) -> None:
    """Linear, unless means exceed ten times the targets: then logarithmic beyond the next power of ten."""
    sizes = {name: np.abs(_finite(pd.concat([frame[name] for frame in points.values()]))) for name in ("y", "mean")}
    size, largest = (np.nanmax(sizes[name], initial=0.0) for name in ("y", "mean"))
    if largest > 10 * size:
        ax.set_yscale("symlog", linthresh=10 ** np.ceil(np.log10(max(size, 1e-20 * largest))), linscale=2)


def _with_means(points: Points) -> Points:
    """The points whose mean, target and place are numbers that axes can show."""
    shown = {
        model: frame[np.isfinite(_finite(frame[["mean", "y", "z"]])).all(axis=1)] for model, frame in points.items()
    }
    shown = {model: frame for model, frame in shown.items() if frame.loc[frame["region"] == "ID", "z"].nunique() > 1}
    if not shown:
        raise UserError(
            f"the predictive means of {', '.join(points)} are no numbers inside the band, or at one place only"
        )
    return shown


@styled
def means_of_function(points: Points, true_function: Callable, title: str = "") -> Figure:
    """Predictive means of a toy task with its true function: the whole test range, and the ID band magnified.

    Source: Figure "toy-mean-3x1"; the magnified panel is ours.
    """
    points = _with_means(points)
    fig = Figure(figsize=(7, 3.6), layout="constrained")
    whole, inside = fig.subplots(1, 2)
    band = _in_region(next(iter(points.values())), "ID")["z"]
    low, high = band.min() - 0.1 * np.ptp(band), band.max() + 0.1 * np.ptp(band)
    for ax, limits in ((whole, (-np.inf, np.inf)), (inside, (low, high))):
        for index, (model, frame) in enumerate(points.items()):
            colour, marker = MODELS[model].style
            line = frame[frame["z"].between(*limits)].sort_values("z")
            step = max(len(line) // 9, 1)
            style = {"color": colour, "marker": marker, "markevery": (index * step // 6, step)}
            ax.plot(line["z"], line["mean"], linewidth=0.9, label=model, **style)
        ax.plot(line["z"], true_function(line["z"]), color="black", linestyle=":", label="true function")
        ax.axvspan(band.min(), band.max(), color=BAND, zorder=0)
        ax.set(xlabel="x")
        if line["z"].nunique() > 1:
            ax.set(xlim=(line["z"].min(), line["z"].max()))
    _fit_scale(whole, points)
    whole.set(title="all test points, ID band shaded", ylabel="predictive mean")
    inside.set(title="around the ID band")
    handles, labels = whole.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=4)
    _title(fig, title)
    return fig


@styled
def means_of_data(points: Points, title: str = "") -> Figure:
    """Predictive means and targets at the test points against the split feature, a panel per model.

    Source: Figure "real-mean-3x1".
    """
    points = _with_means(points)
    columns = min(3, len(points))
    rows = -(-len(points) // columns)
    fig = Figure(figsize=(7, 0.4 + 1.9 * rows), layout="constrained")
    grid = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for ax, (model, frame) in zip(grid.flat, points.items(), strict=False):
        colour, marker = MODELS[model].style
        dots = {"linewidths": 0, "rasterized": True, "alpha": 0.6}
        band = frame.loc[frame["region"] == "ID", "z"]
        ax.axvspan(band.min(), band.max(), color=BAND, zorder=0)
        ax.scatter(frame["z"], frame["mean"], color=colour, marker=marker, s=9, label=model, **dots)
        ax.scatter(frame["z"], frame["y"], color="black", s=2, label="targets", **dots)
        ax.set_title(model, color=colour, fontweight="bold")
    for ax in grid.flat[len(points) :]:
        ax.remove()
    _fit_scale(grid[0, 0], points)
    for ax in grid[:, 0]:
        ax.set_ylabel("predictive mean")
    fig.supxlabel("split feature (standardised); ID band shaded, targets in black", fontsize=8)
    _title(fig, title)
    return fig


@styled
def means_and_bands(points: Points, true_function: Callable | None = None, title: str = "") -> Figure:
    """Predictive means with bands of two standard deviations, a panel per model; see `fdn.report.bands`."""
    points = _with_means(points)
    fig = Figure(figsize=(7, 0.5 + 1.7 * -(-len(points) // 3)), layout="constrained")
    band_panels(fig, points, true_function)
    _title(fig, title)
    return fig


@styled
def seeds_scatter(metrics: pd.DataFrame, representative: int, title: str = "") -> Figure:
    """OOD MSE against OOD Var with a point per seed, the representative seed ringed.

    `metrics` holds the rows of one data set and protocol. Source: Figure "seed-agg-mse-ood-var-ood".
    """
    fig = Figure(layout="constrained")
    ax = fig.subplots()
    metrics = metrics[_is_positive(metrics["var_ood"]) & _is_positive(metrics["mse_ood"])]
    if not metrics["model"].isin(STOCHASTIC_MODELS).any():
        raise UserError("no seed has a positive mean MSE and Var out of distribution, which logarithmic axes need")
    ring = {"facecolors": "none", "edgecolors": "black", "linewidths": 0.9}
    present = set(metrics["model"])
    for model in [model for model in STOCHASTIC_MODELS if model in present]:
        colour, marker = MODELS[model].style
        runs = metrics[metrics["model"] == model]
        ax.scatter(
            runs["var_ood"], runs["mse_ood"], color=colour, marker=marker, s=22, alpha=0.7, linewidths=0,
            label=model,
        )  # fmt: skip
        chosen = runs[runs["seed"] == representative]
        ax.scatter(chosen["var_ood"], chosen["mse_ood"], s=60, **ring)
    ax.scatter([], [], label=f"representative seed {representative}", **ring)
    ax.set(xscale="log", yscale="log", xlabel="mean Var, OOD", ylabel="mean MSE, OOD")
    _legend(fig, loc="outside right center")
    _title(fig, title)
    return fig


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure, drawn of each data set that has what it needs.

    Attributes:
        draw: from what there is of a data set to the figure.
        title, words: for readers: its name, and what there is to see.
        needs_points: whether it needs per-point results.
        for_toy: whether it is drawn of toy tasks too.
    """

    draw: Callable[[DatasetResults], Figure]
    title: str
    words: str
    needs_points: bool = True
    for_toy: bool = True

    def is_for(self, given: DatasetResults) -> bool:
        """Whether a data set has what this figure needs."""
        return (bool(given.points) or not self.needs_points) and (self.for_toy or given.true_function is None)


def _means(given: DatasetResults) -> Figure:
    if given.true_function is None:
        return means_of_data(given.points, given.title)
    return means_of_function(given.points, given.true_function, given.title)


FIGURES = {  # by the end of their files' names, in the order of the site
    "bands": FigureKind(
        lambda given: means_and_bands(given.points, given.true_function, given.title),
        "Means and bands",
        "Predictive mean and two standard deviations around it, a panel per model, with the targets",
    ),
    "seeds": FigureKind(
        lambda given: seeds_scatter(given.runs, given.seed, f"{given.dataset}, all seeds, protocol {given.protocol}"),
        "Seeds",
        "OOD MSE against OOD variance, a point per seed, the representative seed ringed",
        needs_points=False,
    ),
    "mse_var": FigureKind(
        lambda given: mse_against_var(given.points, given.title),
        "MSE against variance",
        "MSE against predicted variance of every test point, ID and OOD side by side, with the line MSE = Var",
    ),
    "mse_var_fit": FigureKind(
        lambda given: mse_against_var_fit(given.points, given.title),
        "Linear fit",
        "MSE against predicted variance of all test points with each model's fit MSE = a + b Var",
    ),
    "means": FigureKind(_means, "Predictive means", "Predictive mean of each model over the inputs, with the targets"),
    "risk_coverage": FigureKind(
        lambda given: risk_coverage(given.points, given.title),
        "Risk and coverage",
        "Mean MSE of the most confident fraction of the test points, a curve per model",
    ),
    "calibration": FigureKind(
        lambda given: calibration(given.points, given.title),
        "Calibration",
        "Mean MSE against mean variance in ten quantile bins of the variance, a curve per model",
    ),
    "deltas": FigureKind(
        lambda given: delta_bars(given.runs, given.seed, f"{given.title}; whiskers: all seeds"),
        "Deltas",
        "OOD mean less ID mean of MSE, variance and CRPS: bars of one seed, whiskers over all seeds",
        needs_points=False,
        for_toy=False,
    ),
}


def all_figures(
    metrics: pd.DataFrame,
    load_points: Callable[[str, str, int], pd.DataFrame | None],
    datasets: Mapping[str, Dataset | None],
    protocol: str,
    out_dir: Path,
) -> tuple[list[Path], list[str]]:
    """Draw and write every figure of one protocol.

    Args:
        metrics: the metrics of all runs.
        load_points: (dataset, model, seed) to the points frame, None where there is none.
        datasets: the data sets to draw; None stands for a real one whose files are not here.

    Returns:
        The written paths, and a sentence for everything that could not be drawn.
    """
    paths, missing = save(layer_diagram(), out_dir / "layer"), []
    for name, data in datasets.items():
        runs = rows_of(metrics, dataset=name, protocol=protocol)
        try:
            seed = representative_seed(metrics, name, protocol)
        except UserError as error:
            missing.append(f"{name}: no figures: {error}")
            continue
        run = set(runs["model"])
        models = [model for model in STOCHASTIC_MODELS if model in PAPER_MODELS or model in run]
        points, absent = _all_points(load_points, name, models, seed)
        missing += absent
        given = DatasetResults(name, protocol, runs, seed, points, true_function=data and data.true_function)
        for kind, figure in FIGURES.items():
            if not figure.is_for(given):
                continue
            try:
                paths += save(figure.draw(given), out_dir / segment(f"{name}_{kind}"))
            except UserError as error:
                missing.append(f"{name}: no {kind}: {error}")
    return paths, missing


def _all_points(load_points: Callable, dataset: str, models: list[str], seed: int) -> tuple[Points, list[str]]:
    """The points of each model, and a sentence for each that has none."""
    points, missing = {}, []
    for model in models:
        try:
            frame, why = load_points(dataset, model, seed), ""
        except UserError as error:  # damaged
            frame, why = None, f": {error}"
        if frame is None:
            missing.append(f"{dataset}: no points of {model}, seed {seed}{why}")
        else:
            points[model] = frame
    return points, missing


def write_figures(
    folder: Path, metrics: pd.DataFrame, datasets: Mapping[str, Dataset | None], protocol: Protocol, out: Path
) -> tuple[list[Path], list[str]]:
    """:func:`all_figures` with the per-point results of a folder."""

    def points(dataset: str, model: str, seed: int) -> pd.DataFrame | None:
        cell = (folder, dataset, model, protocol.label, seed)
        return results.load_points(*cell) if results.has_points(*cell) else None

    return all_figures(metrics, points, datasets, protocol.label, out)
