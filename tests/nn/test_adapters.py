"""FDN layers in other people's models: what a stranger tries with fdn.nn, and the study of fdn.runs.adapters."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fdn import data, metrics
from fdn.cli import main
from fdn.errors import UserError
from fdn.nn import elbo_loss, forward, sample, to_fdn
from fdn.report import layers as report
from fdn.runs import adapters, digits
from fdn.runs.adapters import PLAIN, VARIANTS, Fitted


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def trained_names(model: nn.Module) -> set[str]:
    return {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad}


# fdn.nn, as a stranger uses it


def test_layers_of_two_kinds_are_made_in_two_calls_and_both_are_trained():
    once = to_fdn(network(), "4", freeze="others")
    twice = to_fdn(once, "2", freeze="others", structure="low_rank", rank=2, residual=True)
    assert trained_names(once) == {"4"} and trained_names(twice) == {"2", "4"}
    assert not any(p.requires_grad for p in twice[2].posterior.base.parameters())


def test_what_was_frozen_before_stays_frozen():
    once = to_fdn(network(), "4").requires_grad_(False)
    assert trained_names(to_fdn(once, "2", freeze="others")) == {"2"}


def test_a_lone_layer_is_exchanged_with_its_ordinary_weights_frozen():
    made = to_fdn(nn.Linear(4, 3), freeze="others", structure="low_rank", rank=1, residual=True)
    frozen = {name for name, p in made.named_parameters() if not p.requires_grad}
    assert frozen == {"posterior.base.weight", "posterior.base.bias"}


@pytest.mark.parametrize("layers", [4, [4], [], (), [None]])
def test_layers_are_named_in_words(layers):
    with pytest.raises(UserError, match=r"layers is .*expected names of the model's layers, such as '4'"):
        to_fdn(network(), layers)


def test_a_negative_beta_is_refused():
    with pytest.raises(UserError, match="beta is -1.0; expected a number"):
        elbo_loss(torch.ones(2), torch.ones(2), 10, beta=-1.0)


@pytest.mark.parametrize("call", [forward, sample])
def test_a_number_is_no_generator(call):
    with pytest.raises(UserError, match=r"generator is 0; expected .*Generator"):
        call(to_fdn(network()), torch.randn(4, 3), generator=0)


# The study


def test_error_of_calibration_is_that_of_a_hand_count():
    """Bins of ten: two points of confidence 0.95, one right; one of 0.65, right; one of 0.6, on an edge, wrong."""
    p = torch.tensor([[0.95, 0.05], [0.05, 0.95], [0.65, 0.35], [0.6, 0.4]], dtype=torch.float64)
    found = digits.expected_calibration_error(p, torch.tensor([0, 0, 0, 1]), bins=10)
    assert found == pytest.approx((2 * abs(0.5 - 0.95) + (1 - 0.65) + 0.6) / 4, abs=1e-6)
    sure = nn.functional.one_hot(torch.arange(3)).float()
    assert digits.expected_calibration_error(sure, torch.arange(3)) == 0


def test_observation_noise_is_the_residual_variance_or_the_best_of_the_mixtures():
    draws, y = torch.randn(7, 20, 1, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    _, variance = adapters.observation_noise(draws[:1], y)
    assert variance == pytest.approx(float((draws[0, :, 0] - y).square().mean()))
    nll, variance = adapters.observation_noise(draws, y)
    found = [metrics.nll(draws[..., 0].numpy(), y.numpy(), v).mean() for v in adapters.VARIANCES]
    assert (nll, variance) == (pytest.approx(min(found)), pytest.approx(adapters.VARIANCES[np.argmin(found)]))


def test_training_ends_at_the_best_look_which_may_be_the_first():
    """Loads scikit-learn if it is the first to do so."""
    task = adapters.table_task(data.load("diabetes"))
    net = task.network(0.0)
    best = adapters.train(task, net, 5, draws=1)
    assert task.score(sample(net, task.x_val, 1), task.y_val)[0] == pytest.approx(best)
    before = {name: p.clone() for name, p in net.named_parameters()}
    worse = adapters.Task(**(vars(task) | {"nll": lambda *given: -task.nll(*given)}))
    adapters.train(worse, net, 5, draws=1)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())


SMALL = {name: adapters.Variant(["9"], {"hyper": 2}) for name in ("a", "b")}


@pytest.fixture(scope="module")
def short() -> pd.DataFrame:
    return adapters.study(adapters.table_task(data.load("diabetes"), 1, SMALL), [0, 1])


def test_a_seed_has_its_numbers_whatever_else_is_computed(short):
    task = adapters.table_task(data.load("diabetes"), 1, {"b": SMALL["b"]})
    torch.manual_seed(5)
    alone = adapters.study(task, [1]).drop(columns="seconds")
    both = short[(short["seed"] == 1) & short["method"].isin(alone["method"])].drop(columns="seconds")
    pd.testing.assert_frame_equal(alone, both.reset_index(drop=True), check_exact=True)


def test_the_metrics_of_the_plain_network_are_those_of_a_normal_distribution(short):
    dataset = data.load("diabetes")
    net = adapters.perceptron(10)
    rows = adapters.measure(dataset, Fitted([net], 1, number=0.5))
    with torch.no_grad():
        f = net(torch.tensor(dataset.x_test, dtype=torch.float32)).squeeze(-1).numpy()
    for row, chosen in zip(rows, (dataset.id_test, ~dataset.id_test)):
        apart = (f - dataset.y_test)[chosen]
        assert row["rmse"] == pytest.approx(np.sqrt(np.square(apart).mean()), rel=1e-5)
        nll = 0.5 * (np.square(apart) / 0.5 + np.log(2 * np.pi * 0.5)).mean()
        assert row["nll"] == pytest.approx(nll, rel=1e-5)
        assert row["width_90"] == pytest.approx(2 * 1.645 * np.sqrt(0.5), rel=0.1)


def test_digits_are_measured_at_every_angle(monkeypatch):
    monkeypatch.setattr(digits, "ANGLES", (0, 90))
    task, net = digits.digits_task(), digits.classifier(0.5)
    assert (len(task.x), len(task.x_val), len(digits.load()["test"][1])) == (1078, 359, 360)
    upright, turned = digits.measure(Fitted([net, digits.classifier()], 1))
    assert upright["angle"] == 0 and turned["angle"] == 90 and upright["nll"] != turned["nll"]
    assert upright["nll"] == upright["nll_tempered"] and 0 <= upright["ece"] <= 1
    for variant in digits.VARIANTS.values():
        made = to_fdn(digits.classifier(), variant.layers, freeze="others", **variant.options)
        assert trained_names(made) == set(variant.layers)


def test_sentences_name_what_is_better_and_what_is_worse():
    rows = [
        {"dataset": "x", "method": method, "seed": seed, "region": region, "rmse": value + 0.01 * seed * (seed % 2)}
        for method, inside, outside in ((PLAIN, 1.0, 1.0), ("FDN, a", 0.5, 2.0), ("MC dropout", 1.0, 1.0))
        for region, value in (("id", inside), ("ood", outside)) for seed in range(4)
    ]  # fmt: skip
    said = report.verdicts(pd.DataFrame(rows), ["rmse"])
    assert said == [
        f"**FDN, a**, beside the {PLAIN}: worse: RMSE (OOD); better: RMSE (ID).",
        "Of these 2 intervals 2 leave 0 out; if nothing differed, about 0.1 would.",
    ]
    mean, half = report.mean_and_half(np.array([1.0, 2.0, 3.0]))
    assert (mean, half) == (2, pytest.approx(4.302653 / np.sqrt(3), rel=1e-6))


def test_a_beta_at_the_edge_of_those_tried_is_counted_once_a_seed():
    rows = [("FDN, a", seed, region, beta) for seed, beta in enumerate(adapters.BETAS) for region in ("id", "ood")]
    frame = pd.DataFrame([*rows, (PLAIN, 0, "id", 0.0)], columns=["method", "seed", "region", "chosen"])
    assert report.edges(frame) == "The least or the largest beta tried was chosen for FDN, a: in 2 of 3 seeds."


@pytest.mark.parametrize("name", ["airfoil", "digits"])
def test_committed_results_are_complete(name):
    frame, sidecar = adapters.load(name)
    part, variants = report.part_of(frame), digits.VARIANTS if name == "digits" else VARIANTS
    methods = {PLAIN, adapters.DROPOUT, adapters.ENSEMBLE, *variants}
    assert set(frame["method"]) == methods == set(sidecar["seconds"]) and frame["seed"].nunique() >= 5
    counts = frame.groupby(["method", part]).size()
    assert len(counts) == len(methods) * (len(digits.ANGLES) if name == "digits" else 2)
    assert (counts == frame["seed"].nunique()).all() and not frame.isna().any().any()
    assert {"commit", "processor", "packages"} <= set(sidecar["environment"])


def test_the_command_writes_a_table_and_where_it_was_made(tmp_path, monkeypatch):
    """Trains every method for an epoch."""
    for name, value in {"BETAS": (0.1,), "RATES": (0.1,), "DRAWS": 10}.items():
        monkeypatch.setattr(adapters, name, value)
    assert main(["adapters", "--dataset", "diabetes", "--seeds", "0", "--epochs", "1", "--out", str(tmp_path)]) == 0
    frame, sidecar = adapters.load("diabetes", tmp_path)
    assert len(frame) == 2 * 6 and "seconds" not in frame
    assert sidecar["environment"]["packages"]["torch"] == torch.__version__
    with pytest.raises(UserError, match="holds no results of digits; `fdn adapters --dataset digits`"):
        adapters.load("digits", tmp_path)
