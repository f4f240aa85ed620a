"""Metrics against hand-computed anchors, scipy, scoringrules and their own identities."""

from __future__ import annotations

import doctest
import math
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import scoringrules

from fdn import metrics

pytestmark = pytest.mark.filterwarnings("error")

PER_POINT = (
    metrics.mse,
    metrics.variance,
    metrics.predictive_mean,
    metrics.bias,
    metrics.sqerr_mean,
    metrics.corrected_sqerr_mean,
    metrics.crps,
    metrics.nll,
    metrics.covered,
    metrics.width,
)


def make_draws(*shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) * rng.uniform(0.1, 3.0, size=shape[-1]), rng.normal(size=shape[-1])


def test_doctests_run_and_pass():
    failed, attempted = doctest.testmod(metrics)
    assert failed == 0 and attempted >= 15


# draws 0, 1, 5 around the target 1: mean 2, squared errors 1, 0, 16, deviations -2, -1, 3,
# absolute pair distances 1, 5, 4 (each counted twice)
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (metrics.mse, 17 / 3),
        (metrics.variance, 14 / 3),
        (metrics.predictive_mean, 2.0),
        (metrics.bias, 1.0),
        (metrics.sqerr_mean, 1.0),
        (metrics.corrected_sqerr_mean, 1 - 14 / 3 / 2),
        (metrics.crps, 5 / 3 - 20 / 18),
        (metrics.covered, 1.0),
        (metrics.width, 5.0),
        (metrics.nll, -np.log((np.exp(-1) + 1 + np.exp(-16)) / 3 / np.sqrt(np.pi))),
    ],
)
def test_hand_computed_anchor(metric, expected):
    np.testing.assert_allclose(metric([[0.0], [5.0], [1.0]], [1.0]), [expected], rtol=1e-14)


@pytest.mark.parametrize("n_draws", [1, 2, 7, 100])
def test_crps_is_the_energy_estimator_of_scoringrules(n_draws):
    draws, y = make_draws(n_draws, 31)
    expected = scoringrules.crps_ensemble(y, draws, m_axis=0, estimator="nrg", backend="numpy")
    np.testing.assert_allclose(metrics.crps(draws, y), expected, rtol=1e-12, atol=1e-14)
    if n_draws > 1:
        fair = scoringrules.crps_ensemble(y, draws, m_axis=0, estimator="fair", backend="numpy")
        assert (metrics.crps(draws, y) > fair).all()


def test_crps_is_the_v_statistic_and_the_integral():
    draws, y = make_draws(6, 3)
    pairs = np.abs(draws[:, None] - draws[None]).sum(axis=(0, 1)) / (2 * 6**2)
    np.testing.assert_allclose(metrics.crps(draws, y), np.abs(draws - y).mean(axis=0) - pairs, rtol=1e-12)
    grid = np.linspace(-20, 20, 400_001)
    cdf = np.searchsorted(np.sort(draws[:, 0]), grid, side="right") / 6
    integral = np.square(cdf - (grid >= y[0])).mean() * 40
    assert metrics.crps(draws, y)[0] == pytest.approx(integral, abs=1e-3)


def test_crps_leaves_its_input_alone_and_ignores_the_order_of_draws():
    draws, y = make_draws(2, 9, 5)
    before = draws.copy()
    scores = metrics.crps(draws, y)
    np.testing.assert_array_equal(draws, before)
    np.testing.assert_array_equal(metrics.crps(draws[:, ::-1], y), scores)


def test_nll_is_the_mixture_density_of_scipy():
    draws, y = make_draws(20, 8)
    density = scipy.stats.norm(draws, np.sqrt(0.3)).pdf(y).mean(axis=0)
    np.testing.assert_allclose(metrics.nll(draws, y, observation_variance=0.3), -np.log(density), rtol=1e-12)
    assert metrics.nll(np.full((2, 1), 1e6), np.zeros(1))[0] == pytest.approx(1e12)
    with pytest.raises(ValueError, match="observation_variance is 0"):
        metrics.nll(draws, y, observation_variance=0)


def test_bias_variance_identity():
    draws, y = make_draws(4, 50, 17)
    var = metrics.variance(draws, y)
    np.testing.assert_allclose(metrics.mse(draws, y), var + metrics.bias(draws, y) ** 2, rtol=1e-12)
    np.testing.assert_allclose(metrics.variance(draws, y, 0.25), var + 0.25, rtol=1e-14)


