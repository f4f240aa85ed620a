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
from fdn.report.tables import REGION_COLUMNS, RESULT_COLUMNS, corrected_mean_error, plain_number
from fdn.runs import extras

SITE = Path(os.environ.get("SITE", paths.DEFAULT_OUT / "site")).resolve()
NAMES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
CODE = [name for name in NAMES if name.startswith("_modules/")]  # listings, of which one stands for all
PAGES = [*(name for name in NAMES if name not in CODE), "_modules/fdn/metrics.html"]
KINDS = [
    "index.html", "start.html", "glossary.html", "comparison.html", "data/claims/README.html", "explore.html",
    "results/index.html", "results/step.html", "results/ccpp.html", "data/differences/README.html",
    "data/extras/README.html", "docs/score.html", "api/index.html", "api/public.html", "api/fdn.metrics.html",
    "notebooks/01_method.html", "notebooks/02_protocol.html", "notebooks/05_figures_and_tables.html", "provenance.html",
]  # fmt: skip
METRICS = extras.with_extras()
COMPARISON = published.with_reasons(published.compare(METRICS))
DESK, PHONE, PAPER = 1280, 390, 688  # pixels; the last is A4 less its margins
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
        tab.emulate_media(media="screen")
        tab.set_viewport_size({"width": DESK, "height": 900})
        tab.goto(address + name, wait_until="load")
        tab.wait_for_function("!window.MathJax || MathJax.startup?.promise?.then(() => true)")  # formulas are set
        return tab

    tab.troubles.clear(), tab.asked.clear()
    return go


def test_the_site_is_complete():
    assert {f"results/{name}.html" for name in published.DATASETS} <= set(NAMES)
    assert {f"notebooks/{path.stem}.html" for path in paths.NOTEBOOKS.glob("*.ipynb")} <= set(NAMES)
    assert {f"api/{module}.html" for module in pages.modules()} <= set(NAMES)
    assert {f"docs/{path.stem}.html" for path in (paths.ROOT / "docs").glob("*.md")} <= set(NAMES)
    assert set(KINDS) <= set(NAMES) and {Path(name).name for name in CODE} >= {"metrics.html"}
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
CUT = """width => [...document.querySelectorAll('article table')].filter(t => t.offsetParent !== null
    && t.getBoundingClientRect().right > width + 1).map(t => t.outerHTML.slice(0, 200))"""
STRAY = """(() => {
    const page = document.querySelector('article').cloneNode(true);
    page.querySelectorAll('pre, code, script, style, mjx-container').forEach(part => part.remove());
    return page.textContent.match(/.*\\$.*/g) || [];
})()"""  # of a formula that was not set
LEVELS = "[...document.querySelectorAll('article h1, article h2, article h3, article h4')].map(h => +h.tagName[1])"


@pytest.mark.parametrize("name", PAGES)
def test_page(name, visit, address):
    """Loads without an error or another host; in order for a screen reader; every table sorts; fits phone and paper."""
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
    assert page.evaluate(STRAY) == []
    assert page.evaluate(DULL_TABLES) == []
    for width in (1500, 1100, 820, 360, PHONE, DESK):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width in (PHONE, DESK):
            found = Axe().run(page, options={"resultTypes": ["violations"]})
            assert found.violations_count == 0, (width, found.generate_report())
    page.emulate_media(media="print")
    page.set_viewport_size({"width": PAPER, "height": 900})
    assert page.evaluate(CUT, PAPER) == []


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
        "id => [...document.getElementById(id).closest('table').tBodies[0].querySelectorAll('tr:not(.more)')]"
        ".map(row => [...row.cells].map(cell => [cell.textContent, cell.dataset.value ?? null]))", table,
    )  # fmt: skip


def assert_number(cell: tuple[str, str | None], value: float, text: str | None = None) -> None:
    assert cell[0] == (text or plain_number(value))
    assert cell[1] is None if value != value else float(cell[1]) == value


