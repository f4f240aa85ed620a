"""Any CSV or DataFrame: what goes through the splitter, and the one sentence for what does not."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tarfile
import zipfile
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from fdn import data
from fdn.errors import UserError

ROWS = 60


@pytest.fixture
def frame():
    rng = np.random.default_rng(3)
    z = rng.uniform(0, 10, ROWS)
    return pd.DataFrame({"a": rng.normal(size=ROWS), "z": z, "y": z**2, "n": rng.integers(0, 9, ROWS)})


def split(table, **options):
    return data.from_frame(table, **{"target": "y", "split_column": "z"} | options)


def test_frame_and_csv_give_the_splitters_data_set(frame, tmp_path):
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    direct = data.feature_band_split(frame[["a", "z", "n"]], frame["y"], split_feature=1)
    for table, name in ((frame, "table"), (path, "mine"), (str(path), "mine")):
        d = split(table)
        assert d.fingerprint == direct.fingerprint and d.name == name
        assert d.feature_names == ("a", "z", "n") and d.target_name == "y" and d.split_feature == 1
    assert split(path, name="theirs").name == "theirs" and split(path).source == "mine.csv"


def test_chosen_features_in_their_order(frame):
    d = split(frame, features=["n", "z"])
    assert d.feature_names == ("n", "z") and d.split_feature == 1


def test_booleans_integers_and_nullable_numbers_are_numbers(frame):
    plain = split(frame.assign(b=(frame.a > 0).astype(float)))
    assert split(frame.assign(b=frame.a > 0)).fingerprint == plain.fingerprint
    assert split(frame.assign(b=(frame.a > 0).astype("boolean"))).fingerprint == plain.fingerprint
    assert split(frame.assign(b=(frame.a > 0).astype(object))).fingerprint == plain.fingerprint


def changed(frame, row, column, value):
    frame = frame.astype(object if isinstance(value, str) else float)
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: changed(f, 4, "a", "red"), "column 'a' has 'red' in data row 5, which is no number"),
        (lambda f: f.assign(a="red"), "column 'a' has 'red' in data row 1, which is no number"),
        (lambda f: changed(f, 4, "a", np.nan), r"'a' has missing \(NaN\) values \(1, first in data row 5\)"),
        (lambda f: changed(f, 4, "y", np.inf), r"column 'y' has infinite values \(1, .* row 5\)"),
        (lambda f: changed(f, slice(8, 9), "z", -np.inf), r"column 'z' has infinite values \(2, .* row 9\)"),
        (lambda f: f.assign(a=1.5), r"column 'a' is constant \(1.5\)"),
        (lambda f: f.assign(y=0), r"column 'y' is constant \(0\)"),
        (lambda f: f.assign(z=2), r"column 'z' is constant \(2\)"),
        (lambda f: f.drop(columns="y"), "no column 'y'; the table has 'a', 'z', 'n'"),
        (lambda f: f.drop(columns="z"), "no column 'z'; the table has 'a', 'y', 'n'"),
        (lambda f: f.iloc[:12], "too few rows.*in the band.*1 to validate"),
        (lambda f: f.assign(z=(np.arange(ROWS) == 0)), "too few rows: 59 of 60 .* with 1 outside"),
        (lambda f: f.iloc[:0], "has no rows"),
        (lambda f: f.set_axis(["a", "z", "y", "a"], axis=1), "repeats 'a'"),
    ],
)
def test_what_cannot_be_split_gets_one_sentence(frame, tmp_path, break_it, message):
    broken = break_it(frame)
    path = tmp_path / "broken.csv"
    broken.to_csv(path, index=False)
    for table in (broken, path):
        with pytest.raises(UserError, match=message) as caught:
            split(table)
        assert "\n" not in str(caught.value)


def test_columns_that_are_no_numbers(frame):
    with pytest.raises(UserError, match="column 'a' has Timestamp.* row 1, which is no number"):
        split(frame.assign(a=pd.date_range("2020-01-01", periods=ROWS)))
    with pytest.raises(UserError, match="column 'a' has .*1j.* row 1, which is no number"):
        split(frame.assign(a=frame.a + 1j))
    with pytest.raises(UserError, match="column 'a' has missing"):
        split(frame.assign(a=pd.array([pd.NA, *range(ROWS - 1)], dtype="Int64")))


def test_roles_that_do_not_go_together(frame):
    with pytest.raises(UserError, match="target 'y' cannot be a feature"):
        split(frame, features=["y", "z"])
    with pytest.raises(UserError, match="target 'z' cannot be .*the split column"):
        split(frame, target="z")
    with pytest.raises(UserError, match=r"split column 'z' needs to be one of the features \['a'\]"):
        split(frame, features=["a"])
    with pytest.raises(UserError, match="repeats 'z'"):
        split(frame, features=["z", "z"])
    with pytest.raises(UserError, match="no column 'b'; the table has 'a', 'z', 'y', 'n'"):
        split(frame, features=["z", "b"])


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is empty"),
        (b"z,y\n", "no rows"),
        (b"z,y\n1,2,3\n4,5,6\n", "more values than its header"),
        (b"z,y\n1,2\n1,2,3\n", "cannot be read as a table"),
        (b"\x89PNG\xff\xfe\n\x00", "is no table that this reads"),
        (b"z;y\n1;2\n3;4\n", "too few rows"),
    ],
)
def test_files_that_are_no_table(tmp_path, contents, message):
    path = tmp_path / "file.csv"
    path.write_bytes(contents)
    with pytest.raises(UserError, match=message) as caught:
        split(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match="absent.csv cannot be read as a table: No such file"):
        split(tmp_path / "absent.csv")
    with pytest.raises(UserError, match="cannot be read as a table: Is a directory"):
        split(tmp_path)


def _zip(*names: str, content: bytes = b"") -> bytes:
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return packed.getvalue()


def _tar(*names: str) -> bytes:
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w", encoding="utf-8") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return packed.getvalue()


PLAIN = b"z,y\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(ROWS))
PACKED = {
    "gz": gzip.compress(PLAIN),
    "bz2": bz2.compress(PLAIN),
    "xz": lzma.compress(PLAIN),
    "zip": _zip("a.csv", content=PLAIN),
}


@pytest.mark.parametrize("suffix", PACKED)
def test_packed_files_are_read_and_damaged_ones_are_one_sentence(tmp_path, suffix):
    path = tmp_path / f"file.csv.{suffix}"
    path.write_bytes(PACKED[suffix])
    assert split(path).n_features == 1
    for damaged in (PACKED[suffix][:-30], PACKED[suffix][:60] + bytes(4) + PACKED[suffix][64:], PLAIN, b"x"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="cannot be read as a table: .") as caught:
            split(path)
        assert "\n" not in str(caught.value) and "None" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "contents"),
    [("a.tar", PLAIN), ("a.tar.gz", PLAIN), ("a.tar", _tar("one", "two")), ("a.zip", _zip("one", "two")),
     ("a.zip", _zip()), ("a.csv", b'z,y\n1,"2\n' * 9)],
)  # fmt: skip
def test_files_that_are_packed_or_written_otherwise_are_one_sentence(tmp_path, name, contents):
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(UserError, match="cannot be read as a table|is no table that") as caught:
        split(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_file_that_needs_another_package_to_unpack_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)  # not installed
    (tmp_path / "mine.csv.zst").write_bytes(PLAIN)
    with pytest.raises(UserError, match="mine.csv.zst cannot be read as a table: .*zstandard"):
        split(tmp_path / "mine.csv.zst")


@pytest.mark.parametrize("name", data.NAMES)
def test_a_table_does_not_take_the_name_of_a_built_in_data_set(frame, tmp_path, name):
    frame.to_csv(tmp_path / f"{name}.csv", index=False)
    for table, options in ((frame, {"name": name}), (tmp_path / f"{name}.csv", {})):
        with pytest.raises(UserError, match=f"'{name}' is a built-in data set, .* would mix; rename"):
            split(table, **options)
    assert split(tmp_path / f"{name}.csv", name="mine").name == "mine"


def test_words_for_missing_values_are_names_like_others(tmp_path):
    names = ["z", "NA", "nan", "null", "None", "N/A", "y"]
    path = tmp_path / "file.csv"
    pd.DataFrame(np.random.default_rng(0).normal(size=(ROWS, len(names))), columns=names).to_csv(path, index=False)
    assert split(path).feature_names == tuple(names[:-1])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))  # as spreadsheets write it
    assert split(path).feature_names == tuple(names[:-1])
    path.write_text(path.read_text(encoding="utf-8-sig").replace("nan", "NA", 1), encoding="utf-8")
    with pytest.raises(UserError, match="repeats 'NA'"):
        split(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: f.set_axis(pd.MultiIndex.from_product([["a"], f.columns]), axis=1),
            r"several names, such as \('a', 'a'\)",
        ),
        (lambda f: f.set_axis(["a", "z", "y", np.nan], axis=1), "without a name"),
        (lambda f: f.set_axis(["a", "z", "y", None], axis=1), "without a name"),
        (lambda f: f.set_axis(["a", "z", "y", " "], axis=1), "without a name"),
        (lambda f: f.assign(a=[10**400 + i for i in range(ROWS)]), "column 'a' has 1000.* row 1, which is no number"),
        (lambda f: f.assign(a=[[i] for i in range(ROWS)]), r"column 'a' has \[0\] in data row 1, which is no number"),
        (lambda f: f.assign(a=pd.to_timedelta(range(ROWS))), "column 'a' has Timedelta.*no number"),
        (lambda f: f["z"], "the table is of type Series"),
        (lambda f: f.to_numpy(), "the table is of type ndarray"),
        (lambda f: None, "the table is of type NoneType"),
    ],
)  # fmt: skip
def test_tables_of_other_kinds_are_one_sentence(frame, change, message):
    with pytest.raises(UserError, match=message):
        split(change(frame))


def test_columns_that_cannot_be_a_name_are_not_there(frame):
    with pytest.raises(UserError, match=r"no column \['y'\]"):
        split(frame, target=["y"])


def test_numbers_beyond_64_bits_and_of_other_libraries_are_numbers(frame):
    for column in (
        [10**30 * i for i in range(ROWS)],
        [Decimal(i) for i in range(ROWS)],
        pd.array(range(ROWS), dtype="int64[pyarrow]"),
    ):
        assert split(frame.assign(a=column)).n_features == 3
