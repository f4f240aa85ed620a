"""Notebooks run from first cell to last: with parameters through papermill, or in place as committed.

Kernels are those of the interpreter that runs this, whatever others are installed for the user.
"""

from __future__ import annotations

import html
import logging
import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import zip_longest
from pathlib import Path
from unittest.mock import patch

import jupytext
import nbformat
import papermill
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError

from fdn import paths
from fdn.arguments import check_parameter, choose
from fdn.errors import UserError
from fdn.runs import results

KERNEL = "python3"
RUN_TIMES = "run-times"  # tag of a cell that measures some
QUIET = ["--log-level=50"]  # kernels remark on their transport and their end


def _literal(path: Path) -> str:
    """A path for papermill, which takes braces for the names of parameters."""
    return str(path.resolve()).replace("{", "{{").replace("}", "}}")


def parameters_of(source: Path) -> dict[str, str]:
    """Names and types, as annotated, of the cell tagged ``parameters``.

    Raises:
        UserError: if there is no such notebook.
    """
    if not source.is_file():
        raise UserError(f"there is no notebook {source}")
    return {name: found["inferred_type_name"] for name, found in papermill.inspect_notebook(_literal(source)).items()}


def run_with_parameters(source: Path, target: Path, parameters: Mapping[str, object]) -> None:
    """Run a notebook with parameters into ``target``, which appears only once every cell has run.

    A run that does not end well leaves what it did in NAME.failed.ipynb beside the target.

    Raises:
        UserError: for a target that is a folder, a parameter the notebook does not have (papermill itself only warns),
            or one of another type, empty or refused by the notebook.
        RuntimeError: if a cell fails, saying which and where to read on.
    """
    known = parameters_of(source)
    for name, value in parameters.items():
        choose(name, known, f"parameter of {source.name}")
        check_parameter(name, value, known[name])
    if target.is_dir():
        raise UserError(f"{target} is a folder; name the file to write the notebook to, as {target / source.name}")
    unfinished = target.with_name(f"{target.stem}.failed.ipynb")
    with results.atomic(unfinished):  # says clearly if the folder cannot be written
        pass
    unfinished.unlink()  # papermill's alone is success
    with _own_kernels():
        try:
            papermill.execute_notebook(
                _literal(source), _literal(unfinished), dict(parameters),
                kernel_name=KERNEL, cwd=str(source.parent), extra_arguments=QUIET,
                progress_bar=sys.stderr.isatty(),
            )  # fmt: skip
        except PapermillExecutionError as error:
            if error.ename == UserError.__name__:
                raise UserError(error.evalue) from error
            if error.ename == KeyboardInterrupt.__name__:
                raise KeyboardInterrupt from error
            raise RuntimeError(
                f"{source.name} stopped in cell [{error.exec_count}] with {error.ename}: {error.evalue}; "
                f"{unfinished} shows how far it came"
            ) from error
        except KeyboardInterrupt:
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it reports the interrupted cell at length
            raise
    unfinished.replace(target)


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 48rem; margin: auto; padding: 1rem; color: #222; background: #fff; }}
img {{ max-width: 100%; height: auto; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font-size: 14px; }}
.output_html {{ overflow-x: auto; }}
table {{ border-collapse: collapse; border: 0; font-size: 14px; margin: 1em 0; }}
th, td {{ padding: .2em .6em; text-align: right; border: 0; border-bottom: 1px solid #ccc; }}
</style></head>
<body><main><h1>{title}</h1>
{body}
</main></body></html>
"""
NOT_REPORTED = "book"  # tag of cells that speak of the notebook


def write_report(source: Path, target: Path, parameters: Mapping[str, object], title: str) -> None:
    """Run a notebook with parameters and write it without its code as one HTML page, which needs no other file or host.

    Raises:
        UserError, RuntimeError: as :func:`run_with_parameters`.
    """
    ran = target.with_name(f"{target.name}.ipynb")
    run_with_parameters(source, ran, parameters)
    notebook = nbformat.read(ran, as_version=4)
    ran.unlink()
    for cell in notebook.cells:  # which are no part of a book here
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"^(#+ )\d+\.(?=\d)", r"\1", cell.source, flags=re.MULTILINE)
    notebook.cells = [cell for cell in notebook.cells if NOT_REPORTED not in cell.metadata.get("tags", [])]
    hidden = dict.fromkeys(("exclude_input", "exclude_output_prompt", "exclude_anchor_links"), True)
    body, _ = HTMLExporter(template_name="basic", **hidden).from_notebook_node(notebook)
    results.write(target, PAGE.format(title=html.escape(title), body=body))


def run_in_place(path: Path) -> None:
    """Run a notebook with its default parameters and write it back; run times apart, doing it again changes no byte.

    Raises:
        RuntimeError: if a cell fails; the notebook then stays as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(path.parent)}}
    options = {"timeout": None, "record_timing": False, "coalesce_streams": True, "extra_arguments": QUIET}
    with _own_kernels():
        try:
            NotebookClient(notebook, kernel_name=KERNEL, resources=place, **options).execute()
        except CellExecutionError as error:
            raise RuntimeError(f"{path.name} stopped with {error.ename}: {error.evalue}") from error
    normalise(notebook)
    results.write(path, nbformat.writes(notebook) + "\n")


