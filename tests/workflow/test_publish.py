"""Notebooks with parameters, and the publication of a run: a rerun changes no byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from fake_results import contents, write_results
from projects import write_pair

from fdn import paths
from fdn.cli import main
from fdn.data import uci
from fdn.errors import UserError
from fdn.runs import results
from fdn.workflow import notebooks

FDNS = ("IC-FDNet", "LP-FDNet")


def parameters_used(path: Path) -> dict[str, object]:
    """What papermill ran a notebook with."""
    return dict(nbformat.read(path, as_version=4).metadata["papermill"]["parameters"])


def test_a_parameter_the_notebook_does_not_have_is_refused(project, tmp_path):
    source = paths.NOTEBOOKS / "05_figures_and_tables.ipynb"
    with pytest.raises(UserError, match="unknown parameter of 05_figures_and_tables.ipynb 'outt'; did you mean 'out'"):
        notebooks.run_with_parameters(source, tmp_path / "x.ipynb", {"outt": "there"})
    with pytest.raises(UserError, match="no notebook"):
        notebooks.run_with_parameters(tmp_path / "gone.ipynb", tmp_path / "x.ipynb", {})
    assert not list(tmp_path.glob("*.ipynb"))


def test_a_failed_notebook_is_left_to_read_but_not_under_its_name(tmp_path):
    write_pair(tmp_path, "fails", '# %% tags=["parameters"]\nn: int = 1  # number\n\n# %%\n1 / (n - 2)\n')
    source, target = tmp_path / "fails.ipynb", tmp_path / "out" / "fails-2.ipynb"
    with pytest.raises(RuntimeError, match=r"cell \[\d\] with ZeroDivisionError.*fails-2.failed.ipynb"):
        notebooks.run_with_parameters(source, target, {"n": 2})
    left = nbformat.read(target.with_name("fails-2.failed.ipynb"), as_version=4)
    assert "ZeroDivisionError" in str([cell.get("outputs") for cell in left.cells])
    assert not target.exists()
    notebooks.run_with_parameters(source, target, {"n": 3})
    assert [path.name for path in target.parent.iterdir()] == ["fails-2.ipynb"]
    assert parameters_used(target) == {"n": 3}


def test_a_notebooks_file_is_the_one_named(tmp_path, monkeypatch, capsys):
    script = '# %% tags=["parameters"]\ndataset: str = "step"  # text\n\n# %%\nprint(dataset)\n'
    write_pair(tmp_path / "notebooks", "shows", script)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.chdir(tmp_path)
    name, value = "{dataset}-%s 'x'.ipynb", "{x} 'q' \\ \"d\" %s ü"
    assert main(["notebook", "shows", "--out", name, "--set", f"dataset={value}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"notebooks", name}
    assert parameters_used(tmp_path / name) == {"dataset": value}
    assert value in str(
        [cell.outputs[0].text for cell in nbformat.read(tmp_path / name, 4).cells if cell.get("outputs")][-1]
    )


def published_folder(project: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(project).items() if not name.startswith("out")}


def test_publishing_twice_changes_no_byte(project, capsys):
    """Long, for every figure, table and page is written twice."""
    out = paths.DEFAULT_OUT
    write_results(paths.COMMITTED_RESULTS, ["step"], ["BayesNet", "LP-FDNet"], [0, 7])
    without_metrics = paths.COMMITTED_RESULTS / "points" / "as_written" / "sine" / "LP-FDNet" / "4.parquet"
    without_metrics.parent.mkdir(parents=True)
    without_metrics.write_bytes(b"of earlier numerics")
    write_results(out, ["step"], FDNS, [0, 1, 2])
    write_results(out, ["step", "diabetes"], FDNS, [0, 1], protocol="as_written")
    write_results(out, ["step"], FDNS, [0], protocol="published+warmup=50")
    for name in ("03_toy", "04_uci"):
        for path in (project / "notebooks").glob(f"{name}.*"):
            path.unlink()
    assert main(["publish", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "left out, as ablations or data sets of your own: step published+warmup=50" in said
    first = published_folder(project)

    frame = results.load_metrics(paths.COMMITTED_RESULTS)
    assert len(frame) == 6 + 8 + 3  # new, new as written, old that were not replaced
    assert not frame.duplicated(list(results.KEY)).any()
    points = {tuple(name.split("/")[3:]) for name in first if name.startswith("data/results/points")}
    assert {key[:3] for key in points} == {
        (protocol, dataset, model)
        for protocol, dataset in (("published", "step"), ("as_written", "step"), ("as_written", "diabetes"))
        for model in FDNS
    }
    assert len(points) == 6  # one seed of each
    sidecar = json.loads(first["data/results/sidecar.json"])
    assert len(sidecar["blocks"]) == 6 and sidecar["environments"] == [{"python": "3.11"}]
    assert b"LP-FDNet" in first["README.md"]
    assert {"figures/step_means.pdf", "data/results/tables/results_step.md"} <= set(first)
    notebook = nbformat.reads(first["notebooks/05_figures_and_tables.ipynb"].decode(), as_version=4)
    assert [cell.execution_count for cell in notebook.cells] == [1, 2]
    shown = notebook.cells[1].outputs[0].text
    assert shown == "17 rows of somewhere by bin/python <object object>\n"
    assert str(project) not in first["notebooks/05_figures_and_tables.ipynb"].decode()

    assert main(["publish", "--out", str(out)]) == 0
    assert published_folder(project) == first


def test_publishing_does_not_run_a_notebook_that_measures_run_times(project, monkeypatch, capsys):
    write_pair(project / "notebooks", "06_times", '# %% tags=["run-times"]\nimport time\nprint(time.perf_counter())\n')
    write_results(paths.DEFAULT_OUT, ["step"], FDNS, [0])
    ran = []
    monkeypatch.setattr(notebooks, "run_in_place", lambda path: ran.append(path.stem))
    monkeypatch.setattr("fdn.workflow.publish.write_figures", lambda *args: ([], []))
    assert main(["publish", "--out", str(paths.DEFAULT_OUT)]) == 0
    assert ran == ["03_toy", "04_uci", "05_figures_and_tables"]
    assert "06_times.ipynb, which measures run times" in capsys.readouterr().out


def test_what_must_not_be_published_is_refused(project, capsys):
    def complaint(status: int = 2) -> str:
        assert main(["publish", "--out", str(paths.DEFAULT_OUT)]) == status
        return capsys.readouterr().err

    before = published_folder(project)
    assert "holds no results to publish" in complaint()
    write_results(paths.DEFAULT_OUT, ["step"], FDNS, [0], protocol="published+epochs=2")
    assert "only results that are not published: step published+epochs=2" in complaint()
    cells = sorted(paths.DEFAULT_OUT.glob("cells/*/*/*/*.json"))
    old = [
        cell.read_text(encoding="utf-8").replace(f'"numerics": {results.NUMERICS}', '"numerics": 0') for cell in cells
    ]
    for cell, text in zip(cells, old, strict=True):
        cell.write_text(text, encoding="utf-8")
    assert "another version of the numerics" in complaint()
    shutil.rmtree(paths.DEFAULT_OUT)
    write_results(paths.DEFAULT_OUT, ["step"], FDNS, [0])
    published = paths.DEFAULT_OUT / "cells" / "published"
    (published / "step").rename(published / "airfoil")
    for cell in published.glob("airfoil/*/*.json"):
        text = cell.read_text(encoding="utf-8")
        cell.write_text(text.replace('"dataset": "step"', '"dataset": "airfoil"'), encoding="utf-8")
    assert uci.SOURCES["airfoil"].how_to_get in complaint()
    script = paths.NOTEBOOKS / "03_toy.py"
    script.write_text(script.read_text(encoding="utf-8").replace("len(frame)", "frame"), encoding="utf-8")
    assert "03_toy.ipynb and 03_toy.py differ from cell 2 on" in complaint()
    script.unlink()
    assert "03_toy.ipynb has no 03_toy.py" in complaint()
    after = published_folder(project)
    assert {name: after.get(name) for name in before if name != "notebooks/03_toy.py"} == {
        name: content for name, content in before.items() if name != "notebooks/03_toy.py"
    }
    assert not paths.COMMITTED_RESULTS.exists()


def test_rows_of_other_numerics_do_not_stay_beside_new_ones(project, monkeypatch):
    write_results(paths.COMMITTED_RESULTS, ["step"], FDNS, [7])
    (paths.COMMITTED_RESULTS / "sidecar.json").write_text(
        json.dumps({"numerics": results.NUMERICS - 1, "environments": [], "blocks": []}), encoding="utf-8"
    )
    write_results(paths.DEFAULT_OUT, ["step"], FDNS, [0])
    monkeypatch.setattr(notebooks, "run_in_place", lambda path: None)
    monkeypatch.setattr("fdn.workflow.publish.write_figures", lambda *args: ([], []))
    assert main(["publish", "--out", str(paths.DEFAULT_OUT)]) == 0
    assert set(pd.read_parquet(paths.COMMITTED_RESULTS / "metrics.parquet")["seed"]) == {0}
    assert (
        json.loads((paths.COMMITTED_RESULTS / "sidecar.json").read_text(encoding="utf-8"))["numerics"]
        == results.NUMERICS
    )
