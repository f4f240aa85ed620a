"""`fdn fit`, `fdn predict` and `fdn report` on files as people have them."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fdn.cli import main
from fdn.errors import UserError
from fdn.estimators import saving
from fdn.estimators.columns import Column, encoded
from fdn.estimators.tables import INSIDE, OUTSIDE, TRAIN, TableModel

QUICK = {"max_epochs": 2, "members": 1, "draws": 10, "beta": 3e-3}
N = 60


def table(n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.uniform(0, 10, n), "b": rng.normal(size=n), "c": rng.choice(["red", "blue"], n)})
    return frame.assign(y=1000 * frame["a"] + rng.normal(size=n) + 50_000)


def with_index(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path)


def with_thousands(frame: pd.DataFrame, path: Path) -> None:
    frame.assign(y=frame["y"].map("{:,.0f}".format)).to_csv(path, index=False)


def with_dates(frame: pd.DataFrame, path: Path) -> None:
    days = pd.date_range("2023-12-25", periods=len(frame))
    frame.assign(a=days.strftime("%d.%m.%Y"), b=days.strftime("%Y-%m-%d %H:%M")).to_csv(path, index=False)


def with_gaps(frame: pd.DataFrame, path: Path) -> None:
    frame.mask(np.random.default_rng(1).random(frame.shape) < 0.1).to_csv(path, index=False, na_rep="NA")


DIRTY = {  # the file, how it is made of the table, and its kinds or what is said
    "semicolon.csv": (lambda f, p: f.to_csv(p, sep=";", decimal=",", index=False), "nnc"),
    "tabs.txt": (lambda f, p: f.to_csv(p, sep="\t", index=False), "nnc"),
    "cp1252.csv": (lambda f, p: f.replace("blue", "grün").to_csv(p, index=False, encoding="cp1252"), "nnc"),
    "thousands.csv": (with_thousands, "nnc"),
    "index.csv": (with_index, "nnc"),
    "dates.csv": (with_dates, "ddc"),
    "categories.csv": (lambda f, p: f.assign(b=f["c"].str.upper()).to_csv(p, index=False), "ncc"),
    "gaps.csv": (with_gaps, "nnc"),
    "excel.xlsx": (lambda f, p: f.to_excel(p, index=False), "nnc"),
    "table.parquet": (lambda f, p: f.astype({"c": "category"}).to_parquet(p), "nnc"),
    "eight.csv": (lambda f, p: f[:8].to_csv(p, index=False), "has 8 rows with a value of 'y' to fit; at least 25"),
    "binary.csv": (lambda f, p: f.assign(a=f["a"] > 5).to_csv(p, index=False), "cannot be the split column"),
    "bom.csv": (lambda f, p: f.to_csv(p, index=False, encoding="utf-8-sig"), "nnc"),
    "mixed.csv": (lambda f, p: f.assign(b=["12 kg", *f["b"][1:]]).to_csv(p, index=False), "'b' has '12 kg' in data"),
    "text.csv": (lambda f, p: f.assign(y="high").to_csv(p, index=False), "'y' has 'high' in data row 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIRTY)
def test_a_dirty_file_is_fitted_or_answered_in_one_sentence(name, tmp_path):
    write, expected = DIRTY[name]
    write(table(), tmp_path / name)
    split = "a" if name == "binary.csv" else None
    if len(expected) > 3:
        with pytest.raises(UserError) as error:
            TableModel.fit(tmp_path / name, "y", split, **QUICK)
        assert expected in str(error.value) and "\n" not in str(error.value)
        return
    model = TableModel.fit(tmp_path / name, "y", split, **QUICK)
    assert "".join(column.kind[0] for column in model.inputs) == expected
    frame, y, part = model.table()
    assert 45_000 < y.min() < y.max() < 65_000 and set(part) == {TRAIN, INSIDE}
    assert model.predict(frame)["mean"].between(40_000, 70_000).all()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A model in a folder, and the file that it was fitted to."""
    folder = tmp_path_factory.mktemp("own")
    frame = table(150)
    frame.loc[3, "y"] = np.nan
    frame["<b>id</b>"], frame["same"], frame["twin"] = range(150), 1, frame["b"]
    frame["name"] = [f"n{i}" for i in frame.index]
    frame.to_csv(folder / "data.csv", index=False)
    model = TableModel.fit(folder / "data.csv", "y", "a", **QUICK)
    model.save(folder / "model")
    return model, folder


def test_columns_that_cannot_help_are_named(fitted):
    said = " ".join(fitted[0].remarks)
    for words in (
        "'same' is the same in every row, and is left out",
        "'twin' repeats 'b', and is left out",
        "'name' has 149 different texts, too many, and is left out",
        "'<b>id</b>' is another whole number in every row; if it is an id, fit with --leave-out",
        "1 of 150 rows have no 'y'",
        "separator comma",
    ):
        assert words in said
    assert [column.name for column in fitted[0].inputs] == ["a", "b", "c", "<b>id</b>"]


