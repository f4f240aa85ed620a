"""The whole study as one graph: what ``workflow/Snakefile`` runs and ``fdn paper`` starts and reports.

The process that starts a run writes OUT/workflow/plan.json once; the jobs, on this machine or on a cluster's nodes,
read it. A finished step leaves an empty mark in OUT/workflow/done, and Snakemake is told of these marks alone: it
deletes the outputs it knows before a step runs and after one that fails, and results are not its to delete. Marks of
an earlier run are not trusted: the starting process holds each against the cells and files it stands for, and against
the age of the program, whose files Snakemake is not told of either: it would take braces in their folder for wildcards.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from fdn import data, paths
from fdn.arguments import choose, parse_names, parse_protocol, parse_seeds, seed_ranges
from fdn.data import uci
from fdn.errors import UserError
from fdn.protocol import STUDY_SEEDS as SEEDS

SNAKEFILE = paths.ROOT / "workflow" / "Snakefile"
PROFILES = paths.ROOT / "workflow" / "profiles"
PLAN, SAID = Path("workflow", "plan.json"), Path("workflow", "snakemake.log")
OVERVIEW = "05_figures_and_tables"
PRODUCTS = {"collect": "metrics.parquet", "tables": "tables", "figures": "figures", "compare": "compare.txt"}


@dataclass(frozen=True)
class Piece:
    """What one job computes: the cells of a block of seeds of one data set and model."""

    dataset: str
    model: str
    seeds: str
    cost: float  # rough and relative

    @property
    def name(self) -> str:
        """Of its mark and its log, and for messages."""
        return f"{self.dataset}/{self.model}/{self.seeds}"

    @property
    def rule(self) -> str:
        """The name of Snakemake's rule for all pieces of this data set and model."""
        return re.sub(r"\W", "_", f"cells_{self.dataset}_{self.model}")


@dataclass(frozen=True)
class Notebook:
    """A notebook to run with parameters, to which the results folder is added."""

    name: str
    source: str
    parameters: dict[str, object]


@dataclass(frozen=True)
class Study:
    """What a run of the workflow does. Paths are relative to the results folder."""

    protocol: str
    epochs: int | None
    label: str
    missing: tuple[str, ...]  # data sets whose files cannot be had
    pieces: tuple[Piece, ...]
    notebooks: tuple[Notebook, ...]

    def mark(self, step: str) -> Path:
        """The file that says a step is done; that of a piece is called by the piece's name."""
        return Path("workflow", "done", self.label, step)

    def log(self, step: str) -> Path:
        """What a step said."""
        return Path("workflow", "log", self.label, f"{step}.log")

    @property
    def products(self) -> dict[str, Path]:
        """Of each step after the cells: what it leaves in the results folder."""
        notebooks = {f"notebook/{n.name}": f"notebooks/{n.name}.ipynb" for n in self.notebooks}
        return {step: Path(product) for step, product in (PRODUCTS | notebooks).items()}


def plan(
    out: Path,
    tasks: Mapping[str, str] = SEEDS,
    models: Sequence[str] | None = None,
    protocol: str = "published",
    epochs: int | None = None,
) -> Study:
    """What a run is to do.

    Args:
        out: results folder.
        tasks: seeds of each data set, as :func:`fdn.arguments.parse_seeds` reads them.
        models: model names; by default the paper's six and the training mean.
        protocol: its name.
        epochs: fewer than the protocol has; the results then count as an ablation.

    Raises:
        UserError: for an unknown name or seeds that cannot be read.
    """
    from fdn.models import BASELINE, PAPER_MODELS
    from fdn.runs import experiment  # jobs, which only read the plan, need not wait for PyTorch

    settings = parse_protocol(protocol, epochs=epochs)
    models = (BASELINE, *PAPER_MODELS) if models is None else tuple(models)
    experiment.check_models(models)
    seeds = {name: parse_seeds(text) for name, text in tasks.items()}
    missing = _cannot_be_had(tasks)
    pieces, notebooks = [], []
    for name in [name for name in tasks if name not in missing]:
        dataset = experiment.load_dataset(name, settings)
        for model in models:
            blocks = experiment.plan([dataset], [model], seeds[name], settings, out, recompute=True)
            if model == BASELINE:  # takes no time: one job
                whole = experiment.blocks_of(seeds[name], most=len(seeds[name]))
                blocks = [experiment.Block(dataset, model, settings, tuple(block)) for block in whole]
            pieces += [Piece(name, model, seed_ranges(block.seeds), block.cost) for block in blocks]
        source = "03_toy" if name in data.TOY else "04_uci"
        for block in experiment.blocks_of(seeds[name]):  # a notebook for each
            shown = seed_ranges(block)
            parameters = {"dataset": name, "models": ",".join(models), "seeds": shown}
            parameters |= {"protocol": protocol, "epochs": 0 if epochs is None else epochs}
            notebooks.append(Notebook(f"{source}-{name}-{shown}", source, parameters))
    notebooks.append(Notebook(OVERVIEW, OVERVIEW, {"protocol": settings.label}))
    return Study(protocol, epochs, settings.label, missing, tuple(pieces), tuple(notebooks))


