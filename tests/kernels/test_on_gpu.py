"""`make gpu` without a GPU: its checks by stand-ins, and its lines by small commands that pass, fail, hang or crash."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import on_gpu
import pytest
import torch
from on_gpu import Line

HERE = {"python": "3", "torch": "2", "CUDA": "13", "triton": "3", "numpy": "2", "numba": "0", "device": "GPU",
        "capability": "sm_90", "GiB": 80, "commit": "abc"}  # fmt: skip


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


@pytest.fixture
def there(monkeypatch, tmp_path):
    """A GPU that is said to be there; the lines are the test's."""
    monkeypatch.setattr(on_gpu, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(on_gpu, "described", lambda: dict(HERE))

    def run(*lines, minutes=30.0, **changes):
        monkeypatch.setattr(on_gpu, "LINES", list(lines))
        monkeypatch.setattr(on_gpu, "described", lambda: HERE | changes)
        return on_gpu.main(["--to", str(tmp_path), "--minutes", str(minutes)]), page(tmp_path)

    return run


def page(folder: Path) -> dict[str, list[str]]:
    """The page's table: line, to result, reason and seconds."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("| ")]
    return {row[0]: row[2:] for row in rows[1:] if len(row) == 5}


def test_a_line_that_fails_hangs_or_crashes_is_told_and_ends_no_other(there, tmp_path):
    code, rows = there(
        Line("fails", "", python("print('a.py WRONG | x'); raise SystemExit(3)"), 300),
        Line("wrong", "", python("print('case p forward: WRONG: y off by 1'); raise SystemExit(1)"), 300),
        Line("hangs", "", python("import subprocess; subprocess.run(['sleep', '600'])"), 1),
        Line("crashes", "", python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"), 300),
        Line("lacks", "", python(""), 300, needs=("json", "a_package_of_nobody")),
        Line("tool", "", ("a-tool-of-nobody",), 300),
        Line("table", "", python("print('| a | b |'); print('| - | - |')"), 300),
    )
    assert code == 1
    assert rows["fails"][:2] == ["failed", "exit status 3; a.py WRONG / x"]
    assert rows["wrong"][:2] == ["failed", "exit status 1; case p forward: WRONG: y off by 1"]
    assert rows["hangs"][:2] == ["failed", "ended after 1 s"]
    assert rows["crashes"][:2] == ["failed", "ended by SIGSEGV"]
    assert rows["lacks"] == ["not possible here", "needs the packages a_package_of_nobody", ""]
    assert rows["tool"] == ["not possible here", "a-tool-of-nobody is not installed", ""]
    assert rows["table"][0] == "passed"
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "**table**\n\n| a | b |\n| - | - |\n" in text and "- device: GPU, sm_90, 80 GiB\n" in text
    assert (tmp_path / "logs" / "fails.log").read_text(encoding="utf-8") == "a.py WRONG | x\n"


@pytest.mark.check
def test_what_pytest_passes_skips_and_fails_is_read_from_its_output(there, tmp_path):
    """Long, for each is a pytest of its own."""
    file = tmp_path / "some_checks.py"
    file.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "def test_absent(): pytest.skip('needs 64 GiB of GPU memory, and there are 3')\n",
        encoding="utf-8",
    )
    command = on_gpu._pytest("x", "y")
    lines = [
        Line(name, "", tuple({"tests/x": str(file), "y": which}.get(word, word) for word in command), 300)
        for name, which in (("good", "good or absent"), ("bad", "bad or good"), ("absent", "absent"), ("none", "no"))
    ]
    _, rows = there(*lines)
    assert rows["good"][0] == "passed" and rows["good"][1].startswith("1 passed, 1 skipped")
    assert rows["bad"][0] == "failed" and re.match(r"1 failed, 1 passed.*; FAILED .*test_bad", rows["bad"][1])
    assert rows["absent"][:2] == ["not possible here", "needs 64 GiB of GPU memory, and there are 3"]
    assert rows["none"][:1] == ["failed"]  # nothing was checked


def test_what_is_done_is_not_done_again_unless_commit_device_or_a_version_changed(there, tmp_path):
    runs = tmp_path / "runs"
    counts = python(f"open({str(runs)!r}, 'a').write('x')")
    lines = [
        Line("one", "", counts, 300),
        Line("two", "", python("raise SystemExit(1)"), 300),
        Line("tool", "", ("a-tool-of-nobody",), 300),
    ]
    assert there(*lines)[0] == there(*lines)[0] == 1
    assert runs.read_text(encoding="utf-8") == "x"
    for n, change in enumerate(({"commit": "def"}, {"device": "another"}, {"torch": "3"}), start=2):
        code, rows = there(*lines, **change)
        assert code == 1 and rows["one"][0] == "passed" and runs.read_text(encoding="utf-8") == "x" * n
    lines[2] = Line("tool", "", python(""), 300)  # installed since
    assert there(*lines, **change)[1]["tool"][0] == "passed" and runs.read_text(encoding="utf-8") == "x" * n
    (tmp_path / "state.json").write_text('{"on": {', encoding="utf-8")  # damaged
    assert there(*lines, **change)[1]["one"][0] == "passed" and runs.read_text(encoding="utf-8") == "x" * (n + 1)


def test_what_there_is_no_time_for_is_left_for_the_next_run(there, capsys):
    lines = [Line("quick", "", python(""), 300), Line("slow", "", python("import time; time.sleep(600)"), 300),
             Line("last", "", python(""), 300)]  # fmt: skip
    code, rows = there(*lines, minutes=0.1)
    assert code == 3 and rows["quick"][0] == "passed" and rows["slow"][0] == rows["last"][0] == "not run yet"
    assert "Left: slow, last. Run it again" in capsys.readouterr().out
    lines[1] = Line("slow", "", python(""), 300)
    code, rows = there(*lines)
    assert code == 0 and [row[0] for row in rows.values()] == ["passed"] * 3


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_or_killed_run_continues(how, there, tmp_path):
    """The second line ends the program that started it, unless it finds that it did so before."""
    once, runs = tmp_path / "once", tmp_path / "runs"
    count = f"open({str(runs)!r}, 'a').write('x')"
    ends = f"import os, pathlib, time; path = pathlib.Path({str(once)!r}); first = not path.exists(); path.touch()\n"
    ends += f"if first: os.kill(os.getppid(), {how.value}); time.sleep(600 if {how.value} != 9 else 0)"
    lines = (
        Line("counts", "", python(count), 300),
        Line("ends", "", python(ends), 300),
        Line("last", "", python(""), 300),
    )
    program = f"import on_gpu; from on_gpu import Line; on_gpu.LINES = {list(lines)!r}\n"
    program += (
        f"on_gpu.LOGS = __import__('pathlib').Path({str(tmp_path / 'logs')!r}); on_gpu.described = lambda: {HERE}\n"
    )
    program += f"raise SystemExit(on_gpu.main(['--to', {str(tmp_path)!r}]))"
    environment = os.environ | {"PYTHONPATH": str(Path(on_gpu.__file__).parent)}
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert done.returncode != 0 and time.monotonic() - start < 300
    assert set(json.loads((tmp_path / "state.json").read_text(encoding="utf-8"))["lines"]) == {"counts"}
    assert page(tmp_path)["ends"][0] == "not run yet"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [row[0] for row in page(tmp_path).values()] == ["passed"] * 3
    assert runs.read_text(encoding="utf-8") == "x"
    assert not list(tmp_path.glob(".*"))


def test_without_a_gpu_every_line_says_so_and_the_page_of_a_gpu_stays(there, tmp_path, capsys):
    line = Line("one", "", python(""), 300)
    there(line, obstacle="PyTorch 2 sees no CUDA GPU")
    assert "one: not possible here: PyTorch 2 sees no CUDA GPU" in capsys.readouterr().out
    assert "**Not run yet**" in (tmp_path / "README.md").read_text(encoding="utf-8")
    there(line)
    before = (tmp_path / "README.md").read_bytes()
    assert there(line, obstacle="PyTorch 2 sees no CUDA GPU")[0] == 0
    assert (tmp_path / "README.md").read_bytes() == before


def test_device_and_versions_are_found_in_a_process_of_its_own(monkeypatch):
    """As long as importing everything takes."""
    found = on_gpu.described()
    assert found["torch"] == torch.__version__ and found["commit"]
    assert ("obstacle" in found) != torch.cuda.is_available()
    for program, said in (
        ("import time; time.sleep(600)", "does not start within 1 s"),
        ("import os; os.abort()", "does not start: exit status -6"),
        ("raise RuntimeError('a driver too old')", "does not start: RuntimeError: a driver too old"),
    ):
        monkeypatch.setattr(on_gpu, "__file__", "-c" + program)  # python -cPROGRAM --describe
        assert said in on_gpu.described(limit=1 if "sleep" in program else 60)["obstacle"]


def test_the_description_of_a_gpu_and_of_what_is_none(monkeypatch):
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=139 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "for NVIDIA's GPUs" in on_gpu.describe()["obstacle"]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = on_gpu.describe()
    assert (found["device"], found["capability"], found["GiB"], found["CUDA"]) == ("NVIDIA H200", "sm_90", 139, "13.0")
    assert HERE.keys() - found.keys() == {"commit"}
    monkeypatch.setitem(sys.modules, "triton", None)
    assert on_gpu.describe()["obstacle"].startswith("the package triton cannot be imported")


def test_the_commit_is_that_of_the_code_and_its_changes(monkeypatch, tmp_path):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(on_gpu, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert on_gpu.commit() == "unknown"
    (tmp_path / "data" / "gpu").mkdir(parents=True)
    code, own = tmp_path / "code.py", tmp_path / "data" / "gpu" / "README.md"
    found = []
    for text in ("1", "2", "3"):
        code.write_text(text, encoding="utf-8")
        if text == "1":
            git("init")
            git("add", ".")
            git("commit", "-m", "code")
        found.append(on_gpu.commit())
        own.write_text(text, encoding="utf-8")
        git("add", "data")
        git("commit", "-m", "page")
        assert on_gpu.commit() == found[-1]  # the page is no change of the code
    assert len(set(found)) == 3 and found[1].startswith(f"{found[0]} with changes ")


def test_the_committed_page_is_the_programs(tmp_path):
    """Until it was run on a GPU; then it is that of the state beside it."""
    on_gpu.write(on_gpu.read(on_gpu.PAGE), tmp_path)
    expected, found = (folder.joinpath("README.md").read_text(encoding="utf-8") for folder in (tmp_path, on_gpu.PAGE))
    assert found == expected


@pytest.mark.check
def test_every_line_has_a_command_that_finds_something_to_do():
    """Long, for pytest collects each line's tests."""
    from fdn_kernels.rivals import gpu_cases

    cases = {case.name for case in gpu_cases(quick=True)}
    for line in on_gpu.LINES:
        if "--case" in line.command:
            assert line.command[line.command.index("--case") + 1] in cases
            continue
        command = [*line.command[line.command.index(sys.executable) :], "--collect-only"]
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        done = subprocess.run(command, cwd=on_gpu.ROOT, env=environment, capture_output=True, encoding="utf-8")
        assert done.returncode == 0 and "::test_" in done.stdout, done.stdout[-2000:]


FAST = "LP and local and graph or offsets and inputs"


@pytest.mark.check
@pytest.mark.parametrize("which", [FAST, f"not ({FAST})"])
def test_the_checks_of_a_gpu_hold_in_the_interpreter_and_by_stand_ins(which):
    """Long, for the interpreter goes through a program in Python; apart, for it is chosen before triton is imported."""
    pytest.importorskip("triton", reason="Triton is for Linux; without it the op runs in PyTorch")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = on_gpu._pytest(on_gpu.CHECKS, which)
    done = subprocess.run(command, cwd=on_gpu.ROOT, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:]


def test_the_sizes_of_the_offsets_are_beyond_31_bits():
    """As long as it takes to go through the launches, on tensors without memory."""
    pytest.importorskip("triton", reason="Triton is for Linux; without it the op runs in PyTorch")
    from fdn_kernels import aot

    text = Path(on_gpu.__file__).with_name("gpu_checks.py").read_text(encoding="utf-8")
    many = dict(re.findall(r"^(MANY_\w+) = (\{.*\})", text, re.MULTILINE))
    inputs, weights = (eval(many[name]) for name in ("MANY_INPUTS", "MANY_WEIGHTS"))
    assert inputs["draws"] * inputs["batch"] * inputs["d_in"] > 2**31
    for noise in ("local", "shared"):
        sizes = {name: weights[name] for name in ("draws", "d_in", "d_out", "h")}
        launched = aot.launches(aot.Layer("IC", noise, "analytic", examples=weights["batch"], **sizes))
        beyond = {
            launch.kernel for launch in launched for t in launch.arguments.values()
            if isinstance(t, torch.Tensor) and t.numel() > 2**31
        }  # fmt: skip
        assert {"forward", "rows", "weights", "product"} <= beyond
