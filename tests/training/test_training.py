"""Stacked training: independence of seeds, clipping, data orders and checkpoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import SMALL, small, toy2

from fdn import data, metrics
from fdn.data.dataset import Dataset
from fdn.models import MODEL_NAMES, ModelSpec
from fdn.protocol import AS_WRITTEN, PUBLISHED, get_protocol
from fdn.streams import Streams, seed_sequence
from fdn.training.loop import fit, restore
from fdn.training.objectives import HeteroscedasticGaussian
from fdn.training.prediction import Prediction

CHANGES = SMALL | {"epochs": 4}
PROTOCOLS = [replace(PUBLISHED, **CHANGES), replace(AS_WRITTEN, **CHANGES)]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """100 training points, in batches of 64 and 36."""
    return toy2(100)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.base)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_seed_alone_equals_the_seed_in_a_block(dataset, name, protocol):
    block = fit(small(name), dataset, protocol, [5, 3, 9])
    alone = fit(small(name), dataset, protocol, [3])
    assert block.best_epoch[1] == alone.best_epoch[0]
    np.testing.assert_allclose(alone.scores[0], block.scores[1], rtol=1e-10)
    torch.testing.assert_close(alone.flat[0], block.flat[1], rtol=1e-10, atol=1e-12)
    ours, theirs = (f.predict(3, dataset.x_test).draws for f in (alone, block))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_trained_network_is_an_ordinary_module_with_the_kept_parameters(dataset):
    trained = fit(small("LP-FDNet"), dataset, replace(PUBLISHED, **CHANGES), [4, 8])
    extracted = torch.nn.utils.parameters_to_vector(trained.network(8).parameters())
    assert torch.equal(extracted, trained.flat[1])


def test_the_kept_epoch_has_the_smallest_validation_score_over_id_points(dataset):
    trained = fit(small("IC-FDNet"), dataset, replace(PUBLISHED, **CHANGES), [0, 1])
    assert list(trained.best_epoch) == [int(s.argmin()) + 1 for s in trained.scores]
    moved = dataset.x_val.copy(), dataset.y_val.copy()
    extra = [np.concatenate([moved[0], moved[0] + 9]), np.concatenate([moved[1], moved[1] + 99])]
    flags = np.concatenate([dataset.id_val, np.zeros_like(dataset.id_val)])
    padded = replace(dataset, x_val=extra[0], y_val=extra[1], id_val=flags)  # OOD validation points decide nothing
    again = fit(small("IC-FDNet"), padded, replace(PUBLISHED, **CHANGES), [0, 1])
    np.testing.assert_array_equal(trained.scores, again.scores)


def test_deterministic_models_are_chosen_by_mse(dataset):
    trained = fit(small("MLPNet"), dataset, replace(PUBLISHED, **CHANGES), [0])
    draws = trained.predict(0, dataset.x_val).draws.numpy()
    assert trained.scores.min() == pytest.approx(metrics.mse(draws, dataset.y_val).mean())


def test_ensemble_members_share_minibatches_or_have_their_own(dataset):
    """Members that start equal stay equal on common minibatches without dropout, and part on their own."""
    import fdn.training.loop as training

    protocol = replace(PUBLISHED, **CHANGES, ensemble_dropout=0.0)
    original = training._stack

    def equal_members(*args):
        stack = original(*args)
        stack.flat = stack.flat[:, :1].repeat(1, 2, 1)
        return stack

    training._stack = equal_members
    try:
        common = fit(small("DeepEnsembleNet"), dataset, protocol, [0])
        own = fit(small("DeepEnsembleNet"), dataset, replace(protocol, ensemble_order="own"), [0])
    finally:
        training._stack = original
    assert torch.equal(common.flat[0, 0], common.flat[0, 1])
    assert not torch.equal(own.flat[0, 0], own.flat[0, 1])


def test_ensemble_epochs_are_divided_by_the_members_and_draws_are_the_members(dataset):
    trained = fit(small("DeepEnsembleNet"), dataset, replace(PUBLISHED, **CHANGES), [0])
    assert trained.scores.shape == (1, 2)
    assert trained.predict(0, dataset.x_test).draws.shape == (2, len(dataset.x_test))


@pytest.mark.parametrize("draws", [1, 5])
@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_iwae_trains_every_model(dataset, draws, noise):
    protocol = replace(PUBLISHED, **CHANGES, objective="iwae", train_draws=draws, noise=noise)
    for name in ("MLPNet", "BayesNet", "GaussHyperNet", "IC-FDNet", "LP-FDNet"):
        first = fit(small(name), dataset, replace(protocol, epochs=1), [0])
        later = fit(small(name), dataset, replace(protocol, epochs=25, learning_rate=1e-2), [0])
        assert later.scores.min() < first.scores.min()


def test_heteroscedastic_head_finds_the_noise():
    """Noise of standard deviation 0.5 on a line: the aleatoric part of the variance is near 0.25."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (2000, 1))
    noisy = data.feature_band_split(x, x[:, 0] + 0.5 * rng.standard_normal(2000), name="noisy")
    protocol = replace(PUBLISHED, epochs=30, learning_rate=1e-2)
    trained = fit(ModelSpec("MLPNet", (8,)), noisy, protocol, [0], likelihood=HeteroscedasticGaussian())
    prediction = trained.predict(0, noisy.x_test[noisy.id_test])
    assert prediction.aleatoric.mean().item() * noisy.y_std**2 == pytest.approx(0.25, rel=0.15)
    assert prediction.epistemic.max() == 0


