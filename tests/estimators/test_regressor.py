"""What FDNRegressor promises: distributions in raw units, exact quantiles, rows that do not touch, models kept."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch.distributions import Categorical, MixtureSameFamily, Normal

from fdn import FDNRegressor, UserError, data
from fdn.estimators import domain, regressor
from fdn.estimators.domain import Domain
from fdn.estimators.quantiles import mixture_quantiles
from fdn.models import MODEL_NAMES, model_spec
from fdn.protocol import RECOMMENDED
from fdn.training.recipe import BETAS

QUICK = {
    "max_epochs": 3, "members": 2, "hidden_layer_sizes": (8,), "hyper": 3, "draws": 10, "random_state": 0,
    "beta": 3e-3, "likelihood": "gaussian",
}  # fmt: skip


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (80, 3))
    return x, 5e3 + 100 * np.sin(3 * x[:, 0]) + 10 * rng.standard_normal(80)


@pytest.fixture(scope="module")
def model(table) -> FDNRegressor:
    return FDNRegressor(**QUICK).fit(*table)


def components(model: FDNRegressor, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the mixtures, ``(n, K)``."""
    k = model.draws
    both = model._predicted(x, lambda m, v: np.hstack([m, np.sqrt(v)]), [1] * k + [0] * k)
    return both[:, :k], both[:, k:]


# distributions


@pytest.mark.parametrize("spread", [1e-6, 0.3, 30.0])
def test_quantiles_are_the_roots_of_the_distribution_function(spread):
    rng = np.random.default_rng(1)
    mean, std = 1e3 + spread * rng.standard_normal((5, 7)), 10 ** rng.uniform(-3, 1, (5, 7))
    q = np.array([1e-6, 0.05, 0.5, 0.975])
    found = mixture_quantiles(mean, std, q)
    for m, s, row in zip(mean, std, found):
        ends = m.min() - 10 * s.max(), m.max() + 10 * s.max()
        expected = [brentq(lambda x: norm.cdf(x, m, s).mean() - level, *ends, xtol=1e-12, rtol=1e-14) for level in q]
        np.testing.assert_allclose(row, expected, rtol=1e-12)


def test_quantiles_between_two_far_components_and_of_equal_ones():
    far = mixture_quantiles(np.array([[0.0, 1e6]]), np.ones((1, 2)), np.array([0.25, 0.5, 0.75]))
    np.testing.assert_allclose(far[0, [0, 2]], [0, 1e6], atol=1e-9)
    assert 10 < far[0, 1] < 1e6 - 10  # anywhere in the gap, where the function is 1/2
    np.testing.assert_allclose(mixture_quantiles(np.zeros((1, 3)), np.ones((1, 3)), np.array([0.9])), norm.ppf(0.9))


def test_mean_and_standard_deviation_are_those_of_the_mixture(model, table):
    mean, std = components(model, table[0])
    normals = Normal(torch.as_tensor(mean), torch.as_tensor(std))
    mixture = MixtureSameFamily(Categorical(torch.ones(mean.shape, dtype=torch.float64)), normals)
    found = model.predict(table[0], return_std=True)
    np.testing.assert_allclose(found[0], mixture.mean, rtol=1e-12)
    np.testing.assert_allclose(found[1], mixture.variance.sqrt(), rtol=1e-9)


def test_the_frame_agrees_with_the_methods(model, table):
    frame = model.predict_frame(pd.DataFrame(table[0], index=range(100, 180)).to_numpy())
    assert list(frame) == ["mean", "std", "epistemic", "aleatoric", "q05", "q50", "q95", "in_domain"]
    np.testing.assert_array_equal(frame["mean"], model.predict(table[0]))
    np.testing.assert_allclose(frame["std"] ** 2, frame["epistemic"] ** 2 + frame["aleatoric"] ** 2)
    np.testing.assert_allclose(frame[["q05", "q95"]], model.predict_interval(table[0], 0.9), rtol=1e-14)
    np.testing.assert_array_equal(frame["q50"], model.predict_quantiles(table[0], 0.5)[:, 0])
    assert frame["in_domain"].dtype == bool


