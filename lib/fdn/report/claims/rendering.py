"""The page of all statements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.protocol import PUBLISHED
from fdn.report.checkpoints import inside_words
from fdn.report.claims.facts import KINDS
from fdn.report.claims.judging import SHARES, UNTOLD, Finding, by_statement, findings, kind_of, summary, verdict
from fdn.report.tables import DASH
from fdn.runs import extras, results
from fdn.timing import latency
from fdn.typesetting import pipe_table

COMMITTED = "the committed results (`data/results`, `data/extras`)"
COLUMNS = "The paper's words", "Kind", "Data set", "Our criterion", "Published table", "Ours", "Kept", "Conclusion"


def _percent(said: str, end: int) -> str:
    return f"{SHARES[said][end]:.0%}"


def _numbers(finding: Finding) -> str:
    median = f" (median: {finding.median})" if finding.median != DASH else ""
    return f"{finding.numbers or DASH}{median}{f'; {finding.remark}' if finding.remark else ''}"


def page(found: Sequence[Finding], metrics: pd.DataFrame, source: str = COMMITTED) -> str:
    """The findings on the runs of ``source`` as Markdown, a table per section and a row per claim."""
    sections: dict[str, list[tuple[str, ...]]] = {}
    for (section, words, criterion), group in by_statement(found).items():
        lines = [(f.dataset, f.published, _numbers(f), f.checkpoint or DASH) for f in group]
        datasets, printed, ours, kept = map("\n".join, zip(*lines))
        row = f"“{words}”", kind_of(group[0]), datasets, criterion, printed, ours, kept, f"**{verdict(group)}**"
        sections.setdefault(section, []).append(row)
    parts = [
        "# What the paper says, and whether it holds",
        f"{summary(found).capitalize()}. The words are the paper's, the criteria ours. Written by `fdn claims` from "
        f"{source} and times (`latency.csv`, by `fdn latency`); protocol "
        f"`{PUBLISHED.label}`.",
        "*Published table*: whether the printed numbers meet the criterion. *Ours*: the share of seeds that do, and "
        f"whether the medians over seeds do. {DASH}: not printed, not computed, or not about a data set.",
        "*Kept*: where the runs are stopped whose verdict it is, in the median over seeds. The epoch with the best "
        f"validation score lies inside the warm-up, where β is still below {PUBLISHED.beta_max:g}: "
        f"{inside_words(metrics)} ([all seeds](../seeds/README.md)).",
        f"*Kind*: what a statement is about. {'; '.join(f'{kind}: {words}' for kind, words in KINDS.items())}. A "
        "result says something always, often (“often”, “typically”) or that it can be (“can”, “potentially”, “not "
        "always”); it holds on a data set if at least "
        f"{_percent('always', 0)}, {_percent('often', 0)} or {_percent('can', 0)} of the seeds meet the criterion, "
        f"does not if at most {_percent('always', 1)}, {_percent('often', 1)} or none do, and holds in part between; "
        "over data sets, if it does on all, on half, or on one. That two things are alike (“comparable”, "
        "“competitive”, “similar”) is judged by the medians over seeds. Nothing is concluded on a data set where in "
        f"more than {UNTOLD:.0%} of the seeds an error of the mean, corrected for Var / K, is not above 0: such an "
        "error is below what the draws resolve, and is no win.",
    ]
    for section, rows in sections.items():
        parts += [f"## {section}", "\n".join(pipe_table(COLUMNS, rows, "|" + ":---|" * len(COLUMNS)))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write(folder: Path | None = None, metrics: pd.DataFrame | None = None, source: str = COMMITTED) -> list[Path]:
    """Write ``claims.csv``, a row per claim and data set, and the page ``README.md``; return their paths.

    Args:
        folder: default: data/claims, which may hold ``latency.csv``.
        metrics: default: the committed results and extras.
        source: what the page says of where they come from.
    """
    folder = paths.CLAIMS if folder is None else folder
    metrics = extras.with_extras() if metrics is None else metrics
    found = findings(metrics, latency.load())
    table, text = folder / "claims.csv", folder / "README.md"
    with results.atomic(table) as path:
        pd.DataFrame(found).astype({"held": "Int64"}).to_csv(path, index=False)
    with results.atomic(text) as path:
        path.write_text(page(found, metrics, source), encoding="utf-8")
    return [table, text]
