"""The published numbers, the comparison rules and the representative seed."""

from __future__ import annotations

import doctest

import numpy as np
import pandas as pd
import pytest

from lib import published
from lib.errors import UserError
from lib.paths import PUBLISHED_TABLES


def seeds(dataset: str, model: str, protocol: str = "published", **columns) -> pd.DataFrame:
    """Metrics of one cell, one row per seed; metrics not given are 0."""
    table = pd.DataFrame(columns)
    for metric in {*published.METRICS, *published.REPRESENTED_METRICS} - set(columns):
        table[metric] = 0.0
    return table.assign(dataset=dataset, model=model, protocol=protocol, seed=range(len(table)))


def pick(comparison: pd.DataFrame, dataset: str, model: str, metric: str) -> pd.Series:
    return comparison.set_index(["dataset", "model", "metric"]).loc[(dataset, model, metric)]


def marks(metric: str, dataset: str, model: str, values: list[float]) -> tuple[bool, bool]:
    row = pick(published.compare(seeds(dataset, model, **{metric: values})), dataset, model, metric)
    return bool(row.inside_minmax), bool(row.inside_widened)


def test_doctests_run_and_pass():
    failed, attempted = doctest.testmod(published)
    assert failed == 0 and attempted >= 3


def test_the_real_file_holds_252_numbers():
    table = published.load_published()
    assert len(table) == 252
    assert [table[name].nunique() for name in ("dataset", "model", "metric")] == [6, 6, 7]
    assert not table.duplicated(["dataset", "model", "metric"]).any()
    assert np.isfinite(table["published"]).all()
    raw = PUBLISHED_TABLES.read_text().splitlines()[1:]
    assert sorted(raw) == sorted(table[["dataset", "model", "metric", "printed"]].agg(",".join, axis=1))
    digits = table["printed"].str.split(".").str[1].str.len()
    np.testing.assert_allclose(table["half_unit"], 0.5 * 10.0**-digits, rtol=1e-14)


@pytest.mark.parametrize(
    ("key", "printed", "value", "half_unit"),
    [
        (("step", "MLPDropoutNet", "spearman"), "0.990", 0.99, 0.0005),
        (("step", "IC-FDNet", "intercept_a"), "-475.80", -475.8, 0.005),
        (("energy", "MLPDropoutNet", "intercept_a"), "-0.00", 0.0, 0.005),
        (("airfoil", "DeepEnsembleNet", "delta_var"), "0.0", 0.0, 0.05),
    ],
)
def test_printed_precision_survives(key, printed, value, half_unit):
    row = published.load_published().set_index(["dataset", "model", "metric"]).loc[key]
    assert (row.printed, row.published, row.half_unit) == (printed, value, half_unit)


def test_names_are_those_of_the_models():
    models = pytest.importorskip("lib.models")
    assert sorted(models.STOCHASTIC_MODELS) == sorted(published.MODELS)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("step,MLPDropoutNet,aurc", "stair,MLPDropoutNet,aurc", "unknown dataset 'stair'"),
        ("step,MLPDropoutNet,aurc", "step,MCDropout,aurc", "unknown model 'MCDropout'"),
        ("step,MLPDropoutNet,aurc", "step,MLPDropoutNet,auc", "unknown metric 'auc'"),
        ("step,MLPDropoutNet,aurc,1.1\n", "", "lacks step, MLPDropoutNet, aurc"),
        ("step,MLPDropoutNet,aurc", "step,MLPDropoutNet,slope_b", "repeats step, MLPDropoutNet, slope_b"),
        ("aurc,1.1\n", "aurc,n/a\n", "not a number"),
        ("metric,published", "metric,value", "has columns"),
    ],
)
def test_a_spoilt_file_is_an_error(tmp_path, old, new, said):
    text = PUBLISHED_TABLES.read_text()
    assert old in text
    path = tmp_path / "tables.csv"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=said):
        published.load_published(path)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match="cannot read the published numbers"):
        published.load_published(tmp_path / "none.csv")


def test_statistics_over_seeds():
    comparison = published.compare(seeds("step", "BayesNet", aurc=[8.0, 1.0, 3.0, 2.0, np.nan]))
    row = pick(comparison, "step", "BayesNet", "aurc")
    assert (row.n_seeds, row["min"], row["median"], row["max"]) == (4, 1.0, 2.5, 8.0)
    assert row.q05 == pytest.approx(1.15) and row.q95 == pytest.approx(7.25)
    assert (row.printed, row.published, row.half_unit) == ("8.2", 8.2, 0.05)