def test_samples_have_the_mixtures_quantiles(model, table):
    draws = model.set_params(draws=2000).sample(table[0][:3], 2000)
    assert draws.shape == (2000, 3)
    levels = np.array([0.05, 0.5, 0.95])
    below = (draws[..., None] < model.predict_quantiles(table[0][:3], levels)).mean(0)
    model.set_params(draws=10)
    np.testing.assert_allclose(below, np.tile(levels, (3, 1)), atol=0.03)


def test_a_draw_without_noise_is_one_function_and_noise_belongs_to_the_place(model, table):
    x = table[0][[0, 1, 0, 1]]
    f, y = model.sample(x, 6, noise=False), model.sample(x, 6)
    np.testing.assert_array_equal(f[:, :2], f[:, 2:])
    assert np.abs(y[:, :2] - y[:, 2:]).min() > 0
    np.testing.assert_array_equal(y[:, :3], model.sample(x[:3], 6))
    networks = model.sample(x, 2, noise=False)  # one draw of each network
    assert len(np.unique(networks[:, 0])) == 2


@pytest.mark.parametrize("name", [None, *MODEL_NAMES])
def test_parts_and_companions_make_no_difference(name, table, monkeypatch):
    x, y = table
    model = FDNRegressor(**QUICK, model=name).fit(x, y)
    whole, draws = model.predict_frame(x), model.sample(x, 3)
    monkeypatch.setattr(regressor, "ROWS", 7)
    pd.testing.assert_frame_equal(model.predict_frame(x), whole, rtol=1e-12)
    np.testing.assert_allclose(model.sample(x, 3), draws, rtol=1e-12)
    pd.testing.assert_frame_equal(model.predict_frame(x[::-5]), whole[::-5].reset_index(drop=True), rtol=1e-12)


@pytest.mark.parametrize(("factor", "rtol"), [(2.0**20, 0), (2.0**-20, 0), (1e4, 1e-9)])
def test_standard_deviations_scale_as_the_targets_do(factor, rtol, model, table):
    x, y = table
    scaled = FDNRegressor(**QUICK).fit(x, factor * y)
    np.testing.assert_allclose(scaled.predict(x, return_std=True)[1], factor * model.predict(x, True)[1], rtol=rtol)
    np.testing.assert_allclose(scaled.predict(x), factor * model.predict(x), rtol=rtol)


def test_inputs_may_have_any_unit(model, table):
    x, y = table
    scaled = FDNRegressor(**QUICK).fit(x * 2.0 ** np.array([30, -30, 3]), y)
    np.testing.assert_array_equal(scaled.predict(x * 2.0 ** np.array([30, -30, 3])), model.predict(x))


# training


def test_each_target_has_the_model_it_would_have_alone(model, table):
    x, y = table
    both = FDNRegressor(**QUICK).fit(x, pd.DataFrame({"up": y, "down": -3 * y}))
    assert both.predict(x).shape == (80, 2) and both.predict_interval(x).shape == (80, 2, 2)
    assert both.sample(x, 4).shape == (4, 80, 2) and both.predict_quantiles(x, [0.1, 0.5, 0.9]).shape == (80, 3, 2)
    np.testing.assert_array_equal(both.predict(x)[:, 0], model.predict(x))
    frame = both.predict_frame(x)
    assert list(frame)[::7] == ["up_mean", "down_mean", "in_domain"]
    np.testing.assert_array_equal(frame["down_std"], both.predict(x, return_std=True)[1][:, 1])
    assert FDNRegressor(**QUICK).fit(x, y[:, None]).predict(x).shape == (80, 1)


def test_rows_without_weight_are_not_there_and_equal_weights_none(model, table):
    x, y = table
    extra = np.concatenate([x, 50 * np.ones((20, 3))]), np.concatenate([y, -1e6 * np.ones(20)])
    weighted = FDNRegressor(**QUICK).fit(*extra, sample_weight=np.repeat([2.0, 0.0], [80, 20]))
    pd.testing.assert_frame_equal(weighted.predict_frame(x), model.predict_frame(x), check_exact=True)


