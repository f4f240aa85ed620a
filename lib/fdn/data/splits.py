"""The feature-band splitter: train inside a quantile band of one feature, test inside and outside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fdn.data.dataset import Dataset
from fdn.errors import UserError
from fdn.settings import Share, Whole, checked

MIN_ROWS = 2  # per part: a rank correlation and a line need two points


def feature_band_split(
    features: np.ndarray,
    target: np.ndarray,
    *,
    split_feature: int = 0,
    quantiles: tuple[float, float] = (0.2, 0.8),
    fractions: tuple[float, float] = (0.6, 0.2),
    seed: int = 0,
    name: str = "table",
    feature_names: Sequence[str] | None = None,
    target_name: str = "y",
    source: str = "",
) -> Dataset:
    """Split by a quantile band of one feature and standardise with the training rows.

    With z the split feature and q its linear quantiles over all rows, row i is ID if
    q_low <= z_i <= q_high and OOD otherwise. ID rows are shuffled, then OOD rows; the first
    int(fractions[0] n_ID) ID rows train, the next int(fractions[1] n_ID) validate, and the rest plus every
    OOD row, shuffled once more by the same generator, is the test set. Then x' = (x - m) / s, and y'
    likewise, with the training rows' mean m and population standard deviation s (1 where they do not vary).

    Args:
        features: (N, d) numbers in their own units.
        target: (N,) numbers.

    Raises:
        UserError: a value that is not finite or cannot be standardised, a constant column, an impossible band or
            fraction, or a part with fewer than two rows.

    Source: the paper's protocol for real data and its table of split sizes.
    """
    x, y = np.asarray(features, dtype=float), np.asarray(target, dtype=float)  # (N, d), (N,)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise UserError(f"features {x.shape} and target {y.shape} should be (N, d) and (N,)")
    names = tuple(feature_names or (f"x{j}" for j in range(x.shape[1])))
    split_feature, seed = checked("split_feature", split_feature, Whole), checked("seed", seed, Whole)
    if len(names) != x.shape[1] or split_feature >= len(names):
        raise UserError(f"{x.shape[1]} columns do not go with names {names}, split column {split_feature}")
    quantiles, fractions = _checked_shares(quantiles, fractions)
    if len(y) == 0:
        raise UserError(f"{name} has no rows")
    for label, column in zip((*names, target_name), (*x.T, y), strict=True):
        _check_column(label, column)

    low, high = np.quantile(x[:, split_feature], quantiles)
    inside = (low <= x[:, split_feature]) & (x[:, split_feature] <= high)  # (N,)
    train, val, test = _parts(inside, fractions, seed, f"the band [{low:g}, {high:g}] of {names[split_feature]!r}")

    with np.errstate(all="ignore"):
        x_mean, x_std = _moments(x[train])  # (d,), (d,)
        y_mean, y_std = (float(moment) for moment in _moments(y[train]))
        x, y = (x - x_mean) / x_std, (y - y_mean) / y_std
    for label, column, std in zip((*names, target_name), (*x.T, y), (*x_std, y_std), strict=True):
        if not (0 < std < np.inf and np.isfinite(column).all()):
            raise UserError(f"column {label!r} has numbers of a size that cannot be standardised; rescale it")
    return Dataset(
        name=name,
        x_train=x[train], y_train=y[train], x_val=x[val], y_val=y[val], x_test=x[test], y_test=y[test],
        id_val=inside[val], id_test=inside[test],
        feature_names=names, target_name=target_name, split_feature=split_feature,
        x_mean=x_mean, x_std=x_std, y_mean=y_mean, y_std=y_std, source=source,
    )  # fmt: skip


def _checked_shares(quantiles: object, fractions: object) -> tuple[tuple[float, ...], tuple[float, ...]]:
    quantiles = checked("quantiles", quantiles, tuple[Share, ...])
    fractions = checked("fractions", fractions, tuple[Share, ...])
    if len(quantiles) != 2 or not quantiles[0] < quantiles[1]:
        raise UserError(f"the quantiles of the ID band need 0 <= low < high <= 1, not {quantiles}")
    if len(fractions) != 2 or min(fractions) <= 0 or sum(fractions) >= 1:
        raise UserError(f"the fractions to train and validate need to be > 0 and < 1 in sum, not {fractions}")
    return quantiles, fractions


def _parts(inside: np.ndarray, fractions: Sequence[float], seed: int, band: str) -> list[np.ndarray]:
    """Rows to train, to validate and to test, given which rows are ID, (N,)."""
    rng = np.random.default_rng(seed)
    id_rows, ood_rows = np.flatnonzero(inside), np.flatnonzero(~inside)
    rng.shuffle(id_rows)
    rng.shuffle(ood_rows)
    n_train, n_val = (int(fraction * len(id_rows)) for fraction in fractions)
    train, val, id_test = np.split(id_rows, [n_train, n_train + n_val])
    if min(len(train), len(val), len(id_test), len(ood_rows)) < MIN_ROWS:
        raise UserError(
            f"too few rows: {len(id_rows)} of {len(inside)} lie in {band}, which leaves {len(train)} to train, "
            f"{len(val)} to validate and {len(id_test)} to test, with {len(ood_rows)} outside; each needs at least "
            f"{MIN_ROWS}"
        )
    test = np.concatenate([id_test, ood_rows])
    rng.shuffle(test)
    return [train, val, test]


def _moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # np.ptp, not std == 0: rounding of the mean gives equal rows a tiny spread
    return rows.mean(axis=0), np.where(np.ptp(rows, axis=0) == 0, 1.0, rows.std(axis=0))


def _check_column(label: str, column: np.ndarray) -> None:
    for kind, bad in (("missing (NaN)", np.isnan(column)), ("infinite", np.isinf(column))):
        if bad.any():
            raise UserError(
                f"column {label!r} has {kind} values ({bad.sum()}, first in data row {bad.argmax() + 1}); "
                f"finite numbers were expected: fill them or remove their rows"
            )
    if (column == column[0]).all():
        raise UserError(f"column {label!r} is constant ({column[0]:g}); leave it out or choose another")
