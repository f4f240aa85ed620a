"""The page of the paper's statements: the verdict first, then the words, the criterion, and each data set."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.report.claims.judging import FAILS, HOLDS, PARTLY, UNMEASURED, by_statement, kind_of, verdict
from fdn.report.findings import listing
from fdn.report.site.base import Site
from fdn.report.site.guides import linked
from fdn.report.tables import DASH

VERDICTS = (HOLDS, PARTLY, FAILS, UNMEASURED)


@dataclass(frozen=True)
class Statement:
    """A sentence of the paper with its verdict, as the page shows it."""

    number: int
    anchor: str  # from its words, so that a link outlives other statements
    section: str
    words: str
    criterion: str
    verdict: str
    parts: tuple[tuple, ...]  # rows of claims.csv, one per data set

    @property
    def kind(self) -> str:
        """What it is about, and how it says it."""
        return kind_of(self.parts[0])

    @property
    def where(self) -> str:
        """On which data sets it holds, if only on some."""
        held = [part.dataset for part in self.parts if part.conclusion == HOLDS]
        if not held or len(held) == len(self.parts):
            return ""
        remarks = "".join(f"; {part.remark}" for part in self.parts if part.remark)
        return f" (it holds on {listing(held)}{' alone' * (len(held) == 1)}{remarks})"


def _numbers(part: tuple) -> str:
    more = {"medians: ": part.median, "published table: ": part.published, "": part.remark, "kept: ": part.checkpoint}
    said = [f"{what}{words}" for what, words in more.items() if words not in ("", DASH)]
    return "; ".join([part.numbers or "not measured", *said])


def statements() -> list[Statement]:
    """Every statement of ``claims.csv``, in its order."""
    found = pd.read_csv(paths.CLAIMS / "claims.csv", keep_default_na=False).itertuples(index=False)
    out, used = [], Counter()
    for number, ((section, words, criterion), group) in enumerate(by_statement(found).items(), 1):
        anchor = "-".join(re.findall(r"[a-z0-9]+", words.lower())[:6])
        used[anchor] += 1
        anchor += f"-{used[anchor]}" if used[anchor] > 1 else ""
        out.append(Statement(number, anchor, section, words, criterion, verdict(group), tuple(group)))
    return out


def counts(found: list[Statement]) -> dict[str, int]:
    """How many statements have each verdict."""
    return {name: sum(one.verdict == name for one in found) for name in VERDICTS}


def about(found: list[Statement], dataset: str) -> dict[str, list[Statement]]:
    """The statements judged on a data set, by their verdict there."""
    judged = [(part.conclusion, one) for one in found for part in one.parts if part.dataset == dataset]
    return {name: [one for conclusion, one in judged if conclusion == name] for name in VERDICTS}


def write(site: Site, found: list[Statement]) -> None:
    """Write the page in place of the Markdown that `fdn claims` wrote, whose words before the first section stay."""
    text = (paths.CLAIMS / "README.md").read_text(encoding="utf-8")
    rules = linked(site, Path("data/claims/README.md"), text.split("\n## ")[0].split("\n", 1)[1].strip())
    sections = [(name, list(group)) for name, group in groupby(found, key=lambda one: one.section)]
    site.render(
        "data/claims/README.md", "claims.md", sections=sections, counts=counts(found), rules=rules, numbers=_numbers,
    )  # fmt: skip
