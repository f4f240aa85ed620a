"""Any table with a target and a split column, and scikit-learn's diabetes, split by a feature band."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.io.common import infer_compression

from fdn.data import toy, uci
from fdn.data.dataset import Dataset
from fdn.data.splits import feature_band_split
from fdn.errors import UserError

BUILT_IN = (*toy.FUNCTIONS["published"], *uci.SOURCES, "diabetes")  # names of data sets


def from_frame(
    table: pd.DataFrame | str | Path,
    *,
    target: Hashable,
    split_column: Hashable,
    features: Sequence[Hashable] | None = None,
    name: str | None = None,
) -> Dataset:
    """Dataset from a DataFrame or a CSV file, split by the band of one feature and standardised.

    Args:
        table: columns of numbers (booleans count as 0 and 1), or the path of a comma-separated file with
            a header.
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
        frame, source = table, "a DataFrame of the caller's"
        _check_names(frame.columns, "the table")
    elif not isinstance(table, (str, Path)):
        raise UserError(f"the table is of type {type(table).__name__}; expected a DataFrame or the path of a CSV file")
    else:
        frame, source = _read_csv(Path(table)), Path(table).name
        name = name or Path(table).stem
    if name in BUILT_IN:
        raise UserError(f"{name!r} is a built-in data set, and results of both would mix; rename the file or the table")
    _check_present([target, split_column, *(features or ())], frame.columns)
    features = list(frame.columns.drop(target) if features is None else features)
    if target in (split_column, *features):
        raise UserError(f"target {target!r} cannot be a feature or the split column as well")
    if split_column not in features:
        raise UserError(f"split column {split_column!r} needs to be one of the features {features}")
    _check_names(features, "the list of features")
    numbers = []
    for column in (*features, target):
        try:
            numbers.append(_numbers(frame[column], column))
        except (TypeError, OverflowError) as error:  # of numbers that float64 cannot hold, say
            raise UserError(f"column {column!r} holds values that are no float64 numbers: {error}") from error
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


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, skipinitialspace=True, keep_default_na=False)
        frame = pd.read_csv(path, skipinitialspace=True, low_memory=False)
    except pd.errors.EmptyDataError:
        raise UserError(f"{path} is empty; a header and rows of numbers were expected") from None
    except Exception as error:  # of the parser, the decoder or what unpacks the file
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        if isinstance(error, ImportError):  # .zst: the one kind for which pandas needs another package
            needed = "the package zstandard, which is not installed"
            raise UserError(f"reading {path} needs {needed}; unpack the file, or `pip install zstandard`") from error
        packed = f" packed as {path.suffix}" if infer_compression(path, "infer") else ""
        raise UserError(
            f"{path} is no comma-separated table{packed}: {' '.join(str(error).split()) or repr(error)}"
        ) from error
    _check_names(header.iloc[0], path.name)  # the raw ones: pandas renames repeated columns
    if not frame.index.equals(pd.RangeIndex(len(frame))):  # pandas took surplus first values for labels
        raise UserError(f"{path} has rows with more values than its header has names")
    return frame


def _check_names(columns: Iterable[Hashable], where: str) -> None:
    names = list(columns)
    if levels := [name for name in names if isinstance(name, tuple)]:
        raise UserError(f"{where} has columns of several names, such as {levels[0]}; give each column one name")
    if any(not name.strip() if isinstance(name, str) else pd.isna(name) for name in names):
        raise UserError(f"{where} has a column without a name")
    if repeated := [repr(name) for name, times in Counter(names).items() if times > 1]:
        raise UserError(f"{where} repeats {', '.join(repeated)}")


def _check_present(wanted: Sequence[Hashable], columns: pd.Index) -> None:
    missing = [column for column in wanted if not isinstance(column, Hashable) or column not in columns]
    if missing:
        available = ", ".join(repr(column) for column in columns)
        raise UserError(f"no column {missing[0]!r}; the table has {available}")


def _numbers(column: pd.Series, label: Hashable) -> np.ndarray:
    """(N,) float64; missing values become NaN, which the splitter reports."""
    if pd.api.types.is_string_dtype(column) or column.dtype == object:
        parsed = pd.to_numeric(column, errors="coerce")
        text = (parsed.isna() & column.notna()).to_numpy()
        if text.any():
            row = int(text.argmax())
            raise UserError(
                f"column {label!r} holds text ({column.iloc[row]!r} in data row {row + 1}); numbers were "
                f"expected: encode it or leave it out"
            )
        column = parsed
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_complex_dtype(column):
        raise UserError(f"column {label!r} holds values of type {column.dtype}; numbers were expected")
    return column.to_numpy(dtype=float, na_value=np.nan)