def test_heavier_rows_count_more():
    x = np.zeros((200, 1)) + np.linspace(-1, 1, 200)[:, None]
    y = np.tile([0.0, 10.0], 100)  # two answers everywhere
    settings = {**QUICK, "max_epochs": 40, "learning_rate": 0.02}
    found = [
        FDNRegressor(**settings).fit(x, y, sample_weight=w).predict(x).mean() for w in ([1, 9] * 100, [9, 1] * 100)
    ]
    assert found[0] > 7 and found[1] < 3


def test_given_validation_rows_choose_the_epoch_and_all_others_train(table):
    x, y = table
    given = FDNRegressor(**QUICK).fit(x[:60], y[:60], X_val=x[60:], y_val=y[60:])
    np.testing.assert_allclose(given.y_mean_, y[:60].mean())
    held = FDNRegressor(**QUICK).fit(x[:60], y[:60])
    assert not np.isclose(held.y_mean_[0], y[:60].mean(), rtol=1e-12)
    last = FDNRegressor(**QUICK, early_stopping=False).fit(x, y)
    assert last.best_epoch_.tolist() == [QUICK["max_epochs"]]
    np.testing.assert_allclose(last.y_mean_, y.mean())


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_few_rows_and_a_constant_target_are_enough(n):
    x = np.arange(n, dtype=float)[:, None]
    for y in (x[:, 0], np.full(n, 7.0)):
        frame = FDNRegressor(**QUICK).fit(x, y).predict_frame(x)
        assert np.isfinite(frame.drop(columns="in_domain")).all(axis=None) and frame["in_domain"].any()


def test_noise_is_learned_given_or_different_in_every_row():
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (400, 1))
    y = 1000 * (x[:, 0] + np.where(x[:, 0] > 0, 0.5, 0.05) * rng.standard_normal(400))
    settings = {**QUICK, "max_epochs": 40, "learning_rate": 0.01}
    far = np.array([[-0.5], [0.5]])
    given = FDNRegressor(**settings, observation_noise=70.0).fit(x, y).predict_frame(far)
    np.testing.assert_allclose(given["aleatoric"], 70)
    learned = FDNRegressor(**settings).fit(x, y).predict_frame(far)
    assert learned["aleatoric"].nunique() == 1 and 200 < learned["aleatoric"][0] < 600
    rowwise = FDNRegressor(**{**settings, "likelihood": "heteroscedastic"}).fit(x, y).predict_frame(far)
    assert rowwise["aleatoric"][0] < 250 < rowwise["aleatoric"][1]


def test_what_is_left_open_is_as_recommended(table):
    """Beta is chosen, which trains several networks."""
    x, y = table
    model = FDNRegressor(max_epochs=2, random_state=0).fit(x, y)
    [trained] = model.trained_
    assert trained.protocol.beta_max in BETAS and trained.spec == model_spec("LP-FDNet", 3, RECOMMENDED)
    same = {"epochs": 2, "most_updates": None, "beta_max": trained.protocol.beta_max}
    assert trained.protocol == replace(RECOMMENDED, **same)
    spec, protocol = FDNRegressor()._settings(100_000, 1.0)
    assert (protocol.epochs, protocol.most_updates, protocol.batch_size) == (300, 3000, 256)
    assert FDNRegressor(beta=0.1, model="BayesNet")._settings(50, 1.0)[1].beta_max == 0.1
    assert FDNRegressor(model="BayesNet")._settings(50, 1.0)[1].beta_max == 1 / 50


@pytest.mark.parametrize("x", [np.arange(10.0)[:, None], np.tile([[1.0], [2.0]], (15, 1))])
def test_beta_is_found_where_there_are_few_rows_or_none_further_out(x):
    model = FDNRegressor(**{**QUICK, "beta": "auto"}).fit(x, x[:, 0])
    assert model.trained_[0].protocol.beta_max in BETAS


