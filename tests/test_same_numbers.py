"""The comparison of ``make same-numbers``: it sees the last bit, and says which kind of equality holds."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import same_numbers
from same_numbers import ROOT, compare_committed, compare_folders, differences

CELL = {"numerics": 3, "model": "BayesNet", "seed": 1, "mse_id": 0.1, "nll_id": None, "best_epoch": 7}
POINTS = pd.DataFrame({"z": [0.5, -0.0, np.nan], "region": ["ID", "ID", "OOD"], "var": [1.0, 2.0, 3.0]})
PLACE = "published/step/BayesNet/1"


@pytest.fixture
def folders(tmp_path):
    """Two equal results folders of one cell."""
    for name in ("reference", "here"):
        write(tmp_path / name, CELL, POINTS)
    return tmp_path / "reference", tmp_path / "here"


def write(folder, cell, points, indent=1):
    for kind in ("cells", "points"):
        (folder / kind / PLACE).parent.mkdir(parents=True, exist_ok=True)
    (folder / "cells" / f"{PLACE}.json").write_text(json.dumps(cell, indent=indent), encoding="utf-8")
    points.to_parquet(folder / "points" / f"{PLACE}.parquet", index=False)


def test_equal_folders_are_equal_to_the_byte(folders):
    assert compare_folders(*folders) == ({"to the byte": 2}, {})


def test_the_last_bit_of_a_metric_and_of_a_point_is_seen(folders):
    points = POINTS.assign(var=[1.0, 2.0, np.nextafter(3.0, 4.0)])
    write(folders[1], CELL | {"mse_id": np.nextafter(0.1, 1.0)}, points)
    equal, differing = compare_folders(*folders)
    assert not +equal
    assert differing == {
        "published step BayesNet": {
            "cells.mse_id": pytest.approx(2**-56 / 0.1),
            "points.var": pytest.approx(2**-51 / 3),
        }
    }


def test_another_format_of_the_same_numbers_is_named(folders):
    write(folders[1], CELL, POINTS, indent=None)
    equal, differing = compare_folders(*folders)
    assert equal == {"to the byte": 1, "in every bit of every value that both have": 1} and not differing


@pytest.mark.parametrize("change", [
    {"best_epoch": 8}, {"model": "MLPNet"}, {"nll_id": 0.0}, {"best_epoch": 7.0}, {"mse_id": float("nan")},
])  # fmt: skip
def test_what_is_not_a_matter_of_size_differs_without_bound(folders, change):
    write(folders[1], CELL | change, POINTS)
    assert compare_folders(*folders)[1] == {"published step BayesNet": {f"cells.{name}": np.inf for name in change}}


def test_a_metric_added_since_is_no_difference_and_one_that_is_gone_is(folders):
    write(folders[1], CELL | {"more": 1.0}, POINTS)
    both = {"to the byte": 1, "in every bit of every value that both have": 1}
    assert compare_folders(*folders) == (both, {})
    assert compare_folders(*reversed(folders))[1] == {"published step BayesNet": {"cells.more": np.inf}}


def test_a_missing_file_is_a_difference(folders):
    (folders[1] / "points" / f"{PLACE}.parquet").unlink()
    assert compare_folders(*folders)[1].keys() == {"published step BayesNet"}
    shutil.rmtree(folders[0])
    assert compare_folders(*folders)[1].keys() == {"published step BayesNet"}


def test_the_sign_of_zero_is_a_bit_and_nan_is_nan():
    frame = pd.DataFrame({"x": [0.0, 1.0], "y": [np.nan, 1.0]})
    assert differences(frame, frame.assign(x=[-0.0, 1.0], y=[-np.nan, 1.0])) == {"x": 0.0}


def test_a_metric_near_zero_is_judged_by_its_usual_size():
    frame = pd.DataFrame({"intercept_a": [1e-9]})
    assert differences(frame, frame + 1e-12) == {"intercept_a": pytest.approx(1e-3)}
    assert differences(frame, frame + 1e-12, pd.Series({"intercept_a": 2.0})) == {"intercept_a": pytest.approx(5e-13)}


def test_committed_cells_allow_rounding_and_another_kept_epoch_never(tmp_path):
    committed = ROOT / "data" / "results"
    frame = (
        pd.read_parquet(committed / "metrics.parquet").query("dataset == 'step' and seed == 5").reset_index(drop=True)
    )
    shutil.copytree(committed / "points", tmp_path / "points")
    frame.to_parquet(tmp_path / "metrics.parquet")
    assert compare_committed(tmp_path) == (len(frame), 0.0, {})
    frame.loc[0, "aurc"] *= 1 + 1e-12
    frame.loc[1, "mse_id"] *= 1 + 1e-7
    frame.loc[2, "best_epoch"] += 1
    frame.to_parquet(tmp_path / "metrics.parquet")
    n, worst, differing = compare_committed(tmp_path)
    assert n == len(frame) and 1e-14 < worst < 1e-11
    assert {where.split()[-1]: [*sizes] for where, sizes in differing.items()} == {
        frame.loc[1, "model"]: ["mse_id"], frame.loc[2, "model"]: ["best_epoch"],
    }  # fmt: skip


def test_a_metric_that_committed_cells_lack_is_no_difference(tmp_path, monkeypatch):
    committed = pd.read_parquet(ROOT / "data" / "extras" / "metrics.parquet")
    block = committed["protocol"].eq("as_written") & committed["dataset"].eq("sine") & committed["model"].eq("BayesNet")
    frame = committed[block].head(3).reset_index(drop=True)
    for name, kept in (("extras", frame.assign(coverage_90_id=np.nan)), ("results", frame.head(0))):
        (tmp_path / "data" / name).mkdir(parents=True)
        kept.to_parquet(tmp_path / "data" / name / "metrics.parquet")
    monkeypatch.setattr(same_numbers, "ROOT", tmp_path)
    frame.assign(coverage_90_id=0.5).to_parquet(tmp_path / "metrics.parquet")
    assert compare_committed(tmp_path) == (3, 0.0, {})
    frame.assign(coverage_90_id=0.5, mse_id=2 * frame["mse_id"]).to_parquet(tmp_path / "metrics.parquet")
    assert compare_committed(tmp_path)[2].keys() == {"as_written sine BayesNet"}
