"""The one figure that only the site has: every seed of every published number."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fdn.models import MODELS, PAPER_MODELS
from fdn.report.figures.drawing import GREY, set_title, styled
from fdn.report.published import PUBLISHED_METRICS, rows_of
from fdn.report.tables import RESULT_COLUMNS


@styled
def seed_points(metrics: pd.DataFrame, comparison: pd.DataFrame, title: str) -> Figure:
    """A panel per published metric, a row per model: a point per seed, the 5-95 % interval, the published value.

    Args:
        metrics: the rows of one data set and protocol.
        comparison: the rows of that data set from :func:`fdn.report.published.compare`.
    """
    fig = Figure(figsize=(7.4, 4.6), layout="constrained")
    grid = fig.subplots(2, 4, sharey=True)
    numbers = comparison.set_index(["model", "metric"])
    for ax, metric in zip(grid.flat, PUBLISHED_METRICS):
        shown = [numbers.loc[(model, metric)] for model in PAPER_MODELS]
        for place, (model, number) in enumerate(zip(PAPER_MODELS, shown)):
            colour, _ = MODELS[model].style
            values = rows_of(metrics, model=model)[metric].to_numpy()  # (seeds,)
            jitter = np.linspace(-0.25, 0.25, len(values)) if len(values) > 1 else np.zeros(len(values))
            ax.scatter(values, place + jitter, color=colour, s=7, alpha=0.6, linewidths=0, zorder=2)
            ax.hlines(place, number["q05"], number["q95"], color=colour, linewidth=2, alpha=0.5, zorder=1)
            ax.scatter(number["published"], place, marker="|", color="black", s=90, linewidths=1.3, zorder=3)
        values = np.concatenate([metrics[metric].to_numpy(), [number["published"] for number in shown]])
        values = values[np.isfinite(values)]
        if metric != "spearman":
            _long_axis(ax, values)
        ax.set_title(RESULT_COLUMNS[metric])
        ax.minorticks_off()
    grid[0, 0].set_yticks(range(len(PAPER_MODELS)), PAPER_MODELS)
    grid[0, 0].invert_yaxis()
    key = grid[1, 3]
    key.axis("off")
    key.scatter([], [], color=GREY, s=12, label="one seed")
    key.plot([], [], color=GREY, linewidth=2, alpha=0.5, label="5-95 % of the seeds")
    key.scatter([], [], marker="|", color="black", s=90, linewidths=1.3, label="published")
    key.legend(loc="center left", frameon=False)
    set_title(fig, title)
    return fig


def _long_axis(ax: Axes, values: np.ndarray) -> None:
    """A logarithmic axis, linear around 0 if some values are not positive, with few enough ticks to be read."""
    if (values > 0).all():
        ax.set_xscale("log")
        ax.xaxis.get_major_locator().set_params(numticks=4)
        return
    sizes = np.abs(values[values != 0])
    lower, upper = (10.0 ** np.floor(np.log10(size)) for size in (np.quantile(sizes, 0.25), sizes.max()))
    ax.set_xscale("symlog", linthresh=lower)
    ax.set_xticks([tick for tick in (-upper, 0, upper) if values.min() <= tick <= values.max() or tick == 0])