def test_deep_networks_and_both_conditions_learn(table):
    x, y = table
    settings = {**QUICK, "max_epochs": 60, "hidden_layer_sizes": (12, 12), "learning_rate": 0.02}
    for condition in ("layer", "input"):
        model = FDNRegressor(**settings, condition=condition).fit(x, y)
        assert model.trained_[0].spec.hidden == (12, 12) and model.score(x, y) > 0.7


def test_the_random_state_decides(model, table):
    x, y = table
    np.testing.assert_array_equal(FDNRegressor(**QUICK).fit(x, y).predict(x), model.predict(x))
    other = FDNRegressor(**{**QUICK, "random_state": 1}).fit(x, y)
    assert np.abs(other.predict(x) - model.predict(x)).min() > 0


# the domain


@pytest.mark.parametrize("name", ["ccpp", "diabetes"])
def test_rows_of_the_band_are_inside_and_most_beyond_it_are_not(name):
    if not data.available(name):
        pytest.skip(f"the file of {name} is not here")
    tried = data.load(name)
    found = Domain.of(tried.x_train, 0)
    outside = found.far(tried.x_test) | found.beyond(tried.x_test).any(1)
    assert outside[tried.id_test].mean() < 0.05 and outside[~tried.id_test].mean() > (0.95 if name == "ccpp" else 0.3)


def test_a_new_combination_of_usual_values_is_outside_and_the_reason_is_said():
    rng = np.random.default_rng(0)
    t = rng.uniform(-1, 1, 1000)
    x = pd.DataFrame({"here": t, "there": t + 0.05 * rng.standard_normal(1000), "fixed": 7.0})
    model = FDNRegressor(**QUICK).fit(x, t)
    asked = pd.DataFrame({"here": [0, 0.9, 0, 3], "there": [0, -0.9, 0, 3], "fixed": [7, 7, 8, 7.0]})
    assert model.in_domain(asked).tolist() == [True, False, False, False]
    inside, combined, fixed, one = model.why_outside(asked)
    assert (inside, combined, fixed) == ("", "far from all training rows", "fixed is 8, above 7")
    assert one.startswith(("here is 3, above ", "there is 3, above "))
    assert model.in_domain(x).mean() > 0.97
    same = model.predict(asked.assign(fixed=9))
    np.testing.assert_array_equal(same, model.predict(asked))  # a column that told nothing tells nothing


def test_the_domain_keeps_no_training_row():
    x = np.random.default_rng(0).standard_normal((500, 4))
    found = Domain.of(x, 0)
    assert 5 < len(found.centres) <= 25
    assert domain._distance(x, found.centres).min() > 1e-6


# saved models


