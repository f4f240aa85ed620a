"""Runs a study: starts Snakemake on its graph, says how far it is, what failed and why, and what came out."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from fdn import data, paths
from fdn.data import uci
from fdn.errors import UserError
from fdn.workflow.study import Step, Study, absent_cells, prepare, text

SNAKEFILE = paths.ROOT / "workflow" / "Snakefile"
PROFILES = paths.ROOT / "workflow" / "profiles"
NOT_ON_SLURM = set("%{}'\"$\\`")  # SLURM takes the first for a pattern, Snakemake's command for a job the others
SAID = Path("workflow", "snakemake.log")
WRITTEN = {
    "metrics.parquet": "all results, a row per data set, model, protocol and seed",
    "points": "per-point results",
    "notebooks": "the notebooks as they ran",
    "tables": "Markdown, LaTeX and CSV",
    "figures": "PDF and PNG",
    "comparison": "the published numbers beside ours, one by one",
}


def run(study: Study, out: Path, profile: str = "local") -> None:
    """Compute and make what a study's folder lacks, then report: published beside reproduced, and what failed and why.

    Args:
        study: from :func:`fdn.workflow.study.plan`.
        out: results folder; what it holds is not computed again.
        profile: a folder of ``workflow/profiles``, or the path of another one: where jobs run.

    Raises:
        ModuleNotFoundError: without Snakemake.
        UserError: for an unknown profile, for a folder that cannot be written, in which another run is at work, or
            whose path SLURM cannot take.
        RuntimeError: once all else is done, if something failed.
    """
    start = time.perf_counter()
    if not find_spec("snakemake"):
        raise ModuleNotFoundError("this needs Snakemake, of the extra `workflow`", name="snakemake")
    places = (PROFILES / profile, Path(profile).absolute())
    settings = next((path for path in places if (path / "config.yaml").is_file()), None)
    if settings is None:
        known = ", ".join(sorted(path.name for path in PROFILES.iterdir()))
        raise UserError(f"there is no profile {profile!r}; choose from {known}, or name a folder with a config.yaml")
    on_slurm = "executor: slurm" in (settings / "config.yaml").read_text(encoding="utf-8")
    if on_slurm and (odd := set(str(out)) & NOT_ON_SLURM):
        raise UserError(f"jobs of SLURM fail in {out}, whose path has {' '.join(sorted(odd))}; choose another folder")
    with _alone(out):
        absent, before, total = prepare(study, out), _times(study, out), len(study.keys())
        print(f"{total} cells in {len(study.pieces)} jobs, {sum(absent.values())} cells to compute")
        failures = {} if _snakemake(out, settings) else _failures(study, out)
        lacking = absent_cells(study, out) if absent else {}
        if lacking and len(lacking) < len(study.pieces):
            print("\nSome cells are missing; what follows from the others:")
            there = study.without(lacking)
            prepare(there, out)
            if _snakemake(out, settings):
                failures = {name: failures.get(name, "was not begun") for name in lacking}
            else:
                failures |= _failures(there, out)
        changed = _times(study, out) != before
    print(f"\n{sum(absent.values()) - sum(lacking.values())} cells computed, {sum(lacking.values())} of {total} missing"
        if changed or lacking else "\nNothing to do: every cell, table, figure and notebook is there.")  # fmt: skip
    if (out / "metrics.parquet").exists():
        print(_report(study, out))
    minutes, seconds = divmod(round(time.perf_counter() - start), 60)
    print(f"Total time: {minutes} min {seconds} s")
    if failures:
        lines = [f"{step}: {reason}" for step, reason in failures.items()]
        raise RuntimeError("not everything could be done:\n" + "\n".join(lines) + "\nThe same command continues there.")


def _report(study: Study, out: Path) -> str:
    """Published beside reproduced, data set by data set and in total, and where everything lies."""
    from fdn.report import comparison, console

    metrics = comparison.with_committed(out)
    shown = sorted((*study.datasets, *study.missing), key=data.NAMES.index)
    numbers = comparison.compare(metrics, study.label)
    numbers = numbers[numbers["dataset"].isin(shown)]
    outside = comparison.misses(numbers)
    parts = [console.results_of(metrics, name, study.label) for name in shown]
    parts += [console.scores(numbers), f"Outside the range of our seeds: {len(outside)}"]
    parts += [console.numbers(outside)] * bool(len(outside))
    if study.missing:
        parts.append("\n".join([
            f"Not computed here, for want of their files: {', '.join(study.missing)} (above: committed results).",
            *(f"  {name}: {uci.SOURCES[name].how_to_get}" for name in study.missing),
            "The same command then computes what is missing and nothing else.",
        ]))  # fmt: skip
    parts += [f"Not drawn: {note}" for step in study.steps if step.product == "figures"
              for note in re.findall(r"^not drawn: (.*)", text(out / step.log), re.MULTILINE)]  # fmt: skip
    parts.append(
        "\n".join(["Written:", *(f"  {console.shown_path(out / name)}: {what}" for name, what in WRITTEN.items())])
    )
    return "\n" + "\n\n".join(parts)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other runs out of a results folder until this one and its Snakemake have ended, however they end."""
    try:
        (out / "workflow").mkdir(parents=True, exist_ok=True)
        file = (out / "workflow" / "lock").open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another output folder") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another run is at work in {out}; wait for its end, or choose another folder") from error
        except OSError:  # a file system without locks
            pass
        os.set_inheritable(file.fileno(), True)
        yield