def _cannot_be_had(names: Iterable[str]) -> tuple[str, ...]:
    missing = []
    for name in names:
        data.check_name(name)
        try:
            if name in data.UCI:
                uci.fetch(name)
        except UserError:
            missing.append(name)
    return tuple(missing)


def absent_cells(study: Study, out: Path) -> dict[str, int]:
    """By name, the pieces that are not complete, and how many cells each lacks."""
    from fdn.runs import experiment

    settings = parse_protocol(study.protocol, epochs=study.epochs)
    absent = {}
    for piece in study.pieces:
        dataset = experiment.load_dataset(piece.dataset, settings)
        blocks = experiment.plan([dataset], [piece.model], parse_seeds(piece.seeds), settings, out)
        absent[piece.name] = sum(len(block.seeds) for block in blocks)
    return {name: count for name, count in absent.items() if count}


def prepare(study: Study, out: Path, complete_only: bool = False) -> dict[str, int]:
    """Write the plan and set the marks by what the results folder holds; returns :func:`absent_cells`.

    Args:
        study: from :func:`plan`.
        out: results folder.
        complete_only: leave the pieces that lack cells out of the plan, to show what there is.

    Raises:
        UserError: for a folder that cannot be written.
    """
    from fdn.runs import results

    absent = absent_cells(study, out)
    for piece in study.pieces:
        mark = out / study.mark(piece.name)
        if piece.name in absent:
            mark.unlink(missing_ok=True)
        elif not mark.exists():
            with results.atomic(mark):
                pass
    sources = dict.fromkeys(study.products, paths.program()) | {"collect": []}
    for notebook in study.notebooks:
        sources[f"notebook/{notebook.name}"] = [*paths.program(), paths.NOTEBOOKS / f"{notebook.source}.ipynb"]
    for step, product in study.products.items():
        mark = out / study.mark(step)
        if mark.exists():
            done = mark.stat().st_mtime_ns
            if not (out / product).exists() or any(source.stat().st_mtime_ns > done for source in sources[step]):
                mark.unlink()
    if complete_only:
        study = replace(study, pieces=tuple(piece for piece in study.pieces if piece.name not in absent))
    text = json.dumps(asdict(study), indent=1) + "\n"
    # the steps after the cells depend on it
    if not (out / PLAN).exists() or (out / PLAN).read_text(encoding="utf-8") != text:
        with results.atomic(out / PLAN) as path:
            path.write_text(text, encoding="utf-8")
    return absent


def read(out: Path) -> Study:
    """The plan that the starting process wrote."""
    content = json.loads((out / PLAN).read_text(encoding="utf-8"))
    content["missing"] = tuple(content["missing"])
    content["pieces"] = tuple(Piece(**piece) for piece in content["pieces"])
    content["notebooks"] = tuple(Notebook(**notebook) for notebook in content["notebooks"])
    return Study(**content)


def parse_tasks(text: str) -> dict[str, str]:
    """Seeds of each data set from one line.

    >>> parse_tasks("step=0:20 airfoil=0:10,99")
    {'step': '0:20', 'airfoil': '0:10,99'}

    Raises:
        UserError: for an unknown data set or one given twice.
    """
    parts = [part.partition("=")[::2] for part in text.split()]
    parse_names(",".join(name for name, _ in parts), data.NAMES, "data set")
    return dict(parts)


def request(config: Mapping[str, str]) -> dict[str, object]:
    """The arguments of :func:`plan` from Snakemake's ``--config``.

    >>> request({"tasks": "step=0:2", "models": "BayesNet,LP-FDNet", "epochs": 3})
    {'tasks': {'step': '0:2'}, 'models': ['BayesNet', 'LP-FDNet'], 'epochs': 3}

    Raises:
        UserError: for an unknown setting or name.
    """
    for name in config:
        choose(name, ("tasks", "models", "protocol", "epochs"), "setting")
    found = dict(config)
    if "tasks" in config:
        found["tasks"] = parse_tasks(config["tasks"])
    if "models" in config:
        found["models"] = config["models"].split(",")
    return found


