"""What all figures share: what is said of one, their look, and what axes can show."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Literal

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from fdn.models import MODELS
from fdn.report.findings import DatasetResults
from fdn.typesetting import drawn

STYLE = ["default", str(Path(__file__).parents[1] / "fdn.mplstyle")]
BAND = "#F1F1E6"  # shading of the ID band
GREY = "#555555"
OUTLINE = [withStroke(linewidth=2.6, foreground="white")]
LARGEST = 1e50  # what axes show: matplotlib's own arithmetic overflows long before float64 does

Points = Mapping[str, pd.DataFrame]  # by model: a row per test point


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure, drawn of each data set that has what it needs.

    Attributes:
        draw: from what there is of a data set to the figure.
        title, words: for readers: its name, and what there is to see.
        needs: per-point results of one seed, the runs of all, or their :mod:`fdn.runs.bands`.
        for_toy: whether it is drawn of toy tasks too.
    """

    draw: Callable[[DatasetResults], Figure]
    title: str
    words: str
    needs: Literal["points", "runs", "bands"] = "points"
    for_toy: bool = True


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


def set_title(fig: Figure, text: str) -> None:
    """The title, a line for each of the text's, wrapped to the figure's width; smaller if there are several."""
    first, *rest = text.split("\n")
    rest = [line for one in rest for line in textwrap.wrap(one, int(15 * fig.get_figwidth()))]
    lines = [drawn(line) for line in (first, *rest)]
    size = {"fontsize": 8} if rest else {}
    families = [options["family"] for _, options in lines if "family" in options]
    options = {"parse_math": False} | ({"family": families[0]} if families else {})
    fig.suptitle("\n".join(shown for shown, _ in lines), x=0.01, horizontalalignment="left", **options, **size)


def number(value: float, decimals: int) -> str:
    """A number for a label; a dash for NaN."""
    text = f"{value:.{decimals}e}" if abs(value) >= 1e9 else f"{value:z.{decimals}f}"
    return "—" if np.isnan(value) else text.replace("-", "−")


def in_region(frame: pd.DataFrame, region: str | None) -> pd.DataFrame:
    """The points of a region, or all."""
    return frame if region is None else frame[frame["region"] == region]


def on_log_axes(frame: pd.DataFrame) -> pd.DataFrame:
    """Points that log axes can show; none where the variance is constant, as a deterministic model's is."""
    if frame["var"].nunique() < 2:
        return frame.iloc[:0]
    return frame[is_positive(frame["var"]) & is_positive(frame["mse"])]


def is_positive(values: pd.Series) -> pd.Series:
    """Which numbers a logarithmic axis can show."""
    return (values > 1 / LARGEST) & (values < LARGEST)


def finite(values: pd.Series | np.ndarray) -> pd.Series | np.ndarray:
    """The numbers that an axis can show; NaN, which is left out, in place of the others."""
    return np.where(np.abs(values) < LARGEST, values, np.nan)


def legend(owner: Axes | Figure, **options: object) -> None:
    """A legend whose markers can be seen."""
    for handle in owner.legend(**options).legend_handles:
        handle.set_alpha(1)
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([24])


def fit_scale(ax: Axes, points: Points) -> None:
    """Linear, unless means exceed ten times the targets: then logarithmic beyond the next power of ten."""
    sizes = {name: np.abs(finite(pd.concat([frame[name] for frame in points.values()]))) for name in ("y", "mean")}
    size, largest = (np.nanmax(sizes[name], initial=0.0) for name in ("y", "mean"))
    if largest > 10 * size:
        ax.set_yscale("symlog", linthresh=10 ** np.ceil(np.log10(max(size, 1e-20 * largest))), linscale=2)


def name_panels(axes: Iterable[Axes], models: Iterable[str], narrow: bool = False) -> None:
    """Models as titles in their colours; of narrow panels smaller, and long names on two lines."""
    for ax, model in zip(axes, models, strict=True):
        name = model.replace("Net", "\nNet") if narrow and len(model) >= 10 else model
        ax.set_title(name, color=MODELS[model].style[0], fontweight="bold", **({"fontsize": 8} if narrow else {}))


def panels(models: Sequence[str], height: float = 1.9, **options: object) -> tuple[Figure, list[tuple]]:
    """A figure with a panel for each model, at most three beside one another; and (axes, model, colour, marker)."""
    columns = min(3, len(models))
    rows = -(-len(models) // columns)
    fig = Figure(figsize=(7, 0.5 + height * rows), layout="constrained")
    grid = fig.subplots(rows, columns, squeeze=False, **options)
    for ax in grid.flat[len(models) :]:
        ax.remove()
    name_panels(fig.axes, models)
    return fig, [(ax, model, *MODELS[model].style) for ax, model in zip(fig.axes, models, strict=True)]