def check_numbers(page: Page, table: str, expected, keys: tuple[str, ...]) -> None:
    cells = cells_of(page, table)
    assert len(cells) == len(expected)
    for row, number in zip(cells, expected.to_dict("records"), strict=True):
        shown = [text for text, _ in row[: len(keys)]]
        assert shown == [RESULT_COLUMNS.get(number[key], number[key]) for key in keys]
        row = row[len(keys) :]
        assert row[0][0] == number["verdict"]
        assert_number(row[1], number["published"], number["printed"])
        for cell, statistic in zip(row[2:], STATISTICS[1:]):
            assert_number(cell, number[statistic])
        assert row[7][0] == str(number["n_seeds"])
        assert_number(row[8], number["place"], f"{number['place']:.2f}")
    reasons = page.evaluate("id => [...document.getElementById(id).closest('table').querySelectorAll('tr.more p')]"
                            ".map(p => p.textContent)", table)  # fmt: skip
    assert reasons == [reason.replace("`", "") for reason in expected["reason"] if reason]


def test_every_published_number_is_what_the_results_say(visit):
    check_numbers(visit("comparison.html"), "comparison", COMPARISON, ("dataset", "model", "metric"))


@pytest.mark.parametrize("dataset", published.DATASETS)
def test_results_pages_are_what_the_results_say(dataset, visit):
    page = visit(f"results/{dataset}.html")
    here = COMPARISON[COMPARISON["dataset"] == dataset]
    check_numbers(page, f"numbers-{dataset}", here, ("model", "metric"))
    metrics = METRICS[(METRICS["dataset"] == dataset) & (METRICS["protocol"] == "published")]
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
    .map(row => row.cells[column]?.dataset.value).filter(v => v !== undefined).map(Number)"""


def test_tables_sort_by_click_and_by_key(visit):
    page = visit("comparison.html")
    header = page.locator("article table.sortable thead th").nth(5)
    before = page.evaluate(COLUMN, 5)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert page.evaluate(COLUMN, 5) == sorted(before) != before
    header.locator("button").focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert page.evaluate(COLUMN, 5) == sorted(before, reverse=True)
    other = page.locator("article table.sortable thead th").nth(1)
    other.locator("button").focus()
    page.keyboard.press("Space")
    assert other.get_attribute("aria-sort") == "ascending" and header.get_attribute("aria-sort") is None
    models = page.locator("article table.sortable").first.locator("tbody th:nth-child(2)").all_text_contents()
    assert models == sorted(models, key=str.lower)
    above = page.evaluate(
        "[...document.querySelectorAll('tr.more')].map(r => r.previousElementSibling.cells[3].textContent)"
    )
    assert set(above) == {"outside"}, "a reason stays below its number"


def test_totals_stay_last_and_counts_sort_by_their_share(visit):
    page = visit("results/index.html")
    table = page.locator("article table", has=page.locator("#score"))
    for click in range(2):
        table.locator("thead th").nth(7).locator("button").click()
        cells = table.locator("tbody tr td:nth-child(8), tbody tr th:nth-child(8)").all_text_contents()
        assert table.locator("tbody tr").last.get_attribute("class") == "total"
        shares = [float(text.split("(")[1].rstrip("%)")) for text in cells[:-1]]
        assert shares == sorted(shares, reverse=click == 1) and len(set(shares)) > 3


def test_a_cell_of_many_lines_sorts_by_its_median(visit):
    page = visit("results/index.html")
    page.evaluate("""() => {
        const rows = [...document.querySelector('article table.sortable').tBodies[0].rows];
        const cells = rows.slice(0, 3).map(row => row.cells[2]);
        ['1<br>9<br>50', '3<br>4<br>5', '—<br>7'].forEach((text, i) => cells[i].innerHTML = text);
        rows.slice(3).forEach(row => row.remove());
    }""")
    table = page.locator("article table.sortable").first
    table.locator("thead th").nth(2).locator("button").click()
    assert table.locator("tbody tr td:nth-child(3)").all_text_contents() == ["345", "—7", "1950"]


UNSEEN = """width => [...document.querySelectorAll('article td.verdict')].map(c => [c, c.getBoundingClientRect()])
    .filter(([c, r]) => !c.checkVisibility() || r.width < 20 || r.left < 0 || r.right > width)
    .map(([c, r]) => [c.textContent, Math.round(r.left), Math.round(r.right)])"""


@pytest.mark.parametrize("width", [DESK, PHONE, 360, PAPER])
@pytest.mark.parametrize(
    "name", ["data/claims/README.html", "comparison.html", "results/step.html", "results/ccpp.html"]
)
def test_every_verdict_is_in_view_without_scrolling_sideways(name, width, visit):
    page = visit(name)
    if width == PAPER:
        page.emulate_media(media="print")
    else:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.set_viewport_size({"width": width, "height": 900})
    count = page.evaluate("document.querySelectorAll('article td.verdict').length")
    assert count >= (42 if name.startswith("results") else 85)
    assert page.evaluate(UNSEEN, width) == []
    cut = page.evaluate(
        "[...document.querySelectorAll('td.verdict')].filter(c => c.scrollWidth > c.clientWidth).length"
    )
    assert cut == 0
    if "claims" in name:
        assert (
            page.evaluate(
                "[...document.querySelectorAll('.table-wrapper')].filter(b => b.scrollWidth > b.clientWidth).length"
            )
            == 0
        )


def test_printed_details_are_open(visit):
    page = visit("results/ccpp.html")
    page.emulate_media(media="print")
    heights = page.evaluate(
        "[...document.querySelectorAll('article details')].map(d => d.getBoundingClientRect().height)"
    )
    assert len(heights) > 5 and min(heights) > 20
    assert page.evaluate("document.querySelector('#numbers-ccpp').getBoundingClientRect().height") > 0


def test_statements_are_filtered_by_their_verdict(visit):
    page = visit("data/claims/README.html")
    rows = """[...document.querySelectorAll('table.claims tbody tr')].filter(row => row.checkVisibility())
        .map(row => row.cells[0].textContent)"""
    everything = page.evaluate(rows)
    page.locator("#show-bad").check()
    assert page.evaluate(rows) == [verdict for verdict in everything if verdict == "does not hold"] != []
    empty = """[...document.querySelectorAll('article section section')].filter(section => section.checkVisibility()
        && ![...section.querySelectorAll('tbody tr')].some(row => row.checkVisibility())).length"""
    assert page.evaluate(empty) == 0
    page.locator("#show-all").check()
    assert page.evaluate(rows) == everything
    anchor = page.locator("table.claims tr").nth(9).get_attribute("id")
    page.goto(page.url.split("#")[0] + "#" + anchor)
    assert page.evaluate("document.querySelector('tr:target').id") == anchor


SHIFT = """window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach(
    entry => window.shift += entry.hadRecentInput ? 0 : entry.value)).observe({type: 'layout-shift', buffered: true})"""


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("name", KINDS)
def test_nothing_moves_and_little_is_loaded(name, width, browser, address):
    """Formulas are set after loading and may move a notebook's text a little; nothing else does."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.add_init_script(SHIFT)
    sizes = []
    page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))
    page.goto(address + name, wait_until="load")
    page.wait_for_function("!window.MathJax || MathJax.startup?.promise?.then(() => true)")
    page.wait_for_timeout(300)
    has_formulas = page.evaluate("!!window.MathJax")
    assert page.evaluate("window.shift") <= (0.1 if has_formulas else 0.02)
    assert sum(sizes) < (2_500_000 if has_formulas else 1_000_000), f"{sum(sizes)} bytes"
    context.close()