def paper(study: Study, out: Path, profile: str = "local", say: Callable[[str], None] = print) -> None:
    """Run the workflow and say what was computed, what failed and why, and published beside reproduced.

    Args:
        study: from :func:`plan`.
        out: results folder; what it holds is not computed again.
        profile: a folder of ``workflow/profiles``, or the path of another one: where jobs run.
        say: takes the lines of the report.

    Raises:
        ModuleNotFoundError: without Snakemake.
        UserError: for an unknown profile, for a folder that cannot be written or in which another run is at work.
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
    with _alone(out):
        shutil.rmtree(out / "workflow" / "log", ignore_errors=True)
        absent, before = prepare(study, out), _times(study, out)
        total = sum(len(parse_seeds(piece.seeds)) for piece in study.pieces)
        say(f"{total} cells in {len(study.pieces)} jobs, {sum(absent.values())} cells to compute")
        failures = {} if _snakemake(out, settings, say) else _failures(study, out)
        lacking = absent_cells(study, out) if absent else {}
        if lacking and len(lacking) < len(study.pieces):
            say("\nSome cells are missing; what follows from the others:")
            prepare(study, out, complete_only=True)
            if _snakemake(out, settings, say):
                failures = {name: failures.get(name, "was not begun") for name in lacking}
            else:
                failures = _failures(study, out)
        changed = _times(study, out) != before
    say(f"\n{sum(absent.values()) - sum(lacking.values())} cells computed, {sum(lacking.values())} of {total} missing"
        if changed or lacking else "\nNothing to do: every cell, table, figure and notebook is there.")  # fmt: skip
    if (out / PRODUCTS["compare"]).exists():
        say("\n" + (out / PRODUCTS["compare"]).read_text(encoding="utf-8").rstrip())
    for name in study.missing:
        say(f"\nNot computed for want of its file: {name}; {uci.SOURCES[name].how_to_get}.")
    minutes, seconds = divmod(round(time.perf_counter() - start), 60)
    say(f"\nTotal time: {minutes} min {seconds} s")
    if failures:
        lines = [f"{step}: {reason}" for step, reason in failures.items()]
        raise RuntimeError("not everything could be done:\n" + "\n".join(lines) + "\nThe same command continues there.")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other runs out of a results folder until this one and its Snakemake have ended, however they end."""
    (out / "workflow").mkdir(parents=True, exist_ok=True)
    with (out / "workflow" / "lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another run is at work in {out}; wait for its end, or choose another folder") from error
        except OSError:  # a file system without locks
            pass
        os.set_inheritable(file.fileno(), True)
        yield


def start_snakemake(out: Path, profile: Path, *options: str, **streams: object) -> subprocess.Popen:
    """Snakemake for a prepared folder, an absolute path, without its own lock, which would outlive a run that is killed.

    It starts in the profile's folder, whose path it would take for a pattern.
    """
    places = ["--snakefile", SNAKEFILE, "--directory", out, "--profile", "."]
    command = [sys.executable, "-m", "snakemake", *places, "--nolock", *options]
    return subprocess.Popen(command, cwd=profile, env=os.environ | {"PYTHONUTF8": "1"}, **streams)


def _snakemake(out: Path, profile: Path, say: Callable[[str], None]) -> bool:
    """Whether Snakemake could do everything; what it says goes to a file, and how far it is to ``say``."""
    with (out / SAID).open("wb") as file, (out / SAID).open(encoding="utf-8", errors="replace") as said:
        inherits = {"stdout": file, "stderr": file, "close_fds": False}  # the lock too, should this process be killed
        process = start_snakemake(out, profile, "--config", "prepared=True", **inherits)
        try:
            while True:
                ended = process.poll() is not None
                for done, total in re.findall(r"^(\d+) of (\d+) steps", said.read(), re.MULTILINE):
                    say(f"{time.strftime('%H:%M:%S')}  {done} of {total} steps done")
                if ended:
                    return process.returncode == 0
                time.sleep(0.2)
        except KeyboardInterrupt:
            process.wait()  # it has been interrupted too, and ends its jobs
            raise


def _times(study: Study, out: Path) -> dict[str, int | None]:
    """When each step was done, None if it has not been."""
    marks = {step: out / study.mark(step) for step in (*(p.name for p in study.pieces), *study.products)}
    return {step: mark.stat().st_mtime_ns if mark.exists() else None for step, mark in marks.items()}


def _failures(study: Study, out: Path) -> dict[str, str]:
    """What each step that began and was not completed said last."""
    pieces = {piece.name: piece for piece in study.pieces}
    wordless = "the disk is full" if shutil.disk_usage(out).free < 2**20 else "killed or cancelled"
    reasons = {}
    for step, done in _times(study, out).items():
        log = out / study.log(step)
        if done is None and log.exists():
            said = _text(log).strip()
            if not said and step in pieces:
                said = _scheduler_said(out, pieces[step])
            complaint = said[said.rfind("fdn: ") :] if "fdn: " in said else said.rpartition("\n")[2]
            reasons[step] = complaint or f"ended without a word: {wordless}"
    return reasons or {"Snakemake": _text(out / SAID).strip().rpartition("\n")[2] + f" (all it said: {SAID})"}


def _text(log: Path) -> str:
    """What a program wrote, whatever its encoding."""
    return log.read_text(encoding="utf-8", errors="replace")


def _scheduler_said(out: Path, piece: Piece) -> str:
    """Why a job ended that could not say so itself, as far as SLURM wrote it down."""
    folder = out / ".snakemake" / "slurm_logs" / f"rule_{piece.rule}" / piece.seeds
    text = "\n".join(map(_text, sorted(folder.glob("*.log"), key=os.path.getmtime)))
    return "\n".join(re.findall(r"^(?:slurmstepd|srun)\S* .*", text, re.MULTILINE)[-1:])
