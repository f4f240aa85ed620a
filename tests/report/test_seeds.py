"""What all seeds say together: which epoch is kept, whether Var tells of the error, what is told apart."""

import numpy as np
import pandas as pd
import pytest

from fdn.metrics import SUMMARY_COLUMNS
from fdn.models import BASELINE, FDN_MODELS, PAPER_MODELS
from fdn.protocol import PUBLISHED
from fdn.report import checkpoints, seeds
from fdn.report.pages import seeds as page_of_seeds
from fdn.runs import bands, extras
from fdn.training.objectives import beta_at


def runs(dataset="sine", models=PAPER_MODELS, protocol="published", numbers=range(5), **values):
    """Metrics that are 1 but for ``values``, which may be functions of (model, seed)."""
    rows = []
    for model in models:
        for seed in numbers:
            row = dict.fromkeys(SUMMARY_COLUMNS, 1.0) | {"best_epoch": 7, "n_params": 1000, "n_draws": 100}
            row |= {name: value(model, seed) if callable(value) else value for name, value in values.items()}
            rows.append({"dataset": dataset, "model": model, "protocol": protocol, "seed": seed} | row)
    return pd.DataFrame(rows)


def cells(table, *start):
    found = [row for row in table.rows if row[: len(start)] == start]
    assert len(found) == 1
    return dict(zip(table.columns, found[0]))


def test_beta_at_the_kept_epoch_is_that_of_the_training_loop():
    for epoch in (1, 46, 199, 200, 400):
        expected = beta_at(epoch, PUBLISHED.beta_schedule, PUBLISHED.warmup, PUBLISHED.beta_max)
        assert checkpoints.beta_kept(epoch) == pytest.approx(expected)
    assert checkpoints.beta_kept(44.5) == pytest.approx(0.2225)


def test_the_table_of_kept_epochs_gives_median_band_beta_and_the_share_inside_the_warm_up():
    kept = [100, 120, 140, 160, 220]
    metrics = runs(best_epoch=lambda model, seed: 1 if model == "DeepEnsembleNet" else kept[seed])
    table = checkpoints.kept_table(metrics, ["sine"])
    row = cells(table, "sine", "LP-FDNet")
    assert row["Kept epoch"] == "140 [104, 208] of 400" and row["β there"] == "0.700 [0.520, 1.000]"
    assert (row["Seeds"], row["Inside the warm-up"]) == ("5", "80%")
    assert cells(table, "sine", "DeepEnsembleNet")["Kept epoch"] == "1 [1, 1] of 40"
    assert cells(table, "sine", "MLPDropoutNet")["β there"] == "—"
    words = checkpoints.kept_sentence(metrics, ["sine"])
    assert "In the median kept FDN β is 0.7 on sine" in words and "sine (epoch 1 in all 5 seeds)" in words
    assert "Every kept FDN" not in words
    inside = checkpoints.kept_sentence(runs(best_epoch=50), ["sine"])
    assert "Every kept FDN lies inside the warm-up on sine." in inside and "The ensemble" not in inside
    lp_late = runs(best_epoch=lambda model, seed: 250 if model == "LP-FDNet" and seed < 2 else 50)
    on_both = pd.concat([runs(best_epoch=50).assign(dataset="step"), lp_late])
    assert checkpoints.inside_words(on_both, ["step", "sine"]) == (
        "in every seed of both FDNs on step; on sine in 100% of the seeds of IC-FDNet and 60% of the seeds of LP-FDNet"
    )


