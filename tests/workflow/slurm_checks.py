"""The workflow on a real SLURM of one node, which this starts and stops; and locally on a disk that is full.

Run by `make slurm-test` and `make check`, as root, where Debian's slurm-wlm and munge are installed; what cannot be had
is said.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from fake_results import contents

from fdn import paths
from fdn.runs import results
from fdn.workflow import engine, study

SCRIPT = paths.ROOT / "workflow" / "one_node_slurm.sh"
MODELS = ("BayesNet", "LP-FDNet")
FDN = [sys.executable, "-m", "fdn"]
CELLS = ["--dataset", "step", "--models", ",".join(MODELS), "--seeds", "0:8", "--epochs", "1"]


def skip_unless(here: bool, what: str) -> None:
    if not here:
        pytest.skip(f"needs {what}")


def wait_for(condition: Callable[[], object], what: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.1)


@pytest.fixture
def tmp_path(tmp_path) -> Path:
    """A folder of as odd a name as jobs of SLURM can have."""
    return tmp_path.rename(tmp_path.with_name("of an odd name [a] ~ #1 ü"))


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    """The folder of a SLURM that runs."""
    skip_unless(os.geteuid() == 0 and shutil.which("sbatch") is not None, "root, slurm-wlm and munge")
    folder = Path("/run/fdn-slurm-test")
    subprocess.run([SCRIPT, "start", folder], check=True)
    yield folder
    subprocess.run([SCRIPT, "stop", folder], check=True)
    wait_for(lambda: not (folder / "slurmctld.pid").exists(), "the end of slurmctld", 30)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> bytes:
    """metrics.parquet as one process writes it that finds the loops of the CPU path compiled, as jobs do."""
    for name in ("first", "alone"):
        out = tmp_path_factory.mktemp(name)
        subprocess.run([*FDN, "run", *CELLS, "--workers", "1", "--out", out], check=True, cwd=paths.ROOT)
    return (out / "metrics.parquet").read_bytes()


@pytest.fixture
def profile(tmp_path) -> Path:
    """The profile for SLURM, but with a glance at the queue every other second."""
    text = (engine.PROFILES / "slurm" / "config.yaml").read_text(encoding="utf-8")
    text, changed = re.subn(r"(?m)^(.*status-checks): .*$", r"\1: 2", text)
    assert changed == 2
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    return folder


def paper(out: Path, profile: Path | str) -> subprocess.Popen:
    """`fdn paper` in a session of its own."""
    command = [*FDN, "paper", *CELLS, "--out", out, "--profile", profile]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    return subprocess.Popen(command, cwd=paths.ROOT, start_new_session=True, **pipes)


def ended(run: subprocess.Popen, status: int) -> str:
    """What a run said, once it has ended with this status."""
    said, _ = run.communicate(timeout=900)
    assert run.returncode == status, said
    return said


def assert_same_results(out: Path, alone: bytes) -> None:
    """But for what the order of sums makes of another composition of blocks."""
    pd.testing.assert_frame_equal(results.load_metrics(out), pd.read_parquet(io.BytesIO(alone)), rtol=1e-6)


def times(out: Path) -> dict[str, int]:
    """When each cell was written."""
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in out.glob("cells/*/*/*/*.json")}


def jobs() -> dict[str, str]:
    """What runs now: job ids, and the rule each is for."""
    listed = subprocess.run(
        ["squeue", "--noheader", "--states=R", "--format=%i %k"], capture_output=True, encoding="utf-8"
    )
    return dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())


def test_a_cluster_gives_the_same_bytes_and_a_second_call_computes_nothing(slurm, profile, alone, tmp_path):
    out = tmp_path / "out"
    said = ended(paper(out, profile), 0)
    assert "16 cells computed, 0 of 16 missing" in said and "published numbers" in said
    assert (out / "metrics.parquet").read_bytes() == alone
    submitted = (out / engine.SAID).read_text(encoding="utf-8").count("has been submitted with SLURM jobid")
    assert submitted == len(study.read(out).steps)
    cells = times(out)
    said = ended(paper(out, profile), 0)
    assert "0 cells to compute" in said and times(out) == cells
    assert "rule step_" not in (out / engine.SAID).read_text(encoding="utf-8")


def test_what_scancel_and_a_killed_slurmd_leave_is_done_by_the_next_call(slurm, profile, alone, tmp_path):
    out = tmp_path / "out"
    run = paper(out, profile)
    wait_for(lambda: any("LP_FDNet" in rule for rule in jobs().values()), "a job")
    [job] = [job for job, rule in jobs().items() if "LP_FDNet" in rule]
    subprocess.run(["scancel", job], check=True)
    said = ended(run, 1)
    left = 8 - len(list(out.glob("cells/*/step/LP-FDNet/*.json")))
    assert left and f"{left} of 16 missing" in said
    assert re.search(rf"step/LP-FDNet/0:8: .*(JOB|STEP) {job}\S* .*CANCELLED", said)
    assert (out / "tables").is_dir(), "tables of what there is"
    cancelled = times(out)

    run = paper(out, profile)
    wait_for(lambda: any("LP_FDNet" in rule for rule in jobs().values()), "the job again")
    [job] = [job for job, rule in jobs().items() if "LP_FDNet" in rule]
    listed = subprocess.run(["scontrol", "listpids", job], capture_output=True, encoding="utf-8").stdout.splitlines()[
        1:
    ]
    pids = [
        int(pid) for pid in [(slurm / "slurmd.pid").read_text(encoding="utf-8"), *(line.split()[0] for line in listed)]
    ]
    for pid in pids:
        if pid > 1:  # SLURM lists -1 for what it does not know yet, and that stands for every process there is
            os.kill(pid, signal.SIGKILL)
    time.sleep(5)
    subprocess.run([SCRIPT, "slurmd", slurm], check=True)
    run.communicate(timeout=900)  # SLURM may have queued the job again, or not
    killed = times(out)
    assert cancelled.items() <= killed.items()
    ended(paper(out, profile), 0)
    assert len(times(out)) == 16 and killed.items() <= times(out).items()
    assert_same_results(out, alone)


def test_all_of_it_killed_at_a_random_moment(alone, tmp_path):
    out = tmp_path / "out"
    run = paper(out, "local")
    wait_for(lambda: times(out), "the first cell")
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    killed = times(out)
    said = ended(paper(out, "local"), 0)
    assert f"{16 - len(killed)} cells computed, 0 of 16 missing" in said
    assert killed.items() <= times(out).items()
    assert_same_results(out, alone)


def test_a_full_disk(alone, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", disk], capture_output=True).returncode == 0
    )
    skip_unless(mounted, "leave to mount a small disk")
    try:
        said = ended(paper(disk / "out", "local"), 1)
        assert "No space left on device" in said or "the disk is full" in said
        assert "0 of 16 missing" not in said
        full = times(disk / "out")
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        ended(paper(disk / "out", "local"), 0)
        assert len(times(disk / "out")) == 16 and full.items() <= times(disk / "out").items()
        assert_same_results(disk / "out", alone)
        assert not [name for name in contents(disk / "out") if name.endswith(".part")]
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
