"""The pages of the site and their tables, without a browser, in which tests/report/site_checks.py reads them."""

from __future__ import annotations

import html
import re
import shutil
from importlib.util import find_spec

import pytest
from fake_results import write_results

from fdn import paths
from fdn.errors import UserError
from fdn.models import BASELINE, STOCHASTIC_MODELS
from fdn.report import figures, published
from fdn.report.site import build, markup, pages
from fdn.report.tables import plain_number
from fdn.runs import results

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

    def save_png(fig, stem):  # the PDF beside it takes longer, and the site shows none
        fig.savefig(stem.parent / f"{stem.name}.png")
        return [stem.parent / f"{stem.name}.png"]

    (folder / "figures").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "save", save_png)
        pages.write(run, folder)
    return folder


def table_rows(page: str, name: str) -> list[list[tuple[str, str]]]:
    """Value and text of every cell of a table's body."""
    [table] = re.findall(rf'<table[^>]*><caption id="{name}">.*?</table>', page)
    body = table.split("<tbody>")[1]
    cell = re.compile(r'<t[hd][^>]*?(?: data-value="([^"]*)")?>(.*?)</t[hd]>')
    return [[(value, html.unescape(text)) for value, text in cell.findall(row)] for row in body.split("<tr>")[1:]]


def test_page_of_a_data_set_holds_every_number_of_its_results(run, source):
    expected = published.compare(results.load_metrics(run))
    expected = expected[expected["dataset"] == "step"]
    rows = table_rows((source / "results" / "step.md").read_text(encoding="utf-8"), "numbers-step")
    assert len(rows) == len(expected) == 42
    for row, number in zip(rows, expected.to_dict("records"), strict=True):
        assert row[0][1] == number["model"]
        assert row[2] == (repr(number["published"]), number["printed"])
        for cell, name in zip(row[3:8], ("median", "q05", "q95", "min", "max"), strict=True):
            assert cell == (repr(number[name]), plain_number(number[name]))
        assert [row[8][1], row[10][1]] == [str(number["n_seeds"]), number["verdict"]]


def test_every_figure_names_its_data_and_a_command_that_exists(source):
    from fdn.cli import _parser

    page = (source / "results" / "step.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\{figure\} (\S+)\n:alt: (.+)\n", page)
    assert len(shown) == 8
    for path, alt in shown:
        assert (source / "results" / path).resolve().exists() and len(alt) > 30
    for text in re.findall(r"```\{figure\}.*?```", page, re.DOTALL):
        [data] = re.findall(r"\]\((\S+\.csv)\)", text)
        assert (source / "results" / data).exists()
    kinds = {  # of a run without curves over seeds
        kind: figure for kind, figure in figures.FIGURES.items() if figure.for_toy and figure.needs != "bands"
    }
    for kind, figure in kinds.items():  # the table of figures is all that is said of one
        data = "points" if figure.needs_points else "seeds"
        section = page.split(f"## {figure.title}\n")[1].split("\n## ")[0]
        assert f"step_{kind}.png" in section and f"{figure.words}. Data: [{data}.csv]" in section
    assert len(kinds) == len(shown) - 1  # and the seeds of every number
    written = [path for path in source.rglob("*.md") if path.relative_to(source).parts[0] not in ("api", "data")]
    commands = {
        command for path in written for command in re.findall(r"`fdn ([^`]+)`", path.read_text(encoding="utf-8"))
    }
    assert len(commands) > 5
    for command in commands:
        _parser().parse_args(command.split())  # raises a UserError


def test_csv_of_points_has_every_model(source):
    import pandas as pd

    points = pd.read_csv(source / "results" / "step" / "points.csv")
    assert set(points["model"]) == set(STOCHASTIC_MODELS) and points.groupby("model").size().eq(2001).all()


def test_modules_are_all_there():
    names = pages.modules()
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for root, package in ((paths.ROOT, "fdn_kernels"), (paths.ROOT / "lib", "fdn"))
        for path in (root / package).rglob("*.py")
    }  # fmt: skip
    assert set(names) == {name for name in files if not name.endswith(pages.NOT_DOCUMENTED)}


def test_cells_show_missing_numbers_and_escape_text():
    table = markup.sortable_table(
        "t", "a < b", ["name", "x"], [["<i>", float("nan")], ["`c`", markup.Printed("0.10", 0.1)]]
    )
    assert '<caption id="t">a &lt; b</caption>' in table
    assert "&lt;i&gt;" in table and '<td class="number">—</td>' in table
    assert "<code>c</code>" in table and '<td class="number" data-value="0.1">0.10</td>' in table


def test_a_folder_with_other_files_is_left_alone(run, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="no site"):
        build.build(run, tmp_path)
    assert (tmp_path / "thesis.tex").read_text(encoding="utf-8") == "mine"


@sphinx_needed
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
