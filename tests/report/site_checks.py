"""The built site in a real browser, page by page; `make site-test` builds it and runs this file.

SITE names the folder of the site, made from the committed results. The browser is Debian's Chromium.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

from fdn import paths
from fdn.models import BASELINE, MODEL_NAMES
from fdn.report import published
from fdn.report.site import pages
from fdn.report.tables import DASH, REGION_COLUMNS, corrected_mean_error, plain_number
from fdn.runs import results

SITE = Path(os.environ.get("SITE", paths.DEFAULT_OUT / "site")).resolve()
NAMES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
COMPARISON = published.with_reasons(
    published.compare(results.load_metrics(paths.COMMITTED_RESULTS)), published.load_reasons()
)
STATISTICS = ("published", "median", "q05", "q95", "min", "max")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def address():
    handler = functools.partial(_Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def browser():
    program = shutil.which("chromium")
    assert program, "no chromium; on Debian: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def tab(browser):
    """A page that stays open, and what went wrong on it since it was last asked."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(120_000)  # milliseconds; the machine may be busy
    page.troubles = []
    page.on(
        "console", lambda message: page.troubles.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("requestfailed", lambda request: page.troubles.append(f"failed: {request.url}"))
    page.on("response", lambda it: page.troubles.append(f"{it.status}: {it.url}") if it.status >= 400 else None)
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    return page


@pytest.fixture
def visit(tab, address):
    def go(name: str) -> Page:
        tab.set_viewport_size({"width": 1280, "height": 900})
        tab.goto(address + name, wait_until="load")
        tab.wait_for_function("!window.MathJax || MathJax.startup?.promise?.then(() => true)")  # formulas are set
        return tab

    tab.troubles.clear(), tab.asked.clear()
    return go


def test_the_site_is_complete():
    assert {f"results/{name}.html" for name in published.DATASETS} <= set(NAMES)
    assert {f"notebooks/{path.stem}.html" for path in paths.NOTEBOOKS.glob("*.ipynb")} <= set(NAMES)
    assert {f"api/{module}.html" for module in pages.modules()} <= set(NAMES)
    assert {"index.html", "comparison.html", "provenance.html", "data/differences/README.html", "search.html"} <= set(
        NAMES
    )


DULL_TABLES = """[...document.querySelectorAll('article table')].filter(t => t.tHead && t.tBodies[0].rows.length > 1
    && t.querySelectorAll('thead tr:last-child th button').length
      !== t.tHead.rows[t.tHead.rows.length - 1].cells.length)
    .map(t => t.outerHTML.slice(0, 200))"""
UNSCOPED = (
    "[...document.querySelectorAll('article thead th:not([scope])')].filter(h => !h.closest('.dataframe')).length"
)
LEVELS = "[...document.querySelectorAll('article h1, article h2, article h3, article h4')].map(h => +h.tagName[1])"


@pytest.mark.parametrize("name", NAMES)
def test_page(name, visit, address):
    """Loads without an error or another host; in order for a screen reader; every table sorts; fits a phone."""
    page = visit(name)
    images = page.evaluate("[...document.images].map(i => [i.src, i.loading = 'eager', i.alt])")
    page.wait_for_function("[...document.images].every(i => i.complete)")
    assert page.troubles == []
    assert [url for url in page.asked if not url.startswith((address, "data:"))] == []
    assert page.evaluate("[...document.images].filter(i => !i.naturalWidth || !i.naturalHeight).map(i => i.src)") == []
    assert [source for source, _, text in images if not text.strip() or text.endswith(".png")] == []

    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.evaluate(LEVELS)
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in zip(levels, levels[1:])), levels
    assert page.evaluate(UNSCOPED) == 0
    assert page.evaluate(DULL_TABLES) == []
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    assert found.violations_count == 0, found.generate_report()

    for width in (1500, 1100, 820, 360):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_links_and_anchors_resolve(visit, address):
    anchors, wanted = {}, []
    for name in NAMES:
        page = visit(name)
        anchors[address + name] = set(page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)"))
        hrefs = page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'))")
        wanted += [(address + name, urljoin(address + name, href)) for href in hrefs]
    inside = [(source, *urldefrag(target)) for source, target in set(wanted) if target.startswith(address)]
    assert len(inside) > 1000
    missing = [it for it in inside if not (SITE / unquote(it[1].removeprefix(address))).exists()]
    assert missing == []
    lost = [it for it in inside if it[2] and it[1] in anchors and unquote(it[2]) not in anchors[it[1]]]
    assert lost == []


def cells_of(page: Page, table: str) -> list[list[tuple[str, str | None]]]:
    """Text and full value of every cell of the table that a caption of this id belongs to."""
    return page.evaluate(
        "id => [...document.getElementById(id).closest('table').tBodies[0].rows]"
        ".map(row => [...row.cells].map(cell => [cell.textContent, cell.dataset.value ?? null]))", table,
    )  # fmt: skip


def assert_number(cell: tuple[str, str | None], value: float, text: str | None = None) -> None:
    assert cell[0] == (text or plain_number(value))
    assert cell[1] is None if value != value else float(cell[1]) == value


