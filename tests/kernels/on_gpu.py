"""All that a GPU is needed for, one command: ``make gpu``, or ``python tests/kernels/on_gpu.py`` without make.

Each line below is a process with a time limit, so that a crash, a hang or an illegal access of one ends no other. What
came out is written after every line: an interrupted or killed run continues with the lines that are not done, and all
are done again once the commit, the device or a version is another. It needs torch, triton, numpy, numba and pytest;
lines that need more say so.

Exit status: 0 where nothing failed, also without a GPU; 1 where a line failed; 3 where lines are left for want of time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "data" / "gpu"
LOGS = ROOT / "out" / "gpu"
MINUTES = 8.0
CORE = ("scipy", "pandas", "pyarrow", "platformdirs", "tqdm", "lazy_loader")  # what the package fdn needs beside ours
BENCHMARKS = ("lp-local-d256-K100", "lp-shared-d256-K100", "ic-shared-d256-K100", "ic-local-d256-K100")


@dataclass(frozen=True)
class Line:
    """A line of the page: what it shows, by which command, in how many seconds at most."""

    name: str
    shows: str
    command: tuple[str, ...]
    limit: float
    needs: tuple[str, ...] = ()  # packages


def _pytest(file: str, which: str) -> tuple[str, ...]:
    options = ("-q", "-rfEs", "-o", "addopts=", "-p", "no:cacheprovider")
    return (sys.executable, "-m", "pytest", *options, f"tests/{file}", "-k", which)


def _sanitizer(tool: str) -> tuple[str, ...]:
    return ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *_pytest("kernels/gpu_checks.py", "edges"))


def _bench(case: str) -> tuple[str, ...]:
    command = (sys.executable, "-m", "fdn_kernels.bench", "--device", "cuda", "--quick", "--budget", "60")
    return (*command, "--case", case, "--out", str(PAGE / f"{case}.csv"))


CHECKS, GATE = "kernels/gpu_checks.py", "kernels/triton_checks.py"
LINES = [
    Line("gate", "outputs and gradients at odd and tile-edge sizes are the float64 reference's: half of the cases",
         _pytest(GATE, "not IC"), 150),  # also cases called "analytic": the split is test_triton.py's
    Line("gate, continued", "the other half", _pytest(GATE, "IC"), 150),
    Line("edges", "the four modes just below, at and above the sizes of tiles", _pytest(CHECKS, "edges"), 60),
    Line("graph", "forward and backward in a CUDA graph, replayed with other seeds, are the eager ones",
         _pytest(CHECKS, "graph"), 60),
    Line("compile", 'torch.compile(mode="reduce-overhead") gives the eager numbers', _pytest(CHECKS, "overhead"), 90),
    Line("offsets", "tensors of more than 2^31 numbers, against a reference in parts", _pytest(CHECKS, "offsets"), 90),
    *(Line(f"bench {case}", "checked, then timed beside its rivals", _bench(case), 170) for case in BENCHMARKS),
    Line("training", "every model trains and predicts as on the CPU, with and without graphs",
         _pytest("training/test_devices.py", "test_a_gpu_gives_the_numbers_of_the_cpu"), 120, CORE),
    Line("study", "a block of the study has the CPU's metrics", _pytest(CHECKS, "study"), 90, CORE),
    Line("memcheck", "no access out of bounds (compute-sanitizer), in the edges", _sanitizer("memcheck"), 120),
    Line("racecheck", "no race in shared memory (compute-sanitizer), in the edges", _sanitizer("racecheck"), 180),
]  # fmt: skip


# -- where it runs -----------------------------------------------------------------------------------------------------


def describe() -> dict[str, object]:
    """Versions and device; where there is an ``obstacle``, the lines are not possible here. Imports everything."""
    found: dict[str, object] = {"python": platform.python_version()}
    for name in ("torch", "triton", "numpy", "numba", "pytest"):
        try:
            found[name] = import_module(name).__version__
        except ImportError as error:
            return found | {"obstacle": f"the package {name} cannot be imported: {error}"}
    import torch

    import_module("fdn_kernels")
    if not torch.cuda.is_available():
        return found | {"obstacle": f"PyTorch {torch.__version__} sees no CUDA GPU"}
    if torch.version.cuda is None:
        return found | {"obstacle": "the kernels are for NVIDIA's GPUs, and PyTorch was built for others"}
    gpu = torch.cuda.get_device_properties(0)
    place = {"device": gpu.name, "capability": f"sm_{gpu.major}{gpu.minor}", "GiB": round(gpu.total_memory / 2**30)}
    return found | place | {"CUDA": torch.version.cuda}


def described(limit: float = 120) -> dict[str, object]:
    """:func:`describe` in a process of its own: starting CUDA may crash or hang."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0"}
    try:
        command = [sys.executable, __file__, "--describe"]
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", env=environment, timeout=limit, check=True
        )
        return json.loads(done.stdout.splitlines()[-1]) | {"commit": commit()}
    except subprocess.TimeoutExpired:
        return {"obstacle": f"PyTorch does not start within {limit:.0f} s"}
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [""])[-1]
        return {"obstacle": f"PyTorch does not start: {last or f'exit status {error.returncode}'}"}


