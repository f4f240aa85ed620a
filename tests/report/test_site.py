"""The pages of the site and their tables, without a browser, in which tests/report/site_checks.py reads them."""

from __future__ import annotations

import html
import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from fake_results import write_results

from fdn import paths
from fdn.errors import UserError
from fdn.models import BASELINE, PAPER_MODELS, STOCHASTIC_MODELS
from fdn.report import figures, published
from fdn.report.claims import summary
from fdn.report.claims.judging import FAILS, HOLDS, PARTLY, UNMEASURED
from fdn.report.comparison import misses
from fdn.report.site import build, claims, explore, guides, markup, notebooks, pages
from fdn.report.site.base import Site
from fdn.report.site.glossary import ANCHORS, TERMS
from fdn.report.site.public import ENTRIES
from fdn.report.tables import REGION_COLUMNS, RESULT_COLUMNS, plain_number
from fdn.runs import extras, results

sphinx_needed = pytest.mark.skipif(
    not all(map(find_spec, build.NEEDED)),
    reason="needs the extra `site`: pip install -c requirements.lock -e '.[site]'",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    write_results(out, ["step"], [BASELINE, *STOCHASTIC_MODELS], range(3))
    return out


@pytest.fixture(scope="module")
def source(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")

    def save_png(fig, stem):  # the PDF beside it takes longer
        fig.savefig(stem.parent / f"{stem.name}.png")
        return [stem.parent / f"{stem.name}.png"]

    (folder / "figures").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "save", save_png)
        pages.write(run, folder)
    return folder


def text_of(source: Path, name: str) -> str:
    return (source / name).read_text(encoding="utf-8")


def table_rows(page: str, name: str) -> list[list[tuple[str, str]]]:
    """Value and text of every cell of a table's body."""
    [table] = re.findall(rf'<table[^>]*><caption id="{name}">.*?</table>', page)
    body = table.split("<tbody>")[1]
    cell = re.compile(r'<t[hd][^>]*?(?: data-value="([^"]*)")?>(.*?)</t[hd]>')
    return [[(value, html.unescape(text)) for value, text in cell.findall(row)] for row in body.split("<tr>")[1:]]


def test_page_of_a_data_set_holds_every_number_of_its_results(run, source):
    expected = published.compare(results.load_metrics(run))
    expected = expected[expected["dataset"] == "step"]
    rows = table_rows(text_of(source, "results/step.md"), "numbers-step")
    assert len(rows) == len(expected) == 42
    for row, number in zip(rows, expected.to_dict("records"), strict=True):
        assert [row[0][1], row[2][1]] == [number["model"], number["verdict"]], "the verdict comes first"
        assert row[3] == (repr(number["published"]), number["printed"])
        for cell, name in zip(row[4:9], ("median", "q05", "q95", "min", "max"), strict=True):
            assert cell == (repr(number[name]), plain_number(number[name]))
        assert row[9][1] == str(number["n_seeds"])


def test_every_figure_names_its_data_and_a_command_that_exists(source):
    from fdn.cli import _parser

    page = text_of(source, "results/step.md")
    shown = re.findall(r"```\{figure\} (\S+)\n:alt: (.+)\n", page)
    kinds = {kind: figure for kind, figure in figures.FIGURES.items() if f"step_{kind}.png" in page}
    assert len(kinds) == len(shown) - 1 > 5  # and the seeds of every number
    for path, alt in shown:
        assert (source / "results" / path).resolve().exists() and len(alt) > 30
    for text in re.findall(r"```\{figure\}.*?```", page, re.DOTALL):
        [data] = re.findall(r"\]\((\S+\.csv)\)", text)
        assert (source / "results" / data).exists()
    for kind, figure in kinds.items():  # the table of figures is all that is said of one
        data = {"points": "points", "runs": "seeds", "bands": "bands"}[figure.needs]
        section = page.split(f"## {figure.title}\n")[1].split("\n## ")[0]
        assert f"step_{kind}.png" in section and f"{figure.words}. Data: [{data}.csv]" in section
    written = [*(source / "results").glob("*.md"), source / "comparison.md", source / "provenance.md"]
    commands = {
        command for path in written for command in re.findall(r"`fdn ([^`]+)`", path.read_text(encoding="utf-8"))
    }
    assert len(commands) > 5
    for command in commands:
        _parser().parse_args(command.split())  # raises a UserError


def test_csv_of_points_has_every_model(source):
    points = pd.read_csv(source / "results" / "step" / "points.csv")
    assert set(points["model"]) == set(STOCHASTIC_MODELS) and points.groupby("model").size().eq(2001).all()


def test_every_page_says_of_how_many_seeds_its_numbers_are(source):
    for name in ("index.md", "comparison.md", "results/index.md"):
        assert "3 seeds per data set" in text_of(source, name), name
    assert "our 3 seeds" in text_of(source, "results/step.md")


def test_the_committed_results_are_shown_with_all_their_seeds(tmp_path):
    site = Site.of(paths.COMMITTED_RESULTS, tmp_path)
    assert (site.comparison["n_seeds"] >= site.first["n_seeds"]).all()
    everything = published.compare(extras.with_extras())
    assert site.comparison["n_seeds"].equals(everything["n_seeds"]) and site.seeds == "100 seeds per data set"


def test_the_front_page_takes_its_answers_from_the_readme_and_its_counts_from_the_claims(source):
    page = text_of(source, "index.md")
    assert "**Does FDN do what the paper says?" in page and "**What should I use it for?**" in page
    assert "## What a reader should know" in page and "/figures/step_" in page
    found = claims.statements()
    for verdict, count in claims.counts(found).items():
        assert re.search(rf"<b>{count}</b> of {len(found)} statements: <span[^>]*>{verdict}</span>", page)
    assert "Holds in part</a> by" in page and "(it holds on sine alone; there only MLPDropoutNet (" in page


def test_the_front_page_says_what_is_known_of_the_numbers_outside_and_how_fast_the_op_is(tmp_path):
    site = Site.of(paths.COMMITTED_RESULTS, tmp_path)
    pages._index(site, claims.statements(), documents=[], notebooks=[], guides=[])
    page = text_of(tmp_path, "index.md")
    reasons = misses(site.comparison)["reason"]
    kinds = [reasons.str.startswith(words) for words in ("Open: ", "One of the eight that lie outside, where chance")]
    assert (kinds[0] | kinds[1]).all() and len(reasons) == 8
    known = f"{kinds[0].sum()} are open, {kinds[1].sum()} are put down to chance, which would leave 5 outside"
    assert known in page
    ratios = pd.read_csv(paths.ROOT / "data" / "benchmark" / "op.csv")["ratio"]
    assert f"{ratios.min():.1f} to {ratios.max():.1f} times as fast as its definition does" in page


def test_claims_page_has_every_statement_once_with_its_verdict_first_and_a_link_of_its_own(source):
    page, found = text_of(source, "data/claims/README.md"), claims.statements()
    rows = re.findall(r'<tr id="([a-z0-9-]+)" class="(\w+)"><td>([^<]+)</td><td>(.*)</td></tr>', page)
    assert [row[0] for row in rows] == [one.anchor for one in found] and len({row[0] for row in rows}) == len(rows)
    for (anchor, tone, verdict, body), one in zip(rows, found, strict=True):
        assert (verdict, tone) == (one.verdict, markup.TONES[one.verdict])
        assert f'href="#{anchor}"' in body and one.words in html.unescape(body)
        assert body.count("<li ") == len(one.parts)
    counts = claims.counts(found)
    parts = [part for one in found for part in one.parts]
    words = f"{counts[HOLDS]} hold, {counts[PARTLY]} hold in part, {counts[FAILS]} do not hold"
    assert words in page, "as the rules say, which are those of the page that `fdn claims` writes"
    assert words in summary(parts) and counts[UNMEASURED] == len(found) - sum(list(counts.values())[:3])
    assert "(claims.csv)" in page


def test_a_data_set_s_page_counts_the_statements_judged_on_it_alone():
    found = claims.statements()
    table = pd.read_csv(paths.CLAIMS / "claims.csv", keep_default_na=False)
    for name in published.DATASETS:
        counts = {verdict: len(judged) for verdict, judged in claims.about(found, name).items() if judged}
        assert counts == table[table["dataset"] == name]["conclusion"].value_counts().to_dict()


def test_modules_are_all_there():
    names = pages.modules()
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for root, package in ((paths.ROOT, "fdn_kernels"), (paths.ROOT / "lib", "fdn"))
        for path in (root / package).rglob("*.py")
    }  # fmt: skip
    assert set(names) == {name for name in files if not name.endswith(pages.NOT_DOCUMENTED)}


