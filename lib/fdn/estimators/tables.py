"""A model of a table in a file: from the file to a fitted estimator, and from another file to predictions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from tqdm import tqdm

from fdn import metrics
from fdn.data import reading
from fdn.data.reading import Reading, numbers
from fdn.errors import UserError
from fdn.estimators.columns import Columns, kind_of, remarkable
from fdn.estimators.regressor import FDNRegressor

FORMAT, VERSION, DESCRIPTION = "fdn-table", 1, "table.json"
FEWEST = 20  # rows to train on
BAND, HELD_OUT = (0.2, 0.8), 0.2
TRAIN, INSIDE, OUTSIDE = "trained on", "held out", "beyond the band"  # parts of a table
ROWS = 20_000  # predicted at a time
MOST_CHECKED, DRAWS = 5000, 400  # held-out rows of a part, and draws of their crps


@dataclass(frozen=True)
class TableModel:
    """An estimator, and how to get its inputs from a table.

    Attributes:
        columns: the inputs.
        source: the file that it was fitted to, and its sha256.
        remarks: what a person should know of that table, a sentence each.
        band: values of the split column between which rows are inside.
    """

    regressor: FDNRegressor
    columns: Columns
    reading: Reading
    target: str
    split_column: str | None
    band: tuple[float, float] | None
    seed: int
    source: tuple[str, str]
    remarks: tuple[str, ...]

    @classmethod
    def fit(
        cls, path: Path, target: str, split_column: str | None = None, *, given: Reading = Reading(),  # noqa: B008
        leave_out: Sequence[str] = (), categories: Sequence[str] = (), date_format: str | None = None, seed: int = 0,
        **settings: Any,
    ) -> Self:  # fmt: skip
        """Fit to a file; ``settings`` are FDNRegressor's.

        Of the rows a fifth is held out to check the model. With a split column only rows in its 20-80 % band are
        trained on, and those beyond it are held out as well: they tell what it does outside its data.

        Raises:
            UserError: for a file that cannot be read, columns that are not there, values that are no numbers, dates or
                categories, and too few rows.
        """
        how = reading.found(path, given)
        [frame] = reading.parts(path, how, text=categories)
        for name in (target, *([split_column] if split_column else []), *leave_out, *categories):
            if name not in frame.columns:
                raise UserError(f"no column {name!r}; the table has {', '.join(map(repr, frame.columns))}")
        if split_column == target or target in leave_out or split_column in leave_out:
            raise UserError("the target, the split column and those to leave out need to be different columns")
        remarks = [f"Read with {words}." for words in [how.words()] if words]
        frame, y, remark = _with_target(frame, target, how.decimal)
        remarks += remark
        inputs = [name for name in frame.columns if name != target and name not in leave_out]
        dropped, looks = remarkable(frame, target, inputs)
        kinds = {}
        for name in inputs:
            if name not in dropped:
                kinds[name] = kind = ("category", "") if name in categories else kind_of(
                    frame[name], how.decimal, date_format)  # fmt: skip
                if kind[0] == "id":
                    dropped[name] = f"has {frame[name].nunique()} different texts, too many for a category"
        remarks += [f"Column {name!r} {reason}, and is left out." for name, reason in dropped.items()]
        remarks += [f"Column {look}." for look in looks]
        kinds = {name: kind for name, kind in kinds.items() if name not in dropped}
        if not kinds:
            raise UserError(f"no column is left to predict {target!r} from: {' '.join(remarks)}")
        if split_column and kinds.get(split_column, ("", ""))[0] not in ("number", "date"):
            reason = dropped.get(split_column, "holds categories, which have no order")
            raise UserError(f"{split_column!r} cannot be the split column: it {reason}")
        band = None
        if split_column:
            z = _split_values(Columns.of(frame[[split_column]], {split_column: kinds[split_column]}, how.decimal), frame)
            band = tuple(np.quantile(z, BAND).tolist())
            if not (outside := (z < band[0]) | (z > band[1])).any() or (~outside).sum() * (1 - HELD_OUT) < FEWEST:
                raise UserError(
                    f"{split_column!r} cannot be the split column: of {len(z)} rows {outside.sum()} lie beyond its "
                    f"20-80 % band, {band[0]:g} to {band[1]:g}, and {(~outside).sum()} in it"
                )
        elif len(y) * (1 - HELD_OUT) < FEWEST:
            raise UserError(
                f"{path} has {len(y)} rows with a value of {target!r}; at least {FEWEST / (1 - HELD_OUT):.0f} are needed"
            )
        part = _parts(len(y), seed, None if band is None else (z < band[0]) | (z > band[1]))
        if np.ptp(y[part == TRAIN]) == 0:
            raise UserError(f"{target!r} is {y[0]:g} in every row to train on; there is nothing to predict")
        columns = Columns.of(frame[part == TRAIN], kinds, how.decimal)
        X, _ = columns.transform(frame[part == TRAIN])
        regressor = FDNRegressor(random_state=seed, **settings).fit(X, y[part == TRAIN])
        source = str(path), _sha256(path)
        return cls(regressor, columns, how, target, split_column, band, seed, source, tuple(remarks))

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
        [frame] = reading.parts(path, self.reading, text=self.columns.texts)
        frame, y, _ = _with_target(frame, self.target, self.reading.decimal)
        outside = None
        if self.band is not None:
            one = replace(self.columns, columns=tuple(c for c in self.columns.columns if c.name == self.split_column))
            z = _split_values(one, frame)
            outside = (z < self.band[0]) | (z > self.band[1])
        return frame, y, _parts(len(y), self.seed, outside)

    def predict(self, frame: pd.DataFrame, decimal: str | None = None) -> pd.DataFrame:
        """What :meth:`FDNRegressor.predict_frame` says of every row, and why it is outside, "" for a row inside."""
        X, why = self.columns.transform(frame, decimal)
        why = np.where(why == "", self.regressor.why_outside(X), why)
        found = self.regressor.predict_frame(X)
        return found.assign(in_domain=why == "", why_outside=why)

    def predictions(
        self, path: Path, given: Reading, identifier: str | None = None, rows: int = ROWS
    ) -> Iterator[tuple[pd.DataFrame, list[str]]]:
        """Predictions of a file's rows, part after part in their order, and columns of the part that were not used."""
        how = reading.found(path, replace(given, missing=self.reading.missing), self.columns.decimal)
        text = [*self.columns.texts, *([identifier] if identifier else [])]
        for frame in reading.parts(path, how, rows, text):
            if identifier is not None and identifier not in frame.columns:
                raise UserError(f"no column {identifier!r}; {path} has {', '.join(map(repr, frame.columns))}")
            found = self.predict(frame, how.decimal)
            if identifier is None:
                found.insert(0, "row", frame.index + 1)
            else:
                found.insert(0, identifier, frame[identifier], allow_duplicates=True)
            used = {column.name for column in self.columns.columns} | {identifier, self.target}
            yield found, [name for name in frame.columns if name not in used]

    def check(self, path: Path | None = None) -> pd.DataFrame:
        """How held-out rows are predicted, a row for each part, in units of the target.

        rmse of the mean, beside that of the training rows' mean and of scikit-learn's gradient boosting; crps; share
        of targets in the 90 % interval, and its mean width.
        """
        frame, y, part = self.table(path)
        X, _ = self.columns.transform(frame)
        train, rows = part == TRAIN, {}
        trees = HistGradientBoostingRegressor(random_state=self.seed).fit(X[train], y[train])
        for name in (INSIDE, OUTSIDE):
            some = np.flatnonzero(part == name)[:MOST_CHECKED]
            if len(some):
                X_part, t = X.iloc[some], y[some]
                found = self.regressor.predict_frame(X_part)
                rows[name] = {
                    "rows": len(some), "rmse": _rms(found["mean"] - t), "rmse of the mean": _rms(y[train].mean() - t),
                    "rmse of boosted trees": _rms(trees.predict(X_part) - t),
                    "crps": metrics.crps(self.regressor.sample(X_part, DRAWS), t).mean(),
                    "coverage": ((found["q05"] <= t) & (t <= found["q95"])).mean(),
                    "width": (found["q95"] - found["q05"]).mean(),
                }  # fmt: skip
        return pd.DataFrame(rows).T.astype({"rows": int})

    def save(self, folder: Path) -> None:
        """Write it to a folder, as :meth:`FDNRegressor.save` does, with TABLE.json beside."""
        self.regressor.save(folder)
        kept = {name: getattr(self, name) for name in ("target", "split_column", "band", "seed", "source", "remarks")}
        kept |= {"format": FORMAT, "version": VERSION, "reading": asdict(self.reading)}
        kept["columns"] = self.columns.as_json()
        (Path(folder) / DESCRIPTION).write_text(json.dumps(kept, indent=2), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Self:
        """What :meth:`save` wrote.

        Raises:
            UserError: where the folder holds no model that ``fdn fit`` wrote, or one of a newer version.
        """
        regressor = FDNRegressor.load(folder, device)
        try:
            kept = json.loads((Path(folder) / DESCRIPTION).read_text(encoding="utf-8"))
            if (form := kept.pop("format")) != FORMAT or (version := kept.pop("version")) > VERSION:
                raise UserError(f"{folder} was saved in format {form} {version}; this package reads {VERSION}")
            how = kept.pop("reading")
            band, source, remarks = kept.pop("band"), tuple(kept.pop("source")), tuple(kept.pop("remarks"))
            return cls(
                regressor, Columns.from_json(kept.pop("columns")), Reading(**{**how, "missing": tuple(how["missing"])}),
                band=None if band is None else tuple(band), source=source, remarks=remarks, **kept,
            )  # fmt: skip
        except UserError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder} has no {DESCRIPTION} that can be read; `fdn fit` writes it") from error


