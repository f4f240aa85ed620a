"""The command line as a person meets it: what it writes, what it says, and what it does about mistakes."""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_results import contents, nasty_folder, write_results

from fdn import data, paths
from fdn.arguments import check_parameters, parse_names, parse_protocol, parse_seeds
from fdn.cli import COMMANDS, main
from fdn.data import uci
from fdn.errors import UserError
from fdn.models import STOCHASTIC_MODELS
from fdn.runs import experiment, results

FDNS = ("IC-FDNet", "LP-FDNet")
SHORT = ["--epochs", "1", "--workers", "1"]


def complaint(capsys: pytest.CaptureFixture, *argv: str | Path, status: int = 2) -> str:
    """The one sentence a mistake is answered with."""
    capsys.readouterr()
    assert main([str(argument) for argument in argv]) == status
    said = capsys.readouterr()
    lines = [line for line in said.err.strip().split("\n") if not line.startswith("Reading ")]
    assert len(lines) == 1 and lines[0].startswith("fdn: ") and "Traceback" not in said.err + said.out
    return lines[0]


def cells(out: Path) -> dict[str, int]:
    """Time at which each cell was written."""
    return {str(p.relative_to(out)): p.stat().st_mtime_ns for p in out.glob("cells/*/*/*/*.json")}


tmp_path = nasty_folder


@pytest.fixture
def no_files(monkeypatch, tmp_path):
    """No UCI file anywhere, and no network."""
    monkeypatch.setenv("FDN_OFFLINE", "1")
    monkeypatch.delenv("FDN_DATA_DIR", raising=False)
    monkeypatch.setattr(paths, "DATA_RAW", tmp_path / "raw")
    monkeypatch.setattr(uci, "cache_dir", lambda: tmp_path / "cache")


@pytest.fixture
def committed(monkeypatch, tmp_path):
    """Committed results of two models on step."""
    folder = tmp_path / "committed"
    write_results(folder, ["step"], ["BayesNet", "LP-FDNet"], [0, 1, 2])
    monkeypatch.setattr(paths, "COMMITTED_RESULTS", folder)
    monkeypatch.setattr(paths, "EXTRAS", tmp_path / "no extras")
    return folder


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0:5", [0, 1, 2, 3, 4]),
        ("3,7", [3, 7]),
        (" 0:3 , 7 ", [0, 1, 2, 7]),
        ("5", [5]),
        ("9,2:4", [9, 2, 3]),
    ],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text",
    [",", "5:0", "3:3", "-1", "-2:3", "a", "0:b", "1.5", "0:5:2", ":5", "5:", "0:5,3", "3,3", "0:5,",
     "0:9999999"],
)  # fmt: skip
def test_seeds_that_cannot_be(text, capsys, tmp_path):
    with pytest.raises(UserError) as error:
        parse_seeds(text)
    out = tmp_path / "out"
    said = complaint(capsys, "run", "--dataset", "step", f"--seeds={text}", "--out", out)
    assert str(error.value) in said and "seeds" in said and not out.exists()


@pytest.mark.parametrize("value", [310, 7, 1.5, True, None, ["0:5"]])
def test_what_yaml_made_of_text_is_refused(value):
    """5:10 is 310 in YAML, and nobody can tell."""
    for parse in (parse_seeds, lambda text: parse_names(text, ["step"], "data set"), parse_protocol):
        with pytest.raises(UserError, match=r"(seeds|data set|protocol) is .*, not text: YAML .* papermill's -r"):
            parse(value)


def test_settings_take_the_type_of_their_field():
    protocol = parse_protocol("as_written", ["clip_norm=0.5", "warmup = 50", "noise=shared", "beta_max=2"])
    assert (protocol.clip_norm, protocol.warmup, protocol.noise, protocol.beta_max) == (
        0.5,
        50,
        "shared",
        2.0,
    )
    assert isinstance(protocol.beta_max, float) and parse_protocol("published", epochs=400).label == "published"
    assert parse_protocol("published", ["clip_norm=none"]).clip_norm is None


class Recorder(argparse.ArgumentParser):
    """Notes the arguments of a command that take a value."""

    def _add_action(self, action: argparse.Action) -> argparse.Action:
        if action.nargs != 0:
            TAKING_VALUES.append((self.prog, action.option_strings[0] if action.option_strings else action.dest))
        return super()._add_action(action)


