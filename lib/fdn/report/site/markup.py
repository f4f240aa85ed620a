"""HTML of tables that sort: numbers carry their full value, so that order and checks never read a rounded one."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fdn.report.claims.judging import FAILS, HOLDS, PARTLY, UNMEASURED
from fdn.report.published import CENTRAL, NOT_COMPUTED, OUTSIDE, RANGE
from fdn.report.tables import DASH, plain_number
from fdn.typesetting import Table

# The style of every verdict
TONES = {
    HOLDS: "good", PARTLY: "mixed", FAILS: "bad", UNMEASURED: "none",
    CENTRAL: "good", RANGE: "mixed", OUTSIDE: "bad", NOT_COMPUTED: "none",
}  # fmt: skip


class Printed(NamedTuple):
    """A number shown as it was printed elsewhere."""

    text: str
    value: float


Cell = str | float | int | Printed | None


def sortable_table(
    name: str,
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    heads: int = 1,
    more: Sequence[tuple[str, str] | None] | None = None,
) -> str:
    """A table in a box that scrolls sideways where the page is narrow.

    A float is shown as :func:`fdn.report.tables.plain_number` writes it, with its exact value in ``data-value``; text
    is shown as it is, `code` in typewriter; None and NaN are a dash. The first ``heads`` cells of a row name it, and
    ``more`` has for each row what unfolds below it, as (summary, text), or None.

    >>> print(sortable_table("t", "Numbers", ["model", "b"], [["BayesNet", 1 / 3]]).replace("><", ">\\n<"))
    <div class="table-wrapper docutils container" role="region" aria-labelledby="t" tabindex="0">
    <table class="docutils sortable">
    <caption id="t">Numbers</caption>
    <thead>
    <tr>
    <th scope="col">model</th>
    <th scope="col" class="number">b</th>
    </tr>
    </thead>
    <tbody>
    <tr>
    <th scope="row">BayesNet</th>
    <td class="number" data-value="0.3333333333333333">0.333</td>
    </tr>
    </tbody>
    </table>
    </div>
    """
    numeric = [any(isinstance(row[i], (int, float, Printed)) for row in rows) for i in range(len(columns))]
    kinds = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f'<th scope="col"{kind}>{_text(column)}</th>' for column, kind in zip(columns, kinds))
    body = ""
    for row, unfolds in zip(rows, more or [None] * len(rows), strict=True):
        cells = zip(row, kinds, strict=True)
        body += f"<tr>{''.join(_cell(cell, i < heads, kind) for i, (cell, kind) in enumerate(cells))}</tr>"
        if unfolds:
            summary, text = map(_text, unfolds)
            below = f"<details><summary>{summary}</summary><p>{text}</p></details>"
            body += f'<tr class="more"><td colspan="{len(columns)}">{below}</td></tr>'
    return (
        f'<div class="table-wrapper docutils container" role="region" aria-labelledby="{name}" tabindex="0">'
        f'<table class="docutils sortable"><caption id="{name}">{_text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def from_table(table: Table, heads: int = 1) -> str:
    """A :class:`fdn.typesetting.Table` as HTML, its notes below it."""
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in table.notes)
    return sortable_table(table.name, f"{table.title}. {table.caption}", table.columns, table.rows, heads) + notes


def _cell(cell: Cell, is_head: bool, kind: str) -> str:
    if cell is None or isinstance(cell, float) and np.isnan(cell):
        value, text = "", DASH
    elif isinstance(cell, Printed):
        value, text = f' data-value="{float(cell.value)!r}"', _text(cell.text)
    elif isinstance(cell, float):
        value, text = f' data-value="{float(cell)!r}"', plain_number(cell)
    else:
        value, text = "", _text(str(cell))
    return f'<th scope="row"{kind}{value}>{text}</th>' if is_head and text else f"<td{kind}{value}>{text}</td>"


def _text(text: str) -> str:
    escaped = html.escape(text, quote=False).replace("\n", "<br>")
    return re.sub("`([^`]+)`", r"<code>\1</code>", escaped)