def test_held_values_of_beta_are_those_at_the_median_committed_epoch():
    metrics = extras.with_extras()
    fdns = metrics[(metrics["protocol"] == PUBLISHED.label) & metrics["model"].isin(FDN_MODELS)]
    medians = fdns.groupby("dataset")["best_epoch"].median()
    assert medians.to_dict() == extras.KEPT_EPOCHS
    for dataset, epoch in extras.KEPT_EPOCHS.items():
        (held,) = [extra for extra in extras.EXTRAS if extra.name == f"beta-held-{dataset}"]
        for protocol in held.protocols:  # the same path up to the kept epoch, then level
            for at in (1, epoch // 2, epoch):
                ours = beta_at(at, protocol.beta_schedule, protocol.warmup, protocol.beta_max)
                assert ours == pytest.approx(checkpoints.beta_kept(at))
            assert beta_at(400, protocol.beta_schedule, protocol.warmup, protocol.beta_max) == epoch / 200


def test_other_choices_of_the_epoch_are_compared_by_the_same_seeds():
    labels = checkpoints.variants("sine")
    assert list(labels.values()) == ["published", "published+keep=last", "published+beta_max=0.22+warmup=44",
                                     "published+beta_max=0.22+warmup=44+keep=last"]  # fmt: skip
    metrics = pd.concat([
        runs(var_id=lambda model, seed: 2.0 if seed < 2 else 100.0),
        runs(protocol=labels["last epoch"], numbers=range(2), var_id=6.0, best_epoch=400),
    ])  # fmt: skip
    table = checkpoints.last_table(metrics, "sine")
    assert [row[1:3] for row in table.rows if row[0] == "LP-FDNet"] == \
        [("best epoch (published)", "2"), ("last epoch", "2")]  # fmt: skip
    assert "in this order, are multiplied by: ID Var 3.000 and 3.000 on sine" in checkpoints.last_sentence(
        metrics, ["sine"]
    )
    assert checkpoints.last_sentence(runs(), ["sine"]) == "" and not checkpoints.last_table(runs(), "sine").rows


def numbers(**kinds):
    """Bands of one number each, (low, middle, high) by "model|kind|region"."""
    rows = [
        ("energy", *name.split("|"), x, *values, values[1], 20) for name, (x, *values) in kinds.items()
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(bands.COLUMNS))


def test_the_sentence_on_bias_says_where_var_goes_with_the_errors_of_the_mean():
    curves = numbers(**{
        "IC-FDNet|rho_bias2|all": (0, -0.2, -0.04, 0.1), "IC-FDNet|rho_mse|all": (0, 0.99, 1.0, 1.0),
        "IC-FDNet|rho_bias2|ID": (0, -0.2, -0.1, 0.1), "LP-FDNet|rho_bias2|all": (0, 0.6, 0.8, 0.9),
        "LP-FDNet|rho_mse|all": (0, 0.99, 1.0, 1.0), "LP-FDNet|rho_bias2|ID": (0, 0.1, 0.2, 0.3),
        "BayesNet|rho_bias2|all": (0, 0.9, 0.95, 0.99),
    })  # fmt: skip
    words = seeds.bias_sentence(curves)
    assert "is above 0 for LP-FDNet on energy (0.800 [0.600, 0.900]; with MSE 1.000)" in words
    assert "on both sides of 0 for IC-FDNet on energy (-0.040 [-0.200, 0.100]; with MSE 1.000)" in words
    assert "Inside the training band the medians lie between -0.100 and 0.200. Of the other" in words
    assert words.endswith("lies above 0 for BayesNet on energy.")
    row = cells(seeds.bias_table(curves), "energy", "LP-FDNet")
    assert row["ρ(Var, Bias²)"] == "0.800 [0.600, 0.900]" and row["b′"] == "—" and row["Seeds"] == "20"


def test_the_table_of_intervals_has_every_level_in_both_regions():
    curves = numbers(**{
        "LP-FDNet|coverage|ID": (0.9, 0.97, 0.98, 1.0), "LP-FDNet|width|ID": (0.9, 3.0, 4.0, 5.0),
        "LP-FDNet|coverage|OOD": (0.9, 0.1, 0.2, 0.3),
    })  # fmt: skip
    table = seeds.interval_table(curves, "energy")
    assert cells(table, "LP-FDNet", "ID")["width 90%"] == "4.000 [3.000, 5.000]"
    assert cells(table, "LP-FDNet", "OOD")["in 90%"] == "0.200 [0.100, 0.300]"


def test_models_whose_intervals_overlap_are_not_ranked():
    level = {"BayesNet": 1.0, "IC-FDNet": 1.2, "LP-FDNet": 5.0}
    metrics = pd.concat([
        runs(models=level, numbers=range(20), var_id=0.0, sqerr_mean_id=lambda m, s: level[m] + 0.02 * s),
        runs(models=[BASELINE], numbers=[0], sqerr_mean_id=3.0),
    ])  # fmt: skip
    found = seeds.told_apart(seeds.errors(metrics, "sine"))
    assert found == {BASELINE: 3, "BayesNet": 1, "IC-FDNet": 1, "LP-FDNet": 4}
    row = cells(seeds.error_table(metrics, ["sine", "step"]), "LP-FDNet")
    assert row["sine"] == "5.190 [5.019, 5.361]\n(4)" and row["step"] == "n/a"


def test_the_page_has_every_part():
    curves = numbers(**{f"{model}|rho_bias2|{region}": (0, 0.1, 0.2, 0.3) for model in FDN_MODELS
                        for region in ("all", "ID")})  # fmt: skip
    metrics = pd.concat([runs("energy"), runs("energy", protocol="published+keep=last", numbers=range(3))])
    text = page_of_seeds.page(metrics, curves)
    parts = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(parts) == 5 and "Which epoch is kept" in text and "| LP-FDNet | last epoch | 3 |" in text
    assert np.isnan(seeds._number(curves, "step", "LP-FDNet", "share", "ID")[0])
