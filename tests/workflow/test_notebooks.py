"""What a reader may expect of every notebook: executed, paired, short cells, at home in any directory.

Whether the outputs are still what the code prints is nbval's part; see `make test`.
"""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import jupytext
import nbformat
import papermill
import pytest
from packaging.utils import canonicalize_name

from fdn.workflow.notebooks import measures_run_times

ROOT = Path(__file__).resolve().parents[2]
BOOK = (
    "01_method",
    "02_protocol",
    "03_toy",
    "04_uci",
    "05_figures_and_tables",
    "06_kernel",
    "07_options",
    "08_adapters",
    "09_your_data",
    "10_what_makes_fdn_work",
    "11_rivals",
)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMETERS = {"dataset", "models", "seeds", "protocol", "epochs", "recompute", "out"}
FOLDERS = "home|Users|root|work|tmp|private|var|opt|usr|mnt"
PLACES = re.compile(rf"(?<![\w.])/(?:{FOLDERS})/|[A-Z]:\\|site-packages")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def output_texts(cell: nbformat.NotebookNode) -> list[str]:
    """Everything a cell printed or displayed but its images."""
    texts = []
    for output in cell.outputs:
        texts += [output.get("text", ""), "\n".join(output.get("traceback", []))]
        shown = output.get("data", {}).items()
        texts += [str(content) for kind, content in shown if not kind.startswith("image/")]
    return texts


def program(path: Path) -> ast.Module:
    """The code of a notebook without its magics."""
    lines = "\n".join(cell.source for cell in code_cells(path)).splitlines()
    return ast.parse("\n".join(line for line in lines if not line.startswith(("%", "!"))))


def test_the_book_is_complete():
    assert set(BOOK) <= {path.stem for path in NOTEBOOKS}


@every_notebook
def test_is_valid_and_wants_the_kernel_that_every_environment_has(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"


@every_notebook
def test_script_and_notebook_have_the_same_cells(path):
    def cells(notebook):
        return [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]

    assert cells(jupytext.read(path.with_suffix(".py"))) == cells(read(path))


@every_notebook
def test_is_executed_from_first_cell_to_last_without_an_error(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


@every_notebook
def test_no_cell_is_longer_than_thirty_lines(path):
    assert [cell.source for cell in read(path).cells if len(cell.source.splitlines()) > 30] == []


@every_notebook
def test_outputs_name_no_place_on_a_machine_and_no_time_of_day(path):
    assert PLACES.search("in /" + "tmp/x") and not PLACES.search("data/raw/ and out/tmp/")
    texts = [text for cell in code_cells(path) for text in output_texts(cell)]
    assert [text for text in texts if PLACES.search(text)] == []
    assert [cell.metadata for cell in read(path).cells if set(cell.metadata) - {"tags", "jupyter"}] == []


@every_notebook
def test_imports_only_this_project_and_what_it_installs(path):
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==")[0] for line in lock if not line.startswith("#")]
    installed = {"fdn"} | set(map(canonicalize_name, pins))
    names = set()
    for node in ast.walk(program(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a notebook belongs to no package"
            names.add(node.module.split(".")[0])
    rivals = {"laplace": ["laplace-torch"], "mapie": ["mapie"], "ngboost": ["ngboost"],
              "quantile_forest": ["quantile-forest"]}  # fmt: skip
    origin = rivals | packages_distributions() | {"fdn": ["fdn"], "fdn_kernels": ["fdn"]}
    origin = {name: set(map(canonicalize_name, origin.get(name, []))) for name in names}
    assert {n for n in names - sys.stdlib_module_names if not installed & origin[n]} == set()


@every_notebook
def test_runs_the_same_from_any_directory(path):
    source = "\n".join(cell.source for cell in code_cells(path))
    assert re.findall(r"^[%!](?!matplotlib inline$|config InlineBackend\.).*", source, re.MULTILINE) == []
    tree = program(path)
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert attributes & {"sys.path", "os.chdir", "os.getcwd", "Path.cwd", "sys.argv"} == set()
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    texts = [value for value in constants if isinstance(value, str)]
    assert [text for text in texts if re.match(r"\.{1,2}/|~/|/\w", text)] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("01_method", {"dataset", "seed", "out"}),
        ("02_protocol", {"dataset", "seed", "out"}),
        ("03_toy", PARAMETERS),
        ("04_uci", PARAMETERS),
        ("05_figures_and_tables", {"dataset", "seeds", "protocol", "out"}),
        ("06_kernel", {"interpret", "compile_tiles", "draws", "widths", "examples", "seed", "out"}),
        ("07_options", {"recompute", "toy", "real", "seeds", "epochs", "steps"}),
        ("08_adapters", {"dataset", "layers", "freeze", "seeds", "epochs", "recompute", "out"}),
        ("09_your_data", {"path", "target", "split_column", "model", "epochs", "beta", "seed"}),
        ("10_what_makes_fdn_work", {"dataset", "seeds", "epochs", "recompute"}),
        ("11_rivals", {"dataset", "methods", "seeds", "recompute", "out"}),
    ],
)
def test_parameters_have_types_and_help(name, expected):
    parameters = papermill.inspect_notebook(str(ROOT / "notebooks" / f"{name}.ipynb"))
    assert set(parameters) >= expected
    found = parameters.values()
    assert [p for p in found if p["inferred_type_name"] == "None" or not p["help"].strip()] == []


def test_only_the_notebook_on_the_kernel_measures_run_times():
    assert [path.stem for path in NOTEBOOKS if measures_run_times(path)] == ["06_kernel"]


@pytest.mark.parametrize("name", BOOK[:4])
def test_a_chapter_ends_with_three_exercises_whose_answers_are_hidden(name):
    text = "\n".join(cell.source for cell in read(ROOT / "notebooks" / f"{name}.ipynb").cells)
    exercises = text.split("## Exercises")[1]
    assert re.findall(r"^\*\*(\d)\.\*\*", exercises, re.MULTILINE) == ["1", "2", "3"]
    assert exercises.count("<details><summary>Answer</summary>\n\n") == exercises.count("</details>") == 3


@pytest.mark.parametrize("name", BOOK[2:4])
def test_a_chapter_on_results_opens_with_a_figure_and_says_nothing_is_missing(name):
    cells = code_cells(ROOT / "notebooks" / f"{name}.ipynb")
    first = next(output for cell in cells for output in cell.outputs)
    assert "image/png" in first["data"]
    assert not any("to be trained" in text or "n/a" in text for cell in cells for text in output_texts(cell))


def test_a_symbol_means_one_thing_in_all_notebooks():
    for path in NOTEBOOKS:
        prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
        assert r"\epsilon" not in prose, "noise is varepsilon"
        assert not re.search(r"\\varepsilon\s*\+\s*\\operatorname\{softplus\}", prose), "the floor is sigma_min"
        assert not re.search(r"\$P=d|W=KB", prose), "P is the number of all trainable parameters, W a matrix"


def test_links_of_notebooks_lead_somewhere():
    for path in NOTEBOOKS:
        prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
        for target in re.findall(r"\]\(([^)\s:#]+)\)", prose):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("path", [*NOTEBOOKS, *sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=str)
def test_the_site_shows_all_of_the_prose(path):
    """Where a line that starts with % is a comment, and a formula of its own cannot be part of a list."""
    cells = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"] if path in NOTEBOOKS else None
    for line in "\n".join(cells or [path.read_text(encoding="utf-8")]).split("\n"):
        assert not line.startswith("%"), line
        assert not re.match(r"\s+\$\$", line), line
