"""What a page's HTML gets after Sphinx has made it, so that no script moves what a reader has begun to read.

Tables learn how wide their cells may be, what their headers mean and which rows are totals; pictures get their size,
wait until they are near, and open in full.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from PIL import Image

from fdn.report.site.glossary import ANCHORS
from fdn.report.site.markup import TONES

JUDGED = {"Verdict", "Conclusion"}  # headers of the columns whose words get a colour
TOTALS = {"total", "all", "sum"}
INTERVAL = re.compile(r"(?<=[\d%]) (\[[^\[\]]*\])")  # behind its number: one may stand below the other, neither is cut
LINE, HEAD, LONG = 28, 9, 120  # characters of a cell that stays on one line, of such a header, of a wide cell
HEADINGS = ["h1", "h2", "h3", "h4"]


def finish(body: str, root: str, file_of: Callable[[str], Path | None]) -> str:
    """The body of a page, finished.

    Args:
        root: from the page to the site's top folder, "" or "../".
        file_of: from the name of an image in the site to its file.
    """
    soup = BeautifulSoup(body, "html.parser")
    for number, table in enumerate(soup.find_all("table"), 1):
        _table(soup, table, root)
        _name_box(table, number)
    for image in soup.find_all("img"):
        _image(soup, image, file_of)
    return str(soup)


def _text(tag: Tag) -> str:
    return tag.get_text().strip()


def _table(soup: BeautifulSoup, table: Tag, root: str) -> None:
    body = table.tbody
    if not table.thead or not body:
        return
    heads = table.thead.find_all("tr")[-1].find_all(["th", "td"], recursive=False)
    for row in table.thead.find_all("tr")[:-1]:  # pandas heads names with nothing; in the last row stands a button
        for head in row.find_all("th"):
            head.name = head.name if _text(head) else "td"
    for head in heads if "dataframe" not in table.get("class", []) else ():
        head["scope"] = "col"
    judged = [i for i, head in enumerate(heads) if _text(head) in JUDGED]
    rows = [row.find_all(["th", "td"], recursive=False) for row in body.select("tr:not(.more)")]
    for cells in rows:
        if any(_text(cell).lower() in TOTALS for cell in cells[:2]):
            cells[0].parent["class"] = [*cells[0].parent.get("class", []), "total"]
        for i in judged:
            if i < len(cells) and (tone := TONES.get(_text(cells[i]))):
                cells[i]["class"] = [*cells[i].get("class", []), "verdict", tone]
    for cell in (cell for cells in rows for cell in cells):
        _interval(soup, cell)
    fluid = "claims" in table.get("class", [])
    for cell in [] if fluid else [*heads, *(cell for cells in rows for cell in cells)]:
        _width(cell, HEAD if cell in heads else LINE)
    for cell in [*heads, *(cell for cells in rows for cell in cells if cell.name == "th")]:
        _term(soup, cell, root)
    spans = any(cell.has_attr("rowspan") or cell.has_attr("colspan") for cells in rows for cell in cells)
    if len(rows) > 1 and not spans:
        table["class"] = [*(name for name in table.get("class", []) if name != "sortable"), "sortable"]


def _width(cell: Tag, line: int) -> None:
    """A name or an interval stays on one line; a reason is wide. A cell of many lines is as long as its longest."""
    text = re.sub(r"<(?!br)[^>]*>", "", cell.decode_contents()) if cell.find("br") else cell.get_text()
    longest = max(len(line.strip()) for line in re.split(r"<br/>|\n", text))
    kind = "short" if longest < line else "long" if longest > LONG else None
    if kind == "short" and cell.find(class_="interval"):
        kind = "narrow"
    if kind:
        cell["class"] = [*cell.get("class", []), kind]


def _interval(soup: BeautifulSoup, cell: Tag) -> None:
    """An interval is a piece of its own, which goes below its number where the table would be too wide."""
    for text in cell.find_all(string=INTERVAL):
        pieces = INTERVAL.split(text)
        for piece, is_interval in zip(pieces, [False, True] * len(pieces)):
            if is_interval:
                text.insert_before(" ")
                piece = soup.new_tag("span", string=piece, attrs={"class": "interval"})
            text.insert_before(piece)
        text.extract()


def _term(soup: BeautifulSoup, cell: Tag, root: str) -> None:
    """A header that the glossary explains leads there."""
    anchor = ANCHORS.get(_text(cell))
    if anchor is None or cell.find("a"):
        return
    link = soup.new_tag("a", href=f"{root}glossary.html#{anchor}", attrs={"class": "term"})
    link.extend(list(cell.contents))
    cell.append(link)


def _name_box(table: Tag, number: int) -> None:
    """A box that scrolls can be reached by keyboard and has a name."""
    box = table.find_parent("div", class_="table-wrapper")
    if box is None or box.has_attr("role"):
        return
    heading = table.find_previous(HEADINGS)
    words = heading.find_all(string=lambda text: text.find_parent("a", class_="headerlink") is None) if heading else []
    title = "".join(words).strip()
    box.attrs |= {"role": "region", "tabindex": "0", "aria-label": f"Table {number}, {title}"}


def _image(soup: BeautifulSoup, image: Tag, file_of: Callable[[str], Path | None]) -> None:
    """The size of the picture, so that nothing moves when it comes, and a link to it alone."""
    path = file_of(image["src"].rsplit("/", 1)[-1])
    if path is None:
        return
    if path.suffix == ".png":
        with Image.open(path) as picture:
            image["width"], image["height"] = map(str, picture.size)
    image["loading"], image["decoding"] = "lazy", "async"
    if image.find_parent("a") is None:
        image.wrap(soup.new_tag("a", href=image["src"], attrs={"class": "enlarge"}))
