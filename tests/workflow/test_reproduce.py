"""The paper in one call, and its publication: nothing is computed twice, and a rerun changes no byte."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import jupytext
import nbformat
import pandas as pd
import pytest
from fake_results import NASTY, contents, write_results

from fdn import paths
from fdn.arguments import parse_protocol
from fdn.cli import main
from fdn.data import uci
from fdn.errors import UserError
from fdn.models import MODEL_NAMES
from fdn.report import figures, tables
from fdn.report.pages import readme
from fdn.runs import results
from fdn.workflow import notebooks, reproduce

ROOT = Path(__file__).resolve().parents[2]
FDNS = ("IC-FDNet", "LP-FDNet")

TRAINING = """# %% tags=["parameters"]
dataset: str = "step"  # data set
models: str = "LP-FDNet"  # names
seeds: str = "0:5"  # seeds
protocol: str = "published"  # settings
epochs: int = 0  # 0: the protocol's
recompute: bool = False  # train
out: str = ""  # folder

# %%
from fdn.runs import experiment
from fdn.arguments import parse_protocol, parse_seeds

settings = parse_protocol(protocol, epochs=epochs or None)
frame = experiment.run([dataset], models.split(","), parse_seeds(seeds), settings, out, workers=1)
len(frame)
"""

OVERVIEW = """# %% tags=["parameters"]
out: str = ""  # folder
protocol: str = "published"  # settings

# %%
import sys
from pathlib import Path
import pandas as pd
from fdn import paths

frame = pd.read_parquet((Path(out) if out else paths.COMMITTED_RESULTS) / "metrics.parquet")
print(len(frame), "rows of", paths.ROOT / "somewhere", "by", sys.executable, object())
"""


def write_pair(folder: Path, name: str, script: str) -> None:
    notebook = jupytext.reads(script, "py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i}"
    folder.mkdir(parents=True, exist_ok=True)
    jupytext.write(notebook, folder / f"{name}.ipynb")
    jupytext.write(notebook, folder / f"{name}.py", fmt="py:percent")


@pytest.fixture
def tmp_path(tmp_path):
    """A folder whose name no part of the program may take for more than a name."""
    folder = tmp_path / NASTY
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project with small notebooks, without UCI files and without a network."""
    root = tmp_path / "project"
    places = {"ROOT": "", "NOTEBOOKS": "notebooks", "COMMITTED_RESULTS": "data/results", "FIGURES": "figures",
              "DATA_RAW": "data/raw", "DEFAULT_OUT": "out", "COMPARISON": "data/comparison",
              "CLAIMS": "data/claims", "EXTRAS": "data/extras"}  # fmt: skip
    for name, place in places.items():
        monkeypatch.setattr(paths, name, root / place)
    monkeypatch.setattr(uci, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setenv("FDN_ROOT", str(root))  # for the kernels
    monkeypatch.setenv("FDN_OFFLINE", "1")
    monkeypatch.delenv("FDN_DATA_DIR", raising=False)
    for name in (reproduce.TOY_NOTEBOOK, reproduce.REAL_NOTEBOOK):
        write_pair(root / "notebooks", Path(name).stem, TRAINING)
    write_pair(root / "notebooks", Path(reproduce.OVERVIEW_NOTEBOOK).stem, OVERVIEW)
    (root / "README.md").write_text(f"# A title\n\n{readme.BEGIN}\n{readme.END}\n", encoding="utf-8")
    return root


@pytest.fixture
def without_training(monkeypatch):
    """Notebooks that put random cells where trained ones would be, and note that they ran."""
    ran = []

    def run(source: Path, target: Path, parameters: dict) -> None:
        ran.append(target.stem)
        if "dataset" in parameters:
            seeds = range(*map(int, parameters["seeds"].split(":")))
            out = Path(parameters["out"])
            write_results(out, [parameters["dataset"]], parameters["models"].split(","), seeds)
        notebook = nbformat.v4.new_notebook(metadata={"papermill": {"parameters": parameters}})
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)

    monkeypatch.setattr(notebooks, "run_with_parameters", run)
    monkeypatch.setattr(figures, "all_figures", lambda *args: ([], []))
    return ran


def test_reproduce_runs_everything_once(project, monkeypatch, capsys, tmp_path):
    """Long, for notebooks run in Jupyter kernels and every figure is drawn."""
    out = tmp_path / "out"
    command = ["reproduce", "--dataset", "step", "--seeds", "0:1", "--epochs", "1", "--out", str(out)]
    assert main(command) == 0
    first = capsys.readouterr().out
    frame = results.load_metrics(out)
    assert set(frame["model"]) == {"TrainingMean", *MODEL_NAMES} and set(frame["seed"]) == {0}
    written = contents(out)
    assert {
        "notebooks/03_toy-step.ipynb", "notebooks/05_figures_and_tables.ipynb", "tables/results_step.tex",
        "figures/step_mse_var.pdf", "figures/layer.png",
    } <= set(written)  # fmt: skip
    assert not [name for name in written if name.endswith((".part", ".failed.ipynb"))]
    assert "42 published numbers: 42 computed here, 0 committed, 0 missing" in first
    assert "Total time: " in first and str(out / "figures") in first

    def refuse(*args: object) -> None:
        raise AssertionError("computed again")

    times = {name: (out / name).stat().st_mtime_ns for name in written}
    for module, name in (
        (notebooks, "run_with_parameters"),
        (figures, "all_figures"),
        (tables, "all_tables"),
    ):
        monkeypatch.setattr(module, name, refuse)
    assert main(command) == 0
    second = capsys.readouterr().out
    assert {name: (out / name).stat().st_mtime_ns for name in contents(out)} == times
    assert second[second.index("\n\n") : second.rindex("\n", 0, -1)] in first


