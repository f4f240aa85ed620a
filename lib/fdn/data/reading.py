"""Tables as people have them: CSV of any separator, decimal sign and encoding, packed or not; Parquet; Excel."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.io.common import get_handle

from fdn.errors import UserError

SEPARATORS = {";": "semicolon", "\t": "tab", "|": "bar", ",": "comma"}  # names of columns may hold a comma
BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
SAMPLE = 1000  # rows by which separator and decimal sign are found
NAMELESS = re.compile(r"\s*|__index_level_\d+__")  # Parquet's name of an index is none
# Whole parts are groups of three, or have no groups; a group ends in the other sign, a blank or an apostrophe
_DIGITS = r"(?=[^eE]*\d)[+-]?(?:\d{{1,3}}(?:[{0}\s\u00a0\u202f'’]\d{{3}})+|\d*)(?:{1}\d*)?(?:[eE][+-]?\d+)?"
NUMBER = {".": re.compile(_DIGITS.format(",", r"\.")), ",": re.compile(_DIGITS.format(".", ","))}


@dataclass(frozen=True)
class Reading:
    """How a table is read; what is empty is found.

    Attributes:
        separator: of a CSV file, one character.
        decimal: ``"."`` or ``","``; the other one may group thousands.
        encoding: of a CSV file.
        missing: texts of a CSV or Excel file that mean no value, besides the empty one, ``NA``, ``nan``, ``null``
            and the like.
    """

    separator: str = ""
    decimal: str = ""
    encoding: str = ""
    missing: Sequence[str] = ("?",)

    def words(self) -> str:
        """What was found or given of a CSV file."""
        separator = SEPARATORS.get(self.separator, repr(self.separator))
        decimal = "point" if self.decimal == "." else "comma"
        return f"separator {separator}, decimal {decimal}, encoding {self.encoding}"


TO_FIND = Reading()  # all of it


def found(path: Path, given: Reading = TO_FIND, otherwise: str = "") -> Reading:
    """What is given, and the rest as the file has it.

    Args:
        otherwise: the decimal sign where the file would allow both.

    Raises:
        UserError: for a file that is not there or no text, and options that cannot be.
    """
    if given.decimal not in ("", *NUMBER):
        raise UserError(f"the decimal sign is {given.decimal!r}; expected . or ,")
    if len(given.separator) > 1:
        raise UserError(f"the separator is {given.separator!r}; expected one character, such as ; or a tab")
    with _sentences(path):
        if path.suffix.lower() in READERS:  # numbers are numbers there
            return replace(given, separator="", encoding="", decimal=given.decimal or ".")
        encoding = _encoding(path, given.encoding)
        with get_handle(path, "r", encoding=encoding, compression="infer") as file:
            lines = [line.rstrip("\r\n") for line in islice(file.handle, SAMPLE + 1)]
    separator = given.separator or _separator(lines)
    decimal = given.decimal or _decimal(list(csv.reader(lines, delimiter=separator)), separator, otherwise)
    return replace(given, separator=separator, decimal=decimal, encoding=encoding)


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Errors of the system, the parser or what unpacks the file, in a sentence."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # of many kinds: pandas, pyarrow, openpyxl and what unpacks have their own
        said = getattr(error, "strerror", None) or " ".join(str(error).split()) or repr(error)
        raise UserError(f"{path} cannot be read as a table: {said}") from error


def parts(path: Path, reading: Reading, rows: int | None = None, texts: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
    """The table, ``rows`` at a time or whole: columns that have a name, in their order.

    Excel's first sheet is read whole.

    Args:
        reading: as :func:`found` completes it.
        texts: columns of a CSV file that stay text, whatever they look like.

    Raises:
        UserError: for a file that is no such table, a repeated name, and one without rows.
    """
    done = 0
    with _sentences(path):
        for frame, names in READERS.get(path.suffix.lower(), _csv)(path, reading, rows, texts):
            names = [str(name).strip() for name in names]
            named = [not NAMELESS.fullmatch(name) for name in names]
            check_names([name for name, kept in zip(names, named) if kept], path.name)
            frame.columns, frame.index = names, pd.RangeIndex(done, done + len(frame))
            done += len(frame)
            if len(frame):
                yield frame.loc[:, named]
    if not done:
        raise UserError(f"{path} has no rows; a header and rows below it were expected")


Frames = Iterator[tuple[pd.DataFrame, Iterable[Any]]]  # with the columns' names as the file has them


def _parquet(path: Path, reading: Reading, rows: int | None, texts: Sequence[str]) -> Frames:
    from pyarrow.parquet import ParquetFile  # here, as it takes a while to import

    with ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=rows or max(1, file.metadata.num_rows)):
            yield batch.to_pandas(ignore_metadata=True), batch.schema.names


def _excel(path: Path, reading: Reading, rows: int | None, texts: Sequence[str]) -> Frames:
    frame = pd.read_excel(path, header=None, dtype=object, na_values=list(reading.missing))
    if len(frame):
        yield frame.iloc[1:].infer_objects(), frame.iloc[0].fillna("")


def _csv(path: Path, reading: Reading, rows: int | None, texts: Sequence[str]) -> Frames:
    options: dict[str, Any] = {
        "sep": reading.separator, "encoding": reading.encoding, "skipinitialspace": reading.separator != "\t"
    }  # fmt: skip
    try:
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **options)
    except pd.errors.EmptyDataError:
        raise UserError(f"{path} is empty; a header and rows below it were expected") from None
    names = header.iloc[0].tolist()  # pandas renames repeated ones where it reads them as a header
    if all(NUMBER[reading.decimal].fullmatch(name) for name in names):
        raise UserError(f"{path} has numbers in its first row; put the columns' names there")
    with pd.read_csv(
        path, header=0, chunksize=rows or 2**62, na_values=list(reading.missing), decimal=reading.decimal,
        dtype={j: str for j, name in enumerate(names) if name.strip() in texts}, low_memory=False, **options,
    ) as reader:  # fmt: skip
        done = 0
        for frame in reader:
            done += len(frame)
            if not frame.index.equals(pd.RangeIndex(done - len(frame), done)):  # surplus first values became labels
                raise UserError(f"{path} has rows with more values than its header has names")
            yield frame, names


READERS = {".parquet": _parquet, ".pq": _parquet, ".xlsx": _excel, ".xlsm": _excel}  # others are CSV


def check_names(columns: Iterable[Hashable], where: str) -> None:
    """Refuse columns without a name, of several names, or of the same."""
    names = list(columns)
    if levels := [name for name in names if isinstance(name, tuple)]:
        raise UserError(f"{where} has columns of several names, such as {levels[0]}; give each column one name")
    if any(not name.strip() if isinstance(name, str) else pd.isna(name) for name in names):
        raise UserError(f"{where} has a column without a name")
    if repeated := [repr(name) for name, times in Counter(names).items() if times > 1]:
        raise UserError(f"{where} repeats {', '.join(repeated)}")


def numbers(column: pd.Series, decimal: str = ".") -> np.ndarray:
    """``(N,)`` float64: numbers as they are or as text, ``48,438`` too, and NaN for all else."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return column.to_numpy(dtype=float, na_value=np.nan)
    column = column.astype(object)
    text = column.map(lambda value: isinstance(value, str)).to_numpy(dtype=bool)
    values = np.full(len(column), np.nan)
    values[~text] = column[~text].map(_float)
    strings = column[text].str.strip()
    strings = strings.where(strings.str.fullmatch(NUMBER[decimal].pattern).astype(bool))
    plain = strings.str.replace(rf"[^\d+\-eE{re.escape(decimal)}]", "", regex=True).str.replace(decimal, ".")
    values[text] = pd.to_numeric(plain, errors="coerce")
    return values


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # dates, lists, bytes; whole numbers beyond float64
        return np.nan


