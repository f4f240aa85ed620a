"""Every kind of figure in one table, and how they are written to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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

# A figure is a function and its row in one of the two modules; the site shows those without a place here at the end
ORDER = (
    "uncertainty", "uncertainty_seeds", "checkpoint", "seeds", "mse_var", "mse_var_seeds", "mse_var_fit", "means",
    "risk_coverage", "risk_coverage_seeds", "calibration", "pit", "deltas",
)  # fmt: skip
_ALL = one_seed.FIGURES | over_seeds.FIGURES
FIGURES = {name: _ALL[name] for name in [*ORDER, *(name for name in _ALL if name not in ORDER)]}


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