def test_a_fresh_process_predicts_the_same(model, table, tmp_path):
    """It imports everything."""
    model.save(tmp_path / "model")
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}
    np.save(tmp_path / "x.npy", table[0])
    program = f"""
import numpy as np
from fdn import FDNRegressor
model = FDNRegressor.load({str(tmp_path / "model")!r})
x = np.load({str(tmp_path / "x.npy")!r})
model.predict_frame(x).to_pickle({str(tmp_path / "frame.pkl")!r})
np.save({str(tmp_path / "sample.npy")!r}, model.sample(x, 3))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    pd.testing.assert_frame_equal(
        pd.read_pickle(tmp_path / "frame.pkl"), model.predict_frame(table[0]), check_exact=True
    )
    np.testing.assert_array_equal(np.load(tmp_path / "sample.npy"), model.sample(table[0], 3))


def test_all_that_was_learned_is_kept_and_no_row(table, tmp_path):
    x, y = table
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    model = FDNRegressor(**QUICK, model="BayesNet").fit(frame, np.column_stack([y, y**2]))
    model.save(tmp_path)
    kept = FDNRegressor.load(tmp_path)
    assert str(kept) == str(model) and kept.target_names_ == model.target_names_
    assert (
        kept.feature_names_in_.tolist() == ["a", "b", "c"] and kept.best_epoch_.tolist() == model.best_epoch_.tolist()
    )
    np.testing.assert_array_equal(kept.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        kept.predict(frame[["b", "a", "c"]])
    kept.save(tmp_path)  # over itself
    assert len(list(tmp_path.iterdir())) == 2
    long = FDNRegressor(**QUICK).fit(np.tile(x, (50, 1)), np.tile(y, 50))
    long.save(tmp_path / "long")
    short = FDNRegressor(**QUICK).fit(np.tile(x, (25, 1)), np.tile(y, 25))
    short.save(tmp_path / "short")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("long", "short")]
    assert sizes[0] < 1.2 * sizes[1], "what is kept grows with the rows"


def test_folders_that_hold_no_model_are_refused(model, tmp_path):
    with pytest.raises(UserError, match="is no folder of a saved model"):
        FDNRegressor.load(tmp_path)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="holds other things"):
        model.save(tmp_path)
    (tmp_path / "model.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="describes no model of this package"):
        FDNRegressor.load(tmp_path)
    kept = tmp_path / "kept"
    model.save(kept)
    described = json.loads((kept / "model.json").read_text(encoding="utf-8"))
    (kept / "model.json").write_text(json.dumps(described | {"version": 99}), encoding="utf-8")
    with pytest.raises(UserError, match="version 99 of the format, and this package reads 3"):
        FDNRegressor.load(kept)
    model.save(kept)
    (kept / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read"):
        FDNRegressor.load(kept)
    with pytest.raises(UserError, match="cannot be written"):
        model.save(tmp_path / "notes.txt" / "below")


# requests that cannot be carried out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"condition": "x"}, "condition is 'x'; expected one of layer, input"),
        ({"hidden_layer_sizes": (0,)}, "hidden"),
        ({"hyper": 1.5}, "hyper is 1.5"),
        ({"likelihood": "laplace"}, "likelihood is 'laplace'"),
        ({"observation_noise": 0}, "observation_noise is 0"),
        (
            {"observation_noise": 5, "likelihood": "heteroscedastic"},
            "noise of one size goes with likelihood='gaussian'",
        ),
        ({"beta": -1}, "beta is -1"),
        ({"members": "many"}, "members is 'many'"),
        ({"max_epochs": 0}, "max_epochs is 0"),
        ({"batch_size": None}, "batch_size is None"),
        ({"early_stopping": "no"}, "early_stopping is 'no'"),
        ({"validation_fraction": 1.0}, "validation_fraction is 1.0; expected a number above 0 and below 1"),
        ({"draws": 0}, "draws is 0"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"model": "LPFDNet"}, "unknown model 'LPFDNet'; did you mean 'LP-FDNet'"),
    ],
)
def test_settings_outside_their_range_are_answered_in_a_sentence(settings, said, table):
    with pytest.raises(UserError, match=said) as raised:
        FDNRegressor(**{**QUICK, **settings}).fit(*table)
    assert "\n" not in str(raised.value)


def test_requests_that_cannot_be_carried_out_are_answered_in_a_sentence(model, table):
    x, y = table
    for q in ([0, 0.5], 1.5, ["a"], None):
        with pytest.raises(UserError, match="expected a number above 0 and below 1"):
            model.predict_quantiles(x, q)
    with pytest.raises(UserError, match="coverage is 90; expected a number above 0 and below 1"):
        model.predict_interval(x, 90)
    with pytest.raises(UserError, match="n is 0"):
        model.sample(x, 0)
    with pytest.raises(UserError, match="X_val and y_val go together"):
        FDNRegressor(**QUICK).fit(x, y, X_val=x)
    with pytest.raises(UserError, match="1 rows have a weight above 0"):
        FDNRegressor(**QUICK).fit(x, y, sample_weight=np.eye(80)[0])
    with pytest.raises(UserError, match="column 2 has numbers of a size that cannot be standardised"):
        FDNRegressor(**QUICK).fit(x * [1, 1e300, 1], y)
