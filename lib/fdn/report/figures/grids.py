"""The paper's own layouts: one figure with a row for each data set, all models in the same axes.

That hides models behind one another, which is why the other figures have a panel for each; here points of all models
are drawn in random order, so that none lies on top throughout. Studies are of the same kind: toy tasks or real sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fdn import metrics as measures
from fdn.models import MODELS
from fdn.report.figures.drawing import BAND, fit_scale, in_region, on_log_axes, styled
from fdn.report.figures.one_seed import risk_coverage_axes
from fdn.report.figures.over_seeds import DELTAS
from fdn.report.findings import DatasetResults
from fdn.report.published import rows_of

POINTS = 1000  # of a model in a panel: more make a solid blob


def _grid(studies: Sequence[DatasetResults], columns: int = 1, height: float = 2.1) -> tuple[Figure, np.ndarray]:
    fig = Figure(figsize=(7, 0.4 + height * len(studies)), layout="constrained")
    return fig, fig.subplots(len(studies), columns, squeeze=False)


def _name_rows(fig: Figure, axes: np.ndarray, studies: Sequence[DatasetResults]) -> None:
    """Name rows by data set and seed, and colours by model, once for the figure."""
    for row, study in zip(axes, studies, strict=True):
        row[0].set_ylabel(f"{study.dataset}, seed {study.seed}\n{row[0].get_ylabel()}".strip())
    models = [m for m in MODELS if any(m in study.points for study in studies)]
    keys = [Line2D([], [], linestyle="", marker="o", color=MODELS[m].style[0]) for m in models]
    fig.legend(keys, models, loc="outside upper center", ncols=6, handletextpad=0)


def _scatter(ax: Axes, study: DatasetResults, x: str, y: str, region: str | None = None) -> pd.DataFrame:
    """Points of all models in random order; returns those drawn."""
    frames = []
    for model, frame in study.points.items():
        part = in_region(on_log_axes(frame) if y == "mse" else frame, region)
        frames.append(part.sample(min(len(part), POINTS), random_state=0).assign(model=model))
    shown = pd.concat(frames).sample(frac=1, random_state=0)
    colours = [to_rgba(MODELS[model].style[0], 0.45) for model in shown["model"]]
    ax.scatter(shown[x], shown[y], c=colours, s=4, linewidths=0, rasterized=True, zorder=2)
    return shown


def _diagonal(ax: Axes, shown: pd.DataFrame) -> None:
    """The dashed line of equal coordinates, in limits that hold all points and are the same both ways."""
    limits = shown.min(axis=None) / 2, shown.max(axis=None) * 2
    ax.plot(limits, limits, "k--", linewidth=0.8, zorder=1)
    ax.set(xlim=limits, ylim=limits)


@styled
def mse_against_var(studies: Sequence[DatasetResults]) -> Figure:
    """MSE_i against Var_i, ID left and OOD right with shared axes. Source: figures "(toy|real)-msevar-grid"."""
    fig, axes = _grid(studies, 2, 2.5)
    for row, study in zip(axes, studies, strict=True):
        shown = []
        for ax, region in zip(row, ("ID", "OOD")):
            shown.append(_scatter(ax, study, "var", "mse", region)[["var", "mse"]])
            parts = {m: in_region(f, region) for m, f in study.points.items()}
            words = [f"{m}: {measures.spearman(f['var'], f['mse']):.3f}" for m, f in parts.items()]
            ax.text(0.98, 0.02, "ρ\n" + "\n".join(words), transform=ax.transAxes, ha="right", va="bottom", fontsize=5.5)
            ax.set(xscale="log", yscale="log", title=region if study is studies[0] else "")
        for ax in row:
            _diagonal(ax, pd.concat(shown))
        row[0].set_ylabel("MSE$_i$")
    fig.supxlabel("Var$_i$; dashed: MSE = Var")
    _name_rows(fig, axes, studies)
    return fig


@styled
def mse_against_var_fit(studies: Sequence[DatasetResults]) -> Figure:
    """MSE_i against Var_i of all test points, with slope and intercept. Source: figures "(toy|real)-msevar-3x1"."""
    fig, axes = _grid(studies)
    for (ax,), study in zip(axes, studies, strict=True):
        ax.set(xscale="log", yscale="log", ylabel="MSE$_i$")
        _diagonal(ax, _scatter(ax, study, "var", "mse")[["var", "mse"]])
        words = []
        for model, frame in study.points.items():
            a, b = measures.linear_fit(frame["var"], frame["mse"])
            words.append(f"{model}: ρ {measures.spearman(frame['var'], frame['mse']):.3f}, b {b:.2f}, a {a:z.2f}")
        ax.text(1.01, 0.5, "\n".join(words), transform=ax.transAxes, va="center", fontsize=6.5)
    fig.supxlabel("Var$_i$, ID and OOD together; dashed: MSE = Var")
    _name_rows(fig, axes, studies)
    return fig


@styled
def means(studies: Sequence[DatasetResults]) -> Figure:
    """Predictive means against the split feature, the ID band shaded. Source: figures "(toy|real)-mean-3x1"."""
    fig, axes = _grid(studies)
    for (ax,), study in zip(axes, studies, strict=True):
        frame = next(iter(study.points.values())).sort_values("z")
        band = in_region(frame, "ID")["z"]
        ax.axvspan(band.min(), band.max(), color=BAND, zorder=0)
        if study.true_function is None:
            ax.scatter(frame["z"], frame["y"], color="0.6", s=3, linewidths=0, rasterized=True)
            _scatter(ax, study, "z", "mean")
        else:
            for model, points in study.points.items():
                line = points.sort_values("z")
                ax.plot(line["z"], line["mean"], color=MODELS[model].style[0], linewidth=0.9)
            ax.plot(frame["z"], study.true_function(frame["z"].to_numpy()), color="black", linestyle=":", linewidth=0.9)
        fit_scale(ax, study.points)
        ax.set_ylabel("predictive mean")
    fig.supxlabel("split feature; ID band shaded, targets dotted or grey")
    _name_rows(fig, axes, studies)
    return fig


@styled
def risk_coverage(studies: Sequence[DatasetResults]) -> Figure:
    """Risk-coverage curves with the AURC of each model. Source: figures "(toy|real)-aurc-3x1"."""
    fig, axes = _grid(studies)
    for (ax,), study in zip(axes, studies, strict=True):
        risk_coverage_axes(ax, study.points)
        ax.set(ylabel=f"{study.dataset}, seed {study.seed}\nrisk (mean MSE)", xlabel="")
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title="AURC", fontsize=6.5)
    fig.supxlabel("coverage (fraction of points kept, smallest Var first)")
    return fig


@styled
def deltas(studies: Sequence[DatasetResults]) -> Figure:
    """ID to OOD deltas of MSE, Var and CRPS of the representative seed. Source: figure "bars-crps-vertical"."""
    fig, axes = _grid(studies, height=1.9)
    for (ax,), study in zip(axes, studies, strict=True):
        run = rows_of(study.runs, seed=study.seed).set_index("model")
        models = [model for model in MODELS if model in run.index]
        for place, (column, alpha) in enumerate(zip(DELTAS, (1, 0.6, 0.3))):
            at = np.arange(len(models)) + 0.27 * (place - 1)
            colours = [to_rgba(MODELS[model].style[0], alpha) for model in models]
            ax.bar(at, run.loc[models, column], width=0.25, color=colours)
        ax.set_yscale("symlog", linthresh=0.1)
        ax.axhline(0, color="black", linewidth=0.7)
        ax.set_xticks(range(len(models)), models, fontsize=7)
        ax.set_ylabel(f"{study.dataset}, seed {study.seed}\nOOD − ID")
        ax.grid(axis="x", visible=False)
    fig.supxlabel("per model, from dark to light: " + ", ".join(DELTAS.values()))
    return fig