def test_rows_beyond_the_band_are_held_out(fitted):
    frame, y, part = fitted[0].table()
    low, high = fitted[0].band
    beyond = (frame["a"] < low) | (frame["a"] > high)
    assert (beyond == (part == OUTSIDE)).all() and beyond.mean() == pytest.approx(0.4, abs=0.02)
    assert np.mean(part[~beyond] == INSIDE) == pytest.approx(0.2, abs=0.01)
    check = fitted[0].check()
    assert list(check.index) == [INSIDE, OUTSIDE]
    assert check["rows"].tolist() == [sum(part == name) for name in check.index]


def test_columns_are_matched_by_name(fitted):
    model = fitted[0]
    frame, _, _ = model.table()
    expected = model.predict(frame)
    shuffled = frame[["twin", "c", "<b>id</b>", "b", "a"]].assign(extra=1)
    pd.testing.assert_frame_equal(model.predict(shuffled), expected)
    with pytest.raises(UserError, match="the table lacks 'a', 'c', which the model needs"):
        model.predict(frame.drop(columns=["a", "c"]))


def test_what_no_training_row_has_is_said(fitted):
    frame, _, part = fitted[0].table()
    rows = pd.concat([frame[part == TRAIN].head(1)] * 4, ignore_index=True)
    rows.loc[0, "c"], rows.loc[1, "b"], rows.loc[2, "a"] = "purple", np.nan, 1e6
    found = fitted[0].predict(rows)
    assert found["why_outside"][0] == "c is 'purple', which no training row has"
    assert found["why_outside"][1] == "b is missing, which it is in no training row"
    assert found["why_outside"][2].startswith("a is 1e+06, above ")
    assert found["in_domain"].tolist() == [False, False, False, True] and np.isfinite(found["mean"]).all()
    with pytest.raises(UserError, match="'a' has 'much' in data row 2"):
        fitted[0].predict(rows.astype({"a": object}).assign(a=["1", "much", "2", "3"]))


def test_a_saved_model_predicts_the_same_in_a_fresh_process(fitted, tmp_path):
    model, folder = fitted
    code = "import sys; from fdn.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["predict", folder / "model", folder / "data.csv", "--id", "name", "--out", tmp_path / "pred.csv"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "of 150 rows are outside" in done.stdout and "does not use: 'same', 'twin'" in done.stdout
    found, data = pd.read_csv(tmp_path / "pred.csv", keep_default_na=False), pd.read_csv(folder / "data.csv")
    assert found["name"].tolist() == data["name"].tolist()
    expected = model.predict(data)
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-8)
    assert found["why_outside"].tolist() == expected["why_outside"].tolist()


def test_parts_are_the_whole_and_only_a_part_is_in_memory(fitted, tmp_path, monkeypatch):
    model, folder = fitted
    for rows in (7, 1000):
        assert model.predict_file(folder / "data.csv", tmp_path / f"{rows}.csv", rows=rows)[0] == 150
    assert (tmp_path / "7.csv").read_bytes() == (tmp_path / "1000.csv").read_bytes()
    monkeypatch.setattr(TableModel, "predict", lambda self, frame, decimal: pd.DataFrame({"in_domain": frame["a"] > 0}))
    peaks = []
    for n in (8_000, 64_000):
        long = pd.DataFrame(np.random.default_rng(0).random((n, 3)), columns=["a", "b", "<b>id</b>"]).assign(c="red")
        long.to_csv(tmp_path / "long.csv", index=False)
        tracemalloc.start()
        assert model.predict_file(tmp_path / "long.csv", tmp_path / "out.csv", rows=2000)[0] == n
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]
    assert pd.read_csv(tmp_path / "out.csv")["row"].tolist() == list(range(1, 64_001))


def test_a_failed_prediction_leaves_no_file(fitted, tmp_path):
    (tmp_path / "new.csv").write_text("a,b,c,<b>id</b>\n1,2,red,3\nx,2,red,3\n", encoding="utf-8")
    with pytest.raises(UserError, match="'a' has 'x' in data row 2"):
        fitted[0].predict_file(tmp_path / "new.csv", tmp_path / "out.csv", rows=1)
    assert {path.name for path in tmp_path.iterdir()} == {"new.csv"}