TAKING_VALUES: list[tuple[str, str]] = []
for command in COMMANDS.values():
    recorder = Recorder(prog=command.name, add_help=False)
    for add in command.options:
        add(recorder)


@pytest.mark.parametrize(("command", "option"), TAKING_VALUES)
def test_an_empty_value_is_not_an_absent_one(command, option, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for value in ("", " ", "\t\n"):
        given = [[option, value], [f"{option}={value}"]] if option.startswith("--") else [[value]]
        for arguments in given:
            first = ["model"] if (command, option) == ("predict", "file") else []
            said = complaint(capsys, command, *first, *arguments)
            assert f"argument {option}" in said.replace("NAME", option) and (
                "is empty" in said or "is not a whole" in said
            )
    assert list(tmp_path.iterdir()) == []


def test_options_that_take_values_were_found():
    assert {("run", "--dataset"), ("run", "--csv"), ("compare", "--explain"), ("data", "names")} <= set(TAKING_VALUES)
    assert len(TAKING_VALUES) > 60


def test_empty_variables_of_the_environment_count_as_unset():
    code = "from fdn import paths; from fdn.data import uci; print(paths.ROOT, uci.find('airfoil'))"
    names = ("FDN_ROOT", "FDN_DATA_DIR", "FDN_OFFLINE")
    unset = {name: value for name, value in os.environ.items() if name not in names}
    said = [
        subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=paths.ROOT, capture_output=True, encoding="utf-8"
        ).stdout
        for env in (unset, unset | dict.fromkeys(names, ""))
    ]
    assert said[0] == said[1] and said[0].startswith(f"{paths.ROOT} ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dataset", "stp"], "unknown data set 'stp'; did you mean 'step'?"),
        (["--dataset", "step,,sine"], "a data set is missing"),
        (["--dataset", "step,step"], "twice"),
        (["--models", "lpfdnet"], "unknown model 'lpfdnet'; did you mean 'LP-FDNet'?"),
        (["--protocol", "publshed"], "unknown protocol 'publshed'; did you mean 'published'?"),
        (["--set", "warmpu=5"], "unknown setting 'warmpu'; did you mean 'warmup'?"),
        (["--set", "warmup"], "expected field=value"),
        (["--set", "warmup=much"], "warmup is 'much'; expected a whole number"),
        (["--set", "beta_max=nan"], "beta_max is 'nan'; expected a number"),
        (["--set", "noise=loud"], "noise is 'loud'; expected one of shared, independent"),
        (["--set", "epochs=3", "--epochs", "4"], "'epochs' is given twice"),
        (["--set", "dropout=2"], "dropout is '2'; expected a number of at least 0 and below 1"),
        (["--set", "clip_norm=0"], "clip_norm is '0'; expected a number above 0 or none"),
        (["--set", "eval_draws=2.5"], "eval_draws is '2.5'; expected a whole number"),
        (["--epochs", "0"], "'0' is not a whole number from 1"),
        (["--workers", "two"], "'two' is not a whole number"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
        (["--target", "y"], "--csv is missing"),
    ],
)
def test_mistakes_in_a_run_are_named_and_cost_nothing(arguments, said, capsys, tmp_path):
    out = tmp_path / "out"
    assert said in complaint(capsys, "run", "--out", out, *arguments)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "arguments are required"),
        (["fly"], "invalid choice: 'fly'"),
        (["budget", "--target", "3"], "ask for more"),
        (["budget", "--dataset", "moon"], "unknown data set"),
        (["data", "moon"], "unknown data set"),
        (["compare", "--misses", "--all"], "not allowed with"),
        (["reproduce", "--seeds", "4:2"], "holds no seed"),
        (["reproduce", "--dataset", "moon"], "unknown data set"),
    ],
)
def test_mistakes_in_other_commands_are_named(arguments, said, capsys):
    assert said in complaint(capsys, *arguments)


@pytest.mark.parametrize("command", ["tables", "figures", "compare", "publish"])
def test_a_folder_without_results_is_named(command, capsys, tmp_path):
    option = "--out" if command == "publish" else "--results"
    assert "holds no results" in complaint(capsys, command, option, tmp_path)


