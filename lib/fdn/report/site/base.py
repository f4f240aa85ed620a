"""What every page of the site is made from, and how one is written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jinja2
import pandas as pd

from fdn.protocol import PUBLISHED
from fdn.report import console, findings, published
from fdn.report.comparison import seed_counts
from fdn.report.site import markup
from fdn.report.site.markup import TONES
from fdn.report.tables import RESULT_COLUMNS
from fdn.runs import extras, results

PROTOCOL = PUBLISHED.label
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Site:
    """A results folder, and the folder that the sources of the pages are written to.

    ``metrics`` and ``comparison`` are of the published protocol and of all seeds there are: of the committed results
    with the further seeds of the extras, on every page.
    """

    results: Path
    source: Path
    metrics: pd.DataFrame
    comparison: pd.DataFrame
    first: pd.DataFrame  # the comparison of the folder alone, the seeds that `fdn paper` computes

    @classmethod
    def of(cls, folder: Path, source: Path) -> Site:
        """Read a results folder.

        Raises:
            FileNotFoundError: if it holds no results.
            UserError: if it holds none of the published protocol.
        """
        metrics = results.load_metrics(folder)
        console.check_protocol(metrics, PROTOCOL, folder)
        everything = extras.read(folder)
        comparison = published.with_reasons(published.compare(everything, PROTOCOL))
        first = published.compare(metrics, PROTOCOL)
        return cls(folder, source, published.rows_of(everything, protocol=PROTOCOL), comparison, first)

    @property
    def datasets(self) -> list[str]:
        """The paper's data sets that have results, in the paper's order."""
        present = set(self.metrics["dataset"])
        return [name for name in published.DATASETS if name in present]

    @cached_property
    def seeds(self) -> str:
        """How many seeds the numbers are of, in words: one number if all data sets have the same."""
        compared = self.comparison[self.comparison["n_seeds"] > 0]
        counts = compared.groupby("dataset")["n_seeds"].max()
        return f"{counts.iloc[0]} seeds per data set" if counts.nunique() == 1 else f"seeds: {seed_counts(compared)}"

    @cached_property
    def score(self) -> dict[tuple[str, str], dict[str, float]]:
        """:func:`fdn.report.published.score` by (by, name)."""
        return {(row["by"], row["name"]): row for row in published.score(self.comparison).to_dict("records")}

    def render(self, target: str, template: str | None = None, **values: object) -> None:
        """Write a page from its template, which has the path of the page unless it is named."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        )  # fmt: skip
        environment.filters["table"] = markup.from_table
        shared = {
            "folder": findings.place(self.results.resolve()),  # as a command names it
            "datasets": self.datasets, "score": self.score, "seeds": self.seeds,
            "total": self.score["total", "total"], "tones": TONES, "headings": RESULT_COLUMNS,
            "n_seeds": self.comparison.groupby("dataset")["n_seeds"].max(),
        }  # fmt: skip
        path = self.source / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(template or target).render(shared | values), encoding="utf-8")

    def csv(self, frame: pd.DataFrame, name: str) -> None:
        """Write a table for readers to keep."""
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(path, index=False, lineterminator="\n")
