"""Predictive means with bands of two standard deviations, a panel per model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fdn.models import MODELS

ID_SHADE = "#F1F1E6"
LARGEST = 1e50  # what axes show


def band_panels(fig: Figure, points: Mapping[str, pd.DataFrame], true_function: Callable | None = None) -> None:
    """mean_i +- 2 sqrt(Var_i) against the split feature, targets in black.

    Of a toy task the band is an area and the targets are the true function; else there is a bar per test point. The
    scale, one for all panels, is linear over the targets and logarithmic beyond, so that narrow and wide bands show.
    """
    columns = min(3, len(points))
    rows = -(-len(points) // columns)
    grid = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for ax, (model, frame) in zip(grid.flat, points.items(), strict=False):
        frame = frame[np.isfinite(frame[["z", "y", "mean", "var"]]).all(axis=1)].sort_values("z")
        band = frame.loc[frame["region"] == "ID", "z"]
        ax.axvspan(band.min(), band.max(), color=ID_SHADE, zorder=0)
        colour, sd = MODELS[model].style[0], np.sqrt(frame["var"].clip(upper=LARGEST))
        low, high = frame["mean"] - 2 * sd, frame["mean"] + 2 * sd
        if true_function is None:
            ax.vlines(frame["z"], low, high, color=colour, alpha=0.25, linewidth=0.6, rasterized=True)
            ax.scatter(frame["z"], frame["y"], color="black", s=1.5, linewidths=0, rasterized=True, zorder=3)
            ax.scatter(frame["z"], frame["mean"], color=colour, s=2, linewidths=0, rasterized=True, zorder=4)
        else:
            ax.fill_between(frame["z"], low, high, color=colour, alpha=0.3, linewidth=0)
            ax.plot(frame["z"], true_function(frame["z"].to_numpy()), color="black", linewidth=0.6)
            ax.plot(frame["z"], frame["mean"], color=colour)
        ax.set_title(model, color=colour, fontweight="bold")
    for ax in grid.flat[len(points) :]:
        ax.remove()
    size = max(float(frame["y"].abs().max()) for frame in points.values())
    power = 10.0 ** np.floor(np.log10(max(size, 1e-3)))
    grid[0, 0].set_yscale("symlog", linthresh=np.ceil(size / power) * power, linscale=2)
    feature = "split feature (standardised)" if true_function is None else "x"
    fig.supxlabel(f"{feature}; ID band shaded, targets in black", fontsize=8)
    fig.supylabel("mean ± 2 sd", fontsize=8)
