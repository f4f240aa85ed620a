"""Tables as people have them: what a file does not say is found, or said to be missing in one sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fdn.data.reading import Reading, found, numbers, parts
from fdn.errors import UserError


def written(folder, text, encoding="utf-8"):
    path = folder / "table.csv"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("text", "encoding", "expected"),
    [
        ("a,y\n1.5,2\n", "utf-8", (",", ".", "utf-8")),
        ("a;y\n1,5;2\n", "utf-8-sig", (";", ",", "utf-8-sig")),
        ("a;y\n3.142;2.718\n", "utf-8", (";", ".", "utf-8")),
        ("a\ty\n1\t2\n", "utf-16", ("\t", ".", "utf-16")),
        ("größe, in m;y\n1,5;2\n1,7;3\n", "cp1252", (";", ",", "cp1252")),
        ('a,y\n"48,438",2\n"1,234.5",3\n', "utf-8", (",", ".", "utf-8")),
        ("a;y\n1.234,5;2\n1.234;3\n", "utf-8", (";", ",", "utf-8")),
        ("a;y\n48,438;2\nNA;3\n", "utf-8", (";", ",", "utf-8")),
        ("a|y\n1|2\n", "utf-8", ("|", ".", "utf-8")),
        ('a,text\n1,"one; two; three"\n2,"x"\n', "utf-8", (",", ".", "utf-8")),
    ],
)
def test_separator_decimal_sign_and_encoding_are_found(text, encoding, expected, tmp_path):
    how = found(written(tmp_path, text, encoding), Reading())
    assert (how.separator, how.decimal, how.encoding) == expected
    [frame] = parts(tmp_path / "table.csv", how)
    assert list(frame.columns)[1] in ("y", "text") and len(frame) == text.count("\n") - 1


def test_what_is_given_is_not_looked_for(tmp_path):
    path = written(tmp_path, "a;y\n48,438;2\n")
    how = found(path, Reading(decimal=".", encoding="latin-1"))
    assert how.words() == "separator semicolon, decimal point, encoding latin-1"
    [frame] = parts(path, how)
    assert numbers(frame["a"], ".").tolist() == [48438]
    assert found(path, Reading(), otherwise=".").decimal == ".", "the model's sign, where the file allows both"


def test_numbers_are_read_by_the_sign_and_groups_of_three():
    text = ["48,438", "1,234,567.5", "-1e3", " 7 ", "1 234", "1,23", "12,3456", "x", None, 5, True, "1'000"]
    expected = [48438, 1234567.5, -1000, 7, 1234, np.nan, np.nan, np.nan, np.nan, 5, 1, 1000]
    np.testing.assert_array_equal(numbers(pd.Series(text, dtype=object)), expected)
    np.testing.assert_array_equal(numbers(pd.Series(["1.234,5", "0,5", "1.234", "3.14", "-,5"]), ","),
                                  [1234.5, 0.5, 1234, np.nan, -0.5])  # fmt: skip
    assert numbers(pd.Series([1, None], dtype="Int64")).tolist()[0] == 1
    assert np.isnan(numbers(pd.Series([b"x", [1], 10**400, 1j], dtype=object))).all()


def test_parts_are_the_whole(tmp_path):
    frame = pd.DataFrame({"": range(10), "a": np.arange(10) / 7, "b": list("abcdefghij")})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.drop(columns="").set_index(pd.Index(range(5, 15))).to_parquet(tmp_path / "t.parquet")
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    for name in ("t.csv", "t.parquet", "t.xlsx"):
        path = tmp_path / name
        how = found(path, Reading())
        [whole], some = parts(path, how), list(parts(path, how, rows=3))
        assert list(whole.columns) == ["a", "b"] and len(some) == (1 if name == "t.xlsx" else 4)
        pd.testing.assert_frame_equal(pd.concat(some), whole)
        np.testing.assert_allclose(whole["a"].to_numpy(float), frame["a"], rtol=1e-15)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"a,y\n", "has no rows"),
        ("t.csv", b"1,2\n3,4\n", "has numbers in its first row"),
        ("t.csv", b"a,a,y\n1,2,3\n", "repeats 'a'"),
        ("t.csv", b"a,y\n1,2,3\n4,5,6\n", "more values than its header"),
        ("t.csv", b"PK\0\0", "is no table"),
        ("t.csv", b"a,y\n\x81\x9d,1\n", "not encoded in utf-8 or cp1252"),
        ("t.csv.gz", b"\x1f\x8b\x08\0", "cannot be read as a table"),
        ("t.parquet", b"PAR1", "cannot be read as a table"),
        ("t.xlsx", b"PK", "cannot be read as a table"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_described(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as error:
        list(parts(tmp_path / name, found(tmp_path / name, Reading())))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"decimal": "x"}, "decimal sign"),
        ({"separator": ";;"}, "one character"),
        ({"encoding": "utf-9"}, "no encoding"),
        ({"encoding": "ascii"}, "ascii"),
    ],
)
def test_options_that_cannot_be_are_described(given, said, tmp_path):
    with pytest.raises(UserError, match=said):
        found(written(tmp_path, "ä,y\n1,2\n"), Reading(**given))
