"""Text is UTF-8 in every file whatever the locale, and every terminal is printed to, also a closed one."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_results import write_results

from fdn import paths
from fdn.cli import main
from fdn.terminal import PLAIN

HERE = Path(__file__).resolve().parent.parent
FOLDERS = ("lib", "fdn_kernels", "tests", "notebooks", "workflow")
SOURCES = sorted(path for folder in FOLDERS for path in (HERE / folder).rglob("*.py"))


def fdn(*arguments: str | Path, shell: str = "", **environment: str) -> subprocess.CompletedProcess:
    """The command line in a process of its own, whose redirections are ``shell``'s."""
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "fdn", *map(str, arguments)]
    return subprocess.run(command, cwd=paths.ROOT, env=os.environ | environment, capture_output=True, check=False)


def without_encoding(source: str) -> list[int]:
    """Lines of the calls that read, write or receive text in the encoding of whatever locale there is."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):  # arguments kept for later
            pairs = {ast.unparse(key): ast.unparse(value) for key, value in zip(node.keys, node.values) if key}
            lines += [node.lineno] * ("True" in (pairs.get("'text'"), pairs.get("'universal_newlines'")))
        if not isinstance(node, ast.Call):
            continue
        name, given = ast.unparse(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
        method = name.split(".")[-1]
        if method in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile") and name != "os.open":
            place = 1 if name in ("open", "io.open", "os.fdopen") else 0
            default = ast.Constant("w+b" if method.endswith("File") else "r")
            mode = given.get("mode", node.args[place] if len(node.args) > place else default)
            text = isinstance(mode, ast.Constant) and "b" not in str(mode.value)
        else:
            text = method in ("read_text", "write_text") or bool({"text", "universal_newlines"} & set(given))
        if text and "encoding" not in given:
            lines.append(node.lineno)
    return lines


def test_what_names_no_encoding_is_found():
    bad = "p.read_text(), p.write_text('x'), open('x'), p.open('w'), subprocess.run([], text=True), {'text': True}, "
    bad += "NamedTemporaryFile('w'), open(p, mode='a'), os.fdopen(3)"
    good = "p.read_text(encoding='utf-8'), open('x', 'rb'), p.open('wb'), os.open('x', 1), NamedTemporaryFile(), "
    good += "subprocess.run([], encoding='utf-8'), {'text': 'True'}, os.fdopen(3, 'wb'), p.open(mode='rb')"
    for sources, found in ((bad, [1]), (good, [])):
        for node in ast.parse(sources).body[0].value.elts:
            assert without_encoding(ast.unparse(node)) == found, ast.unparse(node)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(HERE)))
def test_every_read_and_write_of_text_names_its_encoding(path):
    assert without_encoding(path.read_text(encoding="utf-8")) == []


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Results of two models in a folder whose name is not ASCII."""
    out = tmp_path_factory.mktemp("ü–β")
    write_results(out, ["step"], ["BayesNet", "LP-FDNet"], [0, 1])
    return out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_commands_print_on_every_terminal(encoding, stored, tmp_path, monkeypatch):
    out = tmp_path / "ö…"
    for command, status, said in (
        (["compare", "--results", stored, "--all", "--out", out], 0, "In 5–95 %"), (["budget"], 0, "LP-FDNet"),
        (["tables", "--results", stored, "--out", out], 0, "Written: "),
        (["run", "--dataset", "stép"], 2, "unknown data set 'stép'"),
    ):  # fmt: skip
        terminals = [io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2)]
        for name, terminal in zip(("stdout", "stderr"), terminals):
            monkeypatch.setattr(sys, name, terminal)
        assert main(list(map(str, command))) == status
        terminals[status > 0].flush()
        assert said.encode(encoding, "plain") in terminals[status > 0].buffer.getvalue()
    assert "–".encode("ascii", "plain") == b"-" and "ü∃".encode("ascii", "plain") == b"\\xfc\\u2203"
    assert "5–95 %" in (out / "compare.md").read_text(encoding="utf-8")


def test_files_and_names_of_them_are_right_where_the_locale_knows_ascii_alone(stored, tmp_path):
    out = tmp_path / "ö…"
    done = fdn("compare", "--results", stored, "--out", out, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert b"In 5-95 %" in done.stdout and str(out).encode() in done.stdout and str(stored).encode() in done.stderr
    assert "5–95 %" in (out / "compare.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_not_written_to(shell):
    done = fdn("data", "step", shell=shell)
    assert (done.returncode, done.stderr) == (0, b"") and (b"step" in done.stdout) == (shell == "2>&-")


def test_every_character_that_the_program_prints_has_a_plain_form():
    found = {character for path in sorted((HERE / "lib").rglob("*.py")) for character in re.findall(
        r"[^\x00-\x7f]", path.read_text(encoding="utf-8"))}  # fmt: skip
    only_in_pages = set("↑↓†→")  # tables of metrics, and figures
    assert found - set(PLAIN) - only_in_pages == set()
    assert all(plain.isascii() and plain for plain in PLAIN.values())