def test_stored_results_of_another_protocol_or_data_set_are_named(capsys, tmp_path):
    write_results(tmp_path, ["step"], FDNS, [0])
    said = complaint(capsys, "tables", "--results", tmp_path, "--protocol", "as_written", "--out", tmp_path)
    assert "no results of protocol 'as_written'; it holds published" in said
    said = complaint(capsys, "figures", "--results", tmp_path, "--dataset", "sine", "--out", tmp_path)
    assert "unknown data set 'sine'; choose from step" in said
    (tmp_path / "metrics.parquet").write_bytes(b"PAR1 and then nothing")
    assert "damaged" in complaint(capsys, "compare", "--results", tmp_path)


def csv_rows(n: int = 60) -> dict[str, list[object]]:
    rng = np.random.default_rng(0)
    return {"z": list(rng.normal(size=n)), "u": list(rng.normal(size=n)), "y": list(rng.normal(size=n))}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"u": ["red"] * 60}, "which is no number"),
        ({"u": [np.nan, *range(59)]}, "missing (NaN)"),
        ({"u": [np.inf, *range(59)]}, "infinite"),
        ({"u": [3.0] * 60}, "constant"),
        ({"y": None}, "no column 'y'"),
        ({"z": None}, "no column 'z'"),
        ({"z": [0.0, 1.0], "u": [1.0, 2.0], "y": [1.0, 2.0]}, "too few rows"),
    ],
)
def test_a_table_that_cannot_be_used_is_described(change, said, capsys, tmp_path):
    columns = {name: values for name, values in (csv_rows() | change).items() if values is not None}
    path, out = tmp_path / "mine.csv", tmp_path / "out"
    pd.DataFrame(columns).to_csv(path, index=False, na_rep="nan")
    run = ["run", "--csv", path, "--target", "y", "--split-column", "z", "--out", out]
    assert said in complaint(capsys, *run)
    assert not out.exists()


def test_a_table_of_ones_own_runs_under_its_file_name(capsys, tmp_path):
    pd.DataFrame(csv_rows()).to_csv(tmp_path / "mine.csv", index=False)
    options = ["--target", "y", "--split-column", "z", "--models", "TrainingMean", "--seeds", "0", "--out"]
    assert main(["run", "--csv", str(tmp_path / "mine.csv"), *options, str(tmp_path / "out"), *SHORT]) == 0
    assert list(results.load_metrics(tmp_path / "out")["dataset"]) == ["mine"]
    (tmp_path / "mine.csv").rename(tmp_path / "step.csv")
    said = complaint(capsys, "run", "--csv", tmp_path / "step.csv", *options, tmp_path / "other")
    assert "rename the file" in said
    assert "cannot be read" in complaint(capsys, "run", "--csv", tmp_path / "gone.csv", *options, tmp_path)


def test_a_missing_file_asked_for_by_name_is_an_error_that_says_what_to_get(no_files, capsys, tmp_path):
    for command in ("run", "reproduce"):
        said = complaint(capsys, command, "--dataset", "energy", "--out", tmp_path / "out")
        assert uci.SOURCES["energy"].how_to_get in said
    assert uci.SOURCES["energy"].url in complaint(capsys, "data", "--fetch", "energy")
    assert main(["data"]) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.strip().split("\n")] == list(data.NAMES)
    assert all(source.how_to_get in said for source in uci.SOURCES.values())


def test_a_damaged_file_is_an_error(no_files, capsys, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / uci.SOURCES["airfoil"].file).write_text("800 0 0.3048 71.3\n", encoding="utf-8")
    assert "is damaged" in complaint(capsys, "run", "--dataset", "airfoil", "--out", tmp_path / "out")
    assert "is damaged" in complaint(capsys, "data")


def test_output_that_cannot_be_written_is_an_error(capsys, tmp_path):
    write_results(tmp_path / "results", ["step"], FDNS, [0])
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    out = tmp_path / "file" / "out"  # permissions would not stop root
    stored = ["--results", tmp_path / "results", "--out", out]
    assert "cannot write" in complaint(capsys, "run", "--dataset", "step", "--out", out)
    assert "cannot write" in complaint(capsys, "compare", *stored)
    for command in ("tables", "figures"):
        assert str(out) in complaint(capsys, command, *stored)
    assert "cannot write" in complaint(capsys, "reproduce", "--dataset", "step", "--epochs", "1", "--out", out)