def test_correction_removes_the_excess_of_few_draws():
    draws, y = np.random.default_rng(0).normal(1.5, 2.0, size=(3, 200_000)), np.ones(200_000)
    assert metrics.sqerr_mean(draws, y).mean() == pytest.approx(0.25 + 4 / 3, abs=0.03)
    assert metrics.corrected_sqerr_mean(draws, y).mean() == pytest.approx(0.25, abs=0.03)


def test_one_draw():
    draws, y = np.array([[3.0, -1.0]]), np.array([1.0, 1.0])
    np.testing.assert_array_equal(metrics.variance(draws, y), [0, 0])
    np.testing.assert_array_equal(metrics.mse(draws, y), [4, 4])
    np.testing.assert_array_equal(metrics.sqerr_mean(draws, y), [4, 4])
    np.testing.assert_array_equal(metrics.crps(draws, y), [2, 2])
    assert np.isnan(metrics.corrected_sqerr_mean(draws, y)).all()


def test_equal_draws_have_exactly_the_offset_as_variance():
    point, y = make_draws(1, 40)
    equal = np.repeat(point, 7, axis=0)
    assert equal.var(axis=0).any()  # numpy's own variance leaves rounding errors, which would have ranks
    np.testing.assert_array_equal(metrics.variance(equal, y), np.zeros(40))
    np.testing.assert_array_equal(metrics.variance(equal, y, 1e-6), np.full(40, 1e-6))


@pytest.mark.parametrize("metric", PER_POINT)
def test_replicates_equal_the_loop(metric):
    draws, y = make_draws(2, 3, 11, 7)
    stacked = metric(draws, y)
    assert stacked.shape == (2, 3, 7) and stacked.dtype == np.float64
    for index in np.ndindex(2, 3):
        np.testing.assert_allclose(stacked[index], metric(draws[index], y), rtol=1e-13)


