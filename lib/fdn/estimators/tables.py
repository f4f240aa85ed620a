"""A model of a table in a file: from the file to a fitted estimator, and from another file to predictions."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import root_mean_squared_error
from tqdm import tqdm

from fdn import metrics
from fdn.data import reading
from fdn.data.reading import TO_FIND, Reading
from fdn.errors import UserError
from fdn.estimators import saving
from fdn.estimators.columns import Column, encoded, usable
from fdn.estimators.regressor import FDNRegressor

FEWEST = 20  # rows to train on
FEW = 30  # held-out rows that say little: `fdn fit` says so
BAND, HELD_OUT = (0.2, 0.8), 0.2
TRAIN, INSIDE, OUTSIDE = "trained on", "held out", "beyond the band"  # parts of a table
ROWS = 20_000  # predicted at a time
MOST_CHECKED, DRAWS = 5000, 400  # held-out rows of a part, and draws of their crps


@dataclass(frozen=True)
class TableModel:
    """An estimator, and how to get its inputs from a table.

    Attributes:
        inputs: the columns that it uses.
        source: the file that it was fitted to, and its sha256.
        remarks: what a person should know of that table, a sentence each.
        band: values of the split column between which rows are inside.
    """

    regressor: FDNRegressor
    inputs: Sequence[Column]
    reading: Reading
    target: str
    split_column: str | None
    band: tuple[float, float] | None
    seed: int
    source: tuple[str, str]
    remarks: Sequence[str]

    @classmethod
    def fit(
        cls, path: Path, target: str, split_column: str | None = None, *, given: Reading = TO_FIND,
        leave_out: Sequence[str] = (), seed: int = 0, **settings: Any,
    ) -> Self:  # fmt: skip
        """Fit to a file; ``settings`` are FDNRegressor's.

        Of the rows a fifth is held out to check the model. With a split column only rows in its 20-80 % band are
        trained on, and those beyond it are held out as well: they tell what it does outside its data.

        Raises:
            UserError: for a file that cannot be read, columns that are not there, values that are no numbers, dates or
                categories, and too few rows.
        """
        how = reading.found(path, given)
        [frame] = reading.parts(path, how)
        if absent := [name for name in (target, split_column or target, *leave_out) if name not in frame.columns]:
            raise UserError(f"no column {absent[0]!r}; the table has {', '.join(map(repr, frame.columns))}")
        if target in (split_column, *leave_out) or split_column in leave_out:
            raise UserError("the target, the split column and those to leave out need to be different columns")
        n_rows = len(frame)
        frame, y = _with_target(frame, target, how.decimal)
        remarks = [f"Read with {how.words()}."] if how.separator else []
        if n_rows > len(frame):
            remarks.append(f"{n_rows - len(frame)} of {n_rows} rows have no {target!r}, and are left out.")
        used = [name for name in frame.columns if name != target and name not in leave_out]
        kinds, said = usable(frame, target, used, how.decimal)
        remarks += said
        if not kinds:
            raise UserError(f"no column is left to predict {target!r} from: {' '.join(remarks)}")
        place, band = None, None
        if split_column:
            if kinds.get(split_column, "category") == "category":
                raise UserError(f"{split_column!r} cannot be the split column: it holds no numbers, or is left out")
            split = Column.of(frame[split_column], kinds[split_column], how.decimal)
            place = split.values(frame[split_column], how.decimal)
            low, high = band = tuple(np.nanquantile(place, BAND).tolist())
            remarks.append(f"Trained on the band of {split_column!r} alone, to show what the model does outside of its "
                           "data; for a model to use, fit without --split-column.")  # fmt: skip
            if not ((place < low) | (place > high)).any():
                raise UserError(f"{split_column!r} cannot be the split column: no row is beyond {low:g} to {high:g}")
        part = _parts(len(y), place, band, seed)
        train = part == TRAIN
        if (n := (part != OUTSIDE).sum()) * (1 - HELD_OUT) < FEWEST:
            least = FEWEST / (1 - HELD_OUT)
            raise UserError(f"{path} has {n} rows with a value of {target!r} to fit; at least {least:.0f} are needed")
        remarks.append(f"{train.sum()} rows are for training; the others are held out, to check it.")
        if np.ptp(y[train]) == 0:
            raise UserError(f"{target!r} is {y[train][0]:g} in every row to train on; there is nothing to predict")
        if settings.get("verbose"):
            print(f"Training on {train.sum()} rows: half a minute for a thousand, minutes for many.", file=sys.stderr)
        inputs = [Column.of(frame.loc[train, name], kind, how.decimal) for name, kind in kinds.items()]
        X, _ = encoded(inputs, frame[train], how.decimal)
        regressor = FDNRegressor(random_state=seed, **settings).fit(X, y[train])
        source = str(Path(path).absolute()), _sha256(path)
        return cls(regressor, inputs, how, target, split_column, band, seed, source, remarks)

    def table(self, path: Path | None = None) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
        """The file that it was fitted to: rows with a target, the target ``(N,)``, the rows' parts ``(N,)`` text.

        Args:
            path: where the file is now.

        Raises:
            UserError: where the file is gone, or another one.
        """
        path = Path(path or self.source[0])
        if not path.is_file():
            raise UserError(f"{path}, which the model was fitted to, is not there; say where it is now with --data")
        if _sha256(path) != self.source[1]:
            raise UserError(f"{path} is not the file that the model was fitted to, or was changed since; fit it again")
        [frame] = reading.parts(path, self.reading, texts=self.texts)
        frame, y = _with_target(frame, self.target, self.reading.decimal)
        split = next((column for column in self.inputs if column.name == self.split_column), None)
        place = None if split is None else split.values(frame[split.name], self.reading.decimal)
        return frame, y, _parts(len(y), place, self.band, self.seed)

    @property
    def texts(self) -> list[str]:
        """Names of the columns to be read as text."""
        return [column.name for column in self.inputs if column.kind == "category"]

    def encoded(self, frame: pd.DataFrame, decimal: str = "") -> tuple[pd.DataFrame, np.ndarray]:
        """The network's inputs, see :func:`fdn.estimators.columns.encoded`."""
        return encoded(self.inputs, frame, decimal or self.reading.decimal)

    def predict(self, frame: pd.DataFrame, decimal: str = "") -> pd.DataFrame:
        """What :meth:`FDNRegressor.predict_frame` says of every row, and why it is outside, "" for a row inside."""
        X, why = self.encoded(frame, decimal)
        why = np.where(why == "", self.regressor.why_outside(X), why)
        return self.regressor.predict_frame(X).assign(in_domain=why == "", why_outside=why)

    def predict_file(
        self, path: Path, out: Path, given: Reading = TO_FIND, identifier: str | None = None, rows: int = ROWS
    ) -> tuple[int, str]:
        """Predict a file's rows into a CSV file, ``rows`` in memory at a time; how many, and a sentence or two on them.

        OUT is there once all are predicted.
        """
        given = replace(given, missing=[*self.reading.missing, *given.missing])
        how = reading.found(path, given, self.reading.decimal)
        text, n, outside = [*self.texts, identifier or ""], 0, 0
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = out.with_name(f"{out.name}.unfinished")
        try:
            for frame in tqdm(reading.parts(path, how, rows, text), unit=f" x {rows} rows", disable=None):
                if identifier is not None and identifier not in frame.columns:
                    raise UserError(f"no column {identifier!r}; {path} has {', '.join(map(repr, frame.columns))}")
                found = self.predict(frame, how.decimal)
                names = frame[identifier] if identifier else frame.index + 1
                found.insert(0, identifier or "row", names, allow_duplicates=True)
                options = {"mode": "a" if n else "w", "header": n == 0, "index": False, "float_format": "%.9g"}
                found.to_csv(unfinished, lineterminator="\n", encoding="utf-8", **options)
                n, outside = n + len(found), outside + int((~found["in_domain"]).sum())
            unfinished.replace(out)
        finally:
            unfinished.unlink(missing_ok=True)
        used = {column.name for column in self.inputs} | {identifier, self.target}
        extra = [repr(name) for name in frame.columns if name not in used]
        said = f"Columns that the model does not use: {', '.join(extra)}.\n" if extra else ""
        return n, f"{said}{outside} of {n} rows are outside the data; the column why_outside says why."

    def check(self, path: Path | None = None) -> pd.DataFrame:
        """How held-out rows are predicted, a row for each part, in units of the target.

        rmse of the predicted mean, beside that of the training rows' mean and of scikit-learn's gradient boosting;
        crps; share of targets in the 90 % interval, and its mean width.
        """
        frame, y, part = self.table(path)
        X, _ = self.encoded(frame)
        train, rows = part == TRAIN, {}
        trees = HistGradientBoostingRegressor(random_state=self.seed).fit(X[train], y[train])
        for name in (INSIDE, OUTSIDE):
            some = np.flatnonzero(part == name)
            if len(some) > MOST_CHECKED:
                some = np.sort(np.random.default_rng(self.seed).choice(some, MOST_CHECKED, replace=False))
            if len(some):
                X_part, t = X.iloc[some], y[some]
                found = self.regressor.predict_frame(X_part)
                rows[name] = {
                    "rows": len(some), "rmse": root_mean_squared_error(t, found["mean"]),
                    "rmse of always the mean": root_mean_squared_error(t, np.full(len(t), y[train].mean())),
                    "rmse of boosted trees": root_mean_squared_error(t, trees.predict(X_part)),
                    "crps": metrics.crps(self.regressor.sample(X_part, DRAWS), t).mean(),
                    "coverage of 90 %": ((found["q05"] <= t) & (t <= found["q95"])).mean(),
                    "width of 90 %": (found["q95"] - found["q05"]).mean(),
                }  # fmt: skip
        return pd.DataFrame(rows).T.astype({"rows": int})

    def save(self, folder: Path) -> None:
        """Write it to a folder, as :meth:`FDNRegressor.save` does, with what it knows of the table."""
        kept, arrays = self.regressor._kept()
        table = {name: value for name, value in vars(self).items() if name != "regressor"}
        saving.write(folder, kept | {"table": table}, arrays)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Self:
        """What :meth:`save` wrote.

        Raises:
            UserError: where the folder holds no model that ``fdn fit`` wrote, or one of another version.
        """
        kept, arrays = saving.read(folder)
        if "table" not in kept:
            raise UserError(f"{folder} holds a model of an array, not of a table; `fdn fit` writes one")
        table = kept["table"]
        table["inputs"] = [Column(**column) for column in table["inputs"]]
        table["reading"] = Reading(**table["reading"])
        return cls(FDNRegressor._of(kept, arrays, device), **table)


def _with_target(frame: pd.DataFrame, target: str, decimal: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows that have a target, and it."""
    frame = frame[frame[target].notna()]
    return frame, Column(target).values(frame[target], decimal)


def _parts(n: int, place: np.ndarray | None, band: tuple[float, float] | None, seed: int) -> np.ndarray:
    """``(n,)`` text: the part of every row, given their values of a split column, if any, and its band."""
    outside = (place < band[0]) | (place > band[1]) if place is not None and band else np.zeros(n, dtype=bool)
    part = np.where(outside, OUTSIDE, TRAIN).astype(object)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(~outside))
    part[order[: round(HELD_OUT * len(order))]] = INSIDE
    return part


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