def test_a_run_writes_once_and_the_same_bytes_again(capsys, tmp_path):
    out = tmp_path / "out"
    run = ["run", "--dataset", "step", "--models", "MLPNet,LP-FDNet", "--seeds", "0:2", *SHORT, "--out"]
    assert main([*run, str(out)]) == 0
    assert "LP-FDNet      2" in capsys.readouterr().out
    frame = results.load_metrics(out)
    assert tuple(frame.columns) == results.COLUMNS
    assert [tuple(key) for key in frame[["model", "seed"]].to_numpy()] == [
        ("MLPNet", 0), ("MLPNet", 1), ("LP-FDNet", 0), ("LP-FDNet", 1)
    ]  # fmt: skip
    assert set(frame["protocol"]) == {"published+epochs=1"}

    written, first = cells(out), contents(out)
    assert main([*run, str(out)]) == 0
    assert cells(out) == written
    assert main([*run, str(out), "--recompute"]) == 0
    assert min(cells(out).values()) > max(written.values())
    same = {name: content for name, content in contents(out).items() if not name.startswith("sidecar")}
    assert same == {name: content for name, content in first.items() if name in same} and len(same) > 8


def test_a_cell_that_fails_gets_status_1_and_the_others_are_kept(capsys, tmp_path):
    run = [
        "run",
        "--dataset",
        "step",
        "--seeds",
        "0",
        *SHORT,
        "--set",
        "learning_rate=1e300",
        "--out",
        str(tmp_path),
    ]
    assert main([*run, "--models", "MLPNet,TrainingMean"]) == 1
    said = capsys.readouterr().err
    assert "MLPNet" in said and "never finite" in said and "Traceback" not in said
    assert [Path(cell).parent.name for cell in cells(tmp_path)] == ["TrainingMean"]


def test_an_interruption_says_that_the_run_can_go_on(capsys, monkeypatch, tmp_path):
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run", interrupted)
    said = complaint(capsys, "run", "--dataset", "step", "--out", tmp_path, status=130)
    assert "is kept" in said and "same command continues" in said


