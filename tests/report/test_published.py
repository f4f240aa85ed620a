"""The published numbers, the comparison rules and the representative seed."""

from __future__ import annotations

import doctest

import numpy as np
import pandas as pd
import pytest

from fdn.errors import UserError
from fdn.models import PAPER_MODELS
from fdn.paths import PUBLISHED_TABLES
from fdn.report import published
from fdn.report.comparison import miss_list, miss_table, score_table
from fdn.report.pages.comparison import write_comparison


def seeds(dataset: str, model: str, protocol: str = "published", **columns) -> pd.DataFrame:
    """Metrics of one cell, one row per seed; metrics not given are 0."""
    table = pd.DataFrame(columns)
    for metric in {*published.PUBLISHED_METRICS, *published.REPRESENTED_METRICS} - set(columns):
        table[metric] = 0.0
    return table.assign(dataset=dataset, model=model, protocol=protocol, seed=range(len(table)))


def pick(comparison: pd.DataFrame, dataset: str, model: str, metric: str) -> pd.Series:
    return comparison.set_index(["dataset", "model", "metric"]).loc[(dataset, model, metric)]


def row_of(metric: str, model: str, values: list[float]) -> pd.Series:
    return pick(published.compare(seeds("step", model, **{metric: values})), "step", model, metric)


def test_doctests_run_and_pass():
    failed, attempted = doctest.testmod(published)
    assert failed == 0 and attempted >= 3


def test_the_real_file_holds_252_numbers():
    table = published.load_published()
    assert len(table) == 252
    assert [table[name].nunique() for name in ("dataset", "model", "metric")] == [6, 6, 7]
    assert not table.duplicated(["dataset", "model", "metric"]).any()
    assert np.isfinite(table["published"]).all()
    raw = PUBLISHED_TABLES.read_text(encoding="utf-8").splitlines()[1:]
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
    assert tuple(published.load_published()["model"].unique()) == PAPER_MODELS


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
    text = PUBLISHED_TABLES.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "tables.csv"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
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
    ("metric", "model", "values", "verdict", "place"),
    [
        ("aurc", "MLPDropoutNet", [1.15, 1.15], published.CENTRAL, 0.5),  # 1.1 + 0.05 touches
        ("aurc", "MLPDropoutNet", [1.1501, 1.1501], published.OUTSIDE, 0.0),
        ("aurc", "MLPDropoutNet", [1.05, 1.05], published.CENTRAL, 0.5),  # 1.1 - 0.05 touches
        ("aurc", "MLPDropoutNet", [1.0499, 1.0499], published.OUTSIDE, 1.0),
        ("aurc", "MLPDropoutNet", [1.15, 2.15], published.RANGE, 0.25),  # the 5 % quantile is 1.2
        ("aurc", "MLPDropoutNet", [1.1, 2.1], published.CENTRAL, 0.25),  # the 5 % quantile is 1.15
        ("aurc", "MLPDropoutNet", [0.05, 1.05], published.RANGE, 0.75),
        ("aurc", "MLPDropoutNet", [0.2, 0.3, 1.0, 2.0], published.CENTRAL, 0.75),
        ("aurc", "MLPDropoutNet", [0.2, 1.06, 1.14, 2.0, 3.0], published.CENTRAL, 0.4),  # two equal to half a unit
        ("intercept_a", "BayesNet", [-3.505], published.CENTRAL, 0.5),
        ("intercept_a", "BayesNet", [-3.5051, -9.0], published.OUTSIDE, 1.0),
        ("spearman", "MLPDropoutNet", [0.9905, 1.0], published.RANGE, 0.25),
        ("spearman", "MLPDropoutNet", [0.9906, 1.0], published.OUTSIDE, 0.0),
    ],
)
def test_verdict_and_place_allow_half_a_unit(metric, model, values, verdict, place):
    row = row_of(metric, model, values)
    assert (row.verdict, row.place) == (verdict, pytest.approx(place))


def test_what_was_not_computed_is_missing_not_wrong():
    comparison = published.compare(seeds("step", "BayesNet", spearman=[np.nan, np.nan], aurc=[np.inf, 8.2]))
    assert len(comparison) == 252
    undefined = pick(comparison, "step", "BayesNet", "spearman")
    assert undefined.n_seeds == 0 and np.isnan(undefined["median"]) and undefined.verdict == published.NOT_COMPUTED
    assert pick(comparison, "sine", "BayesNet", "aurc").verdict == published.NOT_COMPUTED
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
    assert (total.n, total.missing, total.central, total.minmax, total.outside) == (252, 0, 246, 246, 6)
    assert total.expected_minmax == pytest.approx(3 / 5) and total.expected_central == pytest.approx(0.9 * 3 / 5)
    assert scores.loc[("model", "BayesNet"), "minmax"] == 36
    assert scores.loc[("model", "LP-FDNet"), "minmax"] == scores.loc[("model", "LP-FDNet"), "n"] == 42
    assert scores.loc[("dataset", "ccpp"), ["n", "minmax", "outside"]].to_list() == [42, 41, 1]
    for by, size in (("model", 6), ("dataset", 6), ("metric", 7)):
        assert len(scores.loc[by]) == size and scores.loc[by, "minmax"].sum() == 246


