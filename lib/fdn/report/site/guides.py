"""Pages that the repository has in Markdown: they are read here as they stand, with links that hold in the site."""

from __future__ import annotations

import functools
import os
import re
import shutil
from pathlib import Path

from fdn import paths
from fdn.report.site.base import Site

PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")  # of the repository's top folder
SAME = {"README.md": Path("index.md"), "data/comparison/compare.md": Path("comparison.md")}  # said on these pages
# of README and docs/score.md, said on the front page as well
VERDICT = r"(\*\*Does FDN do what the paper says\?.*?)\n!\["
FIGURE = r"\*\*What should I use.*?\n(!\[[^\n]*\)\n\n\*[^\n]*\*)"
FINDINGS = r"## What we think a reader should know\n(.*?)(?:\n## |\Z)"


def write(site: Site) -> dict[str, list[str]]:
    """Copy what the repository says in Markdown; returns the names of the pages.

    ``documents`` are generated (differences, claims, ...), ``guides`` written by hand (``docs``, how to contribute).
    """
    written = {
        "documents": sorted((paths.ROOT / "data").glob("*/README.md")),
        "guides": [*sorted((paths.ROOT / "docs").rglob("*.md")), *(paths.ROOT / name for name in PAGES)],
    }
    written = {kind: [page.relative_to(paths.ROOT) for page in pages] for kind, pages in written.items()}
    for name in written["documents"]:  # all pages before any link is looked up
        folder, without = name.parent, shutil.ignore_patterns("*.parquet")
        shutil.copytree(paths.ROOT / folder, site.source / folder, ignore=without, dirs_exist_ok=True)
    for name in written["guides"]:
        _copy(site, name)
    for name in (*written["documents"], *written["guides"]):
        text = (paths.ROOT / name).read_text(encoding="utf-8")
        (site.source / name).write_text(linked(site, name, text), encoding="utf-8")
    return {kind: [name.with_suffix("").as_posix() for name in names] for kind, names in written.items()}


def _copy(site: Site, name: Path) -> None:
    target = site.source / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(paths.ROOT / name, target)


def linked(site: Site, name: Path, text: str) -> str:
    """Text of a page of the repository with links that hold on any page of the site.

    Links to pages of the site lead there, those to other files of the repository to copies to keep; the README is the
    front page; what is in neither, and a folder, is its words alone. A number of a section leads to that section.
    """

    def link(found: re.Match) -> str:
        mark, words, address = found.groups()
        file, _, anchor = address.partition("#")
        if not file or re.match(r"\w+:", file):
            return found.group()
        target = Path(os.path.normpath(name.parent / file))
        target = SAME.get(target.as_posix(), target)
        if (site.source / target / "README.md").exists():
            target /= "README.md"
        if not (site.source / target).exists() and (paths.ROOT / target).is_file():
            _copy(site, target)
        if not (site.source / target).is_file() and target not in SAME.values():
            return words
        if target.suffix == ".ipynb" and not anchor:
            anchor = _anchor(paths.ROOT / target, words)
        return f"{mark}[{words}](/{target.as_posix()}{'#' * bool(anchor)}{anchor})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


@functools.cache
def _anchor(notebook: Path, section: str) -> str:
    """Of a notebook's section, given its number, as MyST names it; "" if there is none."""
    titles = re.findall(rf'"## ({re.escape(section)} [^"]*?)(?:\\n)?"', notebook.read_text(encoding="utf-8"))
    return re.sub(r"[^\w\- ]", "", titles[0].lower()).replace(" ", "-") if titles else ""


def passage(site: Site, name: str, pattern: str) -> str:
    """What a page of the repository says between two marks, so that it is said once; "" if it does not."""
    found = re.search(pattern, (paths.ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    return linked(site, Path(name), found.group(1).strip()) if found else ""