def test_a_run_killed_half_way_continues_with_what_is_missing(tmp_path):
    out = tmp_path / "out"
    arguments = "--dataset step --models LP-FDNet,MLPNet,TrainingMean --seeds 0:2 --epochs 5 --workers 1".split()
    command = [sys.executable, "-m", "fdn", "run", *arguments, "--out", str(out)]
    process = subprocess.Popen(command, cwd=paths.ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
    while not cells(out) and process.poll() is None:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = cells(out)
    assert process.returncode == -signal.SIGKILL and 0 < len(before) < 6

    assert main(["run", *arguments, "--out", str(out)]) == 0
    after = cells(out)
    assert len(after) == 6 and {name: after[name] for name in before} == before
    assert min(time for name, time in after.items() if name not in before) > max(before.values())


def test_compare_marks_what_was_computed_here_and_what_is_committed(committed, capsys, tmp_path):
    out = tmp_path / "out"
    write_results(out, ["step"], ["LP-FDNet"], [0])
    write_results(out, ["step"], ["LP-FDNet"], [0, 1], protocol="as_written")
    assert main(["compare", "--results", str(out), "--all", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "252 published numbers: 7 computed here, 7 committed, 238 missing" in said
    table = pd.read_csv(out / "compare.csv")
    assert len(table) == 252
    where = table.groupby(["dataset", "model"])["where"].unique().map("".join)
    assert where["step", "LP-FDNet"] == "here" and where["step", "BayesNet"] == "committed"
    assert set(where.drop([("step", "LP-FDNet"), ("step", "BayesNet")])) == {"missing"}
    seeds = table.set_index(["dataset", "model"])["n_seeds"]
    assert set(seeds["step", "LP-FDNet"]) == {1} and set(seeds["step", "BayesNet"]) == {3}

    outside = int((table["verdict"] == "outside").sum())
    assert main(["compare", "--results", str(out), "--misses"]) == 0
    said = capsys.readouterr().out
    assert f"Outside the range of our seeds: {outside}\n" in said and said.count("  outside\n") == outside > 0
    assert f"Outside without a reason: {outside}\n" in said


def test_compare_explains_a_model_seed_by_seed(committed, capsys):
    stored = ["compare", "--results", str(committed)]
    assert main([*stored, "--explain", "step,BayesNet"]) == 0
    said = capsys.readouterr().out
    assert "BayesNet on step, protocol published, 3 seeds" in said and "Nearest of our seeds: " in said
    assert "unknown model" in complaint(capsys, *stored, "--explain", "step,BayesianNet")
    assert "no two seeds" in complaint(capsys, *stored, "--explain", "sine,BayesNet")


def test_claims_are_judged_by_the_results_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "EXTRAS", tmp_path / "none")
    write_results(tmp_path / "results", ["step"], STOCHASTIC_MODELS, [0])
    assert main(["claims", "--results", str(tmp_path / "results"), "--to", str(tmp_path / "claims")]) == 0
    assert "statements" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "claims" / "claims.csv")
    assert set(table.loc[table["seeds"] > 0, "dataset"]) == {"step"}
    assert "holds no results" in complaint(capsys, "claims", "--results", tmp_path / "nothing")
    assert "unknown group 'gamma'" in complaint(capsys, "extras", "--only", "gamma")


def test_results_are_read_from_out_if_it_has_any_and_else_from_the_committed(committed, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "DEFAULT_OUT", tmp_path / "out")
    assert main(["compare"]) == 0
    said = capsys.readouterr()
    assert str(committed) in said.err and "0 computed here, 14 committed" in said.out
    write_results(tmp_path / "out", ["step"], ["LP-FDNet"], [0])
    assert main(["compare"]) == 0
    said = capsys.readouterr()
    assert f"Reading {tmp_path / 'out'}" in said.err and "7 computed here, 7 committed" in said.out


def test_tables_and_figures_are_written_where_asked(capsys, tmp_path):
    """Takes as long as drawing every figure does."""
    write_results(tmp_path / "results", ["step"], STOCHASTIC_MODELS, [0, 1])
    for command, place in (("tables", "a"), ("tables", "b"), ("figures", "c")):
        options = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / place)]
        assert main([command, *options]) == 0
        written = len(contents(tmp_path / place))
        assert f"Written: {written} files in {tmp_path / place}" in capsys.readouterr().out
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert "results_step.md" in contents(tmp_path / "a") and "step_means.pdf" in contents(tmp_path / "c")


