"""The workflow: exactly what is missing is computed, whatever went before, and what failed is said."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_results import contents, write_results
from projects import TRAINING, finish, write_pair

from fdn import data, paths
from fdn.arguments import parse_protocol
from fdn.cli import main
from fdn.data import uci
from fdn.errors import UserError
from fdn.runs import experiment, results
from fdn.workflow import engine, study

pytest.importorskip("snakemake", reason="the extra `workflow` is not installed")

MODELS = ("BayesNet", "LP-FDNet")
SHORT = "published+epochs=1"
NOT_KEPT = ("lock", "plan.json")  # written by every call


def cell(out: Path, dataset: str, model: str, seed: int, protocol: str = "published") -> Path:
    return out / "cells" / protocol / dataset / model / f"{seed}.json"


def times(out: Path) -> dict[str, int]:
    """When each cell was written."""
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in out.glob("cells/*/*/*/*.json")}


def assert_same_results(out: Path, alone: Path) -> None:
    """But for what the order of sums makes of another composition of blocks."""
    pd.testing.assert_frame_equal(results.load_metrics(out), results.load_metrics(alone), rtol=1e-6)


@pytest.fixture(scope="module")
def cells_of_two_models(tmp_path_factory):
    """A results folder."""
    out = tmp_path_factory.mktemp("cells")
    write_results(out, ["step"], MODELS, range(20))
    return out


@pytest.fixture
def finished(cells_of_two_models, tmp_path):
    """A results folder with two pieces done by an earlier run, and their study."""
    out = shutil.copytree(cells_of_two_models, tmp_path / "out")
    plan = study.plan(out, {"step": "0:20"}, MODELS)
    assert study.prepare(plan, out) == {}
    for step in plan.steps:
        if step.product:
            finish(step, out)
    return plan, out


@pytest.fixture
def a_job_each(monkeypatch):
    """However little a model takes."""
    monkeypatch.setattr(study, "LEAST", 0)


def mark(plan: study.Study, out: Path, name: str) -> Path:
    """Of a step."""
    [path] = [out / step.mark for step in plan.steps if step.name == name]
    return path


def test_the_whole_study_has_every_run_of_the_paper_in_few_jobs(monkeypatch, tmp_path):
    monkeypatch.setattr(uci, "fetch", lambda name: None)
    monkeypatch.setattr(experiment, "load_dataset", lambda name, protocol: data.load("step"))
    plan = study.plan(tmp_path)
    keys = [key for key in plan.keys() if key[1] != "TrainingMean"]
    assert len(keys) == len(set(keys)) == 996
    assert len({step.rule for step in plan.steps}) == len(plan.steps) and len(plan.pieces) <= 100
    assert sum(step.source is not None for step in plan.steps) == 3 + 2 + 1 + 1 + 1 and plan.missing == ()


def test_many_scattered_seeds_make_no_name_that_is_too_long(tmp_path):
    seeds = ",".join(map(str, range(10**8, 10**9, 2 * 10**7)))
    plan = study.plan(tmp_path, {"step": seeds}, MODELS)
    assert {piece.seeds for piece in plan.pieces} == {seeds}
    files = [path for step in plan.steps for path in (step.mark, step.log, step.product) if path]
    assert max(len(Path(path).name) for path in files) < 225  # of 255; temporary names need some


def test_models_that_take_no_time_share_a_job():
    costs = [("A", 0.0), ("B", study.LEAST / 2), ("C", study.LEAST), ("D", 9 * study.LEAST), ("E", 1.0), ("F", 2.0)]
    bundles = study._bundles(costs)
    assert [models for models, _ in bundles] == [("A", "B", "C"), ("D",), ("E", "F")]
    assert sum(cost for _, cost in bundles) == sum(cost for _, cost in costs)


def test_files_that_cannot_be_had_are_left_out_and_named(monkeypatch, tmp_path):
    def refuse(name: str) -> None:
        raise UserError("not here")

    monkeypatch.setattr(uci, "fetch", refuse)
    plan = study.plan(tmp_path)
    assert plan.missing == ("airfoil", "ccpp", "energy")
    assert {piece.dataset for piece in plan.pieces} == {"step", "sine", "quad"}
    assert study.plan(tmp_path, stand_in="0:2").datasets == ("step", "sine", "quad", "diabetes")
    with pytest.raises(UserError, match="not here"):
        study.plan(tmp_path, required=True)


def test_only_missing_cells_make_a_finished_piece_unfinished(finished):
    plan, out = finished
    first, second = (mark(plan, out, piece.name) for piece in plan.pieces)
    for seed in (3, 7, 11):
        cell(out, "step", "LP-FDNet", seed).unlink()
    assert study.prepare(plan, out) == {"step/LP-FDNet/0:20": 3}
    assert first.exists() and not second.exists()
    dataset = experiment.load_dataset("step", parse_protocol("published"))
    [block] = experiment.plan([dataset], ["LP-FDNet"], range(20), parse_protocol("published"), out)
    assert block.seeds == (3, 7, 11)  # what the job of this piece computes


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace(f'"numerics": {results.NUMERICS}', '"numerics": 0'),
        lambda text: text.replace('"fingerprint": "', '"fingerprint": "other'),
        lambda text: text[: len(text) // 2],
        lambda text: "",
    ],
    ids=["old numerics", "other data", "cut short", "empty"],
)
def test_a_cell_that_does_not_count_is_computed_again(finished, spoil):
    plan, out = finished
    path = cell(out, "step", "BayesNet", 4)
    path.write_text(spoil(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert study.prepare(plan, out) == {"step/BayesNet/0:20": 1}


def test_files_of_a_killed_writer_are_never_read(finished):
    plan, out = finished
    path = cell(out, "step", "BayesNet", 4)
    path.rename(path.with_name(".4.json.x1y2.part"))
    (out / ".metrics.parquet.x1y2.part").write_text("half", encoding="utf-8")
    assert study.prepare(plan, out) == {"step/BayesNet/0:20": 1}
    assert len(results.collect(out)) == 39


def test_the_plan_is_read_as_it_was_written_and_can_leave_out_what_is_not_complete(finished):
    plan, out = finished
    assert study.read(out) == plan
    cell(out, "step", "BayesNet", 0).unlink()
    absent = study.prepare(plan, out)
    there = plan.without(absent)
    assert [piece.models for piece in there.pieces] == [("LP-FDNet",)]
    study.prepare(there, out)
    assert study.read(out) == there and len(there.steps) == len(plan.steps) - 1


def test_a_step_whose_product_is_gone_or_whose_command_is_another_is_done_again(finished):
    plan, out = finished
    (out / "tables").rename(out / "elsewhere")
    mark(plan, out, "compare").write_text("compare\n--protocol\nas_written\n", encoding="utf-8")
    study.prepare(plan, out)
    left = {step.name for step in plan.steps if not (out / step.mark).exists()}
    assert left == {"tables", "compare"}


def test_a_step_older_than_what_it_is_made_from_is_done_again(finished, monkeypatch, tmp_path):
    plan, out = finished
    newer = time.time() + 100
    os.utime(cell(out, "step", "BayesNet", 0), (newer, newer))
    study.prepare(plan, out)
    assert [step.name for step in plan.steps if not (out / step.mark).exists()] == ["collect"]
    program = tmp_path / "program.py"
    program.touch()
    os.utime(program, (newer, newer))
    monkeypatch.setattr(paths, "program", lambda: [program])
    study.prepare(plan, out)
    assert [step.name for step in plan.steps if (out / step.mark).exists()] == [piece.name for piece in plan.pieces]


def test_marks_of_complete_cells_are_as_old_as_the_newest(finished):
    plan, out = finished
    newest = max(path.stat().st_mtime_ns for path in out.glob("cells/*/*/BayesNet/*"))
    own = mark(plan, out, "step/BayesNet/0:20")
    assert own.stat().st_mtime_ns == newest
    os.utime(cell(out, "step", "BayesNet", 0), ns=(newest + 9, newest + 9))  # computed again by another command
    study.prepare(plan, out)
    assert own.stat().st_mtime_ns == newest + 9


def test_mistakes_in_a_request_are_named_and_cost_nothing(capsys, tmp_path):
    out = ["--out", str(tmp_path / "out")]
    for options, said in (
        (["--dataset", "step", "--models", "MLP"], "unknown model 'MLP'"),
        (["--dataset", "step", "--profile", "slurmm"], "choose from local, slurm"),
        (["--dataset", "step", "--profile", "slurm"], "whose path has \" $ % ' { };"),
        (["--dataset", "step", "--seeds", "5:0"], "holds no seed"),
        (["--dataset", "step", "--out", os.devnull + "/out"], "Not a directory; choose another output folder"),
    ):
        assert main(["paper", *out, *options]) == 2
        assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_what_failed_is_said_and_the_same_command_does_the_rest(a_job_each, steps, capsys, tmp_path):
    out = tmp_path / "out"
    command = ["paper", "--dataset", "step", "--models", ",".join(MODELS), "--seeds", "0:3", "--out", str(out)]
    steps[1].append("step/BayesNet/0:3")
    assert main(command) == 1
    said = capsys.readouterr()
    assert "6 cells in 2 jobs, 6 cells to compute" in said.out
    assert "3 cells computed, 3 of 6 missing" in said.out
    assert "step/BayesNet/0:3: fdn: some cells could not be computed:\nwhy\n" in said.err
    assert "step/LP-FDNet" not in said.err and (out / "tables").exists()
    first = times(out)
    steps[1].clear()
    assert main(command) == 0
    assert "3 cells computed, 0 of 6 missing" in capsys.readouterr().out
    assert len(times(out)) == 6 and first.items() <= times(out).items()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name not in NOT_KEPT}
    assert main(command) == 0
    assert "Nothing to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_reasons_come_from_the_job_or_from_the_scheduler_that_ended_it(finished):
    plan, out = finished
    first, second = plan.pieces
    cell(out, "step", "BayesNet", 0).unlink()
    cell(out, "step", "LP-FDNet", 0).unlink()
    study.prepare(plan, out)
    slurm = out / ".snakemake" / "slurm_logs" / "rule_step_LP_FDNet_0_20" / "7.log"
    for path in (slurm, *(out / step.log for step in plan.steps[:2])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    slurm.write_text("host: node\nslurmstepd-node: error: *** JOB 7 CANCELLED ***\n", encoding="utf-8")
    assert engine._failures(plan, out) == {
        first.name: "ended without a word: killed or cancelled",
        second.name: "slurmstepd-node: error: *** JOB 7 CANCELLED ***",
    }


def test_two_runs_do_not_work_in_one_folder(steps, capsys, tmp_path):
    command = ["paper", "--dataset", "step", "--models", "BayesNet", "--seeds", "0", "--out", str(tmp_path)]
    with engine._alone(tmp_path):
        assert main(command) == 2
        assert "another run is at work" in capsys.readouterr().err
    assert main(command) == 0


def test_collecting_misses_no_cell_of_a_run_that_ends_meanwhile(monkeypatch, tmp_path):
    write_results(tmp_path, ["step"], ["BayesNet"], [0])
    write, calls = pd.DataFrame.to_parquet, []

    def slowly(frame: pd.DataFrame, **options: object) -> bytes:
        if "seed" in frame:  # not a cell's points
            calls.append(len(frame))
            if len(calls) == 1:  # another run writes a cell and collects, before this one takes its place
                write_results(tmp_path, ["step"], ["LP-FDNet"], [0])
        return write(frame, **options)

    monkeypatch.setattr(pd.DataFrame, "to_parquet", slowly)
    assert set(results.collect(tmp_path)["model"]) == set(MODELS)
    assert set(results.load_metrics(tmp_path)["model"]) == set(MODELS) and calls == [1, 2, 2]


STREAMS = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}


def would_run(out: Path, *options: str) -> tuple[dict[str, int], str]:
    """How often Snakemake would run each rule, and all it says."""
    options = (*options, "--dry-run", "--printshellcmds", "--quiet", "reason")
    run = engine.start_snakemake(out, engine.PROFILES / "local", *options, **STREAMS)
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    return {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)$", said, re.MULTILINE)}, said


def test_snakemake_alone_does_what_was_last_asked_for_without_a_home_to_write_to(monkeypatch, tmp_path):
    """Takes as long as Snakemake does to start."""
    out = tmp_path / "out"
    shutil.copytree(engine.SNAKEFILE.parent, tmp_path / "workflow")
    monkeypatch.setattr(engine, "SNAKEFILE", tmp_path / "workflow" / "Snakefile")
    monkeypatch.setattr(engine, "PROFILES", tmp_path / "workflow" / "profiles")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/proc/no-home")  # there, not even root can write
    plan = study.plan(out, {"step": "0:60", "sine": "0:1"}, MODELS, epochs=1)
    study.prepare(plan, out)
    write_results(out, ["sine"], MODELS, [0], plan.label)
    counts, said = would_run(out)
    commands = [line.strip() for line in said.split("\n") if " -m fdn notebook " in line]
    assert len(set(commands)) == 4 == sum(step.source is not None for step in plan.steps)
    for command in commands:  # as a shell reads it, and only what is asked for
        assert f"out={out}" in shlex.split(command)
    needed = [step.rule for step in plan.steps if step.dataset != "sine"]
    assert counts == dict.fromkeys(needed, 1) | {"all": 1, "total": len(needed) + 1}


def test_new_cells_bring_up_to_date_what_shows_them_and_no_other_notebook(tmp_path):
    """Takes as long as Snakemake does to start, twice."""
    out = tmp_path / "out"
    write_results(out, ["step", "sine"], MODELS, [0, 1])
    plan = study.plan(out, {"step": "0:2", "sine": "0:2"}, MODELS)
    study.prepare(plan, out)
    for step in plan.steps:
        if step.product:
            finish(step, out)
    assert study.prepare(plan, out) == {} and would_run(out, "--config", "prepared=True")[0] == {}
    cell(out, "sine", "BayesNet", 1).unlink()
    assert list(study.prepare(plan, out).values()) == [1]
    ran = set(would_run(out, "--config", "prepared=True")[0])
    everything = {step.rule for step in plan.steps} | {"all", "total"}
    assert everything - ran == {"notebook_03_toy_step_0_2", plan.steps[0].rule}


def cells_and_collection(out: Path) -> subprocess.Popen:
    """What `fdn paper` starts, but for tables, figures, notebooks and comparison."""
    study.prepare(study.plan(out, {"step": "0:2"}, MODELS, epochs=1), out)
    options = ["--config", "prepared=True", "--until", "collect"]
    return engine.start_snakemake(out, engine.PROFILES / "local", *options, start_new_session=True, **STREAMS)


def test_killed_at_any_moment_or_with_a_cell_that_fails_exactly_the_rest_is_done(a_job_each, tmp_path):
    """Long, for Snakemake is started three times, and its jobs in processes of their own."""
    out = tmp_path / "out"
    run = cells_and_collection(out)
    end = time.monotonic() + 120
    while not times(out) and run.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(moment := np.random.default_rng().uniform(0, 1))
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    killed = times(out)
    assert killed, "no cell before it was killed"

    failing = cell(out, "step", "LP-FDNet", 1, SHORT)
    failing.unlink(missing_ok=True)
    killed.pop(str(failing.relative_to(out)), None)
    obstacle = out / "points" / SHORT / "step" / "LP-FDNet" / "1.parquet"
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir(parents=True)
    said, _ = (run := cells_and_collection(out)).communicate(timeout=300)
    failed = times(out)
    assert run.returncode != 0 and len(failed) == 3, said
    assert killed.items() <= failed.items(), f"killed {moment} s after the first cell"
    [log] = (out / "workflow" / "log" / "step").glob("LP-FDNet/0:2.log")
    assert "it is a folder" in log.read_text(encoding="utf-8")

    obstacle.rmdir()
    said, _ = (run := cells_and_collection(out)).communicate(timeout=300)
    assert run.returncode == 0 and len(times(out)) == 4 and failed.items() <= times(out).items(), said
    alone = tmp_path / "alone"
    experiment.run(["step"], MODELS, [0, 1], parse_protocol("published", epochs=1), alone, workers=1)
    assert_same_results(out, alone)


def test_a_full_disk_is_named_and_leaves_nothing_half_written(tmp_path):
    """Takes as long as the program does to start."""
    out = tmp_path / "out"
    command = ["run", "--dataset", "step", "--models", "TrainingMean", "--seeds", "0:2", "--out", str(out)]
    small = subprocess.run(
        [sys.executable, "-m", "fdn", *command], capture_output=True, encoding="utf-8", cwd=paths.ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )  # fmt: skip
    assert small.returncode == 2 and "File too large" in small.stderr and "Traceback" not in small.stderr
    assert contents(out) == {}
    assert main(command) == 0
    assert len(results.load_metrics(out)) == 2


def test_papermill_batches_run_at_the_same_time_into_one_folder(tmp_path):
    """Long, for two Jupyter kernels start, import and train."""
    plain, out = tmp_path.parent, tmp_path / "out"  # papermill's own command takes braces for parameters
    write_pair(plain, "batch", TRAINING)
    batches = []
    for seeds in ("0:2", "2:4"):
        parameters = {"models": "BayesNet", "seeds": seeds, "epochs": "1", "out": str(out)}
        options = [word for name, value in parameters.items() for word in ("-p", name, value)]
        target = plain / f"batch-{seeds}.ipynb"
        command = [sys.executable, "-m", "papermill", plain / "batch.ipynb", target, *options]
        batches.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"))
    for batch in batches:
        said, _ = batch.communicate(timeout=300)
        assert batch.returncode == 0, said
    for seeds in ("0:2", "2:4"):
        outputs = [output for c in json.loads((plain / f"batch-{seeds}.ipynb").read_text(encoding="utf-8"))["cells"]
                   for output in c.get("outputs", []) if "data" in output]  # fmt: skip
        assert outputs[0]["data"]["text/plain"] == ["2"]
    alone = tmp_path / "alone"
    experiment.run(["step"], ["BayesNet"], range(4), parse_protocol("published", epochs=1), alone, workers=1)
    assert_same_results(out, alone)
