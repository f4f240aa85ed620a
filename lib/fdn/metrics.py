"""Evaluation metrics (paper, Appendix H "Evaluation metrics and calibration diagnostics").

Functions of a point take ``(draws, y)``: draws (..., K, N) are K sampled predictions at N test points, y (N,)
the targets; leading dimensions are replicates and stay in front of the result, (..., N).
Functions of a test set take ``(var, mse)``: predicted variance and MSE_i of its T points, both (T,).
Everything is computed in float64. Units are those of y: standardised ones for the real data sets until
`to_original_units` brings them back.

NaN at a point makes its values NaN, and every number of a test set that holds the point. Infinity counts as larger
than all numbers: ranks and means take it as such, a line through it or a difference of two is NaN. Neither warns.
Numbers may have any size: what is squared or summed is first scaled by a power of two, which rounds nothing, so
that only a result outside the range of float64 is infinite or 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from scipy.special import logsumexp

Metrics = TypeVar("Metrics", dict[str, Any], pd.DataFrame)


def _check_draws(draws, y) -> tuple[np.ndarray, np.ndarray]:
    draws, y = np.asarray(draws, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if y.ndim != 1:
        raise ValueError(f"y has shape {y.shape}, expected (N,): pass y.ravel() if it is one column")
    if draws.ndim < 2 or draws.shape[-1] != len(y) or draws.shape[-2] == 0:
        raise ValueError(
            f"draws have shape {draws.shape}, expected (..., K, {len(y)}) with K >= 1 for "
            f"y of shape {y.shape}: draws in the last axis but one, test points in the last"
        )
    return draws, y


def _check_points(var, mse) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64, all NaN if one number is."""
    var, mse = np.asarray(var, dtype=np.float64), np.asarray(mse, dtype=np.float64)
    if var.ndim != 1 or var.shape != mse.shape:
        raise ValueError(f"var has shape {var.shape} and mse {mse.shape}, expected the same (T,) for both")
    if np.isnan(var).any() or np.isnan(mse).any():
        return np.full_like(var, np.nan), np.full_like(mse, np.nan)
    return var, mse