def test_budget_shows_exact_counts(capsys):
    assert main(["budget"]) == 0
    published = capsys.readouterr().out
    assert main(["budget", "--features", "8", "--parameters", "1000"]) == 0
    solved = capsys.readouterr().out
    for said in (published, solved):
        header, *rows = [line.split() for line in said.strip().split("\n")]
        counts = [int(row[header.index("P")]) for row in rows]
        assert len(counts) == 8 and all(abs(count - 1000) <= 50 for count in counts)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_examples(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0 and f"examples:\n  fdn {name}" in said


def test_fdn_itself_lists_every_command_with_what_it_does(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    assert all(f" {name} {' '.join(command.text.split())}" in said for name, command in COMMANDS.items())


@pytest.mark.parametrize(
    ("arguments", "helping"),
    [
        (["fit", "houses.csv", "--target", "price", "--colour", "red"], "fdn fit"),
        (["smoke", "now"], "fdn smoke"),
        (["--colour", "smoke"], "fdn"),
    ],
)
def test_advice_on_arguments_names_the_command_they_were_given_to(arguments, helping, capsys, monkeypatch, tmp_path):
    (tmp_path / "houses.csv").touch()
    monkeypatch.chdir(tmp_path)
    said = complaint(capsys, *arguments)
    assert "unrecognized arguments: " in said and said.endswith(f"; `{helping} --help` shows how it is called")


def test_a_reader_that_stops_reading_is_no_error():
    """Takes as long as the command does to start."""
    command = [sys.executable, "-m", "fdn", "budget"]
    process = subprocess.Popen(command, cwd=paths.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == 141 and said == b""


def test_a_notebook_refuses_parameters_it_does_not_have():
    defaults = 'seeds: str = "0:5"  # which\nout = ""'
    check_parameters(["import lib", defaults, '# Parameters\nseeds = "0:3"\n'])
    check_parameters(["import lib", defaults, "check_parameters(In)"])
    with pytest.raises(UserError, match="unknown notebook parameter 'sedes'; did you mean 'seeds'"):
        check_parameters(["import lib", defaults, '# Parameters\nsedes = "0:3"\nout = "x"\n'])


@pytest.mark.parametrize(
    ("injected", "said"),
    [
        ("seeds = 310", "seeds is 310, not text: YAML"),
        ("seeds = ''", "seeds is empty"),
        ("seeds = ' '", "seeds is empty"),
        ("seeds = None", "seeds is None, not text"),
        ("epochs = True", "epochs is True; expected a whole number"),
        ("epochs = 2.5", "epochs is 2.5; expected a whole number"),
        ("epochs = float('nan')", "epochs is nan; expected a whole number"),
        ("epochs = '7'", "epochs is '7'; expected a whole number"),
        ("recompute = 'yes'", "recompute is 'yes'; expected True or False"),
        ("recompute = 1", "recompute is 1; expected True or False"),
    ],
)
def test_a_notebook_refuses_parameters_of_another_type(injected, said):
    defaults = 'seeds: str = "0:5"  # which\nepochs: int = 0\nrecompute: bool = False'
    check_parameters([defaults, "# Parameters\nseeds = '7'\nepochs = 7\nrecompute = True\n"])
    with pytest.raises(UserError) as error:
        check_parameters([defaults, f"# Parameters\n{injected}\n"])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "seeds="], "seeds is empty"),
        (["--set", "out= "], "out is empty"),
        (["--set", "epochs=few"], "epochs is 'few'; expected a whole number"),
        (["--set", "recompute=2"], "recompute is '2'; expected True or False"),
        (["--set", "sedes=0:3"], "did you mean 'seeds'"),
        (["--set", "seeds"], "expected name=value"),
    ],
)
def test_parameters_are_checked_before_a_notebook_starts(arguments, said, capsys, tmp_path):
    assert said in complaint(capsys, "notebook", "03_toy", "--out", tmp_path / "x.ipynb", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_a_notebooks_file_is_named(capsys, tmp_path):
    for folder in (str(tmp_path), f"{tmp_path}/new/"):
        said = complaint(capsys, "notebook", "03_toy", "--out", folder)
        assert "argument --out" in said and f"{folder!r} is a folder" in said
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_others_would_expand_is_a_name(capsys, monkeypatch, tmp_path):
    """A tilde is the home of pandas, a dash an option of Sphinx and Snakemake."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for out in ("~", "-o", "~/x", "%d"):
        run = ["run", "--dataset", "step", "--models", "TrainingMean", "--seeds", "0", *SHORT, f"--out={out}"]
        assert main(run) == 0
        assert set(results.load_metrics(tmp_path / out)["model"]) == {"TrainingMean"}
    assert {path.name for path in tmp_path.iterdir()} == {"~", "-o", "%d"}


# Arguments without which a command is not complete
WHOLE = {"notebook": ["03_toy", "--out", "x.ipynb"], "report": ["model"]}


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.checkout])
def test_a_command_on_files_of_the_repository_says_so_where_there_are_none(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "CHECKOUT", tmp_path)
    said = complaint(capsys, name, *WHOLE.get(name, []))
    assert f"`fdn {name}` needs files of the repository" in said and "set FDN_ROOT" in said and str(tmp_path) in said
    assert list(tmp_path.iterdir()) == []


def test_an_installed_package_writes_to_where_it_is_called(monkeypatch, tmp_path):
    monkeypatch.delenv("FDN_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site-packages" / "fdn").mkdir(parents=True)
    installed = shutil.copy(paths.__file__, tmp_path / "site-packages" / "fdn")
    found = runpy.run_path(installed)
    assert found["ROOT"] == tmp_path and found["DEFAULT_OUT"] == tmp_path / "out" and not found["in_checkout"]()
    for root, checkout in (tmp_path / "elsewhere", False), (paths.CHECKOUT, True):
        monkeypatch.setenv("FDN_ROOT", str(root))
        found = runpy.run_path(installed)
        assert found["ROOT"] == root and found["in_checkout"]() == checkout


def test_a_study_of_ones_own_needs_no_checkout(tmp_path):
    """Takes as long as a first start and drawing every figure do: the package lies in a fresh folder, as installed."""
    for package in ("lib/fdn", "fdn_kernels"):
        copy = tmp_path / "site-packages" / Path(package).name
        shutil.copytree(paths.CHECKOUT / package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    here = tmp_path / "here"
    write_results(here / "out", ["step"], FDNS, [0])
    git = ["git", "-C", here, "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "of another project"], check=True)
    calls = [
        ["run", "--dataset", "step", "--models", "TrainingMean", "--seeds", "0", *SHORT],
        ["collect"], ["data", "step"], ["budget"], ["figures"], ["compare"],
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "FDN_ROOT"}
    done = subprocess.run(
        [sys.executable, "-c", f"from fdn.cli import main; print([main(call) for call in {calls}])"],
        cwd=here, env=environment | {"PYTHONPATH": str(tmp_path / "site-packages")},
        capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert done.stdout.split("\n")[-2] == "[0, 0, 0, 0, 0, 2]", done.stderr
    assert set(results.load_metrics(here / "out")["model"]) == {*FDNS, "TrainingMean"}
    assert (here / "out" / "figures" / "step_means.pdf").exists()
    [block] = [it for it in results.read_sidecars(here / "out") if it["model"] == "TrainingMean"]
    assert block["environment"]["commit"] is None, "the commit of the folder's own project is not the program's"


@pytest.mark.parametrize("name", ["FDN_ROOT", "FDN_DATA_DIR"])
def test_places_in_the_environment_hold_for_processes_in_other_folders(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, "elsewhere")
    assert main(["data", "step"]) == 0
    assert os.environ[name] == str(tmp_path / "elsewhere")


def forget(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """As if it had not been imported yet; everything is put back after the test."""
    package, _, name = module.rpartition(".")
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr(sys.modules.get(package), name, raising=False)


@pytest.mark.parametrize(
    ("absent", "needing", "arguments", "extra"),
    [
        ("matplotlib", "fdn.report.figures", ["figures"], "study"),
        ("papermill", "fdn.workflow.notebooks", ["notebook", "03_toy", "--out", "x.ipynb"], "notebooks"),
        ("snakemake", "fdn.workflow.study", ["paper", "--dataset", "step"], "workflow"),
        ("furo", "fdn.report.site.build", ["site"], "site"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    absent, needing, arguments, extra, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    forget(monkeypatch, needing)
    monkeypatch.setitem(sys.modules, absent, None)
    said = complaint(capsys, *arguments)
    assert f"{absent} is not installed" in said and f"`pip install 'fdn[{extra}]'`" in said
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_pandas_lacks_is_named_with_its_extra(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "table.xlsx").write_bytes(b"PK")
    monkeypatch.setattr(
        experiment, "load_dataset", lambda *_: pd.read_excel(tmp_path / "table.xlsx", engine="openpyxl")
    )
    assert "`pip install 'fdn[study]'`" in complaint(capsys, "budget", "--dataset", "energy")


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("a fault of ours", name="fdn.gone"), ImportError("no name x", name="sklearn")]
)
def test_an_import_that_no_extra_mends_is_not_hidden(error, monkeypatch):
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(experiment, "load_dataset", fails)
    with pytest.raises(ImportError):
        main(["budget", "--dataset", "energy"])


@pytest.mark.parametrize("command", [["claims", "--results"], ["collect", "--out"]])
def test_a_folder_that_holds_nothing_is_no_results(capsys, tmp_path, command):
    assert "holds no" in complaint(capsys, *command, str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()


def test_run_says_that_a_cpu_takes_longer_in_float32(tmp_path, capsys):
    command = ["run", "--dataset", "step", "--models", "TrainingMean", "--seeds", "0", "--out", str(tmp_path), "--set"]
    for setting, said in (("dtype=float32", "float32 takes longer than float64"), ("epochs=3", "")):
        assert main([*command, setting]) == 0
        err = capsys.readouterr().err
        assert said in err and bool(said) == ("float32" in err)