@pytest.mark.parametrize("metric", [*PER_POINT, metrics.pointwise])
@pytest.mark.parametrize(
    ("draws_shape", "y_shape", "said"),
    [
        ((4, 5), (5, 1), r"y has shape \(5, 1\), expected \(N,\)"),
        ((4, 5), (), r"y has shape \(\)"),
        ((5, 4), (5,), r"draws have shape \(5, 4\), expected \(..., K, 5\)"),
        ((4, 1), (5,), r"draws have shape \(4, 1\)"),
        ((5,), (5,), r"draws have shape \(5,\)"),
        ((0, 5), (5,), r"K >= 1"),
    ],
)
def test_wrong_shapes_are_refused(metric, draws_shape, y_shape, said):
    with pytest.raises(ValueError, match=said):
        metric(np.zeros(draws_shape), np.zeros(y_shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_bad_draws_spoil_only_their_point(bad):
    draws, y = make_draws(5, 6)
    clean = {metric: metric(draws, y) for metric in PER_POINT}
    draws[2, 3] = bad
    for metric in PER_POINT:
        values = metric(draws, y)
        np.testing.assert_array_equal(np.delete(values, 3), np.delete(clean[metric], 3))
        assert np.isnan(values[3]) or not np.isnan(bad)
    assert not np.isfinite(metrics.mse(draws, y)[3])
    row = metrics.summary(draws, y, np.arange(6) < 3)
    assert np.isfinite(row["mse_id"]) and not np.isfinite(row["mse_ood"])
    assert not np.isfinite(row["delta_mse"]) and not np.isfinite(row["slope_b"])
    assert not np.isfinite(row["aurc"]) and np.isfinite(row["spearman_id"])
    if np.isnan(bad):
        assert np.isnan(row["spearman"]) and np.isnan(row["aurc"]) and np.isnan(row["nll_ood"])


def test_spearman_against_scipy_with_ties():
    rng = np.random.default_rng(1)
    var, mse = rng.integers(0, 6, 50), rng.normal(size=50)
    expected = scipy.stats.pearsonr(scipy.stats.rankdata(var), scipy.stats.rankdata(mse)).statistic
    assert metrics.spearman(var, mse) == pytest.approx(expected, rel=1e-12)
    # ranks 1, 2, 3, 4 against 2, 1, 4, 3: 1 - 6 * 4 / (4 * 15)
    assert metrics.spearman([1, 2, 3, 4], [20, 10, 40, 30]) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("var", "mse"),
    [([], []), ([1.0], [2.0]), ([0.3] * 3, [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [1.0, np.nan, 2.0])],
)
def test_undefined_correlation_and_fit_are_nan(var, mse):
    assert np.isnan(metrics.spearman(var, mse))
    assert np.isnan(metrics.linear_fit(var, mse)).all()


def test_constant_error_has_no_rank_correlation_but_a_flat_fit():
    assert np.isnan(metrics.spearman([1.0, 2.0, 3.0], [4.0, 4.0, 4.0]))
    assert metrics.linear_fit([1.0, 2.0, 3.0], [4.0, 4.0, 4.0]) == (4.0, 0.0)


def test_linear_fit_against_scipy():
    rng = np.random.default_rng(2)
    var, mse = rng.gamma(0.5, 1e4, size=300), rng.gamma(0.5, 1e4, size=300)
    fit = scipy.stats.linregress(var, mse)
    np.testing.assert_allclose(metrics.linear_fit(var, mse), (fit.intercept, fit.slope), rtol=1e-10)


def test_risk_coverage_anchor():
    # sorted by variance the risks are 2, 4, 9, so R = 2, 3, 5 at 1/3, 2/3, 1 and the area (2.5 + 4) / 3
    coverage, risk = metrics.risk_coverage([5.0, 1.0, 3.0], [9.0, 2.0, 4.0])
    np.testing.assert_allclose(coverage, [1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(risk, [2, 3, 5])
    assert metrics.aurc([5.0, 1.0, 3.0], [9.0, 2.0, 4.0]) == pytest.approx(6.5 / 3)


def test_aurc_cannot_depend_on_row_order_under_ties():
    rng = np.random.default_rng(3)
    var, mse = rng.integers(0, 4, 200).astype(float), rng.gamma(0.3, size=200)
    risk = metrics.risk_coverage(var, mse)[1]
    for _ in range(20):
        order = rng.permutation(200)
        np.testing.assert_array_equal(metrics.risk_coverage(var[order], mse[order])[1], risk)
        assert metrics.aurc(var[order], mse[order]) == metrics.aurc(var, mse)
    # the tie rule is the mean over all orders within the blocks
    random_order = [rng.permutation(200) for _ in range(4000)]
    sorted_risk = [mse[order][np.argsort(var[order], kind="stable")] for order in random_order]
    mean_risk = np.mean(np.cumsum(sorted_risk, axis=1) / np.arange(1, 201), axis=0)
    np.testing.assert_allclose(risk, mean_risk, atol=0.03)


def test_constant_variance_gives_flat_risk():
    mse = np.array([1.0, 2.0, 6.0])
    np.testing.assert_allclose(metrics.risk_coverage(np.ones(3), mse)[1], 3.0)
    assert metrics.aurc(np.ones(3), mse) == pytest.approx(3.0 * 2 / 3)


def test_aurc_of_fewer_than_two_points_is_undefined():
    assert np.isnan(metrics.aurc([], [])) and np.isnan(metrics.aurc([1.0], [2.0]))


def test_calibration_curve_bins():
    var = np.arange(100.0)
    shuffled = np.random.default_rng(0).permutation(100)
    var_b, mse_b = metrics.calibration_curve(var[shuffled], 2 * var[shuffled] + 1)
    np.testing.assert_allclose(var_b, np.arange(10) * 10 + 4.5)
    np.testing.assert_allclose(mse_b, 2 * var_b + 1)


def test_calibration_curve_has_no_empty_bin_and_splits_no_tie():
    var = np.array([0.0] * 90 + [1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    var_b, mse_b = metrics.calibration_curve(var, var + 1)
    assert np.isfinite(var_b).all() and len(var_b) == 2
    np.testing.assert_allclose(var_b, [0.0, var[90:].mean()])
    np.testing.assert_allclose(mse_b, var_b + 1)
    np.testing.assert_array_equal(metrics.calibration_curve(np.ones(5), np.arange(5)), [[1.0], [2.0]])
    np.testing.assert_array_equal(metrics.calibration_curve([3.0, 1.0], [4.0, 2.0]), [[1, 3], [2, 4]])
    uneven = metrics.calibration_curve([1.0, 2.0, 3.0], [0.0, 1.0, 3.0], bins=2)  # (r - 1/2) 2/3 = 1/3, 1, 5/3
    np.testing.assert_array_equal(uneven, [[1.0, 2.5], [0.0, 2.0]])
    assert np.isnan(metrics.calibration_curve([np.nan, 1.0], [1.0, 1.0])).all()
    with pytest.raises(ValueError, match="bins is 0"):
        metrics.calibration_curve(var, var, bins=0)


@pytest.mark.parametrize("name", ["spearman", "linear_fit", "risk_coverage", "aurc", "calibration_curve"])
def test_aggregates_refuse_wrong_shapes(name):
    with pytest.raises(ValueError, match=r"var has shape \(3, 1\) and mse \(3,\)"):
        getattr(metrics, name)(np.ones((3, 1)), np.ones(3))


def test_summary_columns_and_order():
    expected = "spearman slope_b intercept_a aurc".split()
    expected += "spearman_id spearman_ood slope_b_id slope_b_ood intercept_a_id intercept_a_ood".split()
    for metric in "mse var crps bias nll sqerr_mean coverage_90 width_90".split():
        expected += [f"{metric}_id", f"{metric}_ood", f"{metric}_all"]
    expected += "delta_mse delta_var delta_crps".split()
    draws, y = make_draws(10, 12)
    row = metrics.summary(draws, y, np.arange(12) < 5)
    assert list(row) == expected
    assert all(type(value) is float and np.isfinite(value) for value in row.values())


def test_summary_is_made_of_the_functions():
    draws, y = make_draws(10, 12)
    inside = np.arange(12) < 5
    row = metrics.summary(draws, y, inside, variance_offset=1e-6, observation_variance=0.2)
    var, mse = metrics.variance(draws, y, 1e-6), metrics.mse(draws, y)
    assert row["spearman"] == metrics.spearman(var, mse)
    assert row["spearman_ood"] == metrics.spearman(var[~inside], mse[~inside])
    assert (row["intercept_a"], row["slope_b"]) == metrics.linear_fit(var, mse)
    assert (row["intercept_a_id"], row["slope_b_id"]) == metrics.linear_fit(var[inside], mse[inside])
    assert row["aurc"] == metrics.aurc(var, mse)
    assert row["nll_ood"] == metrics.nll(draws, y, 0.2)[~inside].mean()
    assert row["bias_id"] == metrics.bias(draws, y)[inside].mean()
    assert row["sqerr_mean_all"] == metrics.sqerr_mean(draws, y).mean()
    crps = metrics.crps(draws, y)
    assert row["delta_crps"] == crps[~inside].mean() - crps[inside].mean()
    assert row["delta_var"] == row["var_ood"] - row["var_id"]
    assert row["mse_all"] == pytest.approx((5 * row["mse_id"] + 7 * row["mse_ood"]) / 12)
    points = metrics.pointwise(draws, y, 1e-6)
    assert list(points) == ["mean", "var", "mse", "crps"]
    np.testing.assert_array_equal(points["var"], var)
    np.testing.assert_array_equal(points["mean"], metrics.predictive_mean(draws, y))


def test_summary_of_a_deterministic_model():
    draws, y = make_draws(1, 12)
    row = metrics.summary(draws, y, np.arange(12) < 5, variance_offset=1e-6)
    undefined = {name for name, value in row.items() if np.isnan(value)}
    assert undefined == {name for name in row if name.startswith(("spearman", "slope_b", "intercept_a"))}
    assert row["delta_var"] == 0 and row["mse_all"] == row["sqerr_mean_all"]
    assert row["aurc"] == pytest.approx(row["mse_all"] * 11 / 12)


def test_summary_without_ood_points():
    draws, y = make_draws(4, 6)
    row = metrics.summary(draws, y, np.ones(6, dtype=bool))
    assert row["mse_id"] == row["mse_all"]
    assert np.isnan([row["mse_ood"], row["delta_mse"], row["spearman_ood"]]).all()


def test_summary_refuses_stacks_and_wrong_masks():
    draws, y = make_draws(2, 4, 6)
    with pytest.raises(ValueError, match=r"expected \(K, N\)"):
        metrics.summary(draws, y, np.ones(6, dtype=bool))
    with pytest.raises(ValueError, match=r"id_mask is int64 of shape \(6,\), expected bool"):
        metrics.summary(draws[0], y, np.ones(6, dtype=int))
    with pytest.raises(ValueError, match=r"id_mask is bool of shape \(5,\)"):
        metrics.summary(draws[0], y, np.ones(5, dtype=bool))


def test_original_units_equal_recomputing_on_rescaled_data():
    draws, y = make_draws(10, 30)
    inside = np.arange(30) < 12
    mean, std = 120.0, 6.8
    standardised = metrics.summary(draws, y, inside, variance_offset=1e-6, observation_variance=0.5)
    original = metrics.summary(
        mean + std * draws, mean + std * y, inside, variance_offset=1e-6 * std**2, observation_variance=0.5 * std**2
    )
    converted = metrics.to_original_units(standardised, std)
    assert list(converted) == list(original)
    for name, value in original.items():
        assert converted[name] == pytest.approx(value, rel=1e-9), name
    assert standardised["mse_id"] == pytest.approx(converted["mse_id"] / std**2)  # the input is left alone


def test_original_units_of_a_frame_with_one_std_per_row():
    draws, y = make_draws(10, 30)
    row = metrics.summary(draws, y, np.arange(30) < 12)
    frame = pd.DataFrame([{"dataset": "a", "seed": 4} | row, {"dataset": "b", "seed": 5} | row])
    converted = metrics.to_original_units(frame, frame["dataset"].map({"a": 2.0, "b": 10.0}))
    for i, std in enumerate((2.0, 10.0)):
        for name, value in metrics.to_original_units(row, std).items():
            assert converted.loc[i, name] == pytest.approx(value, rel=1e-14), name
    assert converted["seed"].to_list() == [4, 5] and frame.loc[0, "mse_id"] == row["mse_id"]


def test_original_units_refuse_nonsense():
    for std in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="y_std is"):
            metrics.to_original_units({"mse_id": 1.0}, std)
    with pytest.raises(ValueError, match="nothing to convert"):
        metrics.to_original_units({"mse": np.ones(3)}, 2.0)


# Scale and NaN: one rule each for every metric

AGGREGATES = {
    "spearman": lambda var, mse: [metrics.spearman(var, mse)],
    "linear_fit": metrics.linear_fit,
    "risk_coverage": lambda var, mse: metrics.risk_coverage(var, mse)[1],
    "aurc": lambda var, mse: [metrics.aurc(var, mse)],
    "calibration_curve": lambda var, mse: np.concatenate(metrics.calibration_curve(var, mse, bins=3)),
}


def exact_fit(var, mse) -> tuple[float, float]:
    """Intercept and slope in rational arithmetic."""
    x, y = ([Fraction(float(value)) for value in values] for values in (var, mse))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)
    return float(mean_y - slope * mean_x), float(slope)


@pytest.mark.parametrize(
    ("var_scale", "mse_scale"),
    [
        (a, b) for a, b in product([1e-300, 1e-170, 1.0, 1e170, 1e300], repeat=2) if 1e-300 < b / a < 1e300
    ],  # the slope is a number
)
def test_linear_fit_is_the_exact_one_at_any_scale(var_scale, mse_scale):
    rng = np.random.default_rng(5)
    var = rng.gamma(0.5, var_scale, size=30)
    mse = rng.gamma(0.5, mse_scale, size=30)
    np.testing.assert_allclose(metrics.linear_fit(var, mse), exact_fit(var, mse), rtol=1e-12)


@pytest.mark.parametrize("k", [-990, -600, -400, 400, 600, 1000])
@pytest.mark.parametrize("name", AGGREGATES)
def test_numbers_of_a_test_set_scale_exactly_with_powers_of_two(name, k):
    rng = np.random.default_rng(6)
    var, mse = rng.gamma(0.5, size=50).round(2), rng.gamma(0.5, size=50)  # with ties
    both = {"spearman": [0], "linear_fit": [k, 0], "risk_coverage": k, "aurc": k, "calibration_curve": k}[name]
    found = AGGREGATES[name](np.ldexp(var, k), np.ldexp(mse, k))
    np.testing.assert_array_equal(found, np.ldexp(AGGREGATES[name](var, mse), both))
    if name == "linear_fit" and abs(k) < 1000:
        a, b = metrics.linear_fit(np.ldexp(var, k), mse)
        assert (a, b) == (metrics.linear_fit(var, mse)[0], np.ldexp(metrics.linear_fit(var, mse)[1], -k))


@pytest.mark.parametrize("k", [-1000, -500, -300, 300, 480, 505, 600, 1000])
@pytest.mark.parametrize(
    ("metric", "degree"),
    [(metrics.mse, 2), (metrics.variance, 2), (metrics.predictive_mean, 1), (metrics.bias, 1), (metrics.sqerr_mean, 2),
     (metrics.corrected_sqerr_mean, 2), (metrics.crps, 1)],
)  # fmt: skip
def test_numbers_of_a_point_scale_with_powers_of_two_until_they_are_out_of_range(metric, degree, k):
    draws, y = make_draws(9, 20)
    with np.errstate(over="ignore"):
        expected = np.ldexp(metric(draws, y), degree * k)  # 0 and infinity where out of range
    found = metric(np.ldexp(draws, k), np.ldexp(y, k))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-320)


def test_sums_of_large_numbers_do_not_overflow():
    large = np.full(1000, 1.5e308)
    np.testing.assert_allclose(metrics.predictive_mean(large[:, None], [1.0]), [1.5e308])
    np.testing.assert_allclose(metrics.crps(large[:, None], [1e308]), [5e307], rtol=1e-12)
    np.testing.assert_allclose(metrics.mse(np.full((1000, 1), 1e154), [0.0]), [1e308], rtol=1e-12)
    assert metrics.aurc(np.arange(1000.0), large) == pytest.approx(1.5e308 * 0.999)
    np.testing.assert_allclose(metrics.risk_coverage(np.arange(1000.0), large)[1], large)
    np.testing.assert_allclose(metrics.calibration_curve(large * np.linspace(0.5, 1, 1000), large)[1], large[:10])
    row = metrics.summary(np.array([[1e154] * 20, [-1e154] * 20]), np.zeros(20), np.arange(20) < 10)
    assert row["mse_all"] == pytest.approx(1e308) and row["var_id"] == pytest.approx(1e308)
    # squared error 1e320 less variance / (K - 1) of 1e319 each: neither is a number, their difference is infinite
    assert metrics.corrected_sqerr_mean([[1e160], [1.1e160], [0.9e160]], [0.0])[0] == np.inf


def test_a_large_point_leaves_the_others_as_they_are():
    draws, y = make_draws(5, 6)
    for metric in PER_POINT:
        clean, target = metric(draws, y), y.copy()
        target[2] = 1e300
        np.testing.assert_array_equal(np.delete(metric(draws, target), 2), np.delete(clean, 2))
    np.testing.assert_array_equal(metrics.variance(draws, target), metrics.variance(draws, y))


@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1e100, 1e250])
def test_nll_at_any_observation_variance(scale):
    draws, y = make_draws(6, 4)
    found = metrics.nll(draws * np.sqrt(scale), y * np.sqrt(scale), 0.5 * scale)
    np.testing.assert_allclose(found, metrics.nll(draws, y) + np.log(scale) / 2, rtol=1e-12)
    for bad in (np.inf, np.nan, 0.0, -1.0):
        with pytest.raises(ValueError, match="observation_variance is"):
            metrics.nll(draws, y, bad)


@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("which", ["var", "mse"])
def test_nan_at_one_point_makes_every_number_of_the_test_set_nan(name, which):
    rng = np.random.default_rng(7)
    for place in (0, 3, 7):
        given = {"var": rng.gamma(0.5, size=8), "mse": rng.gamma(0.5, size=8)}
        given[which][place] = np.nan
        assert np.isnan(AGGREGATES[name](**given)).all()
    assert np.isnan(metrics.aurc([np.nan, 1, 2], [0, 1, 2]))


def test_nan_in_one_draw_makes_the_numbers_of_its_region_and_of_all_points_nan():
    draws, y = make_draws(5, 12)
    draws[1, 3] = np.nan
    row = metrics.summary(draws, y, np.arange(12) < 6)
    undefined = {name for name, value in row.items() if np.isnan(value)}
    assert undefined == {name for name in row if not name.endswith("_ood")}


def test_infinity_is_larger_than_all_numbers_and_has_no_line():
    var, mse = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, np.inf])
    assert metrics.spearman(var, mse) == metrics.spearman(var, [1.0, 3.0, 2.0, 9.0])
    assert metrics.spearman([1.0, 2.0, 3.0, np.inf], mse) == metrics.spearman(var, mse)
    for given in ((var, mse), (mse, var), (mse, mse)):
        assert np.isnan(metrics.linear_fit(*given)).all()
    np.testing.assert_array_equal(metrics.risk_coverage(var, mse)[1], [1, 2, 2, np.inf])
    assert metrics.aurc(var, mse) == np.inf
    np.testing.assert_array_equal(metrics.calibration_curve(var, mse, 2), [[1.5, 3.5], [2, np.inf]])