def start_snakemake(out: Path, profile: Path, *options: str, **streams: object) -> subprocess.Popen:
    """Snakemake for a prepared folder, an absolute path, without its own lock, which would outlive a killed run.

    It starts in the profile's folder, whose path it would take for a pattern, and keeps its cache in the results
    folder, for there may be no home to write to; the jobs have the cache of whoever starts it.
    """
    places = ["--snakefile", SNAKEFILE, "--directory", out, "--profile", "."]
    command = [sys.executable, "-m", "snakemake", *places, "--nolock", *options]
    cache = {"XDG_CACHE_HOME": str(out / "workflow" / "cache"), "FDN_CACHE": os.environ.get("XDG_CACHE_HOME", "")}
    return subprocess.Popen(command, cwd=profile, env=os.environ | cache | {"PYTHONUTF8": "1"}, **streams)


def _snakemake(out: Path, profile: Path) -> bool:
    """Whether Snakemake could do everything; what it says goes to a file, how far it is to the terminal."""
    with (out / SAID).open("wb") as file, (out / SAID).open(encoding="utf-8", errors="replace") as said:
        inherits = {"stdout": file, "stderr": file, "close_fds": False}  # the lock too, should this process be killed
        process = start_snakemake(out, profile, "--config", "prepared=True", **inherits)
        try:
            while True:
                ended = process.poll() is not None
                for done, total in re.findall(r"^(\d+) of (\d+) steps", said.read(), re.MULTILINE):
                    print(f"{time.strftime('%H:%M:%S')}  {done} of {total} steps done")
                if ended:
                    return process.returncode == 0
                time.sleep(0.2)
        except KeyboardInterrupt:
            process.wait()  # it has been interrupted too, and ends its jobs
            raise


def _times(study: Study, out: Path) -> dict[str, int | None]:
    """When each step was done, None if it has not been."""
    marks = {step.name: out / step.mark for step in study.steps}
    return {name: mark.stat().st_mtime_ns if mark.exists() else None for name, mark in marks.items()}


def _failures(study: Study, out: Path) -> dict[str, str]:
    """What each step that began and was not completed said last."""
    wordless = "the disk is full" if shutil.disk_usage(out).free < 2**20 else "killed or cancelled"
    reasons = {}
    for step in study.steps:
        if not (out / step.mark).exists() and (out / step.log).exists():
            said = text(out / step.log).strip() or _scheduler_said(out, step)
            complaint = said[said.rfind("fdn: ") :] if "fdn: " in said else said.rpartition("\n")[2]
            reasons[step.name] = complaint or f"ended without a word: {wordless}"
    return reasons or {"Snakemake": text(out / SAID).strip().rpartition("\n")[2] + f" (all it said: {SAID})"}


def _scheduler_said(out: Path, step: Step) -> str:
    """Why a job ended that could not say so itself, as far as SLURM wrote it down."""
    logs = (out / ".snakemake" / "slurm_logs" / f"rule_{step.rule}").rglob("*.log")
    said = "\n".join(map(text, sorted(logs, key=os.path.getmtime)))
    return "\n".join(re.findall(r"^(?:slurmstepd|srun)\S* .*", said, re.MULTILINE)[-1:])