def test_clipping_is_per_network(dataset):
    """A large loss of one seed must not shrink another's step: Adam's first step has the same size for both."""
    protocol = replace(PUBLISHED, **CHANGES, clip_norm=1e-3)
    block, alone = fit(small("BayesNet"), dataset, protocol, [0, 1]), fit(small("BayesNet"), dataset, protocol, [1])
    torch.testing.assert_close(block.flat[1], alone.flat[0])
    loose = fit(small("BayesNet"), dataset, replace(protocol, clip_norm=None), [0, 1])
    assert not torch.allclose(block.flat, loose.flat)


def test_diverged_training_is_reported_not_kept(dataset):
    protocol = replace(PUBLISHED, **CHANGES, learning_rate=1e300)
    assert list(fit(small("MLPNet"), dataset, protocol, [0]).best_epoch) == [0]


def test_float32(dataset):
    trained = fit(small("LP-FDNet"), dataset, get_protocol("published", **CHANGES, dtype="float32"), [0])
    assert trained.flat.dtype == torch.float32 and np.isfinite(trained.scores).all()
    double = fit(small("LP-FDNet"), dataset, replace(PUBLISHED, **CHANGES), [0])
    assert double.flat.dtype == torch.float64


def test_global_random_state_is_left_alone(dataset):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    fit(small("LP-FDNet"), dataset, replace(PUBLISHED, **CHANGES), [0])
    assert torch.equal(torch.rand(3), expected)


def test_streams_serve_the_same_numbers_whoever_else_is_served():
    roots = [seed_sequence("d", "m", s, "train") for s in range(3)]
    together, alone = Streams(roots, (3,), torch.float64), Streams(roots[1:2], (), torch.float64)
    for shape in [(3,), (2, 4), (Streams.BLOCK + 1,), (5,), (Streams.BLOCK - 3,), (9,)]:
        assert torch.equal(together.normal(*shape)[1], alone.normal(*shape))
    assert torch.equal(together.keep(0.1, 5, 7)[1], alone.keep(0.1, 5, 7))
    assert torch.equal(together.permutations(10)[1], alone.permutations(10))
    many = alone.keep(0.1, 1_000_000).double().mean().item()
    assert many == pytest.approx(0.9, abs=5 * 0.3 / 1000)


def test_streams_differ_by_dataset_model_seed_purpose_and_member():
    base = ("step", "BayesNet", 0, "train", 0)
    others = [("sine", *base[1:]), ("step", "LP-FDNet", 0, "train", 0), ("step", "BayesNet", 1, "train", 0)]
    others += [("step", "BayesNet", 0, "test", 0), ("step", "BayesNet", 0, "train", 1)]
    first = Streams([seed_sequence(*base)], (), torch.float64).normal(4)
    for other in others:
        assert not torch.equal(first, Streams([seed_sequence(*other)], (), torch.float64).normal(4))


def test_shared_draw_is_one_function_over_any_number_of_points(dataset):
    """Predicting points in one call or as part of a larger set gives the same draws under shared noise."""
    trained = fit(small("LP-FDNet"), dataset, replace(PUBLISHED, **CHANGES), [0])
    many = trained.predict(0, np.tile(dataset.x_test, (200, 1))).draws
    torch.testing.assert_close(trained.predict(0, dataset.x_test).draws, many[:, : len(dataset.x_test)])
    torch.testing.assert_close(many[:, : len(dataset.x_test)], many[:, -len(dataset.x_test) :])


def test_prediction_decomposes_the_variance_and_is_a_mixture():
    torch.manual_seed(0)
    draws, noise = torch.randn(50, 3, dtype=torch.float64), torch.rand(50, 3, dtype=torch.float64)
    prediction = Prediction(draws, noise)
    mixture = prediction.mixture()
    torch.testing.assert_close(mixture.mean, prediction.mean)
    torch.testing.assert_close(mixture.variance, prediction.variance)
    torch.testing.assert_close(prediction.variance, prediction.aleatoric + prediction.epistemic)
    y = np.array([0.1, -2.0, 3.0])
    constant = Prediction(draws, torch.full_like(draws, 0.5)).mixture()
    np.testing.assert_allclose(-constant.log_prob(torch.as_tensor(y)), metrics.nll(draws.numpy(), y, 0.5))


@pytest.mark.parametrize("name", ["LP-FDNet", "DeepEnsembleNet"])
def test_the_last_epoch_can_be_kept_and_is_where_training_ends(dataset, name):
    protocol = replace(PUBLISHED, **SMALL, epochs=40, learning_rate=0.2)
    best, last = (fit(small(name), dataset, replace(protocol, keep=keep), [0, 3]) for keep in ("best", "last"))
    np.testing.assert_array_equal(best.scores, last.scores)  # the same training
    epochs = best.scores.shape[1]
    assert list(last.best_epoch) == [epochs] * 2 and min(best.best_epoch) < epochs
    until_best = int(best.best_epoch[0]) * small(name).members
    ends = fit(small(name), dataset, replace(protocol, epochs=until_best, keep="last"), [0])
    np.testing.assert_array_equal(ends.flat[0], best.flat[0])  # it ends where the best epoch was
    again = restore(last.spec, dataset, last.protocol, [0, 3], last.flat.numpy(), last.scores)
    assert list(again.best_epoch) == [epochs] * 2


def test_the_last_epoch_kept_is_one_with_a_finite_score(dataset):
    spec, protocol = small("MLPNet"), replace(PUBLISHED, keep="last")
    scores = np.array([[3.0, 2.0, np.nan], [np.nan] * 3, [1.0, np.inf, 4.0]])
    flat = np.zeros((3, fit(spec, dataset, replace(protocol, epochs=1), [0]).flat.shape[1]))
    assert list(restore(spec, dataset, protocol, [0, 1, 2], flat, scores).best_epoch) == [2, 0, 3]
    assert list(restore(spec, dataset, PUBLISHED, [0, 1, 2], flat, scores).best_epoch) == [2, 0, 1]
