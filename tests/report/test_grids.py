"""The paper's layouts: a row for each data set, and no model that lies on top of the others throughout."""

from dataclasses import replace

import numpy as np
import pytest
from test_findings import points, runs

from fdn.models import MODELS
from fdn.report.figures import grids
from fdn.report.findings import DatasetResults

RNG = np.random.default_rng(0)


def study(dataset):
    frames = {m: points(RNG.normal(size=40), 1 + RNG.random(40)) for m in ("BayesNet", "IC-FDNet", "LP-FDNet")}
    return DatasetResults(dataset, "published", runs(dataset, models=list(frames)), 0, frames)


STUDIES = [replace(study("step"), true_function=np.sin), study("sine")]


@pytest.mark.parametrize("draw, columns", [
    (grids.mse_against_var, 2), (grids.mse_against_var_fit, 1), (grids.risk_coverage, 1), (grids.deltas, 1),
    (grids.means, 1),
])  # fmt: skip
def test_a_grid_has_a_named_row_for_each_data_set(draw, columns):
    fig = draw(STUDIES)
    assert len(fig.axes) == 2 * columns
    for name, first in zip(("step", "sine"), fig.axes[::columns]):
        assert first.get_ylabel().startswith(f"{name}, seed 0")


def test_points_of_all_models_are_drawn_in_mixed_order():
    dots = grids.mse_against_var_fit(STUDIES).axes[0].collections[0]
    colours = [tuple(c) for c in dots.get_facecolors()]
    assert len(colours) == 120 and len(set(colours)) == 3 == len({MODELS[m].style[0] for m in STUDIES[0].points})
    assert sum(a != b for a, b in zip(colours, colours[1:])) > 40  # sorted by model there would be two changes


def test_a_crowded_panel_shows_a_sample_of_each_model():
    many = {"BayesNet": points(RNG.normal(size=5000), 1 + RNG.random(5000))}
    fig = grids.mse_against_var_fit([DatasetResults("ccpp", "published", runs("ccpp"), 0, many)])
    assert len(fig.axes[0].collections[0].get_offsets()) == grids.POINTS