def test_a_file_to_predict_without_rows_is_answered_and_texts_that_mean_no_value_may_be_new(fitted, tmp_path):
    header = "a,b,c,<b>id</b>\n"
    (tmp_path / "new.csv").write_text(header, encoding="utf-8")
    with pytest.raises(UserError, match="has no rows; a header and rows"):
        fitted[0].predict_file(tmp_path / "new.csv", tmp_path / "out.csv")
    (tmp_path / "new.csv").write_text(f"{header}1,2,red,3\nx,2,red,3\n", encoding="utf-8")
    new = ["predict", str(fitted[1] / "model"), str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.csv")]
    assert main(new) == 2 and main([*new, "--missing", "x"]) == 0
    assert "a is missing" in pd.read_csv(tmp_path / "out.csv")["why_outside"][1]


def rewrite(folder, change):
    """Change what describes a model."""
    path = folder / saving.DESCRIPTION
    path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: shutil.rmtree(f), "is no folder of a saved model"),
        (lambda f: rewrite(f, lambda kept: []), "describes no model of this package"),
        (lambda f: rewrite(f, lambda kept: kept | {"version": 9}), "version 9 of the format, and this package reads 3"),
        (lambda f: rewrite(f, lambda kept: kept.pop("table") and kept), "`fdn fit` writes one"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(fitted, tmp_path, change, said, capsys):
    shutil.copytree(fitted[1] / "model", tmp_path / "model")
    change(tmp_path / "model")
    predict = ["predict", str(tmp_path / "model"), str(fitted[1] / "data.csv"), "--out", str(tmp_path / "x.csv")]
    assert main(predict) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "x.csv").exists()


def test_a_report_of_another_file_is_refused(fitted, tmp_path, capsys):
    (tmp_path / "other.csv").write_text("a,y\n1,2\n", encoding="utf-8")
    report = ["report", str(fitted[1] / "model"), "--out", str(tmp_path / "report.html")]
    assert main([*report, "--data", str(tmp_path / "other.csv")]) == 2
    assert "is not the file that the model was fitted to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "z"], "no column 'z'; the table has 'a', 'b', 'c', 'y'"),
        (["--target", "y", "--split-column", "y"], "need to be different"),
        (["--target", "y", "--split-column", "c"], "holds no numbers"),
        (["--target", "y", "--leave-out", "a", "--leave-out", "b", "--leave-out", "c"], "no column is left"),
        (["--target", "c"], "column 'c' has"),
        (["--target", "y", "--decimal", "x"], "decimal sign"),
        (["--target", "y", "--seed", "x"], "--seed is 'x'"),
    ],
)  # fmt: skip
def test_a_fit_that_cannot_be_is_answered_in_one_sentence(arguments, said, tmp_path, capsys):
    table().to_csv(tmp_path / "data.csv", index=False)
    assert main(["fit", str(tmp_path / "data.csv"), *arguments, "--out", str(tmp_path / "model")]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1 and not (tmp_path / "model").exists()


def test_a_folder_of_other_things_is_refused_before_a_fit(tmp_path, capsys):
    table().to_csv(tmp_path / "data.csv", index=False)
    assert main(["fit", str(tmp_path / "data.csv"), "--target", "y", "--out", str(tmp_path)]) == 2
    assert "holds other things" in capsys.readouterr().err


def test_columns_become_numbers():
    frame = pd.DataFrame({"n": [1.0, np.nan, 3.0], "d": ["2020-01-01", "2020-01-03", None], "c": ["x", "y", "x"]})
    kinds = {"n": "number", "d": "ISO8601", "c": "category"}
    columns = [Column.of(frame[name], kind, ".") for name, kind in kinds.items()]
    X, why = encoded(columns, frame, ".")
    names = ["n", "n is missing", "d (days since 1970)", "d is missing", "c = x", "c = y"]
    assert list(X.columns) == names and not any(why)
    assert X.to_numpy().T.tolist() == [[1, 2, 3], [0, 1, 0], [18262, 18264, 18263], [0, 0, 1], [1, 0, 1], [0, 1, 0]]
    new = pd.DataFrame({"d": ["2020-02-01 12:00"], "c": ["z"], "n": [None]})
    assert list(encoded(columns, new, ".")[1]) == ["c is 'z', which no training row has"]


@pytest.mark.check
def test_the_report_is_one_page_that_loads_nothing_and_shows_names_as_they_are(fitted, tmp_path):
    """Takes as long as the notebook does."""
    assert main(["report", str(fitted[1] / "model"), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert html.escape("<b>id</b>") in page and "<b>id" not in page and "<script" not in page
    assert "default-src 'none'" in page and page.count('src="') == page.count('src="data:') > 2
    assert "Exercises" not in page and "import" not in page
    assert "1 The table" in page and "9.1" not in page, "its sections are of no book"
    for title in ("The table", "The fit", "Calibration", "Intervals", "Rows outside", "How far to trust it"):
        assert title in page