def write_predictions(
    model: TableModel, path: Path, out: Path, given: Reading, identifier: str | None
) -> tuple[int, list[str]]:
    """Predict a file's rows into a CSV file; how many, and what there is to say about them.

    A part of the rows is in memory at a time; OUT is there once all are predicted.
    """
    n, outside, extra = 0, 0, []
    unfinished = out.with_name(f"{out.name}.unfinished")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(unfinished, "w", encoding="utf-8", newline="") as file, tqdm(unit=" rows", disable=None) as bar:
            for found, extra in model.predictions(path, given, identifier):
                found.to_csv(file, index=False, header=n == 0, lineterminator="\n", float_format="%.9g")
                n, outside = n + len(found), outside + int((~found["in_domain"]).sum())
                bar.update(len(found))
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    said = [f"Columns that the model does not use: {', '.join(map(repr, extra))}."] if extra else []
    return n, [*said, f"Predicted {n} rows; {outside} are outside the training data, column why_outside says why."]


def _with_target(frame: pd.DataFrame, target: str, decimal: str | None) -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    """Rows that have a target, it, and a sentence on the others."""
    y, given = numbers(frame[target], decimal or "."), frame[target].notna().to_numpy()
    if len(wrong := np.flatnonzero(given & ~np.isfinite(y))):
        raise UserError(
            f"the target {target!r} has {frame[target].iloc[wrong[0]]!r} in data row {wrong[0] + 1}, which is no finite "
            f"number; correct it, or name it with --missing where it means no value"
        )
    remarks = [] if given.all() else [f"{(~given).sum()} of {len(given)} rows have no {target!r}, and are left out."]
    return frame[given], y[given], remarks


def _split_values(column: Columns, frame: pd.DataFrame) -> np.ndarray:
    """The split column in numbers, ``(N,)``; where it is missing, its median."""
    return column.transform(frame)[0].iloc[:, 0].to_numpy()


def _parts(n: int, seed: int, outside: np.ndarray | None) -> np.ndarray:
    """``(n,)`` text: the part of every row."""
    part = np.full(n, TRAIN, dtype=object)
    order = np.random.default_rng(seed).permutation(n)
    if outside is not None:
        part[outside] = OUTSIDE
        order = order[~outside[order]]
    part[order[: round(HELD_OUT * len(order))]] = INSIDE
    return part


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