def refuse(column: pd.Series, wrong: np.ndarray, expected: str) -> None:
    """Name the first value that is ``wrong``, ``(N,)`` bool, of rows that count from 0.

    Raises:
        UserError: if any is.
    """
    if wrong.any():
        value, row = column[wrong].iloc[0], column.index[wrong][0] + 1
        raise UserError(
            f"column {str(column.name)!r} has {value!r} in data row {row}, which is no {expected}; correct it, leave "
            "the column out, or declare it a text that means no value"
        )


def _encoding(path: Path, given: str) -> str:
    """Found by reading the whole file: the first letter beyond ASCII may come late."""
    with get_handle(path, "rb", is_text=False, compression="infer") as file:
        start = file.handle.read(4)
    marked = next((name for bom, name in BOMS.items() if start.startswith(bom)), None)
    for name in [given] if given else [marked] if marked else ["utf-8", "cp1252"]:
        try:
            with get_handle(path, "r", encoding=name, compression="infer") as file:
                if any("\0" in line for line in file.handle):
                    raise UserError(f"{path} is no table that this reads: CSV as text, Parquet (.parquet) or Excel")
            return name
        except LookupError as error:
            raise UserError(f"there is no encoding {name!r}; expected one such as utf-8 or cp1252") from error
        except UnicodeDecodeError:
            continue
    raise UserError(f"{path} is not encoded in {given or marked or 'utf-8 or cp1252'}; name another with --encoding")


def _separator(lines: list[str]) -> str:
    """The sign that gives most rows as many values as the header, and of several the one that gives more."""

    def fit(separator: str) -> tuple[float, int]:
        header, *rows = [len(row) for row in csv.reader(lines, delimiter=separator) if row] or [0]
        return (0, 0) if header < 2 else (sum(n == header for n in rows) / max(1, len(rows)), header)

    return max(SEPARATORS, key=fit)


def _decimal(rows: list[list[str]], separator: str, otherwise: str) -> str:
    """The sign with which more values are numbers; where that leaves both, the one that occurs, if only one does."""
    cells = [cell.strip() for row in rows[1:] for cell in row]
    read = {sign: [cell for cell in cells if cell and pattern.fullmatch(cell)] for sign, pattern in NUMBER.items()}
    if len(read["."]) != len(read[","]):
        return max(read, key=lambda sign: len(read[sign]))
    occurs = {sign: any(sign in cell for cell in read["."]) for sign in NUMBER}
    if not otherwise and separator != "," and occurs[","] and not occurs["."]:
        return ","
    return otherwise or "."