def test_every_public_name_is_on_the_page_and_every_function_has_an_example_that_runs(capsys):
    import fdn
    import fdn_kernels

    for package in (fdn, fdn_kernels):
        assert {entry.name for entry in ENTRIES if entry.package == package.__name__} == set(package.__all__)
    scope = {}
    for entry in ENTRIES:
        assert entry.example or entry.kind != "autofunction", entry.name
        exec(entry.example, scope)  # they run one after the other, as the page says
    assert "Dataset(step" in capsys.readouterr().out


def test_no_page_shows_a_role_of_another_markup(source):
    for path in source.rglob("*.md"):
        assert not re.search(r"(?<!`):(?:py:)?(?:mod|func|class|meth|attr):", path.read_text(encoding="utf-8")), path


def test_cells_show_missing_numbers_and_escape_text():
    table = markup.sortable_table(
        "t", "a < b", ["name", "x"], [["<i>", float("nan")], ["`c`", markup.Printed("0.10", 0.1)]],
        more=[None, ("Why", "x < y")],
    )  # fmt: skip
    assert '<caption id="t">a &lt; b</caption>' in table
    assert "&lt;i&gt;" in table and '<td class="number">—</td>' in table
    assert "<code>c</code>" in table and '<td class="number" data-value="0.1">0.10</td>' in table
    assert table.count('<tr class="more"><td colspan="2">') == 1 and "<p>x &lt; y</p>" in table