def test_what_changed_is_run_again_and_nothing_else(project, without_training, capsys, tmp_path):
    """Long, for the tables and the comparison are made eight times."""

    def ran(*options: str) -> list[str]:
        without_training.clear()
        assert main(["reproduce", "--out", str(tmp_path / "out"), *options]) == 0
        return list(without_training)

    overview = "05_figures_and_tables"
    assert ran("--dataset", "step,sine", "--seeds", "0:2") == ["03_toy-step", "03_toy-sine", overview]
    assert ran("--dataset", "step,sine", "--seeds", "0:2") == []
    assert ran("--dataset", "step", "--seeds", "0:3") == ["03_toy-step", overview]
    assert ran("--dataset", "sine,diabetes", "--seeds", "0:2") == ["04_uci-diabetes", overview]
    next((tmp_path / "out").glob("cells/published/step/MLPNet/2.json")).unlink()
    assert ran("--dataset", "sine,step", "--seeds", "0:3") == ["03_toy-sine", "03_toy-step", overview]
    source = project / "notebooks" / "03_toy.ipynb"
    later = (tmp_path / "out" / "metrics.parquet").stat().st_mtime + 5
    os.utime(source, (later, later))
    assert ran("--dataset", "diabetes", "--seeds", "0:2") == []
    assert ran("--dataset", "step", "--seeds", "0:3") == ["03_toy-step", overview]


def test_missing_files_are_no_failure_and_are_not_passed_over(project, without_training, capsys, tmp_path):
    write_results(paths.COMMITTED_RESULTS, ["quad"], ["BayesNet"], [0, 1])
    committed = results.load_metrics(paths.COMMITTED_RESULTS).assign(dataset="airfoil")
    committed.to_parquet(paths.COMMITTED_RESULTS / "metrics.parquet", index=False)
    assert main(["reproduce", "--seeds", "0:2", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert without_training[:4] == ["03_toy-step", "03_toy-sine", "03_toy-quad", "04_uci-diabetes"]
    assert "airfoil: committed results, not computed here, 2 seeds" in said
    assert "energy: no results" in said and "diabetes: computed here" in said
    assert "Not computed here, for want of their files: airfoil, ccpp, energy" in said
    assert all(f"  {name}: {source.how_to_get}" in said for name, source in uci.SOURCES.items())
    assert "252 published numbers: 126 computed here, 7 committed, 119 missing" in said


def test_a_notebook_that_fails_does_not_stop_the_others(project, without_training, monkeypatch, capsys, tmp_path):
    run = notebooks.run_with_parameters

    def fail_on_step(source: Path, target: Path, parameters: dict) -> None:
        if parameters.get("dataset") == "step":
            raise RuntimeError("03_toy.ipynb stopped")
        run(source, target, parameters)

    monkeypatch.setattr(notebooks, "run_with_parameters", fail_on_step)
    assert main(["reproduce", "--dataset", "step,sine", "--seeds", "0:2", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "sine: computed here" in said.out and said.err == "fdn: 03_toy.ipynb stopped\n"


def test_the_real_notebooks_have_the_parameters_that_reproduce_sets():
    task = reproduce._task("step", "0:5", parse_protocol("published"), None, Path("out"))
    for name in (reproduce.TOY_NOTEBOOK, reproduce.REAL_NOTEBOOK):
        assert set(notebooks.parameters_of(ROOT / "notebooks" / name)) == set(task.parameters)
    overview = notebooks.parameters_of(ROOT / "notebooks" / reproduce.OVERVIEW_NOTEBOOK)
    assert set(overview) == {"out", "protocol"}


def test_a_parameter_the_notebook_does_not_have_is_refused(project, tmp_path):
    source = paths.NOTEBOOKS / reproduce.OVERVIEW_NOTEBOOK
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
    assert notebooks.parameters_used(target) == {"n": 3}


def test_a_notebooks_file_is_the_one_named(tmp_path, monkeypatch, capsys):
    script = '# %% tags=["parameters"]\ndataset: str = "step"  # text\n\n# %%\nprint(dataset)\n'
    write_pair(tmp_path / "notebooks", "shows", script)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.chdir(tmp_path)
    name, value = "{dataset}-%s 'x'.ipynb", "{x} 'q' \\ \"d\" %s ü"
    assert main(["notebook", "shows", "--out", name, "--set", f"dataset={value}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"notebooks", name}
    assert notebooks.parameters_used(tmp_path / name) == {"dataset": value}
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
    for name in (reproduce.TOY_NOTEBOOK, reproduce.REAL_NOTEBOOK):
        for path in (project / "notebooks").glob(f"{Path(name).stem}.*"):
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
    monkeypatch.setattr(figures, "all_figures", lambda *args: ([], []))
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
    monkeypatch.setattr(figures, "all_figures", lambda *args: ([], []))
    assert main(["publish", "--out", str(paths.DEFAULT_OUT)]) == 0
    assert set(pd.read_parquet(paths.COMMITTED_RESULTS / "metrics.parquet")["seed"]) == {0}
    assert (
        json.loads((paths.COMMITTED_RESULTS / "sidecar.json").read_text(encoding="utf-8"))["numerics"]
        == results.NUMERICS
    )