def test_the_chance_shares_are_those_of_one_more_seed():
    rng = np.random.default_rng(0)
    for n in (3, 20):
        runs = rng.random((20_000, n + 1))
        low, q05, q95, high = np.quantile(runs[:, 1:], [0, 0.05, 0.95, 1], axis=1)
        number = {"dataset": "step", "model": "BayesNet", "metric": "aurc", "n_seeds": n, "verdict": published.OUTSIDE}
        expected = published.score(pd.DataFrame([number])).iloc[-1]
        for name, left, right in (("central", q05, q95), ("minmax", low, high)):
            share = ((runs[:, 0] >= left) & (runs[:, 0] <= right)).mean()
            assert share == pytest.approx(expected[f"expected_{name}"], abs=0.01)


def test_score_of_a_partial_run():
    frame = perfect_seeds(3)
    frame = frame[(frame["dataset"] != "ccpp") & ~((frame["dataset"] == "step") & (frame["seed"] > 0))]
    scores = published.score(published.compare(frame)).set_index(["by", "name"])
    assert scores.loc[("total", "total"), ["n", "missing", "minmax"]].to_list() == [210, 42, 210]
    assert scores.loc[("dataset", "ccpp"), ["n", "missing", "minmax"]].to_list() == [0, 42, 0]
    assert np.isnan(scores.loc[("dataset", "ccpp"), "expected_minmax"])
    assert scores.loc[("dataset", "step"), "expected_minmax"] == 0
    assert scores.loc[("model", "BayesNet"), "expected_minmax"] == pytest.approx((0 + 4 * 0.5) / 5)


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


def one_more_seed(rng: np.random.Generator, shift: float = 0.0, groups: int = 36) -> pd.DataFrame:
    """Five seeds around the published values; a run's seven numbers are off together. Published: `shift` further."""
    wide = published.load_published().pivot(index=["dataset", "model"], columns="metric", values="published")
    wide, runs = wide.iloc[:groups], []
    own = rng.normal(size=(len(wide), 1)) + shift
    for seed in range(5):
        off = 1000 * (rng.normal(size=(len(wide), 1)) - own) + rng.normal(size=wide.shape)
        runs.append((wide + off).reset_index().assign(protocol="published", seed=seed))
    return pd.concat(runs)


def test_uniformity_holds_its_level_although_a_run_s_numbers_depend_on_each_other():
    """Long, for a level is seen in many repetitions only."""
    rng = np.random.default_rng(0)
    tests = [published.uniformity(one_more_seed(rng), resamples=500) for _ in range(60)]
    p = np.array([t.set_index("by").at["total", "p"] for t in tests])
    assert 0.02 < (p <= 0.2).mean() < 0.4 and 0.3 < p.mean() < 0.7
    # taking the 252 numbers as independent, the same runs would be refused far more often
    distances = [t.set_index("by").at["total", "distance"] for t in tests]
    assert np.std(distances) > 2 * np.sqrt(np.var(np.abs(2 * np.arange(6) / 5 - 1)) / 252)


def test_uniformity_sees_runs_that_lie_too_far_out():
    far = published.uniformity(one_more_seed(np.random.default_rng(1), shift=4.0)).set_index(["by", "name"])
    assert far.loc[("total", "total"), "p"] < 0.01 and far.loc[("total", "total"), "distance"] > 0.9
    assert far.loc[("group", "step BayesNet"), "p"] >= 1 / 6  # with five seeds no group alone can say more
    assert list(far.loc["dataset", "groups"]) == [6] * 6


def test_distance_of_a_group_by_hand():
    # published aurc 8.2 above all three seeds, six metrics tied at 0 but for the published values
    frame = seeds("step", "BayesNet", aurc=[1.0, 2.0, 3.0])
    group = published.uniformity(frame).set_index(["by", "name"]).loc[("group", "step BayesNet")]
    assert group.distance == 1.0 and group.p == 1 / 4  # beyond all seeds in all seven
    # a seed: aurc 1, 2, 3 have 2 place - 1 = -1, -1/3, 1/3; the other six (4 runs, 3 tied, published beyond): 1/3
    assert group.expected == pytest.approx((1 + (1 + 6 / 3) / 7 + 2 * (1 / 3 + 6 / 3) / 7) / 4)
    counts = published.fifths(frame)
    assert counts["published"].sum() == 7 and counts["expected"].sum() == pytest.approx(7)
    assert counts["published"].to_list()[1:4] == [0, 0, 0]