@sphinx_needed
def test_a_finished_table_knows_its_verdicts_totals_widths_and_terms():
    from bs4 import BeautifulSoup

    from fdn.report.site.finish import finish

    long_line = "word " * 30
    body = (
        "<h2>Score</h2><div class='table-wrapper'><table><thead><tr><th>Set</th><th>Place</th><th>Verdict</th>"
        f"<th>Words</th></tr></thead><tbody><tr><td>a</td><td>1<br>2<br>3</td><td>outside</td><td>{long_line}</td></tr>"
        "<tr><td>total</td><td>2</td><td>holds</td><td>x</td></tr></tbody></table></div>"
    )
    soup = BeautifulSoup(finish(body, "../", {}.get), "html.parser")
    heads, rows = soup.thead.find_all("th"), soup.tbody.find_all("tr")
    assert heads[1].a["href"] == "../glossary.html#place" and heads[0].a is None
    assert [cell["class"] for cell in rows[0].find_all("td")] == [
        ["short"],
        ["short"],
        ["verdict", "bad", "short"],
        ["long"],
    ]
    small = (
        "<table><thead><tr><th>b</th></tr></thead><tbody><tr><td>1.2 [1, 2]<br>→ 30% [2, 3]</td></tr></tbody></table>"
    )
    cell = BeautifulSoup(finish(small, "", {}.get), "html.parser").td
    assert [piece.text for piece in cell.find_all(class_="interval")] == ["[1, 2]", "[2, 3]"]
    assert cell["class"] == ["narrow"] and cell.text == "1.2 [1, 2]→ 30% [2, 3]"
    assert rows[1]["class"] == ["total"] and "good" in rows[1].find_all("td")[2]["class"]
    assert "sortable" in soup.table["class"] and soup.div["aria-label"] == "Table 1, Score"


@sphinx_needed
def test_a_header_of_nothing_is_none_for_a_screen_reader():
    from bs4 import BeautifulSoup

    from fdn.report.site.finish import finish

    head = "<tr><th></th><th>IWAE</th></tr><tr><th>K</th><th></th></tr>"
    table = f"<table class='dataframe'><thead>{head}</thead><tbody><tr><th>1</th><td>2</td></tr></tbody></table>"
    rows = BeautifulSoup(finish(table, "", {}.get), "html.parser").thead.find_all("tr")
    assert [[cell.name for cell in row.find_all(["th", "td"])] for row in rows] == [["td", "th"], ["th", "th"]]


@sphinx_needed
def test_a_finished_picture_has_its_size_and_opens_in_full(tmp_path):
    from PIL import Image

    from fdn.report.site.finish import finish

    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    done = finish('<img alt="a" src="../_images/a.png"/><img src="icon.svg"/>', "", {"a.png": tmp_path / "a.png"}.get)
    assert re.match(r'<a class="enlarge" href="\.\./_images/a\.png"><img [^>]*height="20"[^>]*width="30"', done) or (
        'width="30"' in done and 'height="20"' in done and 'class="enlarge"' in done and 'loading="lazy"' in done
    )
    assert done.endswith('<img src="icon.svg"/>'), "what is no picture of the site is left alone"


def test_headers_of_the_results_lead_to_a_term_of_the_glossary(source):
    assert len({term.anchor for term in TERMS}) == len(TERMS)
    assert {*RESULT_COLUMNS.values(), *REGION_COLUMNS.values(), "Place", "By chance", "Verdict"} <= set(ANCHORS)
    page = text_of(source, "glossary.md")
    assert all(f"({anchor})=" in page for anchor in ANCHORS.values())