def test_pictures_have_their_size_wait_and_open(visit):
    page = visit("notebooks/04_uci.html")
    pictures = page.evaluate("""[...document.querySelectorAll('article img')].map(i => [i.getAttribute('width'),
        i.getAttribute('height'), i.getAttribute('loading'), i.closest('a')?.getAttribute('href')])""")
    assert len(pictures) > 5
    for width, height, loading, link in pictures:
        assert int(width) > 100 and int(height) > 100 and loading == "lazy" and link.endswith(".png")
    captions = page.locator("article .cell_output figure figcaption").all_text_contents()
    assert len(captions) == len(pictures) and all(len(text) > 20 for text in captions)
    assert page.locator("details.hide").count() >= 1, "cells that only import are folded"


def test_a_run_is_chosen_and_drawn(visit, address):
    page = visit("explore.html#sine")
    page.wait_for_selector("#panels svg")
    assert page.locator("select[name=task]").input_value() == "sine"
    seen = {page.locator("#panels").inner_html()}
    assert page.locator("#panels svg").count() == 3
    tops = page.evaluate("[...document.querySelectorAll('#panels svg')].map(s => s.getBoundingClientRect().top)")
    assert max(tops) - min(tops) < 1, "side by side"
    for field, value in (("seed", "3"), ("model", "DeepEnsembleNet"), ("task", "quad")):
        page.locator(f"select[name={field}]").select_option(value)
        page.wait_for_function("word => document.getElementById('numbers').textContent.includes(word)", arg=value)
        seen.add(page.locator("#panels").inner_html())
    assert len(seen) == 4 and page.troubles == []
    assert "NaN" not in page.locator("#panels").inner_html()
    row = METRICS.query("dataset == 'quad' and model == 'DeepEnsembleNet' and seed == 3 and protocol == 'published'")
    assert f"ρ {row['spearman'].item():.4g}," in page.locator("#numbers").inner_text()


