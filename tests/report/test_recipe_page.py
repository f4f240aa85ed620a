"""Tables, sentences and figures of what each setting of the recommended protocol is worth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fdn.report import recipe

METHODS = {"nothing left out": 1.0, "same": 1.0, "twice": 2.0}


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    rows = [
        {
            "dataset": "d", "region": region, "method": method, "seed": seed, "rmse": 0.5,
            "crps": factor * float(np.exp(0.01 * rng.normal())), "chosen": f"beta {factor:g}",
        }
        for method, factor in METHODS.items() for region in ("id", "ood") for seed in range(6)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_ratios_are_paired_by_seed_with_students_interval(frame):
    found = recipe.ratios(frame.sample(frac=1, random_state=0), "nothing left out")
    own, other = (
        frame.query("region == 'ood' and method == @m").sort_values("seed")["crps"].to_numpy()
        for m in ("nothing left out", "twice")
    )
    logs = np.log(other / own)
    low, high = stats.t.interval(0.9, 5, logs.mean(), stats.sem(logs))
    np.testing.assert_allclose(found.loc[("d", "ood", "twice")], np.exp([logs.mean(), low, high]))


def test_verdicts_name_what_is_told_apart_and_what_chance_would(frame):
    frame.loc[frame["method"].eq("same"), "crps"] = frame.loc[frame["method"].eq("nothing left out"), "crps"].to_numpy()
    first, second, last = recipe.verdicts(recipe.ratios(frame, "nothing left out"))
    assert first == "**same**: not told apart."
    assert "worse on d inside (x 2.0" in second and "d outside (x 2.0" in second
    assert last == "Of these 4 intervals 2 leave 1 out; if nothing differed, about 0.4 would."


def test_path_table_has_a_row_a_step(frame):
    table = recipe.path_table(frame)
    assert [row[0] for row in table.rows] == list(METHODS)
    assert [float(row[1]) for row in table.rows] == pytest.approx([1, 1, 2], abs=0.03)
    assert "6 seeds" in table.caption


@pytest.mark.parametrize("reference", [None, "nothing left out"])
def test_figures_show_every_method_inside_and_outside(frame, reference):
    methods = [m for m in METHODS if m != reference]
    axes = recipe.means_figure(frame, methods, "title", reference).axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == methods
    points = [line.get_xdata() for line in axes[0].get_lines() if len(line.get_xdata()) == len(methods)]
    assert any(np.allclose(x, [METHODS[m] for m in methods], rtol=0.03) for x in points)


def test_beta_figure_marks_the_chosen_one(frame):
    (ax,) = recipe.beta_figure(frame, {"d": 2.0}).axes
    assert any(np.allclose(line.get_xdata(), 2.0) for line in ax.get_lines())