def test_diagnosis_measures_in_logarithms_where_it_can():
    values = {"aurc": np.exp([1.0, 2.0, 3.0]), "intercept_a": [-1.0, 0.0, 1.0]}
    found = published.diagnosis(seeds("step", "BayesNet", **values), "step", "BayesNet").set_index("metric")
    assert found.at["aurc", "scale"] == "log" and found.at["aurc", "z"] == pytest.approx(np.log(8.2) - 2)
    assert found.at["intercept_a", "scale"] == "linear" and found.at["intercept_a", "z"] == pytest.approx(-3.5)
    assert found.at["aurc", 2] == pytest.approx(np.e**3) and found.at["aurc", "z_seeds"] == pytest.approx([-1, 0, 1])
    with pytest.raises(UserError, match="no two seeds of LP-FDNet on step"):
        published.diagnosis(seeds("step", "LP-FDNet", aurc=[1.0]), "step", "LP-FDNet")


def test_reasons_stand_beside_the_numbers_outside(tmp_path):
    path = tmp_path / "reasons.csv"
    path.write_text(
        "dataset,model,metric,reason\n"
        "step,BayesNet,aurc,\"a seed, by chance\"\nstep,BayesNet,slope_b,was outside once\n"
    , encoding="utf-8")  # fmt: skip
    reasons = published.load_reasons(path)
    comparison = published.compare(seeds("step", "BayesNet", aurc=[1.0, 2.0], slope_b=[70.0, 80.0]))
    explained = published.with_reasons(comparison, reasons)
    assert pick(explained, "step", "BayesNet", "aurc").reason == "a seed, by chance"
    assert (explained["reason"] != "").sum() == 1
    assert published.stale_reasons(comparison, reasons)["metric"].to_list() == ["slope_b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dataset,model,metric\n", "has columns"),
        ("dataset,model,metric,reason\nstep,BayesNet,auc,x\n", "is not published"),
        ("dataset,model,metric,reason\nstep,BayesNet,aurc, \n", "without a reason"),
        ("dataset,model,metric,reason\nstep,BayesNet,aurc,x\nstep,BayesNet,aurc,y\n", "a second time"),
    ],
)
def test_unusable_reasons_are_refused(tmp_path, text, said):
    (tmp_path / "reasons.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        published.load_reasons(tmp_path / "reasons.csv")


def test_the_committed_reasons_can_be_read():
    published.load_reasons()


def test_misses_are_measured_from_the_seeds_range():
    table = miss_table(published.compare(seeds("step", "BayesNet", slope_b=[10.0, 20.0, 30.0])))  # 71.82
    row = next(row for row in table.rows if row[2] == "slope_b")
    assert row[3:6] == ("71.82", "20.00", "[10.00, 30.00]")
    assert row[6] == "41.81 above the largest of 3 seeds, 2.1 times the seeds' range"
    assert str(len(table.rows)) in table.title


def test_the_list_of_misses_has_a_line_for_each_run(monkeypatch):
    found = published.compare(seeds("step", "BayesNet", slope_b=[10.0, 20.0, 30.0], aurc=[100.0, 200.0, 300.0]))
    missed = found[found["verdict"] == published.OUTSIDE]
    why = missed[["dataset", "model", "metric"]].assign(reason="Bent by 2.5 far points. And more")
    monkeypatch.setattr(published, "load_reasons", lambda: why)
    (line,) = miss_list(found).splitlines()
    assert line.startswith("- **step, BayesNet**: ") and line.count("(ours [") == len(missed) > 1
    assert "slope_b 71.82 (ours [10.00, 30.00])" in line and line.endswith(". Bent by 2.5 far points.")
    assert miss_list(found.assign(verdict=published.CENTRAL)).startswith("Every compared number")


def test_the_score_table_ends_with_the_total():
    table = score_table(published.compare(seeds("step", "BayesNet", spearman=[0.987] * 3)))
    assert table.rows[-1] == ("", "total", "7", "1 (14%)", "45%", "1 (14%)", "50%", "6 (86%)", "245")


def test_the_page_and_the_file_hold_every_number(tmp_path):
    csv, page = write_comparison(tmp_path, perfect_seeds(3), "published")
    written = pd.read_csv(csv, dtype={"printed": str}, keep_default_na=False)
    assert len(written) == 252 and set(written["verdict"]) == {published.CENTRAL} and set(written["place"]) == {0.5}
    lines = page.read_text(encoding="utf-8").splitlines()
    for number in published.load_published().itertuples():
        start = f"| {number.dataset} | {number.model} | {number.metric} | {number.printed} |"
        assert sum(line.startswith(start) for line in lines) == 1, start
