"""Training on one's own data: what the recommended protocol sets, and what it leaves to be chosen from the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

import fdn
from fdn.data.splits import feature_band_split
from fdn.protocol import RECOMMENDED
from fdn.training import recipe
from fdn.training.loop import fit
from fdn.training.objectives import beta_elbo, rate_at
from fdn.training.prediction import FACTORS, Prediction

SHORT = {"epochs": 4, "members": 2, "width": 6, "hyper": 2, "eval_draws": 8, "beta_max": 1e-3, "look": 1}


def _data(n: int = 120, seed: int = 0, columns: int = 3) -> fdn.Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, columns))
    return feature_band_split(x, x[:, 0] + 0.1 * rng.normal(size=n), name="rows")


def _fit(data: fdn.Dataset, seeds=(0,), model: str = "LP-FDNet", **changes) -> fdn.Fit:
    protocol = replace(RECOMMENDED, **(SHORT | changes))
    return fit(fdn.model_spec(model, data.n_features, protocol), data, protocol, seeds)


@pytest.mark.parametrize("updates", [2, 7, 100])
def test_one_cycle_is_that_of_pytorch(updates):
    parameter = torch.nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([parameter])
    expected = torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=0.3, total_steps=updates)
    for update in range(1, updates + 1):
        assert rate_at(update, updates, "one_cycle", 0.3) == pytest.approx(adam.param_groups[0]["lr"], rel=1e-9)
        adam.step()
        if update < updates:
            expected.step()
    assert rate_at(3, 9, "constant", 0.3) == 0.3


def test_weights_are_repetitions():
    likelihood = fdn.training.objectives.HomoscedasticGaussian()
    output, y = torch.randn(2, 3, 4, 1, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    counts = torch.tensor([3, 0, 1, 4])
    weight = (counts / counts.double().mean()).expand(2, 4)
    repeated = beta_elbo(output.repeat_interleave(counts, -2), y.repeat_interleave(counts, -1), None, 0.0, likelihood)
    torch.testing.assert_close(beta_elbo(output, y, None, 0.0, likelihood, weight), repeated)


def test_rows_of_weight_zero_do_not_teach():
    data = _data()
    weight = np.ones(len(data.y_train))
    weight[::3] = 0
    one = _fit(replace(data, weight_train=weight / weight.mean()))
    other = _fit(replace(data, weight_train=weight / weight.mean(), y_train=np.where(weight > 0, data.y_train, 1e3)))
    assert torch.equal(one.flat, other.flat)
    assert not torch.equal(one.flat, _fit(data).flat)
    assert torch.equal(_fit(replace(data, weight_train=np.ones(len(weight)))).flat, _fit(data).flat)


def test_a_learned_noise_is_one_number_for_all_inputs_and_moves():
    fitted = _fit(_data(), likelihood="learned", fit_observation_noise=False)
    noise = fitted.predict(0, np.linspace(-9, 9, 30).reshape(10, 3)).observation_variance
    each = noise.view(2, -1)  # two networks
    assert (each == each[:, :1]).all() and each[0, 0] != each[1, 0]
    start = (1e-3 + torch.nn.functional.softplus(torch.tensor(-1.0))) ** 2
    assert not torch.isclose(each[:, 0], start.to(each)).any()


def test_noise_factor_is_the_likeliest():
    rng = np.random.default_rng(0)
    draws, variance, y = rng.normal(size=(5, 40)), rng.uniform(0.1, 2, size=(5, 40)), rng.normal(size=40)
    found = Prediction(torch.tensor(draws), torch.tensor(variance)).observation_factor(torch.tensor(y))
    likelihood = [np.log(norm.pdf(y, draws, np.sqrt(f * variance)).mean(0)).sum() for f in FACTORS]
    assert found == FACTORS[int(np.argmax(likelihood))] and found not in FACTORS[[0, -1]]


def test_fitted_noise_is_in_predictions_and_outlives_a_restart():
    data = _data()
    fitted, plain = _fit(data, (3,)), _fit(data, (3,), fit_observation_noise=False)
    again = fdn.training.loop.restore(fitted.spec, data, fitted.protocol, (3,), fitted.flat.numpy(), fitted.scores)
    given = fdn.training.loop.restore(
        fitted.spec, replace(data, x_val=data.x_val[:0], y_val=data.y_val[:0], id_val=data.id_val[:0]), fitted.protocol,
        (3,), fitted.flat.numpy(), fitted.scores, observation_factor=fitted.observation_factor,
    )  # fmt: skip
    for found in (fitted, again, given):
        one, other = found.predict(3, data.x_test), plain.predict(3, data.x_test)
        assert torch.equal(one.draws, other.draws)
        torch.testing.assert_close(
            one.observation_variance, float(fitted.observation_factor[0]) * other.observation_variance
        )
    assert fitted.observation_factor[0] != 1


def test_networks_are_one_mixture_of_as_many_draws():
    fitted = _fit(_data(), members=3, eval_draws=9)
    assert fitted.predict(0, np.zeros((4, 3))).draws.shape == (9, 4)
    assert fitted.flat.shape[:2] == (1, 3) and not torch.equal(fitted.flat[0, 0], fitted.flat[0, 1])
    assert fitted.scores.shape == (1, 4)  # not epochs / networks, as an ensemble's


def test_patience_ends_a_seed_and_changes_no_other():
    data, changes = _data(), {"epochs": 40, "learning_rate": 0.05, "members": 1}
    full = _fit(data, (0, 1), **changes)
    short = _fit(data, (0, 1), **changes, patience=3)
    alone = _fit(data, (1,), **changes, patience=3)
    assert np.isnan(short.scores).any() and torch.equal(short.flat[1], alone.flat[0])
    for r in (0, 1):
        seen = short.scores[r][np.isfinite(short.scores[r])]
        np.testing.assert_array_equal(seen, full.scores[r][: len(seen)])
        best = int(short.best_epoch[r])
        assert best == np.argmin(seen) + 1 and (len(seen) == best + 3 or len(seen) == 40)


def test_looks_are_at_some_epochs_and_the_last():
    data = _data()
    every, some = _fit(data, epochs=7, look=1), _fit(data, epochs=7, look=3)
    assert np.flatnonzero(np.isfinite(some.scores[0])).tolist() == [2, 5, 6]
    assert some.best_epoch[0] in (3, 6, 7) and np.isfinite(every.scores).all()


def test_updates_bound_the_epochs():
    data = _data(200)  # 72 training rows: two batches
    assert _fit(data, epochs=10, most_updates=6).scores.shape == (1, 5)


def test_a_beta_for_each_seed_is_the_run_with_that_beta():
    data = _data()
    protocol = replace(RECOMMENDED, **SHORT, dtype="float64")
    spec = fdn.model_spec("LP-FDNet", data.n_features, protocol)
    together = fit(spec, data, protocol, (4, 5), betas=(0.5, 1e-3))
    for seed, beta in ((4, 0.5), (5, 1e-3)):
        alone = fit(spec, data, replace(protocol, beta_max=beta), (seed,))
        torch.testing.assert_close(together.flat[seed - 4], alone.flat[0])


def test_the_iwae_bound_refuses_weights_and_betas():
    data = _data()
    weighted = replace(data, weight_train=np.ones(len(data.y_train)))
    protocol = replace(RECOMMENDED, **SHORT, objective="iwae", noise="shared")
    spec = fdn.model_spec("LP-FDNet", data.n_features, protocol)
    for given, betas in ((weighted, None), (data, (1e-3,))):
        with pytest.raises(fdn.errors.UserError, match="takes neither weights of the rows nor betas"):
            fit(spec, given, protocol, (0,), betas=betas)


def test_a_rehearsal_is_made_of_training_and_validation_rows_and_its_outer_rows_are_outside():
    data = _data(900)
    task = recipe.rehearsal(data)
    known = {tuple(row) for row in np.concatenate([data.x_train, data.x_val])}
    rows = [tuple(row) for part in (task.x_train, task.x_val, task.x_test) for row in part]
    assert len(set(rows)) == len(rows) and set(rows) == known  # each once, and no test row
    inner = np.abs(np.concatenate([task.x_train[:, 0], task.x_val[:, 0], task.x_test[task.id_test, 0]]))
    low, high = np.quantile(np.concatenate([data.x_train, data.x_val])[:, 0], [0.1, 0.9])
    outer = task.x_test[~task.id_test, 0]
    assert ((outer < low) | (outer > high)).all() and len(outer) == pytest.approx(0.2 * len(rows), abs=2)
    assert inner.max() < np.abs(outer).max()


def test_rows_that_lie_equally_far_are_all_outside_or_none():
    data = _data(400)
    steps = replace(data, x_train=np.round(data.x_train), x_val=np.round(data.x_val))
    task = recipe.rehearsal(steps)
    inside = set(np.concatenate([task.x_train[:, 0], task.x_test[task.id_test, 0]]))
    assert not inside & set(task.x_test[~task.id_test, 0])


def test_the_chosen_beta_has_the_least_product_of_scores(monkeypatch):
    scores = {"inside": [1.0, 0.5, 0.9], "outside": [1.0, 1.5, 0.9]}
    frame = recipe.pd.DataFrame(scores, index=[0.1, 0.2, 0.3])
    monkeypatch.setattr(recipe, "rehearsed", lambda *args: frame)
    assert recipe.chosen(None, None, RECOMMENDED).beta_max == 0.2  # 0.75 of 1, 0.75, 0.81


def test_few_rows_of_pure_noise_are_given_a_larger_beta_than_many_of_a_function():
    """Two rehearsals of some seconds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    noise = feature_band_split(x, rng.normal(size=400), name="noise")
    function = feature_band_split(x, np.sin(2 * x[:, 0]) + x[:, 1], name="function")
    protocol = replace(RECOMMENDED, epochs=120, width=16)
    spec = fdn.model_spec("LP-FDNet", 2, protocol)
    found = [recipe.chosen(spec, data, protocol).beta_max for data in (noise, function)]
    assert found[0] > found[1]
