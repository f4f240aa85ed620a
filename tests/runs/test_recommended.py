"""The recommended FDN beside its rivals, and the path to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fdn.data.splits import feature_band_split
from fdn.protocol import PUBLISHED, RECOMMENDED
from fdn.runs import recommended, rivals


def test_the_path_leads_from_the_published_protocol_to_the_recommended_one():
    first, *_, last = recommended.PATH.values()
    assert first == PUBLISHED and replace(last, base="recommended") == RECOMMENDED
    assert len(set(recommended.PATH.values())) == len(recommended.PATH)


def test_every_ablation_changes_the_recommended_protocol():
    changed = [replace(RECOMMENDED, **changes) for changes in recommended.WITHOUT.values()]
    assert changed[0] == RECOMMENDED and len(set(changed)) == len(changed)


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 2))
    return feature_band_split(x, x[:, 0] + 0.3 * rng.normal(size=150), name="small")


def test_rows_are_those_of_the_prediction_and_are_computed_once(small, tmp_path, monkeypatch):
    short = replace(RECOMMENDED, epochs=4, width=6, networks=2, beta_max=1e-3)
    recommended.run(small, {"short": short}, [0, 2], tmp_path)
    rows = rivals.load(tmp_path)
    assert set(rows["seed"]) == {0, 2} and len(rows) == 4 and rows["chosen"].eq("beta 0.001").all()
    fitted = recommended.fit(recommended.model_spec("LP-FDNet", 2, short), small, short, [0, 2])
    mean = fitted.predict(2, small.x_test).mean.double().numpy()
    error = np.square(mean - small.y_test)[small.id_test].mean() ** 0.5
    found = rows.loc[rows["seed"].eq(2) & rows["region"].eq("id"), "rmse"].item()
    assert found == pytest.approx(error, rel=1e-5)
    monkeypatch.setattr(recommended, "study", lambda *args: pytest.fail("computed again"))
    recommended.run(small, {"short": short}, [0, 2], tmp_path)


def test_the_choice_of_beta_is_part_of_the_fit(small, monkeypatch):
    chosen = []
    monkeypatch.setattr(
        recommended.recipe, "chosen", lambda spec, d, p: chosen.append(d.name) or replace(p, beta_max=3e-3)
    )
    protocol = replace(RECOMMENDED, epochs=2, width=4, networks=1)
    rows = pd.DataFrame(recommended.study(small, "auto", protocol, [0]))
    assert chosen == ["small"] and rows["chosen"].eq("beta 0.003").all()


def test_a_setting_is_left_out_beside_the_beta_that_goes_with_all(small, monkeypatch):
    monkeypatch.setattr(recommended.recipe, "chosen", lambda spec, d, p: replace(p, beta_max=3e-3))
    without = recommended.protocols("without", small)
    assert without["nothing left out"] == replace(RECOMMENDED, beta_max=3e-3)
    assert {p.beta_max for p in without.values()} == {3e-3, 1.0}, "the paper's weight is beta's own case"
    assert recommended.protocols(None, small) == {recommended.FDN: RECOMMENDED}
    assert [p.beta_max for p in recommended.protocols("beta", small).values()][:4] == [*recommended.recipe.BETAS]
