"""A table as strings, written as Markdown, LaTeX and CSV.

A cell is Markdown: `$...$` is mathematics, backticks are code, a backslash before a sign of Markdown leaves it a sign
(see `literal`), a line break separates the lines of one cell.
"""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdn.paths import segment

_LATEX = str.maketrans({  # brackets are wrapped because LaTeX takes "[" after a line break for an option
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "&": r"\&", "#": r"\#", "_": r"\_", "$": r"\$",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "[": "{[}", "]": "{]}", "<": "$<$", ">": "$>$",
    "—": "---", "–": "--", "−": "$-$", "ρ": r"$\rho$", "Δ": r"$\Delta$", "β": r"$\beta$", "↓": r"$\downarrow$",
    "↑": r"$\uparrow$", "≤": r"$\le$", "≥": r"$\ge$", "±": r"$\pm$", "×": r"$\times$", "≠": r"$\ne$",
    "†": r"$^\dagger$",
})  # fmt: skip

_SIGNS = r"[\\`$*_<>&~]"  # of Markdown, wherever they stand


def literal(text: str) -> str:
    r"""Text that anybody may have written, as part of a cell, a title or a note that shows it as it stands.

    >>> literal("a_b $c$")
    'a\\_b \\$c\\$'
    """
    return re.sub(_SIGNS, r"\\\g<0>", text)


def plain(cell: str) -> str:
    r"""A cell without the backslashes of `literal`."""
    return re.sub(rf"\\({_SIGNS})", r"\1", cell)


def to_latex_text(text: str) -> str:
    r"""LaTeX of one cell: special characters escaped, `$...$` kept, code set in typewriter.

    >>> to_latex_text("50 % of `a_b`, $x_1$: [-0.5, —]")
    '50 \\% of \\texttt{a\\_b}, $x_1$: {[}$-$0.5, ---{]}'
    """
    pieces = []
    for piece in re.split(rf"(\\{_SIGNS}|\$[^$]+\$|`[^`]+`)", text):
        if piece.startswith("\\") and len(piece) == 2:
            pieces.append(piece[1].translate(_LATEX))
        elif piece.startswith("$") and len(piece) > 1:
            pieces.append(piece)
        elif piece.startswith("`"):
            pieces.append(rf"\texttt{{{piece[1:-1].translate(_LATEX)}}}")
        else:
            pieces.append(re.sub(r"(?<![\w-])-(?=\d)", "$-$", piece.translate(_LATEX)))
    return "".join(pieces)


def drawn(text: str) -> tuple[str, dict[str, object]]:
    """Text that anybody may have written, and the options that make matplotlib draw it as it stands.

    Dollars are dollars, not mathematics. What the usual font lacks comes from others that are installed, and what
    these lack is drawn as its code, such as [U+6570].
    """
    import matplotlib  # here and below, since tables need no fonts

    own, families, shown = _characters(), [], []
    for c in text:
        family = "" if ord(c) in own else next((name for name, has in _other_fonts() if ord(c) in has), None)
        if family and family not in families:
            families.append(family)
        shown.append(c if family is not None else f"[U+{ord(c):04X}]")
    return "".join(shown), {"parse_math": False} | (
        {"family": [*matplotlib.rcParams["font.family"], *families]} if families else {}
    )


@functools.lru_cache
def _characters() -> frozenset[int]:
    """Of the font of every figure."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


@functools.lru_cache
def _other_fonts() -> list[tuple[str, frozenset[int]]]:
    """Other fonts that can be embedded, as (family, characters), by name.

    Read when a character is lacking, which takes seconds.
    """
    from fontTools.ttLib import TTFont
    from matplotlib.font_manager import fontManager

    fonts = {}
    for entry in sorted(fontManager.ttflist, key=lambda entry: (entry.name, entry.fname)):
        if (
            entry.style == "normal"
            and entry.name not in fonts
            and not entry.name.startswith(("Last Resort", "DejaVu", "cm", "STIX"))
        ):
            try:
                with TTFont(entry.fname, fontNumber=0, lazy=True) as font:
                    if "glyf" in font:  # outlines of the kind that a PDF takes
                        fonts[entry.name] = frozenset(font.getBestCmap())
            except Exception:  # a font that cannot be read is none
                continue
    return list(fonts.items())


def pipe_table(columns: Sequence[str], rows: Iterable[Sequence[str]], rule: str) -> list[str]:
    """The lines of a table in Markdown; ``rule`` is the one below the columns."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", r"\|").replace("\n", "<br>") for c in cells) + " |"

    return [line(columns), rule, *map(line, rows)]


@dataclass(frozen=True)
class Table:
    """A table as text: `columns` (C,), `rows` (R, C), `align` one of l, c, r per column.

    Raises ValueError if a row or `align` does not have one entry per column.
    """

    name: str  # stem of the written files and LaTeX label
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, given in [("align", self.align), *((f"row {i}", row) for i, row in enumerate(self.rows))]:
            if len(given) != len(self.columns):
                expected = f"{len(self.columns)}, one per column"
                raise ValueError(f"table {self.name}: {what} has {len(given)} entries, expected {expected}")

    def to_markdown(self) -> str:
        """GitHub-flavoured Markdown: title, caption, pipe table, notes."""
        rule = "|" + "|".join({"l": ":---", "c": ":---:", "r": "---:"}[a] for a in self.align) + "|"
        notes = [f"\n{note}" for note in self.notes]
        head = f"**{self.title}.** {self.caption}\n"
        return "\n".join([head, *pipe_table(self.columns, self.rows, rule), *notes]) + "\n"

    _repr_markdown_ = to_markdown  # how a notebook shows it

    def to_latex(self) -> str:
        """A `table` environment with booktabs rules; cells of several lines use makecell."""

        def cell(text: str, align: str) -> str:
            lines = r" \\ ".join(map(to_latex_text, text.split("\n")))
            return rf"\makecell[{align}]{{{lines}}}" if "\n" in text else lines

        def line(cells: Sequence[str]) -> str:
            return " & ".join(map(cell, cells, self.align)) + r" \\"

        tall = any("\n" in c for row in self.rows for c in row)
        body = ("\n\\addlinespace\n" if tall else "\n").join(map(line, self.rows))
        label = re.sub(r"[^\w.+=-]|_", "-", self.name)
        notes = [rf"\par\smallskip{{\footnotesize {to_latex_text(note)}\par}}" for note in self.notes]
        lines = [
            r"% needs \usepackage{adjustbox,booktabs,makecell}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{to_latex_text(self.title)}. {to_latex_text(self.caption)}}}",
            rf"\label{{tab:{label}}}",
            r"\begin{adjustbox}{max width=\linewidth}",
            rf"\begin{{tabular}}{{{self.align}}}",
            r"\toprule",
            line(self.columns),
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            *notes,
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """The cells alone, one row a line; the lines of a cell are joined by " / "."""
        out = io.StringIO()
        shown = lambda cell: plain(re.sub(r"(?<!\\)`", "", cell)).replace("\n", " / ")
        csv.writer(out, lineterminator="\n").writerows([map(shown, row) for row in (self.columns, *self.rows)])
        return out.getvalue()

    def write(self, out_dir: Path) -> list[Path]:
        """Write NAME.md, NAME.tex and NAME.csv below `out_dir` and return their paths."""
        out_dir.mkdir(parents=True, exist_ok=True)
        written = []
        for suffix, text in [(".md", self.to_markdown()), (".tex", self.to_latex()), (".csv", self.to_csv())]:
            path = out_dir / (segment(self.name) + suffix)
            path.write_text(text, encoding="utf-8", newline="\n")
            written.append(path)
        return written
