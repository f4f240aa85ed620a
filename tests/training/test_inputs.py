"""What a person passes to `fit` and `predict`: numbers of the right shape in whatever holds them, or a sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from small_models import SMALL, small, toy2

from fdn import data
from fdn.errors import UserError
from fdn.models import MODEL_NAMES, initial_network
from fdn.protocol import AS_WRITTEN, PUBLISHED
from fdn.runs import experiment
from fdn.timing.plain import plain_fit
from fdn.training.loop import Fit, fit
from fdn.training.prediction import as_numbers

CHANGES = SMALL | {"epochs": 2, "batch_size": 16}
PROTOCOLS = replace(PUBLISHED, **CHANGES), replace(AS_WRITTEN, **CHANGES, dtype="float32")


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    return toy2(40)


@pytest.fixture(scope="module")
def trained(dataset) -> dict[tuple[str, str], Fit]:
    """Every model under both protocols."""
    return {(name, p.base): fit(small(name), dataset, p, [0, 3]) for name in MODEL_NAMES for p in PROTOCOLS}


@pytest.mark.parametrize("protocol", ["published", "as_written"])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_predict_takes_its_number_of_columns_and_nothing_else(name, protocol, trained):
    model = trained[name, protocol]
    for shape in ((9, 1), (9, 3), (9,), (2,), (1, 9, 2), (), (0,), (0, 3)):
        with pytest.raises(UserError, match=r"x has shape \(.*\); expected \(N, 2\)"):
            model.predict(0, np.zeros(shape))
        with pytest.raises(UserError, match=r"x has shape \(.*\); expected \(N, 2\)"):
            model.predict(0, torch.zeros(shape))


@pytest.mark.parametrize("protocol", ["published", "as_written"])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_no_rows_in_no_rows_out(name, protocol, trained):
    model = trained[name, protocol]
    draws = len(model.predict(0, np.zeros((3, 2))).draws)
    prediction = model.predict(0, np.empty((0, 2)))
    assert prediction.draws.shape == prediction.observation_variance.shape == (draws, 0)
    for moment in (prediction.mean, prediction.variance, prediction.epistemic, prediction.aleatoric):
        assert moment.shape == (0,)


@pytest.mark.parametrize("protocol", ["published", "as_written"])
@pytest.mark.parametrize("name", ["MLPDropoutNet", "LP-FDNet"])
def test_equal_numbers_give_equal_predictions_whatever_holds_them(name, protocol, trained):
    model, x = trained[name, protocol], np.random.default_rng(1).integers(-9, 9, (5, 2)) / 8  # in float32 too
    expected = model.predict(0, x).draws
    frozen, wide = x.copy(), np.zeros((10, 4))
    frozen.flags.writeable = False
    wide[::2, 1:3] = x
    for same in (
        pd.DataFrame(x, columns=model.feature_names), pd.DataFrame(x).convert_dtypes(), x.tolist(),
        x[::-1].copy()[::-1],
        np.asfortranarray(x), wide[::2, 1:3], frozen, x.astype(object), x.astype(np.longdouble), x.astype(np.float32),
        np.ma.masked_array(x), torch.tensor(x, requires_grad=True), torch.tensor(x).T.contiguous().T,
        torch.tensor(x).float(),
    ):  # fmt: skip
        for seed in (0, np.int64(0), torch.tensor(0)):
            assert torch.equal(model.predict(seed, same).draws, expected)
    assert torch.equal(model.predict(0, np.array([[1, 0]])).draws, model.predict(0, [[True, False]]).draws)


def test_columns_of_other_names_or_in_another_order_are_refused(trained):
    model, x = trained["MLPNet", "published"], np.ones((3, 2))
    a, b = model.feature_names
    for columns in ([b, a], [a, "another"], [a, 0]):
        with pytest.raises(UserError, match=f"x has the columns {columns[0]}, {columns[1]}; trained on {a}, {b}"):
            model.predict(0, pd.DataFrame(x, columns=columns))


def test_what_is_no_number_is_refused(trained):
    model = trained["MLPNet", "published"]
    for x, message in (
        (pd.DataFrame({"x0": ["u"], "x1": [1.0]}), "x is a DataFrame of object values; expected numbers of shape"),
        ([["1", "2"]], "x is a list of <U1 values"),
        ([[1, 2], [3]], "x is a list of object values"),
        (np.zeros((3, 2), complex), "x is a ndarray of complex128 values"),
        (np.zeros((3, 2), "datetime64[s]"), "x is a ndarray of datetime64"),
        (None, "x is a NoneType of object values"),
        ([[10**400, 1]], "x is a list of object values"),
        (torch.eye(2).to_sparse(), "x is a Tensor of object values"),
        (torch.zeros(3, 2, device="meta"), "x is a Tensor of object values"),
        (torch.zeros(3, 2, dtype=torch.complex64), "x is a Tensor of complex64 values"),
        ("step", "x is a str"),
        ([[0.0, 1.0], [2.0, np.nan]], r"x is nan at \(1, 1\); expected finite numbers"),
        ([[np.inf, 1.0]], r"x is inf at \(0, 0\)"),
        (np.ma.masked_array(np.ones((2, 2)), [[False, False], [True, False]]), r"x is nan at \(1, 0\)"),
        (pd.DataFrame({"x0": [1, None], "x1": [1, 2]}).convert_dtypes(), "x is a DataFrame of object values"),
    ):
        with pytest.raises(UserError, match=message):
            model.predict(0, x)
    with pytest.raises(UserError, match=r"x is inf at \(0, 1\)"):  # of the protocol's type
        trained["MLPNet", "as_written"].predict(0, [[1.0, 1e300]])
    with pytest.raises(UserError, match=r"x has shape \(3,\); expected \(N, 1\): use reshape\(-1, 1\)"):
        as_numbers(np.zeros(3), "x", 1)
    with pytest.raises(UserError, match=r"x has shape \(2,\); expected \(N, 2\): use reshape\(1, -1\)"):
        as_numbers(np.zeros(2), "x", 2)
    with pytest.raises(UserError, match=r"y has shape \(3, 1\); expected \(N,\)"):
        as_numbers(np.zeros((3, 1)), "y", None)


def test_seeds_members_and_draws_that_there_are_not(trained):
    model, x = trained["LP-FDNet", "published"], np.zeros((1, 2))
    for seed in (7, -1, True, 0.0, "0", None):
        with pytest.raises(UserError, match=r"LP-FDNet was not trained on toy2 with seed .*; seeds are 0, 3"):
            model.predict(seed, x)
        with pytest.raises(UserError, match="was not trained"):
            model.network(seed)
    for draws in (0, -1, True, 2.0, "5"):
        with pytest.raises(UserError, match=f"draws is {draws!r}; expected a whole number from 1"):
            model.predict(0, x, draws)
    assert len(model.predict(0, x, 1).draws) == 1 and len(model.predict(0, x).draws) == 7
    ensemble = trained["DeepEnsembleNet", "published"]
    assert not torch.equal(*(next(ensemble.network(0, m).parameters()) for m in (0, 1)))
    for network, member in ((ensemble, 2), (ensemble, -1), (model, 1), (model, True)):
        with pytest.raises(UserError, match=rf"has no member {member}; it has \d, counted from 0"):
            network.network(0, member)


NO_SEEDS = [[], (), [1, 1], [0, -1], [True], [0.0], ["0"], "0:3", 3, None, np.array([[1, 2]]), [None]]


@pytest.mark.parametrize("seeds", NO_SEEDS)
def test_seeds_that_are_none_are_refused(seeds, dataset, tmp_path):
    with pytest.raises(UserError, match="seeds are .*; expected one or more different integers of at least 0"):
        fit(small("MLPNet"), dataset, PROTOCOLS[0], seeds)
    with pytest.raises(UserError, match="seeds are .*; expected one or more different integers of at least 0"):
        experiment.run([dataset], ["MLPNet"], seeds, PROTOCOLS[0], tmp_path)


def test_seeds_may_come_as_any_integers(dataset):
    expected = fit(small("MLPNet"), dataset, PROTOCOLS[0], [4, 2])
    for seeds in (range(4, 0, -2), np.array([4, 2]), (s for s in (4, 2))):
        found = fit(small("MLPNet"), dataset, PROTOCOLS[0], seeds)
        assert found.seeds == (4, 2) and torch.equal(found.flat, expected.flat)


def test_arguments_of_another_type_are_named(dataset):
    spec, protocol = small("MLPNet"), PROTOCOLS[0]
    for arguments, message in (
        (("MLPNet", dataset, protocol), "spec is 'MLPNet'; expected a ModelSpec of fdn.models"),
        ((spec, "step", protocol), "dataset is 'step'; expected a Dataset of fdn.data.dataset"),
        ((spec, dataset, "published"), "protocol is 'published'; expected a Protocol of fdn.protocol"),
    ):
        with pytest.raises(UserError, match=message):
            fit(*arguments, [0])


def test_data_that_cannot_be_trained_on_are_named(dataset):
    empty = {"x_train": dataset.x_train[:0], "y_train": dataset.y_train[:0]}
    for changes, message in (
        (empty, "toy2 has no training points"),
        ({"id_val": np.zeros_like(dataset.id_val)}, "toy2 has no ID validation points"),
        ({"y_train": np.full_like(dataset.y_train, np.nan)}, r"y_train of toy2 is nan at \(0,\)"),
        ({"x_val": np.full_like(dataset.x_val, np.inf)}, r"x_val of toy2 is inf at \(0, 0\)"),
    ):
        with pytest.raises(UserError, match=message):
            fit(small("MLPNet"), replace(dataset, **changes), PROTOCOLS[0], [0])
    backwards = replace(dataset, x_train=dataset.x_train[::-1].copy()[::-1], y_train=dataset.y_train[::-1].copy()[::-1])
    expected = fit(small("LP-FDNet"), dataset, PROTOCOLS[0], [0])
    assert torch.equal(fit(small("LP-FDNet"), backwards, PROTOCOLS[0], [0]).flat, expected.flat)


def test_the_plain_program_takes_the_same_inputs(dataset):
    plain = plain_fit(small("BayesNet"), dataset, PROTOCOLS[0], 0)
    assert plain.predict(pd.DataFrame(dataset.x_test)).shape == (7, len(dataset.x_test))
    assert plain.predict(np.empty((0, 2))).shape == (7, 0)
    with pytest.raises(UserError, match="x has shape"):
        plain.predict(dataset.x_test[:, :1])


def test_a_start_leaves_the_random_numbers_of_gpus_alone(monkeypatch):
    def fail(seed):
        raise AssertionError(f"seeded the GPUs with {seed}")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", fail)
    initial_network(small("BayesNet"), "step", 1, PUBLISHED, 0)
    initial_network(small("BayesNet"), "step", 1, replace(PUBLISHED, initialisation="published"), 0)


def test_the_mixture_of_no_rows_has_no_rows(trained):
    mixture = trained["LP-FDNet", "published"].predict(0, np.empty((0, 2))).mixture()
    assert mixture.mean.shape == mixture.sample().shape == (0,)
    assert mixture.log_prob(torch.empty(0, dtype=torch.float64)).shape == (0,)