# published on step: MLPDropoutNet aurc 1.1 (+- 0.05), spearman 0.990 (+- 0.0005); BayesNet intercept -3.50
@pytest.mark.parametrize(
    ("metric", "model", "values", "in_minmax", "in_widened"),
    [
        ("aurc", "MLPDropoutNet", [1.15, 2.0], True, True),  # 1.1 + 0.05 touches the smaller end
        ("aurc", "MLPDropoutNet", [1.1501, 2.0], False, True),
        ("aurc", "MLPDropoutNet", [0.2, 1.05], True, True),  # 1.1 - 0.05 touches the larger end
        ("aurc", "MLPDropoutNet", [0.2, 1.0499], False, True),
        ("aurc", "MLPDropoutNet", [0.2, 0.99 / 1.3], False, True),  # 1.3 * larger end + 0.06 = 1.05
        ("aurc", "MLPDropoutNet", [0.2, 0.98999 / 1.3], False, False),
        ("aurc", "MLPDropoutNet", [1.81, 2.0], False, True),  # 1.81 - 0.3 * 2.0 - 0.06 = 1.15
        ("aurc", "MLPDropoutNet", [1.81001, 2.0], False, False),
        ("aurc", "MLPDropoutNet", [1.81001, 2.1], False, True),  # the larger end sets the width of both
        ("intercept_a", "BayesNet", [-3.505], True, True),
        ("intercept_a", "BayesNet", [-3.435 / 1.3, 0.0], False, True),  # 1.3 * smaller end - 0.06 = -3.495
        ("intercept_a", "BayesNet", [-3.4349 / 1.3, 0.0], False, False),
        ("intercept_a", "BayesNet", [-1.0, 8.12], False, True),  # -1 - 0.3 * 8.12 - 0.06 = -3.496
        ("intercept_a", "BayesNet", [-1.0, 8.11], False, False),  # ends at -3.493, short of -3.495
        ("spearman", "MLPDropoutNet", [0.9, 0.9395], False, True),  # 0.9395 + 0.05 = 0.990 - 0.0005
        ("spearman", "MLPDropoutNet", [0.9, 0.9394], False, False),
        ("spearman", "MLPDropoutNet", [0.9905, 1.0], True, True),
        ("spearman", "MLPDropoutNet", [0.9906, 1.0], False, True),
    ],
)
def test_the_two_rules_at_their_boundaries(metric, model, values, in_minmax, in_widened):
    assert marks(metric, "step", model, values) == (in_minmax, in_widened)


def test_what_was_not_computed_is_missing_not_wrong():
    comparison = published.compare(seeds("step", "BayesNet", spearman=[np.nan, np.nan], aurc=[np.inf, 8.2]))
    assert len(comparison) == 252
    undefined = pick(comparison, "step", "BayesNet", "spearman")
    assert undefined.n_seeds == 0 and np.isnan(undefined["median"]) and undefined.inside_widened is pd.NA
    assert pick(comparison, "sine", "BayesNet", "aurc").inside_minmax is pd.NA
    finite = pick(comparison, "step", "BayesNet", "aurc")
    assert (finite.n_seeds, finite["max"]) == (1, 8.2)
    assert (comparison["n_seeds"] > 0).sum() == 6


def test_only_the_asked_protocol_and_the_published_cells_count():
    frame = pd.concat(
        [
            seeds("step", "BayesNet", aurc=[8.2]),
            seeds("step", "BayesNet", protocol="as_written", aurc=[100.0, 101.0]),
            seeds("diabetes", "BayesNet", aurc=[5.0]),
            seeds("step", "MLPNet", aurc=[5.0]),
        ]
    )
    assert pick(published.compare(frame), "step", "BayesNet", "aurc")["max"] == 8.2
    assert pick(published.compare(frame, "as_written"), "step", "BayesNet", "aurc")["min"] == 100.0
    assert published.compare(frame, "nothing ran")["n_seeds"].sum() == 0


def test_compare_refuses_unusable_metrics():
    frame = seeds("step", "BayesNet", aurc=[1.0, 2.0])
    with pytest.raises(UserError, match="no column 'delta_crps'"):
        published.compare(frame.drop(columns="delta_crps"))
    with pytest.raises(UserError, match="seed 1 of BayesNet on step twice"):
        published.compare(pd.concat([frame, frame.iloc[1:]]))


def perfect_seeds(n_seeds: int) -> pd.DataFrame:
    wide = published.load_published().pivot(index=["dataset", "model"], columns="metric", values="published")
    return pd.concat([wide.reset_index().assign(protocol="published", seed=seed) for seed in range(n_seeds)])