def measures_run_times(path: Path) -> bool:
    """Whether some cell of a notebook is tagged ``run-times``: what it shows differs each time it runs."""
    return any(RUN_TIMES in tags for _, _, tags in _cells(nbformat.read(path, as_version=4)))


def normalise(notebook: NotebookNode) -> None:
    """Drop from a notebook what differs between two runs of it or two machines: times, versions, places."""
    kept = {"jupytext": notebook.metadata["jupytext"]} if "jupytext" in notebook.metadata else {}
    spec = {"name": KERNEL, "display_name": "Python 3", "language": "python"}
    language = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"}
    notebook.metadata = nbformat.from_dict({**kept, "kernelspec": spec, "language_info": language})
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k in ("tags", "jupyter")})
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = _without_places(output.text)
            for kind, content in output.get("data", {}).items():
                if kind.startswith("text/"):
                    output.data[kind] = _without_places(content)


def _without_places(text: str) -> str:
    for folder in (paths.ROOT.resolve(), paths.ROOT, Path(sys.prefix)):
        text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), ".")
    text = re.sub(r"\S*ipykernel_\d+\S+?\.py", "cell", text)
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def check_pairs(folder: Path) -> list[Path]:
    """The notebooks of a folder, each of which has the same cells as the script it is paired with.

    Raises:
        UserError: naming the first pair that differs, or the notebook that has no script.
    """
    notebooks = sorted(folder.glob("*.ipynb"))
    for path in notebooks:
        script = path.with_suffix(".py")
        if not script.exists():
            raise UserError(f"{path.name} has no {script.name} beside it; `jupytext --to py:percent {path}` writes it")
        pairs = zip_longest(_cells(nbformat.read(path, as_version=4)), _cells(jupytext.read(script)))
        if number := next((number for number, (a, b) in enumerate(pairs, 1) if a != b), None):
            raise UserError(
                f"{path.name} and {script.name} differ from cell {number} on; carry the change over with "
                f"`jupytext --to notebook --update {script}` or `jupytext --to py:percent {path}`"
            )
    return notebooks


def _cells(notebook: NotebookNode) -> list[tuple[str, str, list[str]]]:
    return [(cell.cell_type, cell.source.strip(), cell.metadata.get("tags", [])) for cell in notebook.cells]


def _own_kernels() -> AbstractContextManager:
    """The environment in which Jupyter looks first for kernels of this interpreter."""
    places = [str(Path(sys.prefix) / "share" / "jupyter"), os.environ.get("JUPYTER_PATH")]
    return patch.dict(os.environ, JUPYTER_PATH=os.pathsep.join(filter(None, places)))