def test_notebook_cells_that_only_import_are_folded_and_figures_are_described():
    code, prose = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell
    picture = [nbformat.v4.new_output("display_data", {"image/png": "", "text/plain": ""})]
    notebook = nbformat.v4.new_notebook(cells=[
        code("import numpy as np\nfrom fdn import load"),
        prose("## A head\n\nFirst words.\n\nThe *step* and its [draws](x.md). And more.\n\n- an item"),
        code("plt.plot(np.arange(3))", outputs=picture),
        code("figures.save(figures.risk_coverage(points), out)", outputs=picture),
        code("print(1)"),
    ])  # fmt: skip
    notebooks.dress(notebook)
    setup, _, drawn, named, plain = notebook.cells
    assert setup.metadata["tags"] == ["hide-input"] and "tags" not in plain.metadata
    assert drawn.metadata["mystnb"]["figure"]["caption"] == "The *step* and its draws."
    assert drawn.metadata["mystnb"]["image"]["alt"] == "The step and its draws."
    assert named.metadata["mystnb"]["figure"]["caption"].startswith(figures.risk_coverage.__doc__[:20])


def test_links_of_the_repository_s_pages_hold_in_the_site(source, run):
    site = Site.of(run, source)
    link = lambda address, page="docs/a.md": guides.linked(site, Path(page), f"[x]({address})")
    assert link("../README.md") == "[x](/index.md)"
    assert link("../data/comparison/compare.md") == "[x](/comparison.md)"
    assert link("../data/claims") == link("../data/claims/README.md") == "[x](/data/claims/README.md)"
    assert link("../notebooks/01_method.ipynb#part") == "[x](/notebooks/01_method.ipynb#part)"
    kept = guides.linked(site, Path("docs/a.md"), "[3.3](../notebooks/03_toy.ipynb)")
    assert kept == "[3.3](/notebooks/03_toy.ipynb#33-the-epoch-that-is-kept)", "a section by its number"
    assert link("../Makefile") == "[x](/Makefile)" and (source / "Makefile").exists(), "a copy to keep"
    assert link("../lib") == link("nowhere.md") == "x"
    assert link("https://example.org/a") == "[x](https://example.org/a)" and link("#here") == "[x](#here)"


def test_what_is_kept_of_a_run_for_looking_at_it_gives_its_numbers_back(run, tmp_path):
    [path] = explore.collect(run, tmp_path)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert set(kept["models"]) == set(PAPER_MODELS) and set(kept["models"]["BayesNet"]) == {"0", "1", "2"}
    frame = results.load_points(run, "step", "BayesNet", "published", 1).sort_values("z")
    frame = frame[np.isin(frame["z"].round(4), np.round(kept["x"], 4))]
    one = kept["models"]["BayesNet"]["1"]
    assert len(frame) == len(kept["x"]) == len(one["error"]) and kept["band"] == [-1, 1]
    np.testing.assert_allclose(one["var"], frame["var"], rtol=1e-3)
    np.testing.assert_allclose(np.square(one["error"]) + one["var"], frame["mse"], rtol=2e-3)
    assert sum(kept["weight"]) == pytest.approx(2001, abs=10)
    for text in (paths.ROOT / "data" / "explore").glob("*.json"):
        assert all(len(seeds) == 10 for seeds in json.loads(text.read_text(encoding="utf-8"))["models"].values())


def test_a_folder_with_other_files_is_left_alone(run, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="no site"):
        build.build(run, tmp_path)
    assert (tmp_path / "thesis.tex").read_text(encoding="utf-8") == "mine"


@sphinx_needed
@pytest.mark.check
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")  # Sphinx's extensions
def test_site_builds_without_a_warning_and_in_place_of_an_older_one(run, source, tmp_path, monkeypatch):
    """Takes as long as Sphinx does for a page of every module."""
    written = lambda folder, target: shutil.copytree(source, target, dirs_exist_ok=True)
    monkeypatch.setattr(pages, "write", written)  # the same pages once are enough
    out = tmp_path / "site"
    out.mkdir()
    for name in (".buildinfo", "old.html"):
        (out / name).write_text("", encoding="utf-8")
    count = build.build(run, out)
    assert count == len(list(out.rglob("*.html"))) > len(pages.modules())
    assert not (out / "old.html").exists() and list(tmp_path.iterdir()) == [out]
    pages_naming_this_machine = [
        path for path in out.rglob("*.html") if str(paths.ROOT) in path.read_text(encoding="utf-8")
    ]
    assert pages_naming_this_machine == []
    page = (out / "index.html").read_text(encoding="utf-8")
    assert 'lang="en"' in page and 'src="http' not in page
    assert "<mjx" not in page and (out / "_static" / "mathjax" / "tex-chtml.js").exists()
    assert (out / "explore" / "step.js").read_text(encoding="utf-8").startswith('fdnExplore("step", {')