def _scaled(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Values times 2^-e, and e: the least with all finite ones below 1 in size; 0 for zeros."""
    e = int(np.frexp(np.abs(values[np.isfinite(values)]).max(initial=0.0))[1])
    return np.ldexp(values, -e), e


def _at_points(compute: Callable[..., np.ndarray], degree: int, *arrays: np.ndarray) -> np.ndarray:
    """``compute`` of arrays (..., K, N), at each point a number of this degree in theirs, (..., N).

    Where theirs are too large to square or sum, which leaves no finite result, it is taken of them times 2^-e.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        found = compute(*arrays)
        if np.isfinite(found).all():
            return found
        size = functools.reduce(np.maximum, [np.abs(array).max(axis=-2) for array in arrays])  # (..., N)
        e = np.where(np.isfinite(size), np.frexp(size)[1], 0)
        scaled = compute(*(np.ldexp(array, -e[..., None, :]) for array in arrays))
        return np.where(np.isfinite(found), found, np.ldexp(scaled, degree * e))


def _is_constant(values: np.ndarray) -> bool:
    return len(np.unique(values)) < 2  # NaN, which all are if one is, counts once


def _mean(values: np.ndarray) -> float:
    scaled, e = _scaled(values)
    return float(np.ldexp(scaled.mean(), e)) if len(values) else np.nan


def mse(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Mean squared error of the draws at each point, which contains their variance.

    MSE_i = (1/K) sum_k (y_i^(k) - y_i)^2 = Var_i + Bias_i^2.
    Shape (..., N); unit of y squared; lower is better. ValueError for shapes that do not match.
    Source: Appendix H, "Point prediction error".

    >>> mse([[1.0], [4.0]], [2.0])
    array([2.5])
    """
    draws, y = _check_draws(draws, y)
    return _at_points(lambda draws, y: np.square(draws - y).mean(axis=-2), 2, draws, y[None])  # (..., N)


def variance(draws: np.ndarray, y: np.ndarray, offset: float = 0.0) -> np.ndarray:
    """Population variance of the draws at each point, plus a constant.

    Var_i = (1/K) sum_k (y_i^(k) - mean_i)^2 + offset; exactly `offset` where all draws agree.
    Shape (..., N); unit of y squared; no direction of its own: it should follow MSE_i. y is only checked.
    ValueError for shapes that do not match. Source: Appendix H, "Predictive variance"; the published numbers
    have an offset of 1e-6, the printed formula has none.

    >>> variance([[1.0], [4.0]], [2.0], offset=0.5)
    array([2.75])
    """
    draws, _ = _check_draws(draws, y)
    return _at_points(_variance, 2, draws) + offset  # (..., N)


def _variance(draws: np.ndarray) -> np.ndarray:
    return (draws - draws[..., :1, :]).var(axis=-2)  # 0 for equal draws


def predictive_mean(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Mean of the draws at each point, mean_i = (1/K) sum_k y_i^(k).

    Shape (..., N); unit of y; no direction. y is only checked. ValueError for shapes that do not match.
    Source: Appendix H, "Point prediction error".

    >>> predictive_mean([[1.0], [4.0]], [2.0])
    array([2.5])
    """
    draws, _ = _check_draws(draws, y)
    return _at_points(lambda draws: draws.mean(axis=-2), 1, draws)  # (..., N)


def bias(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Signed error of the predictive mean at each point, Bias_i = mean_i - y_i.

    Shape (..., N); unit of y; zero is best, positive means too high. ValueError for shapes that do not match.
    Source: Appendix H, "Point prediction error".

    >>> bias([[1.0], [4.0]], [2.0])
    array([0.5])
    """
    with np.errstate(invalid="ignore", over="ignore"):
        return predictive_mean(draws, y) - np.asarray(y, dtype=np.float64)  # (..., N)


def sqerr_mean(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared error of the predictive mean at each point, Bias_i^2 = MSE_i - Var_i.

    Shape (..., N); unit of y squared; lower is better. ValueError for shapes that do not match.
    Source: ours; from the terms of Appendix H, "Point prediction error".

    >>> sqerr_mean([[1.0], [4.0]], [2.0])
    array([0.25])
    """
    with np.errstate(over="ignore"):
        return np.square(bias(draws, y))  # (..., N)


def corrected_sqerr_mean(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared error of the predictive mean without the part that K draws add by chance.

    Bias_i^2 - Var_i / (K - 1), Var_i the population variance: for independent draws its expectation is the
    squared error of the mean of infinitely many, so single values may be negative. Averages commute with it:
    a region's value is sqerr_mean - var / (K - 1) of that region's averages.
    Shape (..., N); unit of y squared; lower is better; NaN for K = 1.
    ValueError for shapes that do not match. Source: ours.

    >>> corrected_sqerr_mean([[1.0], [4.0]], [2.0])
    array([-2.])
    """
    draws, y = _check_draws(draws, y)
    n_draws = draws.shape[-2]
    if n_draws == 1:
        return np.full(draws.shape[:-2] + y.shape, np.nan)
    return _at_points(
        lambda draws, y: np.square(draws.mean(axis=-2) - y[..., 0, :]) - _variance(draws) / (n_draws - 1),
        2, draws, y[None],
    )  # fmt: skip


def crps(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Continuous ranked probability score at each point, as a V-statistic: the double sum has 1/(2 K^2).

    CRPS_i = (1/K) sum_k |y_i^(k) - y_i| - 1/(2 K^2) sum_k sum_l |y_i^(k) - y_i^(l)|
    is the exact score of the draws' empirical distribution (the "fair" U-statistic has 1/(2 K (K - 1))).
    The double sum over sorted draws is 2 sum_k (2k - K - 1) y_i^((k)), so the cost is K log K.
    Shape (..., N); unit of y; lower is better. ValueError for shapes that do not match.
    Source: Appendix H, "Continuous ranked probability score".

    >>> crps([[1.0], [4.0]], [2.0])
    array([0.75])
    """
    draws, y = _check_draws(draws, y)
    return _at_points(_crps, 1, draws, y[None])


def _crps(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    n_draws = draws.shape[-2]
    errors = np.empty((*draws.shape[:-2], draws.shape[-1], n_draws))  # (..., N, K)
    np.subtract(draws.swapaxes(-1, -2), y.swapaxes(-1, -2), out=errors)
    errors.sort(axis=-1)
    gaps = errors @ (np.arange(1 - n_draws, n_draws, 2) / n_draws**2)  # (..., N)
    np.abs(errors, out=errors)
    return errors.mean(axis=-1) - gaps


def interval(draws: np.ndarray, y: np.ndarray, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Central interval of the draws at each point: the least draws with at least a share p of them at or below.

    p is (1 - level) / 2 for the lower end and (1 + level) / 2 for the upper, each (..., N), in the unit of y. Draws are
    those of the function, as everywhere in Appendix H: the interval holds no observation noise. y is only checked.
    ValueError for shapes that do not match or a level outside (0, 1). Not in the paper.

    >>> interval([[3.0], [1.0], [2.0], [4.0]], [2.0], level=0.5)
    (array([1.]), array([3.]))
    """
    draws, y = _check_draws(draws, y)
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number between 0 and 1")
    share = Fraction(str(level))
    ranks = [math.ceil(p * draws.shape[-2]) - 1 for p in ((1 - share) / 2, (1 + share) / 2)]
    ordered = np.sort(draws.swapaxes(-1, -2), axis=-1)  # (..., N, K), NaN last; faster than a partition over axis -2
    lower, upper = (np.where(np.isnan(ordered[..., -1]), np.nan, ordered[..., rank]) for rank in ranks)
    return lower, upper


def covered(draws: np.ndarray, y: np.ndarray, level: float = 0.9) -> np.ndarray:
    """Whether y lies in the draws' `interval` at each point, 1 or 0; its mean over points is the coverage.

    Shape (..., N); no unit; the level is best. ValueError as `interval`. Not in the paper.

    >>> covered([[1.0, 1.0], [4.0, 4.0]], [2.0, 5.0])
    array([1., 0.])
    """
    lower, upper = interval(draws, y, level)
    y = np.asarray(y, dtype=np.float64)
    return np.where(np.isnan(lower + y), np.nan, (lower <= y) & (y <= upper))


def width(draws: np.ndarray, y: np.ndarray, level: float = 0.9) -> np.ndarray:
    """Width of the draws' `interval` at each point.

    Shape (..., N); unit of y; of intervals with the same coverage the narrower are better. ValueError as `interval`.
    Not in the paper.

    >>> width([[1.0], [4.0]], [2.0])
    array([3.])
    """
    lower, upper = interval(draws, y, level)
    with np.errstate(invalid="ignore", over="ignore"):
        return upper - lower


def pit(draws: np.ndarray, y: np.ndarray, bins: int = 10) -> np.ndarray:
    """Probability integral transform of y at each point as a histogram: the share of [0, 1] in each of equal bins.

    K draws, b of them below y and e equal to it, place y somewhere in [b / (K + 1), (b + e + 1) / (K + 1)]. That
    stretch is spread evenly over the bins it covers: draws like the target fill all bins alike, whatever K is.
    Shape (..., N, bins), summing to 1; no unit; the mean over points should be 1 / bins everywhere: more at both ends
    says that the draws are too narrow, more in the middle too wide. NaN where a number is.
    ValueError for shapes that do not match and for bins < 1. Not in the paper (Czado, Gneiting and Held 2009).

    >>> pit([[1.0], [4.0], [5.0]], [2.0], bins=2)  # in [1/4, 2/4]
    array([[1., 0.]])
    """
    draws, y = _check_draws(draws, y)
    if bins < 1:
        raise ValueError(f"bins is {bins}, expected at least 1")
    below, equal = (draws < y).sum(axis=-2), (draws == y).sum(axis=-2)  # (..., N)
    low = (below / (draws.shape[-2] + 1))[..., None]
    share = ((equal + 1) / (draws.shape[-2] + 1))[..., None]
    filled = np.clip((np.linspace(0, 1, bins + 1) - low) / share, 0, 1)  # (..., N, bins + 1)
    missing = np.isnan(draws).any(axis=-2) | np.isnan(y)  # (..., N)
    return np.where(missing[..., None], np.nan, np.diff(filled))


def nll(draws: np.ndarray, y: np.ndarray, observation_variance: float | np.ndarray = 0.5) -> np.ndarray:
    """Negative log density of y at each point under the paper's predictive mixture.

    NLL_i = -log (1/K) sum_k N(y_i; y_i^(k), observation_variance).
    The default 0.5 is the variance sigma^2 that a loss of squared error + beta KL at beta = 1 implies, since
    beta = 2 sigma^2; a variance for every draw and point is (..., K, N). Shape (..., N); nats, so rescaling y shifts
    it; lower is better. ValueError for shapes that do not match and for a variance that is not positive. Source:
    Appendix H, "On NLL / NLPD"; Appendix D for beta = 2 sigma^2.

    >>> nll([[0.0], [0.0]], [0.0]).round(4)
    array([0.5724])
    """
    draws, y = _check_draws(draws, y)
    if np.ndim(observation_variance):
        if np.shape(observation_variance) != draws.shape or not (np.asarray(observation_variance) > 0).all():
            given = f"observation_variance has shape {np.shape(observation_variance)}"
            raise ValueError(f"{given}, expected a positive number or positive ones of shape {draws.shape}")
        sigma = np.sqrt(observation_variance)  # (..., K, N)
        with np.errstate(invalid="ignore", over="ignore"):
            log_kernel = logsumexp(-0.5 * np.square((draws - y) / sigma) - np.log(sigma), axis=-2)  # (..., N)
        return np.log(draws.shape[-2]) + 0.5 * np.log(2 * np.pi) - log_kernel
    if not 0 < observation_variance < np.inf:
        raise ValueError(f"observation_variance is {observation_variance}, expected a positive number")
    e = int(np.frexp(observation_variance)[1]) // 2  # of its root
    log_normaliser = np.log(2 * np.pi * np.ldexp(observation_variance, -2 * e)) + 2 * e * np.log(2)
    with np.errstate(invalid="ignore", over="ignore"):
        exponents = np.square(np.ldexp(draws - y, -e)) / (-2 * np.ldexp(observation_variance, -2 * e))  # (..., K, N)
        log_kernel = logsumexp(exponents, axis=-2)  # (..., N)
    return np.log(draws.shape[-2]) + 0.5 * log_normaliser - log_kernel


def _ranks(values: np.ndarray) -> np.ndarray:
    return pd.Series(values).rank().to_numpy()  # scipy.stats has this too, and takes a second to import


def spearman(var: np.ndarray, mse: np.ndarray) -> float:
    """Spearman rank correlation between predicted variance and MSE_i.

    rho = correlation of the ranks, ties sharing their mean rank. No unit; 1 is best: a larger variance then
    always flags a larger error. NaN where undefined: constant input, fewer than two points, NaN in the input.
    ValueError for shapes that do not match. Source: Appendix H, "Calibration".

    >>> spearman([1.0, 2.0, 3.0], [1.0, 4.0, 9.0])
    1.0
    """
    var, mse = _check_points(var, mse)
    if _is_constant(var) or _is_constant(mse):
        return np.nan
    return float(np.corrcoef(_ranks(var), _ranks(mse))[0, 1])


def linear_fit(var: np.ndarray, mse: np.ndarray) -> tuple[float, float]:
    """Intercept and slope (a, b) of the least-squares fit MSE_i = a + b Var_i.

    a has the unit of y squared, b none; a = 0 and b = 1 are best, b > 1 means the variance is too small.
    (NaN, NaN) for constant variance, fewer than two points, NaN or infinity in the input. ValueError for shapes that do
    not match. Source: Appendix H, "Calibration".

    >>> linear_fit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
    (1.0, 2.0)
    """
    var, mse = _check_points(var, mse)
    if _is_constant(var):
        return np.nan, np.nan
    (var, e_var), (mse, e_mse) = _scaled(var), _scaled(mse)
    with np.errstate(invalid="ignore", over="ignore"):
        centred = var - var.mean()  # (T,)
        slope = centred @ (mse - mse.mean()) / (centred @ centred)
        intercept = mse.mean() - slope * var.mean()
        return float(np.ldexp(intercept, e_mse)), float(np.ldexp(slope, e_mse - e_var))


def risk_coverage(var: np.ndarray, mse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Risk-coverage curve: the mean MSE_i of the most confident fraction c of the points.

    R(c) for c = 1/T, 2/T, ..., 1, points sorted by increasing Var_i. Points of equal variance all count with
    the mean risk of their block, so the order of the rows cannot matter.
    Returns coverage (T,) without a unit and risk (T,) in the unit of y squared; lower risk is better. With NaN in the
    input the whole risk is NaN.
    ValueError for shapes that do not match. Source: Appendix H, "Risk-coverage"; the tie rule is ours.

    >>> risk_coverage([3.0, 1.0, 1.0, 2.0], [8.0, 0.0, 2.0, 4.0])
    (array([0.25, 0.5 , 0.75, 1.  ]), array([1. , 1. , 2. , 3.5]))
    """
    var, mse = _check_points(var, mse)
    if len(var) == 0:
        return var, mse
    order = np.lexsort((mse, var))
    var, (mse, e) = var[order], _scaled(mse[order])
    first = np.flatnonzero(np.r_[True, var[1:] != var[:-1]])  # (blocks,)
    sizes = np.diff(first, append=len(var))
    n_kept = np.arange(1, len(var) + 1)
    with np.errstate(invalid="ignore", over="ignore"):
        shared = np.repeat(np.add.reduceat(mse, first) / sizes, sizes)  # (T,)
        return n_kept / len(var), np.ldexp(shared.cumsum() / n_kept, e)


def aurc(var: np.ndarray, mse: np.ndarray) -> float:
    """Area under the risk-coverage curve, by trapezoids over coverage 1/T .. 1.

    Nothing is added below 1/T, where the paper's integral starts at 0. Unit of y squared; lower is better.
    NaN for fewer than two points or NaN in the input. ValueError for shapes that do not match.
    Source: Appendix H, "Risk-coverage".

    >>> aurc([3.0, 1.0, 1.0, 2.0], [8.0, 0.0, 2.0, 4.0])
    1.3125
    """
    var, mse = _check_points(var, mse)
    mse, e = _scaled(mse)
    coverage, risk = risk_coverage(var, mse)
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.ldexp(np.trapezoid(risk, coverage), e)) if len(risk) > 1 else np.nan


def calibration_curve(var: np.ndarray, mse: np.ndarray, bins: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Variance-MSE calibration curve: mean variance and mean MSE_i in quantile bins of predicted variance.

    Bin b holds the points whose rank r (ties: the mean rank) has floor((r - 1/2) bins / T) = b, so equal
    variances share a bin; bins left empty by ties or few points are dropped.
    Returns (Var_b, MSE_b), each (at most bins,) in the unit of y squared; the diagonal is best.
    One NaN pair if the input holds NaN. ValueError for shapes that do not match and for bins < 1.
    Source: Appendix H, "variance-MSE calibration curves".

    >>> calibration_curve([1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 3.0, 5.0], bins=2)
    (array([1.5, 3.5]), array([1., 4.]))
    """
    var, mse = _check_points(var, mse)
    if bins < 1:
        raise ValueError(f"bins is {bins}, expected at least 1")
    if np.isnan(var).any():
        return np.array([np.nan]), np.array([np.nan])
    bin_of = ((_ranks(var) - 0.5) * bins // max(len(var), 1)).astype(int)  # (T,)
    sizes = np.bincount(bin_of, minlength=bins)
    kept = sizes > 0

    def mean(values: np.ndarray) -> np.ndarray:
        scaled, e = _scaled(values)
        return np.ldexp(np.bincount(bin_of, weights=scaled, minlength=bins)[kept] / sizes[kept], e)

    return mean(var), mean(mse)


def pointwise(draws: np.ndarray, y: np.ndarray, variance_offset: float = 0.0) -> dict[str, np.ndarray]:
    """Predictive mean, Var_i, MSE_i and CRPS_i of every point, as ``{"mean", "var", "mse", "crps"}``.

    Each (..., N), as `predictive_mean`, `variance` (with the offset), `mse` and `crps` define them.
    ValueError for shapes that do not match. Source: Appendix H.

    >>> sorted(pointwise([[1.0], [4.0]], [2.0]))
    ['crps', 'mean', 'mse', 'var']
    """
    return {
        "mean": predictive_mean(draws, y),
        "var": variance(draws, y, variance_offset),
        "mse": mse(draws, y),
        "crps": crps(draws, y),
    }


@dataclass(frozen=True)
class Metric:
    """A number of a run: how it is computed, what it is called, its unit and its direction.

    Attributes:
        heading: of a column.
        unit: power of the target's unit; None for a log density, which rescaling shifts.
        better: "lower", "higher", the best value, or "" where there is none.
        at_points: (draws, y, variance offset, noise variance) to a value for each point, (N,), averaged over regions;
            or
        of_set: (var, mse) of the points of a region to one number.
        by_region: whether a metric of a set is computed inside and outside the band as well.
        delta: the direction of OOD mean - ID mean, where it is reported.
    """

    heading: str
    unit: int | None
    better: str
    at_points: Callable[[np.ndarray, np.ndarray, float, float | np.ndarray], np.ndarray] | None = None
    of_set: Callable[[np.ndarray, np.ndarray], float] | None = None
    by_region: bool = True
    delta: str = ""


# A metric is added by a row here: columns, cells, units and headings follow.
METRICS = {
    "spearman": Metric("ρ", 0, "1", of_set=spearman),
    "slope_b": Metric("b", 0, "1", of_set=lambda var, mse: linear_fit(var, mse)[1]),
    "intercept_a": Metric("a", 2, "0", of_set=lambda var, mse: linear_fit(var, mse)[0]),
    "aurc": Metric("AURC", 2, "lower", of_set=aurc, by_region=False),
    "mse": Metric("MSE", 2, "lower", lambda draws, y, *_: mse(draws, y), delta="lower"),
    "var": Metric("Var", 2, "", lambda draws, y, offset, _: variance(draws, y, offset), delta="higher"),
    "crps": Metric("CRPS", 1, "lower", lambda draws, y, *_: crps(draws, y), delta="lower"),
    "bias": Metric("bias", 1, "0", lambda draws, y, *_: bias(draws, y)),
    "nll": Metric("NLL", None, "lower", lambda draws, y, _, observation_variance: nll(draws, y, observation_variance)),
    "sqerr_mean": Metric("squared error of the mean", 2, "lower", lambda draws, y, *_: sqerr_mean(draws, y)),
    "coverage_90": Metric("coverage of 90 % intervals", 0, "0.9", lambda draws, y, *_: covered(draws, y)),
    "width_90": Metric("width of 90 % intervals", 1, "lower", lambda draws, y, *_: width(draws, y)),
}
OF_POINTS = {name: metric.at_points for name, metric in METRICS.items() if metric.at_points}
OF_SETS = {name: metric.of_set for name, metric in METRICS.items() if metric.of_set}
DELTAS = tuple(f"delta_{name}" for name, metric in METRICS.items() if metric.delta)
REGIONS = ("id", "ood", "all")
SUMMARY_COLUMNS = (
    *OF_SETS,
    *(f"{name}_{region}" for name in OF_SETS if METRICS[name].by_region for region in ("id", "ood")),
    *(f"{name}_{region}" for name in OF_POINTS for region in REGIONS),
    *DELTAS,
)


def metric_of(column: str) -> Metric:
    """The metric of one of `SUMMARY_COLUMNS`.

    >>> metric_of("delta_crps").heading, metric_of("mse_id").unit
    ('CRPS', 2)
    """
    name = column.removeprefix("delta_")
    return METRICS[name] if name in METRICS else METRICS[name.rpartition("_")[0]]


def heading(column: str) -> str:
    """What one of `SUMMARY_COLUMNS` is called in tables and figures, with an arrow where more or less of it is better.

    >>> heading("delta_mse"), heading("aurc"), heading("spearman")
    ('ΔMSE ↓', 'AURC ↓', 'ρ')
    """
    metric, is_delta = metric_of(column), column.startswith("delta_")
    arrow = {"lower": " ↓", "higher": " ↑"}.get(metric.delta if is_delta else metric.better, "")
    return f"{'Δ' * is_delta}{metric.heading}{arrow}"


def summary(
    draws: np.ndarray,
    y: np.ndarray,
    id_mask: np.ndarray,
    variance_offset: float = 0.0,
    observation_variance: float | np.ndarray = 0.5,
) -> dict[str, float]:
    """Every number reported for one run: `SUMMARY_COLUMNS`, in that order.

    draws (K, N), y (N,), id_mask (N,) bool. Metrics of a set of points are over all points and, ``_id`` and ``_ood``,
    over one region; metrics of points are averaged over a region or all points, and delta = OOD mean - ID mean. An
    empty region gives NaN. Units and directions: `METRICS`. ValueError for shapes that do not match or a mask that is
    not boolean. Source: Appendix H.

    >>> run = summary([[0.0, 1.0], [0.0, 3.0]], [1.0, 1.0], [True, False])
    >>> run["mse_id"], run["mse_ood"], run["delta_var"], run["slope_b"]
    (1.0, 2.0, 1.0, 1.0)
    """
    draws, y = _check_draws(draws, y)
    id_mask = np.asarray(id_mask)
    if draws.ndim != 2:
        raise ValueError(f"draws have shape {draws.shape}, expected (K, N): pass one replicate at a time")
    if id_mask.shape != y.shape or id_mask.dtype != bool:
        given = f"{id_mask.dtype} of shape {id_mask.shape}"
        raise ValueError(f"id_mask is {given}, expected bool of shape {y.shape}")

    points = {name: compute(draws, y, variance_offset, observation_variance) for name, compute in OF_POINTS.items()}
    out: dict[str, float] = {}
    for region, chosen in zip(REGIONS, (id_mask, ~id_mask, np.ones_like(id_mask)), strict=True):
        var_i, mse_i = points["var"][chosen], points["mse"][chosen]
        for name, compute in OF_SETS.items():
            out[name if region == "all" else f"{name}_{region}"] = compute(var_i, mse_i)
        for name in OF_POINTS:
            out[f"{name}_{region}"] = _mean(points[name][chosen])
    with np.errstate(invalid="ignore", over="ignore"):
        for column in DELTAS:
            name = column.removeprefix("delta_")
            out[column] = float(np.subtract(out[f"{name}_ood"], out[f"{name}_id"]))
    return {column: out[column] for column in SUMMARY_COLUMNS}


def to_original_units(metrics: Metrics, y_std: Any) -> Metrics:
    """Metrics of a standardised target, in the target's own units; a new dict or DataFrame.

    With y' = y_mean + y_std y: MSE, variance, squared error, intercept and AURC times y_std^2; CRPS and bias
    times y_std; NLL plus log(y_std), its noise variance becoming y_std^2 times as large; Spearman, slope and
    what is not in SUMMARY_COLUMNS unchanged. For a frame of several data sets y_std may be a Series, one per
    row, of the same index. ValueError for a y_std that is not positive and finite, or if there is nothing to convert.

    >>> to_original_units({"mse_id": 1.0, "crps_id": 1.0, "slope_b": 1.0}, y_std=3.0)
    {'mse_id': 9.0, 'crps_id': 3.0, 'slope_b': 1.0}
    """
    scales = np.asarray(y_std, dtype=np.float64)
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise ValueError(f"y_std is {y_std}, expected the target's positive, finite standard deviation")
    of_rows = isinstance(y_std, pd.Series) and isinstance(metrics, pd.DataFrame)
    if scales.ndim and not (of_rows and y_std.index.equals(getattr(metrics, "index", None))):
        raise ValueError("y_std is a number, or for a frame a Series with its index")
    columns = [column for column in metrics.keys() if column in SUMMARY_COLUMNS]
    if not columns:
        raise ValueError(f"nothing to convert among {list(metrics.keys())}, expected columns of `summary`")
    out = metrics.copy()
    for column in columns:
        unit = metric_of(column).unit
        if unit is None:
            out[column] = metrics[column] + (0 if column.startswith("delta_") else np.log(y_std))
            continue
        for _ in range(unit):  # the square alone may be out of range
            out[column] = out[column] * y_std
    return out
