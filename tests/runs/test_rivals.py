"""What FDN is compared with: one way to measure, and methods that predict quantiles."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from fdn import data, metrics
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
    inside, outside = rivals.measured(small, found.quantiles, mean, found.log_density(small.y_test))
    assert (inside["region"], outside["region"]) == ("id", "ood")
    assert (inside["rmse"], outside["rmse"]) == pytest.approx((1, 3))
    assert (inside["coverage_90"], outside["coverage_90"]) == (1, 0)
    assert inside["width_90"] == pytest.approx(2 * ndtri(0.95))
    assert outside["nll"] == pytest.approx(4.5 + 0.5 * np.log(2 * np.pi))
    assert np.isnan(rivals.measured(small, found.quantiles, mean)[0]["nll"])


@pytest.mark.filterwarnings("ignore")  # of optimisers that are stopped early
@pytest.mark.parametrize("method", rivals.METHODS)
def test_every_method_predicts_quantiles(method, small, monkeypatch):
    """Takes long where a package does to import."""
    package = {"Laplace": "laplace", "NGBoost": "ngboost", "MLP + MAPIE": "mapie"}.get(method)
    if package:
        pytest.importorskip(package, exc_type=Exception)
    for name, value in {
        "EPOCHS": 20,
        "TREES": 20,
        "ROUNDS": 20,
        "ITERATIONS": (10, 20),
        "MEMBERS": 3,
        "DRAWS": 10,
    }.items():
        monkeypatch.setattr(rivals, name, value)
    fits = list(rivals.METHODS[method](small, 0))
    assert fits[0][0] == method
    for _, predict, _ in fits:
        quantiles, mean, log_density = predict(small.x_test)
        assert quantiles.shape == (99, 40) and (np.diff(quantiles, axis=0) >= -1e-12).all()
        assert mean.shape == (40,) and np.abs(mean).max() < 10
        assert np.abs(quantiles[49] - mean).mean() < 1
        assert log_density is None or np.isfinite(log_density(small.y_test)).all()


def test_what_is_there_is_not_computed_again(tmp_path, monkeypatch):
    computed = []

    def study(d, method, seed):
        computed.append((method, seed))
        return [{"dataset": d.name, "method": method, "seed": seed, "region": r, "chosen": ""} for r in ("id", "ood")]

    monkeypatch.setattr(rivals, "study", study)
    for _ in range(2):
        rivals.run(["diabetes"], ["GP", "Laplace"], [0, 1], tmp_path)
    assert computed == [("GP", 0), ("Laplace", 0), ("Laplace", 1)]
    assert len(rivals.load(tmp_path)) == 6
    rivals.record([{"dataset": "diabetes", "method": "GP", "seed": 0, "region": "id", "rmse": 1.0}], tmp_path)
    assert len(rivals.load(tmp_path)) == 6
