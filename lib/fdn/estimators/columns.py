"""From columns as people have them to numbers: missing values, dates, categories.

scikit-learn's SimpleImputer and OneHotEncoder do the same inside a process. A saved model needs a few medians and lists
of texts of them, which are JSON here; their own way to be kept is a pickle, which runs what it holds when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from fdn.data.reading import numbers
from fdn.errors import UserError

MOST_TEXTS = 50  # of a category
FORMATS = "ISO8601", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y", "%m/%d/%Y %H:%M"  # fmt: skip
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
    kind: str
    fill: float = 0.0
    missing: bool = False
    format: str = ""
    texts: tuple[str, ...] = ()

    def values(self, column: pd.Series, decimal: str) -> np.ndarray:
        """Numbers ``(N,)``, NaN where they are missing.

        Raises:
            UserError: for what is there and is no number or date.
        """
        found = days(column, self.format) if self.kind == "date" else numbers(column, decimal)
        wrong = np.flatnonzero(np.isnan(found) & column.notna().to_numpy() | np.isinf(found))
        if len(wrong):
            value, row = column.iloc[wrong[0]], column.index[wrong[0]] + 1
            what = "finite number" if self.kind == "number" else f"date ({self.format})"
            raise UserError(
                f"column {self.name!r} has {value!r} in data row {row}, which is no {what}; correct it, or name it with "
                "--missing where it means no value, or fit with --category or --leave-out and the column's name"
            )
        return found

    def encoded(self, column: pd.Series, decimal: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Its inputs by name, and why a row has what no training row had, ``(N,)`` text."""
        absent, why, inputs = column.isna().to_numpy(), np.full(len(column), "", dtype=object), {}
        if self.kind == "category":
            given = as_texts(column)
            inputs = {f"{self.name} = {text}": given == text for text in self.texts}
            for i in np.flatnonzero(~np.isin(given, self.texts) & ~absent):
                why[i] = f"{self.name} is {given[i]!r}, which no training row has"
        else:
            values = self.values(column, decimal)
            name = f"{self.name} (days since 1970)" if self.kind == "date" else self.name
            inputs = {name: np.where(absent, self.fill, values)}
        if self.missing:
            inputs[f"{self.name} is missing"] = absent
        else:
            why[absent] = f"{self.name} is missing, which it is in no training row"
        return inputs, why


@dataclass(frozen=True)
class Columns:
    """The input columns of a table, as its training rows have them."""

    columns: tuple[Column, ...]
    decimal: str = "."

    @classmethod
    def of(cls, frame: pd.DataFrame, kinds: dict[str, tuple[str, str]], decimal: str) -> Columns:
        """Learned from training rows; ``kinds``: :func:`kind_of` every column."""
        found = []
        for name, (kind, form) in kinds.items():
            missing = bool(frame[name].isna().any())
            if kind == "category":
                texts = tuple(sorted(set(as_texts(frame[name].dropna()))))
                found.append(Column(name, kind, missing=missing, texts=texts))
            else:
                values = Column(name, kind, format=form).values(frame[name], decimal)
                fill = float(np.nanmedian(values)) if np.isfinite(values).any() else 0.0
                found.append(Column(name, kind, fill, missing, form))
        return cls(tuple(found), decimal)

    @property
    def texts(self) -> list[str]:
        """Names of the columns to be read as text."""
        return [column.name for column in self.columns if column.kind == "category"]

    def transform(self, frame: pd.DataFrame, decimal: str | None = None) -> tuple[pd.DataFrame, np.ndarray]:
        """Numbers ``(N, d)``, and why a row has what no training row had, ``(N,)`` text; other columns are ignored.

        Raises:
            UserError: naming columns that are not there, and a value that is no number.
        """
        if absent := [repr(column.name) for column in self.columns if column.name not in frame.columns]:
            there = ", ".join(map(repr, frame.columns))
            raise UserError(f"the table lacks {', '.join(absent)}, which the model needs; it has {there}")
        inputs, why = {}, np.full(len(frame), "", dtype=object)
        for column in self.columns:
            encoded, reasons = column.encoded(frame[column.name], decimal or self.decimal)
            inputs |= encoded
            why = np.where(why == "", reasons, why)
        return pd.DataFrame(inputs, index=frame.index, dtype=float), why

    def as_json(self) -> dict[str, Any]:
        """For :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Columns:
        """What :meth:`as_json` was of."""
        columns = tuple(Column(**{**column, "texts": tuple(column["texts"])}) for column in kept["columns"])
        return cls(columns, kept["decimal"])


def kind_of(column: pd.Series, decimal: str, form: str | None = None) -> tuple[str, str]:
    """Kind of a column and the format of its dates: "number", "date", "category", or "id", text that hardly repeats.

    Raises:
        UserError: for a column of numbers most of whose values are numbers, and some not.
    """
    there = column.dropna()
    values = numbers(there, decimal)
    share = float((~np.isnan(values)).mean()) if len(there) else 1.0
    if share == 1:
        return "number", ""
    for each in (form,) if form else FORMATS:
        if not np.isnan(days(there, each)).any():
            return "date", each
    if share > 0.5:
        Column(str(column.name), "number").values(column, decimal)
    n_texts = len(set(as_texts(there)))
    return ("category" if n_texts <= min(MOST_TEXTS, len(there) / 2) else "id"), ""


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


def remarkable(frame: pd.DataFrame, target: str, inputs: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Columns that cannot help, each with the reason, and remarks on columns that look like ids."""
    dropped, remarks, seen = {}, [], {_digest(frame[target]): target}
    for name in inputs:
        column = frame[name]
        if column.nunique(dropna=False) < 2:
            dropped[name] = "is the same in every row"
        elif (twin := seen.setdefault(_digest(column), name)) != name:
            dropped[name] = f"repeats {twin!r}"
        elif pd.api.types.is_integer_dtype(column) and column.is_unique and np.ptp(column) < 1.5 * len(column):
            remarks.append(f"{name!r} is another whole number in every row, as an id is; if it is one, fit with "
                           "--leave-out and its name")  # fmt: skip
    return dropped, remarks


def _digest(column: pd.Series) -> int:
    return hash(pd.util.hash_pandas_object(column, index=False).to_numpy().tobytes())
