"""From columns as people have them to numbers: missing values, dates, categories.

scikit-learn's SimpleImputer and OneHotEncoder do the same inside a process. A saved model needs a few medians and lists
of texts of them, which are JSON here; their own way to be kept is a pickle, which runs what it holds when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fdn.data.reading import numbers, refuse
from fdn.errors import UserError

MOST_TEXTS = 50  # of a category
DATES = "ISO8601", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y"
FORMATS = *DATES, *(f"{date} %H:%M" for date in DATES[1:]), *(f"{date} %H:%M:%S" for date in DATES[1:])
DAY = pd.Timedelta(days=1)


@dataclass(frozen=True)
class Column:
    """An input column, as the training rows have it.

    Attributes:
        kind: ``"number"``, ``"date"`` (days since 1970-01-01) or ``"category"`` (a number, 0 or 1, for each text).
        fill: in place of a missing number or date: the median.
        missing: whether a training row lacks it; then a number, 0 or 1, says where it is missing.
        format: of dates.
        texts: of a category.
    """

    name: str
    kind: str = "number"
    fill: float = 0.0
    missing: bool = False
    format: str = ""
    texts: Sequence[str] = ()

    @classmethod
    def of(cls, column: pd.Series, kind: str, decimal: str) -> Column:
        """Learned from training rows; of a date ``kind`` is its format."""
        name, missing = str(column.name), bool(column.isna().any())
        if kind == "category":
            return cls(name, kind, missing=missing, texts=sorted(set(as_texts(column.dropna()))))
        new = cls(name, missing=missing) if kind == "number" else cls(name, "date", missing=missing, format=kind)
        values = new.values(column, decimal)
        return new if np.isnan(values).all() else replace(new, fill=float(np.nanmedian(values)))

    def values(self, column: pd.Series, decimal: str) -> np.ndarray:
        """Numbers ``(N,)``, NaN where they are missing.

        Raises:
            UserError: for what is there and is no number or date.
        """
        found = days(column, self.format) if self.kind == "date" else numbers(column, decimal)
        wrong = np.isnan(found) & column.notna().to_numpy() | np.isinf(found)
        refuse(column, wrong, f"date ({self.format})" if self.kind == "date" else "finite number")
        return found

    def encoded(self, column: pd.Series, decimal: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Its inputs by name, and why a row has what no training row had, ``(N,)`` text."""
        absent, why = column.isna().to_numpy(), np.full(len(column), "", dtype=object)
        if self.kind == "category":
            given = as_texts(column)
            inputs = {f"{self.name} = {text}": given == text for text in self.texts}
            for i in np.flatnonzero(~np.isin(given, self.texts) & ~absent):
                why[i] = f"{self.name} is {given[i]!r}, which no training row has"
        else:
            name = f"{self.name} (days since 1970)" if self.kind == "date" else self.name
            inputs = {name: np.where(absent, self.fill, self.values(column, decimal))}
        if self.missing:
            inputs[f"{self.name} is missing"] = absent
        else:
            why[absent] = f"{self.name} is missing, which it is in no training row"
        return inputs, why


def encoded(columns: Sequence[Column], frame: pd.DataFrame, decimal: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers ``(N, d)``, and why a row has what no training row had, ``(N,)`` text; other columns are ignored.

    Raises:
        UserError: naming columns that are not there, and a value that is no number.
    """
    if absent := [repr(column.name) for column in columns if column.name not in frame.columns]:
        there = ", ".join(map(repr, frame.columns))
        raise UserError(f"the table lacks {', '.join(absent)}, which the model needs; it has {there}")
    inputs: dict[str, np.ndarray] = {}
    why = np.full(len(frame), "", dtype=object)
    for column in columns:
        own, reasons = column.encoded(frame[column.name], decimal)
        inputs |= own
        why = np.where(why == "", reasons, why)
    return pd.DataFrame(inputs, index=frame.index, dtype=float), why


def usable(frame: pd.DataFrame, target: str, inputs: Sequence[str], decimal: str) -> tuple[dict[str, str], list[str]]:
    """Columns that may help, each with its kind (see :meth:`Column.of`), and a sentence on each that does not.

    Raises:
        UserError: for a column most of whose values are numbers, and some not.
    """
    kinds, said = {}, []
    seen: dict[bytes, str] = {}
    for name in (target, *inputs):
        column = frame[name]
        twin = seen.setdefault(pd.util.hash_pandas_object(column, index=False).to_numpy().tobytes(), name)
        if name == target:
            continue
        if column.nunique(dropna=False) < 2:
            said.append(f"Column {name!r} is the same in every row, and is left out.")
        elif twin != name:
            said.append(f"Column {name!r} repeats {twin!r}, and is left out.")
        elif (kind := _kind(column, decimal)) is None:
            said.append(f"Column {name!r} has {column.nunique()} different texts, too many, and is left out.")
        else:
            kinds[name] = kind
            if pd.api.types.is_integer_dtype(column) and column.is_unique and np.ptp(column) < 1.5 * len(column):
                said.append(
                    f"Column {name!r} is another whole number in every row; if it is an id, fit with --leave-out."
                )
    return kinds, said


def _kind(column: pd.Series, decimal: str) -> str | None:
    there = column.dropna()
    share = 1 - np.isnan(numbers(there, decimal)).mean()
    if share == 1:
        return "number"
    if (form := next((form for form in FORMATS if not np.isnan(days(there, form)).any()), None)) is not None:
        return form
    if share > 0.5:
        Column(str(column.name)).values(column, decimal)  # says which is none
    return "category" if len(set(as_texts(there))) <= min(MOST_TEXTS, len(there) / 2) else None


def days(column: pd.Series, form: str) -> np.ndarray:
    """``(N,)`` float64: days since 1970-01-01 of dates, in universal time if they name a zone; NaN for all else."""
    if not pd.api.types.is_datetime64_any_dtype(column):
        text = column.astype(object).where(column.notna(), None).map(lambda value: value and str(value).strip())
        column = pd.to_datetime(text, format=form, errors="coerce", utc=True)
    elif column.dt.tz is None:
        column = column.dt.tz_localize("UTC")
    return ((column - pd.Timestamp(0, tz="UTC")) / DAY).to_numpy(dtype=float)


def as_texts(column: pd.Series) -> np.ndarray:
    """``(N,)`` text of every value, of 1.0 that of 1; of a missing one "nan", say."""
    whole = column.map(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
    return whole.astype(object).map(lambda value: str(value).strip()).to_numpy(dtype=object)
