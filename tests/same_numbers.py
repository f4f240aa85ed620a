"""Whether this working tree computes the numbers of another commit, and the committed ones: ``make same-numbers``.

The guard of every restructuring. Both trees are driven through their command lines on this machine, with their compiled
loops found, not compiled (the process that compiles a loop may round differently), and every file of results is
compared: byte by byte, and where bytes differ value by value, for a format may change while the numbers stay. The
committed results come from another processor: there kept epochs must be equal, and numbers to 1e-9.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import platformdirs

ROOT = Path(__file__).resolve().parent.parent
CACHE = platformdirs.user_cache_path(
    "fdn-same-numbers"
)  # the other commit's tree, and the compiled loops of the last trees
UCI_FILES = {"airfoil": "airfoil_self_noise.dat", "ccpp": "Folds5x2_pp.xlsx", "energy": "ENB2012_data.xlsx"}
TOY = ("step", "sine", "quad")
MODELS = "TrainingMean,MLPNet,HyperNet,MLPDropoutNet,DeepEnsembleNet,BayesNet,GaussHyperNet,IC-FDNet,LP-FDNet"
SHORT = ("--models", MODELS, "--seeds", "1,4", "--epochs", "10")  # an ensemble of 10 divides them by 10
COMMITTED = {"as_written": ("energy",), "published": ("step", "sine", "energy")}  # trained for all their epochs
TOLERANCE = 1e-9
EXCEPTIONS: dict[str, str] = {}  # "protocol dataset model" of committed cells that may differ, and why; none so far


def read(path: Path) -> pd.DataFrame:
    """The columns of a file of results; a JSON file is one row."""
    return (
        pd.read_parquet(path)
        if path.suffix == ".parquet"
        else pd.json_normalize(json.loads(path.read_text(encoding="utf-8")))
    )


def differences(expected: pd.DataFrame, found: pd.DataFrame, scale: pd.Series | None = None) -> dict[str, float]:
    """The columns that differ in a bit, and by how much: relative to the column's largest number, or to ``scale``
    where that is larger; infinite for what is not a float, or is no longer there. NaN equals NaN. A column that is only
    found is a metric added since: no number has changed."""
    sizes = dict.fromkeys(expected.columns.difference(found.columns), np.inf)
    for name in expected.columns.intersection(found.columns):
        a, b = expected[name].to_numpy(), found[name].to_numpy()
        if a.dtype != b.dtype or a.shape != b.shape or a.dtype.kind != "f":
            if a.dtype != b.dtype or a.tolist() != b.tolist():
                sizes[name] = np.inf
            continue
        same = (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")) | (np.isnan(a) & np.isnan(b))
        if not same.all():
            largest = np.nanmax(np.abs(a), initial=0.0 if scale is None else scale[name]) or 1.0
            sizes[name] = float(np.nan_to_num(np.abs(a - b)[~same] / largest, nan=np.inf, posinf=np.inf).max())
    return sizes


def compare_folders(expected: Path, found: Path) -> tuple[Counter, dict[str, dict[str, float]]]:
    """How many files of two results folders are equal, by kind of equality.

    And of each "protocol dataset model" what differs.
    """
    files = [{p.relative_to(f) for p in f.rglob("*.*") if p.is_file()} for f in (expected, found)]
    equal, differing = Counter(), defaultdict(dict)
    for path in sorted(path for path in files[0] | files[1] if path.parts[0] not in ("sidecar", "fits")):
        if path not in files[0] & files[1]:
            sizes = {f"{path} only in {'REF' if path in files[0] else 'this tree'}": np.inf}
        elif (expected / path).read_bytes() == (found / path).read_bytes():
            equal["to the byte"] += 1
            continue
        else:
            sizes = differences(read(expected / path), read(found / path))
            equal["in every bit of every value that both have"] += not sizes
        where = differing[" ".join(path.parts[1:-1]) or str(path)] if sizes else {}
        for name, size in sizes.items():
            name = f"{path.parts[0]}.{name}" if len(path.parts) > 1 else name
            where[name] = max(size, where.get(name, 0.0))
    return equal, dict(differing)


def compare_committed(out: Path) -> tuple[int, float, dict[str, dict[str, float]]]:
    """The number of freshly trained cells, the largest difference within the tolerance, and what differs by more.

    A metric near 0 is judged by its usual size: the median of its committed values for the same protocol, data set and
    model.
    """
    key, computed = ["protocol", "dataset", "model"], pd.read_parquet(out / "metrics.parquet")
    n, worst, differing = 0, 0.0, {}
    for folder in (ROOT / "data" / "results", ROOT / "data" / "extras"):
        committed = pd.read_parquet(folder / "metrics.parquet")
        for (protocol, dataset, model, seed), found in computed.groupby([*key, "seed"]):
            rows = committed[(committed[key] == [protocol, dataset, model]).all(axis=1)]
            expected = rows[rows["seed"] == seed]
            if expected.empty:
                continue
            expected = expected[rows.columns[rows.notna().any()]]  # what none of them has was added later
            sizes = differences(expected, found, rows.select_dtypes("float").abs().median().fillna(0.0))
            points = Path("points", protocol, dataset, model, f"{seed}.parquet")
            if (folder / points).exists():
                sizes |= {
                    f"points.{name}": size
                    for name, size in differences(read(folder / points), read(out / points)).items()
                }
            n, worst = n + 1, max([worst, *(size for size in sizes.values() if size <= TOLERANCE)])
            if more := {name: size for name, size in sizes.items() if size > TOLERANCE}:
                differing[f"{protocol} {dataset} {model}"] = more
    return n, worst, differing


class Tree:
    """A checkout, driven by its command line only, whatever its package is called."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package, source = ("fdn", root / "lib") if (root / "lib" / "fdn").is_dir() else ("lib", root)
        digest = hashlib.sha256()
        for path in sorted(p for top in ("lib", "fdn_kernels") for p in (root / top).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
        # One cache for each state of the sources: Numba looks at a loop's own file, not at those of the loops it is
        # made of.
        self.cache = CACHE / "numba" / digest.hexdigest()[:16]
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, (source, root)))), "NUMBA_CACHE_DIR": str(self.cache),
            "FDN_DATA_DIR": str(data_folder()), "FDN_OFFLINE": "1", "FDN_ROOT": str(root), "OMP_NUM_THREADS": "1",
            "TQDM_DISABLE": "1",
        }  # fmt: skip
        place = self._python("-c", f"import {self.package}; print({self.package}.__file__)").strip()
        if not Path(place).is_relative_to(root):
            raise SystemExit(f"make same-numbers: {self.package} is imported from {place}, not from {root}")

    def _python(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=self.environment, capture_output=True, encoding="utf-8"
        )
        if done.returncode:
            raise SystemExit(
                f"make same-numbers: in {self.root} this failed: {' '.join(arguments)}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def run(self, settings: Sequence[Sequence[str]], out: Path) -> None:
        """``fdn run`` with each of the settings, a process per core, again until nothing had to be compiled."""
        self.cache.mkdir(parents=True, exist_ok=True)
        self.cache.touch()
        for _ in range(5):
            compiled = self._compiled()
            shutil.rmtree(out, ignore_errors=True)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                command = ("-m", self.package, "run", "--workers", "1", "--cells-only", "--out", str(out))
                list(pool.map(lambda options: self._python(*command, *options), settings))
            if compiled and self._compiled() == compiled:
                self._python("-m", self.package, "collect", "--out", str(out))
                return
        raise SystemExit(
            f"make same-numbers: {self.root} compiles its loops anew in every process, so its numbers "
            "cannot be compared"
        )

    def _compiled(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in self.cache.rglob("*.nb?")}


def data_folder() -> Path:
    """Where the UCI files are, for both trees."""
    return Path(os.environ.get("FDN_DATA_DIR") or ROOT / "data" / "raw").resolve()


@contextmanager
def checkout(reference: str) -> Iterator[tuple[Path, str]]:
    """A worktree of a commit, and its short name; always in the same place, so that compiled loops are found again."""

    def git(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, encoding="utf-8")

    commit = git("rev-parse", "--short", "--verify", f"{reference}^{{commit}}")
    if commit.returncode:
        raise SystemExit(
            f"make same-numbers: REF is {reference!r}, expected a commit of this repository: {commit.stderr.strip()}"
        )
    place = CACHE / "reference"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one comparison at a time: they share the place
        try:
            _remove(git, place)  # of a run that was killed
            added = git("worktree", "add", "--force", "--detach", str(place), commit.stdout.strip())
            if added.returncode:
                raise SystemExit(f"make same-numbers: cannot check out {reference}: {added.stderr.strip()}")
            yield place, commit.stdout.strip()
        finally:
            _remove(git, place)
            for old in sorted((CACHE / "numba").glob("*"), key=os.path.getmtime)[:-8]:
                shutil.rmtree(old, ignore_errors=True)


def _remove(git, place: Path) -> None:
    git("worktree", "remove", "--force", str(place))
    shutil.rmtree(place, ignore_errors=True)
    git("worktree", "prune")


def report(title: str, differing: dict[str, dict[str, float]]) -> None:
    """Print what differs, one line for each protocol, data set and model, the largest first."""
    for where, sizes in differing.items():
        largest = sorted(sizes.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {'differs' if np.isinf(size) else f'by {size:.1e}'}" for name, size in largest[:6])
        print(f"{title}: {where}: {shown}{f' and {len(sizes) - 6} more' if len(sizes) > 6 else ''}")


def main() -> int:
    """Compare and report; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ref", default="HEAD", help="the commit to compare this working tree with (default: HEAD)")
    reference = parser.parse_args().ref
    uci = [name for name, file in UCI_FILES.items() if (data_folder() / file).is_file()]
    datasets = (*TOY, *uci, "diabetes")
    print(f"Data sets: {', '.join(datasets)}")
    if absent := [name for name in UCI_FILES if name not in uci]:
        print(f"Left out, for want of their files in {data_folder()}: {', '.join(absent)}")
    groups = [group for group in (uci, [*TOY, "diabetes"]) if group]  # the slowest first
    settings = [
        ("--protocol", p, "--dataset", ",".join(group), *SHORT) for p in ("as_written", "published") for group in groups
    ]
    changed = ("objective=iwae", "train_draws=3"), ("dtype=float32",)  # what the two protocols' own steps leave out
    settings += [("--dataset", "step", *SHORT, *(f"--set={change}" for change in changes)) for changes in changed]
    with tempfile.TemporaryDirectory(prefix="same-numbers-") as folder, checkout(reference) as (place, commit):
        here, out = Tree(ROOT), Path(folder)
        Tree(place).run(settings, out / "reference")
        here.run(settings, out / "here")
        equal, differing = compare_folders(out / "reference", out / "here")
        report(f"not as in {commit}", differing)
        print(f"Against {commit}: " + "".join(f"{n} files of results equal {how}, " for how, n in equal.items() if n)
              + (f"numbers of {len(differing)} (protocol, data set, model) differ" if differing
                 else "none differs"))  # fmt: skip
        full = []
        for protocol, names in COMMITTED.items():
            for path in (ROOT / "data" / "results" / "points" / protocol).glob("*/LP-FDNet/*.parquet"):
                if (name := path.parts[-3]) in names and name in datasets:
                    full.append(("--protocol", protocol, "--dataset", name, "--seeds", path.stem, "--models", MODELS))
        here.run(full, out / "full")
        n, worst, beyond = compare_committed(out / "full")
    excepted = {where: beyond.pop(where) for where in EXCEPTIONS if where in beyond}
    report("not as committed", beyond)
    for where in excepted:
        print(f"not as committed, as expected: {where}: {EXCEPTIONS[where]}")
    print(f"Against the committed results: {n} cells, equal kept epochs and numbers to "
          f"{worst:.1e} (allowed: {TOLERANCE:g})"
          + (f"; beyond that: {len(beyond)}, excepted: {len(excepted)}" if beyond or excepted else ""))  # fmt: skip
    return int(bool(differing or beyond or not n or not equal))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("make same-numbers: interrupted")
