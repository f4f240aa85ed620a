"""What FDN is compared with: one way to measure, and methods that predict quantiles."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import ndtr, ndtri

from fdn import data, metrics
from fdn.data.splits import feature_band_split
from fdn.protocol import RECOMMENDED
from fdn.runs import rivals


@pytest.fixture(scope="module")
def small():
    """Diabetes with 60 rows to train, 60 to validate and 40 to test."""
    d = data.load("diabetes")
    x, y = np.concatenate([d.x_train, d.x_val]), np.concatenate([d.y_train, d.y_val])
    return dataclasses.replace(
        d, x_train=x[:60], y_train=y[:60], x_val=x[60:120], y_val=y[60:120], id_val=np.ones(60, bool),
        x_test=d.x_test[:40], y_test=d.y_test[:40], id_test=d.id_test[:40],
    )  # fmt: skip


@pytest.mark.parametrize("mean", [-4.0, -0.5, 0.0, 1.0, 3.0])
@pytest.mark.parametrize("std", [0.1, 1.0, 2.0])
def test_crps_of_quantiles_is_that_of_the_gaussian(mean, std):
    z = (0.3 - mean) / std
    exact = std * (z * (2 * ndtr(z) - 1) + 2 * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) - 1 / np.sqrt(np.pi))
    quantiles = rivals.gaussian(np.array([mean]), np.array([std])).quantiles
    assert rivals.crps(quantiles, np.array([0.3])) == pytest.approx(exact, rel=3e-3)


def test_crps_of_quantiles_is_that_of_draws():
    f, y = np.random.default_rng(0).normal(size=(10, 50)), np.linspace(-3, 3, 50)
    quantiles = np.quantile(f, rivals.LEVELS, axis=0, method="averaged_inverted_cdf")
    np.testing.assert_allclose(rivals.crps(quantiles, y), metrics.crps(f, y), atol=0.02)  # steps between levels


def test_a_point_has_its_absolute_error():
    assert rivals.crps(np.full((99, 2), 1.0), np.array([0.0, 4.0])) == pytest.approx([1.0, 3.0])


def test_a_mixture_has_its_quantiles_and_density():
    p = rivals.mixture(np.array([[-1.0], [2.0]]), 0.25)
    share = 0.5 * ndtr((p.quantiles + 1) / 0.5) + 0.5 * ndtr((p.quantiles - 2) / 0.5)
    np.testing.assert_allclose(share[:, 0], rivals.LEVELS, atol=2e-3)
    y = np.array([0.4])
    density = np.exp(-2 * (y + 1) ** 2) + np.exp(-2 * (y - 2) ** 2)
    assert p.log_density(y) == pytest.approx(np.log(density / np.sqrt(2 * np.pi)))


@pytest.mark.parametrize("draws", [1, 5, 100, 500])
def test_a_mixture_of_equals_is_the_gaussian(draws):
    """Also where each of many draws has few points."""
    mean, std = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.1, 2.0])
    for variance in (np.tile(std**2, (draws, 1)), 0.25):
        exact = rivals.gaussian(mean, np.sqrt(np.broadcast_to(variance, (draws, 3))[0]))
        found = rivals.mixture(np.tile(mean, (draws, 1)), variance)
        np.testing.assert_allclose(found.quantiles, exact.quantiles, atol=0.05)
        y = np.array([0.3, 0.9, 0.0])
        np.testing.assert_allclose(rivals.crps(found.quantiles, y), rivals.crps(exact.quantiles, y), rtol=2e-3)
        np.testing.assert_allclose(found.log_density(y), exact.log_density(y))


def test_regions_are_measured_apart(small):
    shift = np.where(small.id_test, 1.0, 3.0)
    mean = small.y_test + shift
    found = rivals.gaussian(mean, np.ones(40))
    inside, outside = rivals.measured(small, found).to_dict("records")
    assert (inside["region"], outside["region"]) == ("id", "ood")
    assert (inside["rmse"], outside["rmse"]) == pytest.approx((1, 3))
    assert (inside["coverage_90"], outside["coverage_90"]) == (1, 0)
    assert inside["width_90"] == pytest.approx(2 * ndtri(0.95))
    assert outside["nll"] == pytest.approx(4.5 + 0.5 * np.log(2 * np.pi))
    assert rivals.measured(small, found._replace(log_density=None))["nll"].isna().all()


def test_what_is_there_is_not_computed_again(tmp_path):
    computed, d = [], data.load("diabetes")

    def rows(seeds):
        computed.extend(seeds)
        return pd.DataFrame([{"dataset": d.name, "method": "GP", "seed": seed, "region": region, "rmse": 0.5}
                             for seed in seeds for region in ("id", "ood")])  # fmt: skip

    for seeds in ([0, 2], [0, 1, 2]):
        rivals.complete(d, "GP", seeds, rows, tmp_path)
    assert computed == [0, 2, 1] and len(rivals.load(tmp_path)) == 6
    again = {"dataset": "diabetes", "method": "GP", "seed": 0, "region": "id", "rmse": 1.0}
    rivals.record(pd.DataFrame([again]), tmp_path)
    found = rivals.load(tmp_path)
    assert len(found) == 6 and found.query("seed == 0 and region == 'id'")["rmse"].item() == 1


def test_a_method_is_timed_and_draws_from_a_stream_of_its_own(small):
    def fits(d, seed):
        centre = float(torch.randn(()))
        yield "guess", lambda x: rivals.gaussian(np.full(len(x), centre), np.ones(len(x))), "nothing"

    torch.manual_seed(1)
    expected = torch.randn(1)
    torch.manual_seed(1)
    first, other = rivals.rows_of(small, "guess", 0, fits), rivals.rows_of(small, "guess", 1, fits)
    assert torch.equal(torch.randn(1), expected), "the caller's stream is left alone"
    assert first["rmse"].tolist() == rivals.rows_of(small, "guess", 0, fits)["rmse"].tolist() != other["rmse"].tolist()
    assert first["chosen"].eq("nothing").all() and first[["fit_s", "predict_s"]].ge(0).all(axis=None)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 2))
    return feature_band_split(x, x[:, 0] + 0.3 * rng.normal(size=150), name="small")


def test_rows_of_fdn_are_those_of_its_prediction(table):
    """The first training of a process loads the compiled loops."""
    short = dataclasses.replace(RECOMMENDED, epochs=4, width=6, members=2, beta_max=1e-3)
    rows = rivals.fdn_rows(table, "short", [0, 2], short)
    assert rows["seed"].tolist() == [0, 0, 2, 2] and rows["chosen"].eq("beta 0.001").all()
    fitted = rivals.fit(rivals.model_spec("LP-FDNet", 2, short), table, short, [0, 2])
    mean = fitted.predict(2, table.x_test).mean.double().numpy()
    error = np.square(mean - table.y_test)[table.id_test].mean() ** 0.5
    assert rows.query("seed == 2 and region == 'id'")["rmse"].item() == pytest.approx(error)


def test_the_choice_of_beta_is_part_of_the_fit(table, monkeypatch):
    chosen = []
    monkeypatch.setattr(
        rivals.recipe, "chosen", lambda spec, d, p: chosen.append(d.name) or dataclasses.replace(p, beta_max=3e-3)
    )
    protocol = dataclasses.replace(RECOMMENDED, epochs=2, width=4, members=1)
    rows = rivals.fdn_rows(table, "auto", [0], protocol)
    assert chosen == ["small"] and rows["chosen"].eq("beta 0.003").all()