def test_a_site_on_a_disk_draws_runs_as_well(browser):
    page = browser.new_page()
    page.goto((SITE / "explore.html").as_uri())
    page.wait_for_selector("#panels svg")
    page.close()


@pytest.mark.parametrize("word", ["license", "cite", "fdn_linear", "AURC"])
def test_the_search_finds(word, visit, address):
    page = visit(f"search.html?q={word}")
    wanted = {"license": "start.html", "cite": "start.html", "fdn_linear": "api/", "AURC": "glossary.html"}[word]
    page.wait_for_selector(f"#search-results ul.search li a[href*='{wanted}']")


def test_the_citation_is_copied_by_a_button(browser, address):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(address + "start.html")
    page.locator(".highlight-bibtex button").click()
    page.wait_for_function("document.querySelector('.highlight-bibtex button').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()").startswith("@article{")
    context.close()


def test_the_menu_shows_the_page_that_is_open(visit):
    page = visit("api/fdn.workflow.study.html")
    box = page.locator(".sidebar-scroll").bounding_box()
    link = page.locator(".sidebar-tree .current-page > a").last.bounding_box()
    assert box["y"] <= link["y"] <= box["y"] + box["height"]


FIVE = {  # what a reader asks of the front page: words of the link there, and what stands where it leads
    "Is FDN competitive": ("does not hold", "holds"),
    "Which published numbers": ("published", "ours"),
    "How do I fit": ("from_frame", "fit("),
    "What did the author run": ("print", "published"),
    "How fast is the kernel": ("times as much", "kernel"),
}


@pytest.mark.parametrize("question", FIVE)
def test_five_questions_are_answered_one_click_from_the_front_page(question, visit):
    page = visit("index.html")
    item = page.locator("article li", has=page.locator("strong", has_text=question))
    target = item.locator("a").first.get_attribute("href")
    page = visit(target)
    text = page.locator("article").inner_text()
    assert any(word in text for word in FIVE[question])
    anchor = target.partition("#")[2]
    assert not anchor or page.evaluate("id => !!document.getElementById(id)", anchor)


@pytest.mark.parametrize("name", ["index.html", "results/step.html", "explore.html", "data/claims/README.html"])
def test_everything_is_reached_by_tab_in_order_and_seen(name, visit):
    page = visit(name)
    page.evaluate("""() => {
        const stops = 'a[href], button, select, input:not([type=radio]:not(:checked)), summary, [tabindex="0"]';
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
    for _ in range(2):  # past the link to the text
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Site navigation"
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