def test_score_counts_every_number_once():
    frame = perfect_seeds(4)
    frame.loc[frame["model"] == "BayesNet", "aurc"] += 1e6
    scores = published.score(published.compare(frame)).set_index(["by", "name"])
    total = scores.loc[("total", "total")]
    assert (total.n, total.missing, total.inside_minmax, total.inside_widened) == (252, 0, 246, 246)
    assert total.expected_share == pytest.approx(3 / 5)
    assert scores.loc[("model", "BayesNet"), "inside_minmax"] == 36
    assert scores.loc[("model", "LP-FDNet"), "inside_minmax"] == scores.loc[("model", "LP-FDNet"), "n"] == 42
    assert scores.loc[("metric", "aurc"), "inside_widened"] == 30
    assert scores.loc[("dataset", "ccpp"), ["n", "inside_minmax"]].to_list() == [42, 41]
    for by, size in (("model", 6), ("dataset", 6), ("metric", 7)):
        assert len(scores.loc[by]) == size and scores.loc[by, "inside_minmax"].sum() == 246


def test_score_of_a_partial_run():
    frame = perfect_seeds(3)
    frame = frame[(frame["dataset"] != "ccpp") & ~((frame["dataset"] == "step") & (frame["seed"] > 0))]
    scores = published.score(published.compare(frame)).set_index(["by", "name"])
    assert scores.loc[("total", "total"), ["n", "missing", "inside_minmax"]].to_list() == [210, 42, 210]
    assert scores.loc[("dataset", "ccpp"), ["n", "missing", "inside_minmax"]].to_list() == [0, 42, 0]
    assert np.isnan(scores.loc[("dataset", "ccpp"), "expected_share"])
    assert scores.loc[("dataset", "step"), "expected_share"] == 0
    assert scores.loc[("model", "BayesNet"), "expected_share"] == pytest.approx((0 + 4 * 0.5) / 5)


def fdn_seeds(ic: dict, lp: dict, dataset: str = "step") -> pd.DataFrame:
    return pd.concat([seeds(dataset, "IC-FDNet", **ic), seeds(dataset, "LP-FDNet", **lp)])


def test_representative_seed_minimises_the_sum_over_both_models():
    # medians 10 and 5; squared distances: IC 4, 0, huge, 1, 9; LP 9, 100, 0, 0, 4; seed 0 is nearest the means
    frame = fdn_seeds({"mse_ood": [12.0, 10, 2000, 9, 7]}, {"var_ood": [8.0, 15, 5, 5, 3]})
    assert published.representative_seed(frame, "step") == 3


def test_representative_seed_does_not_normalise():
    # seed 0 is typical in delta_crps and 10 off in mse_ood, seed 1 the reverse and 9 off
    frame = fdn_seeds({"mse_ood": [110.0, 100, 100], "delta_crps": [1.0, 10, 1]}, {"aurc": [0.0, 0, 20]})
    assert published.representative_seed(frame, "step") == 1


def test_ties_go_to_the_smallest_seed_even_after_rounding():
    # two seeds are equally far from their median, whatever the last bit says
    frame = fdn_seeds({"mse_ood": [0.7, 3.7]}, {"aurc": [1.0, 1.0]})
    assert (3.7 - np.median([0.7, 3.7])) ** 2 < (0.7 - np.median([0.7, 3.7])) ** 2
    assert published.representative_seed(frame, "step") == 0
    assert published.representative_seed(frame.iloc[::-1], "step") == 0


def test_representative_seed_passes_over_incomplete_seeds():
    frame = fdn_seeds({"mse_ood": [5.0, 5, 9]}, {"aurc": [np.nan, 1.0, 2.0]})
    assert published.representative_seed(frame, "step") == 1
    only_two = frame[~((frame["model"] == "LP-FDNet") & (frame["seed"] == 1))]
    assert published.representative_seed(only_two, "step") == 2
    disjoint = frame[(frame["model"] == "LP-FDNet") == (frame["seed"] > 0)]
    with pytest.raises(UserError, match="no seed has finite results of both"):
        published.representative_seed(disjoint, "step")


def test_representative_seed_names_what_is_missing():
    frame = fdn_seeds({"mse_ood": [1.0]}, {"mse_ood": [1.0]})
    assert published.representative_seed(frame, "step") == 0
    with pytest.raises(UserError, match="no results of LP-FDNet on step"):
        published.representative_seed(frame[frame["model"] == "IC-FDNet"], "step")
    with pytest.raises(UserError, match="no results of IC-FDNet on sine under protocol published"):
        published.representative_seed(frame, "sine")
    with pytest.raises(UserError, match="under protocol as_written"):
        published.representative_seed(frame, "step", protocol="as_written")
    with pytest.raises(UserError, match="no column 'var_ood'"):
        published.representative_seed(frame.drop(columns="var_ood"), "step")
