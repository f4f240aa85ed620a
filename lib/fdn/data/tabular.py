"""Any table with a target and a split column, and scikit-learn's diabetes, split by a feature band."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fdn.data import reading, toy, uci
from fdn.data.dataset import Dataset
from fdn.data.reading import check_names
from fdn.data.splits import feature_band_split
from fdn.errors import UserError


def from_frame(
    table: pd.DataFrame | str | Path,
    *,
    target: Hashable,
    split_column: Hashable,
    features: Sequence[Hashable] | None = None,
    name: str | None = None,
) -> Dataset:
    """Dataset from a DataFrame or a file, split by the band of one feature and standardised.

    Args:
        table: columns of numbers (booleans count as 0 and 1), or the path of a file with the columns' names in its
            first row: CSV, whose separator, decimal sign and encoding are found, Parquet or Excel.
        target: the column to predict.
        split_column: the feature whose 20 % and 80 % quantiles bound the ID band; see ``feature_band_split``.
        features: the input columns in order; by default every column but the target.
        name: the name of the data set, under which results are kept; by default the file's stem, or "table".

    Raises:
        UserError: the file cannot be read, a column is missing, without a name, repeated, constant, text or not
            finite, the target is a feature, too few rows lie in the band or outside it, or the name is that of a
            built-in data set.

    Source: the paper's protocol for real data, applied to other data.

    >>> n = np.arange(50)
    >>> from_frame(pd.DataFrame({"z": n, "y": n**2}), target="y", split_column="z")
    Dataset(table: 18 train, 6 validation (6 ID), 26 test (6 ID), 1 feature)
    """
    if isinstance(table, pd.DataFrame):
        frame, source, decimal = table.reset_index(drop=True), "a DataFrame of the caller's", "."
        check_names(frame.columns, "the table")
    elif isinstance(table, (str, Path)):
        path = Path(table)
        how = reading.found(path)
        [frame] = reading.parts(path, how)
        source, decimal, name = path.name, how.decimal, name or path.stem
    else:
        raise UserError(f"the table is of type {type(table).__name__}; expected a DataFrame or the path of a file")
    if name in BUILT_IN:
        raise UserError(f"{name!r} is a built-in data set, and results of both would mix; rename the file or the table")
    for wanted in (target, split_column, *(features or ())):
        if not isinstance(wanted, Hashable) or wanted not in frame.columns:
            raise UserError(f"no column {wanted!r}; the table has {', '.join(map(repr, frame.columns))}")
    features = list(frame.columns.drop(target) if features is None else features)
    if target in (split_column, *features):
        raise UserError(f"target {target!r} cannot be a feature or the split column as well")
    if split_column not in features:
        raise UserError(f"split column {split_column!r} needs to be one of the features {features}")
    check_names(features, "the list of features")
    columns = [frame[column] for column in (*features, target)]
    numbers = [reading.numbers(column, decimal) for column in columns]
    for column, found in zip(columns, numbers):
        reading.refuse(column, np.isnan(found) & column.notna().to_numpy(), "number")
    return feature_band_split(
        np.column_stack(numbers[:-1]), numbers[-1],
        split_feature=features.index(split_column), name=name or "table",
        feature_names=[str(column) for column in features], target_name=str(target), source=source,
    )  # fmt: skip


def diabetes() -> Dataset:
    """Diabetes after a year (442 patients, 10 features), split by the band of the body mass index.

    A real data set that needs no download; not in the paper, but under its protocol for real data.

    Source: B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, Least angle regression, Annals of Statistics 32
    (2004); shipped with scikit-learn.
    """
    from sklearn.datasets import load_diabetes  # here, as it takes a second to import

    raw = load_diabetes(scaled=False)
    units = {"age": "age [a]", "bmi": "body mass index [kg/m^2]", "bp": "mean blood pressure [mm Hg]"}
    return feature_band_split(
        raw.data, raw.target,
        split_feature=raw.feature_names.index("bmi"), name="diabetes",
        feature_names=[units.get(column, column) for column in raw.feature_names],
        target_name="disease progression",
        source="Efron et al., Least angle regression, Ann. Statist. 32 (2004); shipped with scikit-learn",
    )  # fmt: skip


TABLES = {"diabetes": diabetes}  # built-in ones that need no download
BUILT_IN = (*toy.FUNCTIONS["published"], *uci.SOURCES, *TABLES)  # names of data sets