def commit() -> str:
    """The last commit but for those of this page, and a digest of what was changed since."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments, "--", ".", ":!data/gpu"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout.strip()

    try:
        last, changes = git("log", "-1", "--format=%h"), git("diff", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return last + (f" with changes {hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else "")


# -- a line ------------------------------------------------------------------------------------------------------------


def run(line: Line, limit: float) -> dict[str, object]:
    """A line's ``result`` ("passed", "failed" or "not possible here"), ``why``, ``seconds``, maybe a ``table``."""
    missing = [name for name in line.needs if find_spec(name) is None]
    if missing:
        return {"result": "not possible here", "why": f"needs the packages {', '.join(missing)}"}
    search = [os.environ.get("PATH", ""), os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")]
    program = shutil.which(line.command[0], path=os.pathsep.join(search))
    if program is None:
        return {"result": "not possible here", "why": f"{line.command[0]} is not installed"}
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lib")]), "TRITON_INTERPRET": "0", "TQDM_DISABLE": "1",
    }  # fmt: skip
    if line.command[0] == "compute-sanitizer":
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # an access beyond a tensor is one beyond its allocation
    LOGS.mkdir(parents=True, exist_ok=True)
    log, start, code = LOGS / f"{line.name}.log", time.monotonic(), None
    with open(log, "wb") as file:
        child = subprocess.Popen(
            [program, *line.command[1:]], cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:  # what it started too, and also if we are interrupted
            if code is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    result, why = verdict(code, text, limit)
    found = {"result": result, "why": why, "seconds": round(time.monotonic() - start)}
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    return found | ({"table": rows} if rows else {})


def verdict(code: int | None, text: str, limit: float) -> tuple[str, str]:
    """What an exit status (None: the time was up) and an output say."""
    lines = [line.strip("= ") for line in text.splitlines() if line.strip("= ")]
    last = lines[-1] if lines else ""
    if code == 0:
        skipped = [line for line in lines if line.startswith("SKIPPED")]
        if skipped and " passed" not in last:
            return "not possible here", skipped[0].partition(": ")[2]
        return "passed", last if " passed" in last else ""
    wrong = [line for line in lines if re.match(r"(FAILED|ERROR) |.*: (WRONG|failed): ", line)][:3]
    if code is None:
        said = f"ended after {limit:.0f} s"
    elif code < 0:
        said = f"ended by {signal.Signals(-code).name}"
    else:
        said = last if wrong and " failed" in last else f"exit status {code}"
    return "failed", "; ".join(dict.fromkeys(filter(None, [said, *(wrong or [last])])))


# -- the page ----------------------------------------------------------------------------------------------------------


def page(state: dict) -> str:
    """The page of a state; of an empty one, that nothing was run."""
    text = ["# The kernel on a GPU", "", "Written by `make gpu`, which continues where it was interrupted.", ""]
    if not state:
        text += ["**Not run yet**: no GPU was at hand. What it would show:", ""]
    else:
        on = state["on"]
        versions = ", ".join(f"{name} {on[name]}" for name in ("python", "torch", "CUDA", "triton", "numpy", "numba"))
        text += [f"- device: {on['device']}, {on['capability']}, {on['GiB']} GiB", f"- {versions}"]
        text += [f"- commit: {on['commit']}", f"- date: {state['date']}", ""]
    text += ["| line | shows | result | why | s |", "|:---|:---|:---|:---|---:|"]
    done = state.get("lines", {})
    for line in LINES:
        found = done.get(line.name, {"result": "not run yet"})
        why = found.get("why", "").replace("|", "/")
        text.append(f"| {line.name} | {line.shows} | {found['result']} | {why} | {found.get('seconds', '')} |")
    for line in LINES:
        if table := done.get(line.name, {}).get("table"):
            text += ["", f"**{line.name}**", "", *table]
    return "\n".join(text) + "\n"


def write(state: dict, folder: Path) -> None:
    """State and page, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"README.md": page(state)} | ({"state.json": json.dumps(state, indent=1) + "\n"} if state else {})
    for name, text in files.items():
        temporary = folder / f".{name}.{os.getpid()}"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / name)


def read(folder: Path) -> dict:
    """The state of an earlier run; empty without one, or with one that cannot be read."""
    try:
        return json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--to", type=Path, default=PAGE, help="folder of the page (default: data/gpu)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"stop after these (default: {MINUTES:g})")
    parser.add_argument("--describe", action="store_true", help="print versions and device only")
    options = parser.parse_args(arguments)
    if options.describe:
        print(json.dumps(describe()))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end = time.monotonic() + 60 * options.minutes
    on, state = described(), read(options.to)
    print(", ".join(f"{name} {value}" for name, value in on.items()), flush=True)
    if "obstacle" in on:
        for line in LINES:
            print(f"{line.name}: not possible here: {on['obstacle']}")
        if not state:  # the page of a GPU stays
            write({}, options.to)
        return 0
    if state.get("on") != on:
        state = {"on": on, "lines": {}}
    done, left = state["lines"], []
    for line in LINES:
        remaining = end - time.monotonic()
        if done.get(line.name, {}).get("result") not in ("passed", "failed"):
            found = run(line, min(line.limit, remaining)) if remaining > 0 else {}
            if not found or found["result"] == "failed" and end <= time.monotonic():
                left.append(line.name)  # it was cut short by our time, not by its own
                print(f"{line.name}: not done, the time is up", flush=True)
                continue
            done[line.name] = found
            state["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
            write(state, options.to)
        print(f"{line.name}: {done[line.name]['result']} {done[line.name].get('why', '')}".rstrip(), flush=True)
    if left:
        print(f"Left: {', '.join(left)}. Run it again to continue.")
    failed = any(found["result"] == "failed" for found in done.values())
    return 1 if failed else 3 if left else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted; run it again to continue.")
