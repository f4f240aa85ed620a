"""Tables and sentences on data/rivals follow from its rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fdn.report import rivals as page


def rows(fdn_inside: float, fdn_outside: float, sets=("airfoil", "bikeshare")) -> pd.DataFrame:
    """Three methods on two sets; of three seeds, which differ by 0.01, but for the Gaussian process."""
    found = []
    for dataset in sets:
        for method, inside, outside in [
            ("GP", 0.10, 0.50), ("10 MLPs", 0.20, 0.40), (page.FDN, fdn_inside, fdn_outside)
        ]:  # fmt: skip
            for seed in range(1 if method == "GP" else 3):
                for region, crps in (("id", inside), ("ood", outside)):
                    nll = np.nan if method == "10 MLPs" else 0.0
                    found.append({"dataset": dataset, "method": method, "seed": seed, "region": region,
                                  "rmse": 1.0, "crps": crps + 0.01 * (seed - 1) * (method != "GP"), "nll": nll,
                                  "coverage_90": 0.9, "width_90": 1.0, "fit_s": 2.0, "predict_s": 0.1})  # fmt: skip
    return pd.DataFrame(found)


def test_losses_come_first_and_are_those_beyond_the_intervals():
    inside, outside = page.losses(rows(0.16, 0.39))
    assert "loses in CRPS on airfoil to GP; on bikeshare to GP. Its mean is the least of all on none (0 of 2)" in inside
    assert "loses in CRPS on no set. Its mean is the least of all on airfoil and bikeshare (2 of 2)" in outside


def test_a_difference_within_the_intervals_is_no_loss():
    inside, _ = page.losses(rows(0.11, 0.39))  # 0.01 apart, and the half width is 0.017
    assert "loses in CRPS on no set" in inside and "(0 of 2)" in inside


def test_aims():
    kept = {row[0]: row[1:] for row in page.aims(rows(0.23, 0.43)).rows}
    assert kept["CRPS inside at most 1.1 times that of 10 MLPs"] == ("no", "no", "0 of 1", "0 of 2")
    assert kept["CRPS outside below all others'"] == ("no", "no", "0 of 1", "0 of 2")
    assert kept["CRPS outside at most 1.1 times the best"] == ("yes", "yes", "1 of 1", "2 of 2")
    assert kept["coverage inside 0.85 to 0.95"] == ("yes", "yes", "1 of 1", "2 of 2")


def test_cells_hold_means_intervals_and_what_is_missing():
    frame = rows(0.16, 0.39)
    found = {row[0]: row[1:] for row in page.table(frame, "crps", "id").rows}
    assert list(found) == [page.FDN, "GP", "10 MLPs"]
    later = frame.replace({"method": {page.FDN: "10 MLPs + noise", "GP": "Laplace"}})
    assert [row[0] for row in page.table(later, "crps", "id").rows] == ["10 MLPs", "10 MLPs + noise", "Laplace"]
    half = 2.919986 * 0.01 / 3**0.5  # Student's t of two degrees of freedom at 0.95
    assert found[page.FDN][0] == f"0.160 ± {half:.3f}" and found["GP"][0] == "**0.100**"
    assert {row[0]: row[1] for row in page.table(frame, "nll", "id").rows}["10 MLPs"] == "—"
    assert page.times(frame).rows[0][1] == "2 / 0.1"


FACTORS = {"nothing left out": 1.0, "same": 1.0, "twice": 2.0}


@pytest.fixture
def settings():
    rng = np.random.default_rng(0)
    rows = [
        {
            "dataset": "d", "region": region, "method": method, "seed": seed, "rmse": 0.5,
            "crps": factor * float(np.exp(0.01 * rng.normal())), "chosen": f"beta {factor:g}",
        }
        for method, factor in FACTORS.items() for region in ("id", "ood") for seed in range(6)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_ratios_are_paired_by_seed_with_students_interval(settings):
    found = page.crps_intervals(settings.sample(frac=1, random_state=0), "nothing left out")
    own, other = (
        settings.query("region == 'ood' and method == @m").sort_values("seed")["crps"].to_numpy()
        for m in ("nothing left out", "twice")
    )
    logs = np.log(other / own)
    low, high = stats.t.interval(0.9, 5, logs.mean(), stats.sem(logs))
    np.testing.assert_allclose(found.loc[("d", "ood", "twice")], np.exp([logs.mean(), low, high]))
