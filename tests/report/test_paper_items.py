"""The list of the paper's items leads to files, names in them and sections of notebooks that exist."""

from __future__ import annotations

import re

import pytest

from fdn import paths

PAGE = paths.ROOT / "docs" / "paper_items.md"
ROW = re.compile(r"^\| (?P<paper>[^|]+) \| (?P<item>[^|]+) \| (?P<code>[^|]+) \| (?P<shown>[^|]+) \|$")
ROWS = [
    found.groupdict()
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if (found := ROW.match(line)) and found["item"] not in ("item", ":---")
]
DONE = [row for row in ROWS if not row["shown"].startswith("Open")]


@pytest.mark.parametrize("row", DONE, ids=lambda row: row["item"])
def test_an_item_is_in_its_file_and_in_its_section(row):
    place, name = re.fullmatch(r"\[[\w.]+\]\((\S+)\): `(\w+)`", row["code"]).groups()
    source = (PAGE.parent / place).read_text(encoding="utf-8")
    assert re.search(rf"^ *(def|class) {name}\b|^ *{name}\b *[:=]", source, re.MULTILINE), f"{name} in {place}"
    number, notebook = re.fullmatch(r"\[([\d.]+)\]\((\S+\.ipynb)\)", row["shown"]).groups()
    script = (PAGE.parent / notebook).with_suffix(".py")
    assert re.search(rf"^# ## {re.escape(number)} ", script.read_text(encoding="utf-8"), re.MULTILINE), number
    assert script.name.startswith(f"0{number[0]}_")


def test_nothing_is_open_and_the_page_counts_its_items():
    opened = [row["item"] for row in ROWS if row not in DONE]
    assert opened == []
    assert f"{len(ROWS)} items, 0 of them open." in PAGE.read_text(encoding="utf-8")
    assert len({(row["paper"], row["item"]) for row in ROWS}) == len(ROWS) >= 78


def test_the_result_tables_and_every_data_set_of_the_paper_are_items():
    text = " ".join(row["item"] for row in ROWS).lower()
    for words in ("step, sine, quadratic", "airfoil, ccpp, energy", "algorithm 1", "iwae", "crps", "aurc", "notation"):
        assert words in text
