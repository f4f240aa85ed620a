"""The notebooks as they were executed: captions for their figures, and set-up cells folded."""

from __future__ import annotations

import ast
import re
import shutil
from functools import partial
from pathlib import Path

import nbformat
from matplotlib.figure import Figure
from nbformat import NotebookNode

from fdn import paths
from fdn.report import figures, layers
from fdn.report.figures import grids
from fdn.report.site.base import Site
from fdn.report.site.guides import linked

DRAWING = figures, grids, layers  # modules whose functions that give a figure say what it shows
SETUP = 0.5  # share of imports among a cell's statements from which on it is folded


def write(site: Site) -> list[str]:
    """Copy the notebooks, each with a line on how to get and run it; return the names of the pages."""
    names = []
    for folder in ("notebooks", "downloads"):
        (site.source / folder).mkdir()
    for path in sorted(paths.NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        shutil.copyfile(path, site.source / "downloads" / path.name)
        dress(notebook)
        link = partial(linked, site, Path("notebooks") / path.name)
        for cell in notebook.cells:  # links of the prose, written or computed
            if cell.cell_type == "markdown":
                cell.source = link(cell.source)
            for output in cell.get("outputs", []):
                if text := output.get("data", {}).get("text/markdown"):
                    output.data["text/markdown"] = link(text)
        words = (
            f"{{download}}`This notebook <../downloads/{path.name}>` as executed: a figure or table is made by the "
            "cell above it. The results it reads are on the pages of each [data set](../results/index.md), as CSV. "
            f"Run it: `papermill notebooks/{path.name} out/{path.name}`."
        )
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(words, id="how-to-run"))
        nbformat.write(notebook, site.source / "notebooks" / path.name)
        names.append(f"notebooks/{path.stem}")
    return names


def dress(notebook: NotebookNode) -> None:
    """Fold the cells that only prepare, and say below every figure what it shows."""
    prose = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = cell.source
        elif cell.cell_type == "code":
            if is_setup(cell.source):
                cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-input"]
            if any("image/png" in output.get("data", {}) for output in cell.outputs):
                words = caption(cell.source, prose)
                plain = re.sub(r"[`*$\\{}]", "", words)
                cell.metadata["mystnb"] = {"figure": {"caption": words}, "image": {"alt": plain}}


def is_setup(source: str) -> bool:
    """Whether a cell mostly imports.

    >>> is_setup("import numpy as np\\nfrom fdn import load"), is_setup("import numpy as np\\nprint(np.e)\\nnp.pi")
    (True, False)
    """
    code = re.sub(r"^[%!].*$", "", source, flags=re.MULTILINE)
    statements = ast.parse(code).body
    imports = [one for one in statements if isinstance(one, (ast.Import, ast.ImportFrom))]
    return len(imports) > SETUP * len(statements)


def caption(source: str, prose: str) -> str:
    """What a figure shows: a comment at the cell's head, what documents the function drawing it, or the prose before.

    >>> caption("# Two networks, in grey a third.\\nplt.show()", "")
    'Two networks, in grey a third.'
    """
    if comment := re.match(r"(# .*\n)+", source):
        return _sentence(comment[0].replace("# ", " "))
    for name in reversed(re.findall(r"\b\w+\.(\w+)", source)):
        found = [drawn for module in DRAWING if (drawn := getattr(module, name, None))]
        if found and getattr(found[0], "__annotations__", {}).get("return") in ("Figure", Figure):
            return _sentence(re.sub(r"`+|\s*;? see .*", "", found[0].__doc__.split("\n\n")[0]))
    paragraphs = [text for text in re.split(r"\n\s*\n", prose) if not re.match(r"\s*([#|>]|[-*] |```|\$\$|<)", text)]
    if paragraphs:
        return _sentence(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraphs[-1]))
    heading = re.search(r"^#+\s*(.+)$", prose, re.MULTILINE)
    return heading.group(1) if heading else "Figure"


def _sentence(text: str) -> str:
    """The first sentence of a paragraph, on one line."""
    text = " ".join(text.split())
    return re.split(r"(?<=[.!?:])\s+(?=[A-Z*`$])", text)[0].rstrip(":.") + "."
