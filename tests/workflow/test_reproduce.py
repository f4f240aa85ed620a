"""The paper in one call: nothing is computed twice, what is missing is said, and the report shows what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_results import contents, write_results

from fdn import data, paths
from fdn.cli import main
from fdn.data import uci
from fdn.models import MODEL_NAMES
from fdn.runs import results
from fdn.workflow import notebooks, study

pytest.importorskip("snakemake", reason="the extra `workflow` is not installed")

ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = ["collect", "tables", "figures", "compare", "notebook/05_figures_and_tables"]


def test_reproduce_runs_everything_once(project, capsys, tmp_path):
    """Long, for Snakemake starts twice, notebooks run in Jupyter kernels and every figure is drawn."""
    out = tmp_path / "out"
    command = ["reproduce", "--dataset", "step", "--seeds", "0:1", "--epochs", "1", "--out", str(out)]
    assert main(command) == 0
    first = capsys.readouterr().out
    frame = results.load_metrics(out)
    assert set(frame["model"]) == {"TrainingMean", *MODEL_NAMES} and set(frame["seed"]) == {0}
    written = contents(out)
    assert {
        "notebooks/03_toy-step-0.ipynb", "notebooks/05_figures_and_tables.ipynb", "tables/results_step.tex",
        "figures/step_mse_var.pdf", "figures/layer.png", "comparison/compare.md",
    } <= set(written)  # fmt: skip
    assert not [name for name in written if name.endswith((".part", ".failed.ipynb"))]
    assert "42 published numbers: 42 computed here, 0 committed, 0 missing" in first
    assert "Total time: " in first and str(out / "figures") in first

    times = {name: (out / name).stat().st_mtime_ns for name in written if not name.startswith(("workflow", ".snake"))}
    assert main(command) == 0
    second = capsys.readouterr().out
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times
    assert "0 cells to compute" in second and "Nothing to do" in second
    assert second[second.index("\n\nCalib") : second.index("Total time")] in first


def test_what_changed_is_done_again_and_nothing_else(project, steps, tmp_path):
    """Long, for the comparison is made many times."""
    done, _ = steps
    out = tmp_path / "out"

    def ran(*options: str) -> set[str]:
        done.clear()
        assert main(["reproduce", "--out", str(out), *options]) == 0
        return set(done) - pieces()

    def pieces() -> set[str]:
        return {name for name in done if name.partition("/")[0] in data.NAMES}

    toys = "--dataset", "step,sine", "--seeds", "0:2"
    assert ran(*toys) == {*EVERYTHING, "notebook/03_toy-step-0:2", "notebook/03_toy-sine-0:2"}
    assert ran(*toys) == set() and not done
    assert ran("--dataset", "step", "--seeds", "0:3") == {*EVERYTHING, "notebook/03_toy-step-0:3"}
    assert all(name.startswith("step/") for name in pieces())
    assert ran("--dataset", "sine,diabetes", "--seeds", "0:2") == {*EVERYTHING, "notebook/04_uci-diabetes-0:2"}
    results.cell_path(out, "step", "MLPNet", "published", 1).unlink()
    assert ran(*toys) == {*EVERYTHING, "notebook/03_toy-step-0:2"}
    assert ran(*toys, "--epochs", "2") == {*EVERYTHING, "notebook/03_toy-step-0:2", "notebook/03_toy-sine-0:2"}
    (project / "notebooks" / "03_toy.ipynb").touch()
    assert ran("--dataset", "diabetes", "--seeds", "0:2") >= {"tables"}  # those of the other protocol were there
    assert ran("--dataset", "diabetes", "--seeds", "0:2") == set()
    assert ran(*toys) == {"notebook/03_toy-step-0:2", "notebook/03_toy-sine-0:2"}


def test_missing_files_are_no_failure_and_are_not_passed_over(project, steps, capsys, tmp_path):
    """Long, for cells of four data sets are written and all published numbers compared."""
    write_results(paths.COMMITTED_RESULTS, ["quad"], ["BayesNet"], [0, 1])
    committed = results.load_metrics(paths.COMMITTED_RESULTS).assign(dataset="airfoil")
    committed.to_parquet(paths.COMMITTED_RESULTS / "metrics.parquet", index=False)
    assert main(["reproduce", "--seeds", "0:2", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert {name.partition("/")[0] for name in steps[0] if "," in name} == {"step", "sine", "quad", "diabetes"}
    assert "airfoil: committed results, not computed here, 2 seeds" in said
    assert "energy: no results" in said and "diabetes: computed here" in said
    assert "Not computed here, for want of their files: airfoil, ccpp, energy" in said
    assert all(f"  {name}: {source.how_to_get}" in said for name, source in uci.SOURCES.items())
    assert "252 published numbers: 126 computed here, 7 committed, 119 missing" in said


def test_a_notebook_that_fails_does_not_stop_the_others(project, steps, capsys, tmp_path):
    done, failing = steps
    failing.append("notebook/03_toy-step-0:2")
    assert main(["reproduce", "--dataset", "step,sine", "--seeds", "0:2", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "sine: computed here" in said.out and "notebook/03_toy-sine-0:2" in done
    assert "notebook/03_toy-step-0:2: fdn: some cells could not be computed:\nwhy\n" in said.err


def test_where_nothing_can_be_computed_the_reasons_are_all_that_is_said(project, steps, capsys, tmp_path):
    plan = study.plan(tmp_path / "out", {"step": "0"}, ["BayesNet"])
    steps[1].extend(piece.name for piece in plan.pieces)
    command = ["paper", "--dataset", "step", "--models", "BayesNet", "--seeds", "0", "--out", str(tmp_path / "out")]
    assert main(command) == 1
    said = capsys.readouterr()
    assert "step/BayesNet/0: fdn: some cells" in said.err and "published numbers" not in said.out


def test_the_real_notebooks_have_the_parameters_that_the_engine_sets(tmp_path):
    plan = study.plan(tmp_path, {"step": "0:5", "diabetes": "0"}, ["BayesNet"])
    ran = [step for step in plan.steps if step.source]
    assert len(ran) == 3
    for step in ran:
        given = {setting.partition("=")[0] for setting in step.command if "=" in setting}
        assert given <= set(notebooks.parameters_of(ROOT / "notebooks" / f"{step.source}.ipynb"))