@pytest.mark.parametrize("name", AGGREGATES)
def test_the_order_of_points_does_not_matter(name):
    rng = np.random.default_rng(8)
    var, mse = rng.integers(0, 5, 40).astype(float), rng.gamma(0.5, size=40)
    expected = AGGREGATES[name](var, mse)
    for _ in range(5):
        order = rng.permutation(40)
        np.testing.assert_allclose(AGGREGATES[name](var[order], mse[order]), expected, rtol=1e-11)


def test_original_units_of_any_size():
    assert metrics.to_original_units({"mse_id": 1e-200, "crps_id": 1.0}, 1e170) == {
        "mse_id": pytest.approx(1e140, rel=1e-12), "crps_id": 1e170,
    }  # fmt: skip


def test_nll_takes_a_variance_for_every_draw_and_point():
    rng = np.random.default_rng(3)
    draws, y, variance = rng.normal(size=(2, 5, 7)), rng.normal(size=7), rng.gamma(2.0, size=(2, 5, 7))
    density = np.exp(-np.square(draws - y) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    np.testing.assert_allclose(metrics.nll(draws, y, variance), -np.log(density.mean(-2)), rtol=1e-12)
    np.testing.assert_allclose(metrics.nll(draws, y, np.full(draws.shape, 0.3)), metrics.nll(draws, y, 0.3), rtol=1e-12)
    for wrong in (variance[0], -variance):
        with pytest.raises(ValueError, match="positive"):
            metrics.nll(draws, y, wrong)


@pytest.mark.parametrize("variance", [1e-310, 1e-200, 0.3, 1e200, 1e308])
def test_nll_takes_any_variance_that_is_a_number(variance):
    exact = 0.5 * (math.log(2 * math.pi) + math.log(variance) + 1)
    draws, y = np.zeros((2, 1)), np.full(1, math.sqrt(variance))
    assert metrics.nll(draws, y, variance) == pytest.approx(exact, rel=1e-12)


def test_units_of_another_index_are_refused_not_lost():
    frame = pd.DataFrame({"mse_id": [1.0, 2.0]}, index=[5, 6])
    for y_std in (pd.Series([1.0, 2.0]), [1.0, 2.0], np.ones(2)):
        with pytest.raises(ValueError, match="a Series with its index"):
            metrics.to_original_units(frame, y_std)
    assert list(metrics.to_original_units(frame, pd.Series([1.0, 2.0], frame.index))["mse_id"]) == [1.0, 8.0]


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("n_draws", [1, 2, 3, 10, 20, 60, 100, 101])
def test_ends_of_an_interval_are_the_least_draws_with_their_share_at_or_below(level, n_draws):
    draws, y = make_draws(n_draws, 5)
    lower, upper = metrics.interval(draws, y, level)
    for i in range(5):
        for end, share in ((lower[i], 500 - 500 * Fraction(str(level))), (upper[i], 500 + 500 * Fraction(str(level)))):
            enough = [d for d in draws[:, i] if 1000 * sum(draws[:, i] <= d) >= share * n_draws]
            assert end == min(enough)


def test_intervals_of_normal_draws_cover_and_spread_as_they_should():
    rng = np.random.default_rng(1)
    draws, y = rng.normal(size=(1000, 2000)), rng.normal(size=2000)
    assert metrics.covered(draws, y).mean() == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 2000))
    assert metrics.width(draws, y).mean() == pytest.approx(2 * scipy.stats.norm.ppf(0.95), rel=0.01)


@pytest.mark.parametrize("level", [0, 1, -0.1, 90, math.nan])
def test_levels_outside_their_range_are_refused(level):
    with pytest.raises(ValueError, match="level is"):
        metrics.interval([[1.0]], [1.0], level)
