"""The four sets by which recommended settings are judged."""

from __future__ import annotations

import numpy as np
import pytest

from fdn import data
from fdn.data import verdict
from fdn.errors import UserError


@pytest.mark.parametrize(
    ("name", "rows", "features", "split", "target"),
    [
        ("bikeshare", 8645, 12, "temp", "bikers"),
        ("diamonds", 5000, 9, "carat", "price"),
        ("friedman1", 2000, 10, "x3", "y"),
        ("heteroscedastic_sine", 1500, 1, "x", "y"),
    ],
)
def test_sizes_and_splits(name, rows, features, split, target):
    try:
        d = data.load(name)
    except UserError as missing:
        pytest.skip(str(missing))
    assert (d.name, d.n_features, d.feature_names[d.split_feature], d.target_name) == (name, features, split, target)
    assert len(d.y_train) + len(d.y_val) + len(d.y_test) == rows
    inside = d.x_test[:, d.split_feature]
    train = d.x_train[:, d.split_feature]
    assert ((inside[~d.id_test] < train.min()) | (inside[~d.id_test] > train.max())).all()


def test_they_are_not_among_the_sets_of_the_study():
    assert not set(data.VERDICT_SETS) & set(data.NAMES) and not set(data.VERDICT_SETS) & set(data.DEVELOPMENT_SETS)
    assert set(data.DEVELOPMENT_SETS) <= set(data.NAMES)


def test_the_noise_of_the_sine_grows_outwards():
    d = data.load("heteroscedastic_sine")
    x, y = (d.x_test * d.x_std + d.x_mean)[:, 0], d.y_test * d.y_std + d.y_mean
    e = (y - np.sin(6 * x)) / (0.05 + 0.4 * x**2)
    assert abs(e.mean()) < 0.15 and e.std() == pytest.approx(1, abs=0.1)


def test_categories_are_numbers_in_their_order(tmp_path, monkeypatch):
    package = tmp_path / "jewels"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('is not imported')", encoding="utf-8")
    (package / "data" / "d.csv").write_text("cut,price\nIdeal,3\nFair,1\nGood,2\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(verdict._table("jewels", "d.csv", cut=verdict.CUTS)["cut"]) == [4, 0, 1]
    with pytest.raises(UserError, match="pip install --no-deps jewels"):
        verdict._table("jewels", "e.csv")
    with pytest.raises(UserError, match="pip install --no-deps not_there_at_all"):
        verdict._table("not_there_at_all", "d.csv")