def check_numbers(cells: list, expected, keys: tuple[str, ...]) -> None:
    assert len(cells) == len(expected)
    for row, number in zip(cells, expected.to_dict("records"), strict=True):
        shown = [text for text, _ in row[: len(keys)]]
        assert shown == [pages.RESULT_COLUMNS.get(number[key], number[key]) for key in keys]
        row = row[len(keys) :]
        assert_number(row[0], number["published"], number["printed"])
        for cell, statistic in zip(row[1:], STATISTICS[1:]):
            assert_number(cell, number[statistic])
        assert row[6][0] == str(number["n_seeds"])
        assert_number(row[7], number["place"], f"{number['place']:.2f}")
        assert row[8][0] == number["verdict"]
        if len(row) > 9:
            assert row[9][0] == (number["reason"] or DASH)


def test_every_published_number_is_what_the_results_say(visit):
    check_numbers(cells_of(visit("comparison.html"), "comparison"), COMPARISON, ("dataset", "model", "metric"))


@pytest.mark.parametrize("dataset", published.DATASETS)
def test_results_pages_are_what_the_results_say(dataset, visit):
    page = visit(f"results/{dataset}.html")
    check_numbers(
        cells_of(page, f"numbers-{dataset}"), COMPARISON[COMPARISON["dataset"] == dataset], ("model", "metric")
    )
    metrics = results.load_metrics(paths.COMMITTED_RESULTS)
    metrics = metrics[(metrics["dataset"] == dataset) & (metrics["protocol"] == "published")]
    rows = {row[0][0]: row[1:] for row in cells_of(page, f"regions-{dataset}")}
    assert set(rows) == set(metrics["model"]) <= {BASELINE, *MODEL_NAMES}
    for model, cells in rows.items():
        run = metrics[metrics["model"] == model]
        expected = [
            (corrected_mean_error(run, region) if metric == "mean" else run[f"{metric}_{region}"]).median()
            for metric in REGION_COLUMNS for region in ("id", "ood")
        ]  # fmt: skip
        for cell, value in zip(cells, expected, strict=True):
            assert_number(cell, value)


COLUMN = """column => [...document.querySelector('article table.sortable').tBodies[0].rows]
    .map(row => row.cells[column].dataset.value).filter(v => v !== undefined).map(Number)"""


def test_tables_sort_by_click_and_by_key(visit):
    page = visit("results/step.html")
    header = page.locator("article table.sortable thead th").nth(3)
    before = page.evaluate(COLUMN, 3)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert page.evaluate(COLUMN, 3) == sorted(before) != before
    header.locator("button").focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert page.evaluate(COLUMN, 3) == sorted(before, reverse=True)
    other = page.locator("article table.sortable thead th").first
    other.locator("button").focus()
    page.keyboard.press("Space")
    assert other.get_attribute("aria-sort") == "ascending" and header.get_attribute("aria-sort") is None
    models = page.locator("article table.sortable").first.locator("tbody th:first-child").all_text_contents()
    assert models == sorted(models, key=str.lower)


@pytest.mark.parametrize("name", ["index.html", "results/step.html", "comparison.html", "data/differences/README.html"])
def test_everything_is_reached_by_tab_in_order_and_seen(name, visit):
    page = visit(name)
    page.evaluate("""() => {
        const stops = 'a[href], button, input, summary, [tabindex="0"]';
        window.expected = [...document.querySelectorAll(stops)].filter(
            e => e.checkVisibility({visibilityProperty: true}) && e.tabIndex >= 0 && !e.disabled);
        window.expected.forEach((e, i) => e.dataset.stop = i);
    }""")
    count = page.evaluate("expected.length")
    assert count > 20
    reached = []
    for _ in range(count):
        page.keyboard.press("Tab")
        stop, visible = page.evaluate("""() => {
            const style = getComputedStyle(document.activeElement);
            return [document.activeElement.dataset.stop, style.outlineStyle !== 'none' || style.boxShadow !== 'none'];
        }""")
        reached.append(int(stop) if stop is not None else None)
        assert visible, page.evaluate("document.activeElement.outerHTML")
    assert reached == list(range(count))


def test_the_skip_link_leads_to_the_text(visit):
    page = visit("results/step.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#furo-main-content"
    page.keyboard.press("Tab")
    assert page.evaluate("!!document.activeElement.closest('.main')")


def test_the_menu_of_a_narrow_screen_opens_by_key(visit):
    page = visit("results/step.html")
    page.set_viewport_size({"width": 360, "height": 740})
    menu = page.locator(".sidebar-drawer a", has_text="Provenance")
    assert not menu.evaluate("link => link.getBoundingClientRect().left >= 0")
    page.keyboard.press("Tab")
    assert "navigation" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('.sidebar-drawer').getBoundingClientRect().left === 0")
    assert menu.evaluate("link => link.getBoundingClientRect().left >= 0")
    page.keyboard.press("Space")


def test_formulas_are_set(visit):
    page = visit("notebooks/01_method.html")
    assert page.locator("mjx-container").count() > 50
    assert page.locator("mjx-merror").count() == 0
    assert page.locator("mjx-container mjx-assistive-mml").count() == page.locator("mjx-container").count()
    assert "\\(" not in page.locator("article").inner_text()


def test_every_figure_of_the_results_has_its_data_and_its_command(visit):
    for dataset in published.DATASETS:
        page = visit(f"results/{dataset}.html")
        captions = page.locator("article figure figcaption")
        assert captions.count() == page.locator("article img").count() >= 5
        for caption in captions.all():
            assert caption.locator("a[href$='.csv']").count() == 1
            assert caption.locator("code", has_text="fdn ").count() == 1
