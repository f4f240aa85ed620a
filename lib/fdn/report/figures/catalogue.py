"""Every kind of figure in one table, and how they are written to a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure

from fdn.data.dataset import Dataset
from fdn.errors import UserError
from fdn.models import PAPER_MODELS, STOCHASTIC_MODELS
from fdn.paths import segment
from fdn.protocol import Protocol
from fdn.report.figures import one_seed, over_seeds
from fdn.report.figures.drawing import STYLE
from fdn.report.findings import DatasetResults
from fdn.report.published import representative_seed, rows_of
from fdn.runs import bands, results


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


FIGURES = {  # by the end of their files' names, in the order of the site
    "uncertainty": FigureKind(
        one_seed.uncertainty,
        "Mean and spread",
        "Predictive mean and two standard deviations of the draws of one seed, with the targets, a panel per model",
    ),
    "uncertainty_seeds": FigureKind(
        over_seeds.uncertainty_seeds,
        "Mean and spread over seeds",
        "Predictive mean over all seeds with its 5 to 95 % band, and the median spread of the draws",
        needs="bands",
    ),
    "checkpoint": FigureKind(
        over_seeds.checkpoint,
        "Kept epochs",
        "Validation score and the weight β of the KL term against the epoch, with the kept epochs marked",
        needs="bands",
    ),
    "seeds": FigureKind(
        over_seeds.seeds_scatter,
        "Seeds",
        "OOD MSE against OOD variance, a point per seed, the representative seed ringed",
        needs="runs",
    ),
    "mse_var": FigureKind(
        one_seed.mse_against_var,
        "MSE against variance",
        "MSE against predicted variance of every test point, inside and outside the band, a panel per model, with the "
        "line MSE = Var",
    ),
    "mse_var_seeds": FigureKind(
        over_seeds.mse_var_seeds,
        "Error against variance over seeds",
        "MSE, and the squared error of the mean, in bins of the variance: median and 5 to 95 % band over seeds",
        needs="bands",
    ),
    "mse_var_fit": FigureKind(
        one_seed.mse_against_var_fit,
        "Linear fit",
        "MSE against predicted variance of all test points with each model's fit MSE = a + b Var",
    ),
    "means": FigureKind(
        one_seed.means,
        "Predictive means",
        "Predictive mean of each model over the inputs, with the targets",
    ),
    "risk_coverage": FigureKind(
        one_seed.risk_coverage,
        "Risk and coverage",
        "Mean MSE of the most confident fraction of the test points, a curve per model",
    ),
    "risk_coverage_seeds": FigureKind(
        over_seeds.risk_coverage_seeds,
        "Risk and coverage over seeds",
        "The same curves: median and 5 to 95 % band over seeds",
        needs="bands",
    ),
    "calibration": FigureKind(
        one_seed.calibration,
        "Calibration",
        "Mean MSE against mean variance in ten quantile bins of the variance, a curve per model",
    ),
    "pit": FigureKind(
        over_seeds.pit,
        "PIT",
        "Where the targets lie among the draws, inside and outside the band, with the coverage of 90 % intervals",
        needs="bands",
    ),
    "deltas": FigureKind(
        over_seeds.delta_bars,
        "Deltas",
        "OOD mean less ID mean of MSE, variance and CRPS: bars of one seed, whiskers over all seeds",
        needs="runs",
        for_toy=False,
    ),
}


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


def write_figures(
    folder: Path, metrics: pd.DataFrame, datasets: Mapping[str, Dataset | None], protocol: Protocol, out: Path
) -> tuple[list[Path], list[str]]:
    """Draw and write every figure of one protocol.

    Args:
        folder: whose per-point results and :mod:`fdn.runs.bands` are drawn.
        metrics: the metrics of all runs.
        datasets: the data sets to draw; None stands for a real one whose files are not here.

    Returns:
        The written paths, and a sentence for everything that could not be drawn.
    """
    paths, missing, label = save(one_seed.layer_diagram(), out / "layer"), [], protocol.label
    for name, data in datasets.items():
        runs = rows_of(metrics, dataset=name, protocol=label)
        try:
            seed = representative_seed(metrics, name, label)
        except UserError as error:
            missing.append(f"{name}: no figures: {error}")
            continue
        points, known = {}, {*PAPER_MODELS, *runs["model"]}
        for model in [model for model in STOCHASTIC_MODELS if model in known]:
            cell, why = (folder, name, model, label, seed), ""
            try:
                if results.has_points(*cell):
                    points[model] = results.load_points(*cell)
                    continue
            except UserError as error:  # damaged
                why = f": {error}"
            missing.append(f"{name}: no points of {model}, seed {seed}{why}")
        curves, truth = bands.of(folder, name, label), data and data.true_function
        study = DatasetResults(name, label, runs, seed, points, true_function=truth, bands=curves)
        has = {"runs": True, "points": bool(points), "bands": curves is not None}
        for kind, figure in FIGURES.items():
            if not has[figure.needs] or (truth and not figure.for_toy):
                continue
            try:
                paths += save(figure.draw(study), out / segment(f"{name}_{kind}"))
            except UserError as error:
                missing.append(f"{name}: no {kind}: {error}")
    return paths, missing
