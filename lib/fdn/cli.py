"""The command line: ``fdn COMMAND``, or ``python -m fdn COMMAND``.

A mistake of the person at the keyboard is answered by one sentence and status 2, cells that could not be
computed by status 1, an interruption by status 130.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import torch

from fdn import data, devices, models, paths
from fdn.arguments import SEEDS_SYNTAX, parse_names, parse_parameter, parse_protocol, parse_seeds
from fdn.data import uci
from fdn.data.dataset import Dataset
from fdn.data.reading import Reading
from fdn.errors import UserError
from fdn.protocol import PROTOCOLS, RECOMMENDED, Protocol
from fdn.report import comparison, console, published, tables
from fdn.runs import experiment, extras, results
from fdn.settings import Count, Whole, choose, described, parsed
from fdn.terminal import open_streams

EXTRAS = {  # of pyproject.toml: the modules that each brings
    "study": ("fontTools", "matplotlib", "openpyxl", "pooch", "requests"),
    "notebooks": ("jupytext", "nbclient", "nbconvert", "nbformat", "papermill"),
    "rivals": ("laplace", "mapie", "ngboost"),
    "workflow": ("snakemake",),
    "site": ("PIL", "bs4", "docutils", "furo", "jinja2", "myst_nb", "sphinx"),
}


@dataclass(frozen=True)
class Option:
    """An option or argument: its spellings, and what else ``add_argument`` takes."""

    names: Sequence[str]
    settings: dict[str, object]


@dataclass(frozen=True)
class Command:
    """What a command does, in words and in code, and how it is called."""

    name: str
    text: str
    call: Callable[[argparse.Namespace], None]
    options: Sequence[Option | tuple[Option, ...]]  # those of a tuple exclude one another
    examples: Sequence[str]  # what follows the name
    checkout: bool  # whether it needs files of the repository, which an installed package lacks

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        for given in self.options:
            alone = isinstance(given, Option)
            group = parser if alone else parser.add_mutually_exclusive_group()
            for one in (given,) if alone else given:
                group.add_argument(*one.names, **one.settings)


COMMANDS: dict[str, Command] = {}  # in the order of --help


def command(*options: Option | tuple[Option, ...], examples: Sequence[str] = ("",), checkout: bool = False) -> Callable:
    """Decorator: the function becomes the command of its name, its docstring what --help says of it."""

    def enter(call: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
        name = call.__name__.strip("_")
        COMMANDS[name] = Command(name, call.__doc__, call, options, examples, checkout)
        return call

    return enter


def _filled(text: str) -> str:
    """The text given to an option or argument; an empty one comes of a shell variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is empty; leave it out for its default, or give a value")
    return text


def _folder(text: str) -> Path:
    """An absolute path: libraries give a dash or tilde at the beginning a meaning of its own."""
    return Path(_filled(text)).absolute()


def _file(text: str) -> Path:
    if _folder(text).is_dir() or text.endswith(os.sep):
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; name a file, in it or elsewhere")
    return _folder(text)


def _input(text: str) -> Path:
    if not _file(text).exists():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return _file(text)


def _sign(text: str) -> str:
    """A separator, which may be a tab."""
    return "\t" if text in ("\t", r"\t", "tab") else _filled(text)


def _number(text: str) -> int:
    try:
        return parsed("it", text, Count)
    except UserError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {described(Count)}") from error


def _named(text: str | None, known: Collection[str] = data.NAMES, what: str = "data set") -> list[str] | None:
    return None if text is None else parse_names(text, known, what)


def option(names: str, text: str, **settings: object) -> Option:
    return Option(names.split(), {"help": text, **settings})


def out(inside: str = "", what: str = "") -> Option:
    """The folder to write to, by default one in out."""
    default = f"default: {Path('out', inside).as_posix()}"
    return option("--out", f"{what} ({default})" if what else default, default=paths.DEFAULT_OUT / inside, **FOLDER)


FILE = {"type": _file, "metavar": "FILE"}
FLAG = {"action": "store_true"}
FOLDER = {"type": _folder, "metavar": "DIR"}
NUMBER = {"type": _number}
REPEATED = {"action": "append", "default": []}

ALL_MODELS = (*models.MODEL_NAMES, models.BASELINE)
RIVAL_SETS = (*data.DEVELOPMENT_SETS, *data.VERDICT_SETS)
PLACES = f"{', '.join(devices.DEVICES)}: where training and prediction run"
SIX = ",".join(models.PAPER_MODELS)

DATASET = "--dataset --datasets"
DATASETS = option(DATASET, "default: the paper's six, as far as their files can be had")
EPOCHS = option("--epochs", "fewer epochs; the results then count as an ablation", **NUMBER)
LABELS = "a protocol, or the label of an ablation such as published+warmup=50 (default: published)"
PROTOCOL = option("--protocol", f"{' or '.join(PROTOCOLS)} (default: published)", default="published")
SEEDS = option("--seeds", f"{SEEDS_SYNTAX} (default: 0:5)", default="0:5")
STORED = (
    option("--results", "default: out if it holds results, else the committed ones", **FOLDER),
    option("--protocol", LABELS, default="published"),
)
READING = (
    option("--separator", "of a CSV file's columns (default: found)", type=_sign, metavar="SIGN"),
    option("--decimal", "the decimal sign, . or , (default: found)", metavar="SIGN"),
    option("--encoding", "of a CSV file, such as utf-8 or cp1252 (default: found)", metavar="NAME"),
    option("--device", f"{PLACES} (default: cpu)", default="cpu"),
)
WORKERS = option("--workers", "processes (default: one per core)", **NUMBER)


def _stored(args: argparse.Namespace, with_committed: bool = False) -> tuple[Path, Protocol, pd.DataFrame]:
    """The results folder to read, the protocol of the given label, and the metrics."""
    folder = console.find_results(args.results)
    print(f"Reading {console.shown_path(folder)}", file=sys.stderr)
    protocol = parse_protocol(args.protocol)
    metrics = comparison.with_committed(folder) if with_committed else extras.read(folder)
    console.check_protocol(metrics, protocol.label, folder)
    return folder, protocol, metrics


def _device(args: argparse.Namespace) -> torch.device:
    chosen = devices.choose_device(args.device)
    if args.device == "auto" and chosen == devices.CPU:
        print("There is no GPU that PyTorch can use; this runs on the CPU.", file=sys.stderr)
    return chosen


def _reading(args: argparse.Namespace, missing: Sequence[str] = ()) -> Reading:
    return Reading(args.separator or "", args.decimal or "", args.encoding or "", [*Reading.missing, *missing])


def _say_written(files: Iterable[Path]) -> None:
    print("Written: " + ", ".join(map(console.shown_path, files)))


# The commands


@command(
    option(DATASET, f"of {', '.join(data.NAMES)} (default: the paper's six)"),
    option("--models", f"of {', '.join(ALL_MODELS)} (default: the six stochastic ones)", default=SIX),
    SEEDS,
    PROTOCOL,
    option(
        "--set", "replace a setting of the protocol, as an ablation; may be repeated", metavar="FIELD=VALUE", **REPEATED
    ),
    option("--epochs", "the same as --set epochs=EPOCHS", **NUMBER),
    out(what="results folder"),
    option("--workers", "processes (default: one per core, or one on a GPU)", **NUMBER),
    option("--device", f"{PLACES} (default: cpu)", default="cpu"),
    option("--recompute", "compute cells that exist again", **FLAG),
    option("--cells-only", "leave metrics.parquet to `fdn collect`", **FLAG),
    option("--csv", "your own comma-separated table, with header", **FILE),
    option("--target", "column of FILE to predict", metavar="COLUMN"),
    option("--split-column", "column of FILE whose 20-80 %% band is in distribution", metavar="COLUMN"),
    examples=(
        "--dataset step,sine --models LP-FDNet,BayesNet --seeds 0:20 --protocol published --out out",
        "--dataset step --models LP-FDNet --seeds 3,7 --set warmup=50 --set noise=independent",
        "--csv houses.csv --target price --split-column area --seeds 0:5",
    ),
)
def _run(args: argparse.Namespace) -> None:
    """Train and test models; only cells that DIR lacks are computed."""
    protocol, device = parse_protocol(args.protocol, args.set, args.epochs), _device(args)
    seeds = parse_seeds(args.seeds)
    chosen = parse_names(args.models, ALL_MODELS, "model")
    datasets = [*(_named(args.dataset) or ()), *_own_table(args)] or list(published.DATASETS)
    options = {"workers": args.workers, "recompute": args.recompute, "device": device, "gather": not args.cells_only}
    if protocol.dtype == "float32" and protocol.base != RECOMMENDED.base and device.type == "cpu":
        print("fdn: on the CPU float32 takes longer than float64, for which the loops are compiled", file=sys.stderr)
    frame = experiment.run(datasets, chosen, seeds, protocol, args.out, **options)
    if args.cells_only:
        return
    print(f"Medians over seeds, protocol {protocol.label}:\n\n{console.medians(frame)}\n")
    out = console.shown_path(args.out)
    print(f"Written: {out}/metrics.parquet, a row per cell, and {out}/points, a row per test point")


def _own_table(args: argparse.Namespace) -> list[Dataset]:
    """The table of --csv, if any of the options about it is given."""
    given = {"--csv": args.csv, "--target": args.target, "--split-column": args.split_column}
    absent = [option for option, value in given.items() if value is None]
    if len(absent) == len(given):
        return []
    if absent:
        raise UserError(f"a table of your own needs --csv, --target and --split-column; {absent[0]} is missing")
    name = args.csv.stem
    if not re.fullmatch(r"\w[\w .-]*", name):
        raise UserError(
            f"the file's name is the data set's, and {name!r} has other characters than letters, digits, blanks and "
            "._-; rename the file"
        )
    return [data.from_frame(args.csv, target=args.target, split_column=args.split_column, name=name)]


@command(*STORED, out("tables"), examples=("", "--results out --out out/tables"), checkout=True)
def _tables(args: argparse.Namespace) -> None:
    """Write every table of a results folder."""
    _, protocol, metrics = _stored(args)
    written = tables.all_tables(metrics, experiment.datasets_of(metrics, protocol), protocol.label, args.out)
    print(f"Written: {len(written)} files in {console.shown_path(args.out)} (Markdown, LaTeX and CSV)")


@command(
    *STORED,
    option(DATASET, "default: all that have results"),
    out("figures"),
    examples=("", "--dataset step --results out --out out/figures"),
)
def _figures(args: argparse.Namespace) -> None:
    """Draw every figure of a results folder."""
    from fdn.report import figures

    folder, protocol, metrics = _stored(args)
    datasets = experiment.datasets_of(metrics, protocol)
    shown = {name: datasets[name] for name in _named(args.dataset, datasets) or datasets}
    written, notes = figures.write_figures(folder, metrics, shown, protocol, args.out)
    for note in notes:
        print(f"not drawn: {note}", file=sys.stderr)
    print(f"Written: {len(written)} files in {console.shown_path(args.out)} (PDF and PNG)")


@command(
    *STORED,
    (
        option("--misses", "only the numbers outside the range of the seeds", **FLAG),
        option("--all", "every number as well", **FLAG),
        option(
            "--explain",
            "only this data set and model, seed by seed, with the published values in standard deviations",
            metavar="DATASET,MODEL",
        ),
    ),
    option("--out", "also write DIR/compare.csv and the page DIR/compare.md", **FOLDER),
    examples=("", "--results out --misses", "--explain step,LP-FDNet", "--results data/results --out data/comparison"),
    checkout=True,
)
def _compare(args: argparse.Namespace) -> None:
    """Compare the 252 published numbers with reproduced ones."""
    from fdn.report.pages.comparison import write_comparison

    _, protocol, metrics = _stored(args, with_committed=True)
    if args.explain is not None:
        dataset, _, model = (part.strip() for part in args.explain.partition(","))
        choose(dataset, published.DATASETS, "data set")
        choose(model, models.PAPER_MODELS, "model")
        print(console.diagnosis(metrics, dataset, model, protocol.label))
        return
    numbers = comparison.compare(metrics, protocol.label)
    outside = comparison.misses(numbers)
    if args.all:
        print(console.numbers(numbers) + "\n")
    if not args.misses:
        print(console.scores(numbers) + "\n")
        print(console.uniformity(metrics, protocol.label) + "\n")
    print(f"Outside the range of our seeds: {len(outside)}")
    if len(outside):
        print(console.numbers(outside))
    print("\n" + console.open_questions(numbers))
    if args.out is not None:
        written = write_comparison(args.out, metrics, protocol.label)
        print()
        _say_written(written)


@command(
    option("names", f"of {', '.join(data.NAMES)} (default: all)", nargs="*", metavar="NAME"),
    option("--fetch", "download what is missing", **FLAG),
    examples=("", "--fetch", "--fetch airfoil energy"),
)
def _data(args: argparse.Namespace) -> None:
    """Show, verify and fetch the data sets."""
    for name in args.names:
        data.check_name(name)
    names = args.names or list(data.NAMES)
    problems = []
    for name in [name for name in names if name in data.UCI and (args.fetch or uci.find(name))]:
        try:
            uci.fetch(name)
        except UserError as error:
            problems.append(str(error))
    table = uci.status().set_index("name")
    for name in names:
        said = "needs no file"
        if name in data.UCI:
            row = table.loc[name]
            said = f"{row['file']} in {row['found']}, {row['rows']} rows, sha256 {row['sha256']}"
            if row["found"] == "missing":
                said = f"missing: {uci.SOURCES[name].how_to_get}"
        print(f"{name:9} {said}")
    if problems:
        raise UserError(" | ".join(problems))


@command(
    (
        option("--features", "number of inputs (default: 1)", default=1, **NUMBER),
        option("--dataset", "as many inputs as this data set has"),
    ),
    option("--parameters --target", "solve the widths for about P parameters", metavar="P", **NUMBER),
    PROTOCOL,
    examples=("", "--features 8 --parameters 1000", "--dataset energy --protocol as_written"),
)
def _budget(args: argparse.Namespace) -> None:
    """Show the models' parameter counts, or solve widths for a target."""
    protocol = parse_protocol(args.protocol)
    if args.parameters is not None:
        protocol = replace(protocol, widths="budget", budget=args.parameters)
    n_features = args.features
    if args.dataset is not None:
        data.check_name(args.dataset)
        n_features = experiment.load_dataset(args.dataset, protocol).n_features
    print(console.text_of(tables.model_table(protocol, [n_features])))


@command(
    out(),
    SEEDS,
    option("--ccpp-seeds", "seeds of ccpp, the largest set (default: 0:2)", default="0:2"),
    EPOCHS,
    DATASETS,
    examples=(
        "--out out --seeds 0:5 --ccpp-seeds 0:2",
        "--dataset step,diabetes --seeds 0:2 --epochs 20 --out out/short",
    ),
    checkout=True,
)
def _reproduce(args: argparse.Namespace) -> None:
    """The paper in one call, from data to figures; continues an earlier call."""
    from fdn.workflow import engine, study

    names = _named(args.dataset)
    tasks = {name: args.ccpp_seeds if name == "ccpp" else args.seeds for name in names or published.DATASETS}
    options = {"epochs": args.epochs, "required": names is not None, "stand_in": args.seeds}
    engine.run(study.plan(args.out, tasks, ALL_MODELS, **options), args.out)


@command(
    out(what="results folder"),
    DATASETS,
    option(
        "--seeds",
        f"{SEEDS_SYNTAX}, for every data set (default: 20 for a toy task, 100 for airfoil, 3 for ccpp and energy)",
    ),
    option("--models", "default: the paper's six and the training mean"),
    PROTOCOL,
    EPOCHS,
    option(
        "--profile",
        "where jobs run: local, slurm or the folder of another Snakemake profile (default: local)",
        default="local",
        metavar="NAME",
    ),
    examples=("--out out", "--out out --profile slurm", "--dataset step --seeds 0:2 --epochs 1"),
    checkout=True,
)
def _paper(args: argparse.Namespace) -> None:
    """The whole study, 20 to 100 seeds a task, on this machine's cores or a cluster; continues an earlier call."""
    from fdn.workflow import engine, study

    names = _named(args.dataset)
    tasks = {name: study.STUDY_SEEDS.get(name, "0:20") if args.seeds is None else args.seeds
             for name in names or published.DATASETS}  # fmt: skip
    chosen, required = _named(args.models, ALL_MODELS, "model"), names is not None
    engine.run(study.plan(args.out, tasks, chosen, args.protocol, args.epochs, required), args.out, args.profile)


@command(out(what="results folder"), examples=("--out out",))
def _collect(args: argparse.Namespace) -> None:
    """Gather the cells of a results folder into its metrics.parquet."""
    if not results.cells(args.out):
        raise UserError(f"{args.out} holds no cells to gather; `fdn run --out` writes them")
    frame = results.collect(args.out)
    print(f"Written: {console.shown_path(args.out / 'metrics.parquet')}, {len(frame)} cells")


@command(
    option("name", "of a notebook, such as 03_toy", metavar="NAME"),
    option("--out", "the notebook as it ran", required=True, **FILE),
    option("--set", "set one of its parameters; may be repeated", metavar="NAME=VALUE", **REPEATED),
    examples=("03_toy --out out/03_toy-step.ipynb --set dataset=step --set seeds=0:20 --set out=$PWD/out",),
    checkout=True,
)
def _notebook(args: argparse.Namespace) -> None:
    """Run a notebook with parameters; FILE appears once every cell of it has run."""
    from fdn.workflow import notebooks

    source = paths.NOTEBOOKS / f"{args.name}.ipynb"
    types, parameters = notebooks.parameters_of(source), {}
    for setting in args.set:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"cannot read the parameter {setting!r}; expected name=value such as seeds=0:20")
        parameters[name] = parse_parameter(name, text, types.get(name))
    notebooks.run_with_parameters(source, args.out, parameters)


@command(out(what="the run's folder"), examples=("--out out",), checkout=True)
def _publish(args: argparse.Namespace) -> None:
    """Copy results, figures and notebooks to the tracked places."""
    from fdn.workflow.publish import publish

    publish(args.out)


@command(out("differences"), SEEDS, WORKERS, examples=("", "--seeds 0:3 --out out/differences"), checkout=True)
def _differences(args: argparse.Namespace) -> None:
    """Measure what each difference between print and published runs does, and write the page."""
    from fdn.report.pages import differences as page
    from fdn.runs import differences, groups

    groups.run(differences.MEASURED, args.out, args.seeds, args.workers)
    _say_written(page.write(args.out))


@command(
    option("--only", "of those on the page data/extras (default: all)", metavar="GROUPS"),
    option("--seeds", f"{SEEDS_SYNTAX} (default: every group's own)"),
    out("extras", "results folder"),
    option("--to", "where the page and its data go (default: data/extras)", **FOLDER),
    WORKERS,
    examples=("", "--only beta,hypernetwork,warm-up", "--only iwae --seeds 0:2 --to out/iwae"),
    checkout=True,
)
def _extras(args: argparse.Namespace) -> None:
    """Runs beyond the published tables: the print as written, other objectives and settings; and their page."""
    from fdn.report.pages import extras as page
    from fdn.runs import groups

    names = [extra.name for extra in extras.EXTRAS]
    chosen = _named(args.only, names, "group") or names
    groups.run([e for e in extras.EXTRAS if e.name in chosen], args.out, args.seeds, args.workers)
    _say_written(page.write(args.out, args.to))


@command(
    option("--results", "a run's folder, which keeps its fits (default: out)", default=paths.DEFAULT_OUT, **FOLDER),
    option(DATASET, "default: all that have results"),
    option("--to", "the results folder that takes the curves (default: data/results)", **FOLDER),
    option("--page-only", "write the page anew from the curves there are", **FLAG),
    examples=("", "--results out --dataset step,sine", "--results out --to out", "--page-only"),
    checkout=True,
)
def _seeds(args: argparse.Namespace) -> None:
    """Gather what all seeds of a run say together: kept epochs, error against variance, intervals; and their page."""
    from fdn.report.pages import seeds as page

    to = paths.COMMITTED_RESULTS if args.to is None else args.to
    if not args.page_only:
        page.gather(args.results, to, _named(args.dataset) or published.DATASETS)
    if args.to is None:
        _say_written([page.write()])


@command(
    option(DATASET, "digits or any real table (default: airfoil,diabetes,digits)", default="airfoil,diabetes,digits"),
    option("--seeds", f"{SEEDS_SYNTAX} (default: 0:10)", default="0:10"),
    option("--epochs", "of every training (default: 100 and, of FDN layers, 40; of digits 20 and 15)", **NUMBER),
    out("layers"),
    examples=("", "--dataset digits --seeds 0:3 --epochs 2", "--out data/layers"),
)
def _adapters(args: argparse.Namespace) -> None:
    """Trained networks whose last layers become FDN layers, beside MC dropout and an ensemble."""
    from fdn.runs import adapters, digits

    seeds = parse_seeds(args.seeds)
    for name in _named(args.dataset, (*data.REAL, "digits")):
        is_table = name != "digits"
        task = adapters.table_task(data.load(name), args.epochs) if is_table else digits.digits_task(args.epochs)
        frames = []
        for seed in seeds:
            frames.append(adapters.study(task, [seed]))
            written = adapters.write(pd.concat(frames), args.out)  # after each seed: what is computed is kept
        _say_written(written)


@command(
    option(DATASET, f"of {', '.join(RIVAL_SETS)} (default: all)"),
    option("--methods", "of those on the page data/rivals (default: these and FDN as recommended)"),
    option("--study", "of FDN alone, as in notebook 10: path, without or beta", choices=("path", "without", "beta")),
    option("--seeds", f"{SEEDS_SYNTAX} (default: 0:10)", default="0:10"),
    out("rivals"),
    examples=(
        "",
        "--datasets airfoil,diabetes --methods 'GP,10 MLPs' --seeds 0:3",
        "--datasets energy --study path",
        "--out data/rivals",
    ),
)
def _rivals(args: argparse.Namespace) -> None:
    """FDN as recommended and what people use for tables, on the sets where it is chosen and judged; and their page."""
    from fdn.report import rivals as page
    from fdn.runs import recommended, rivals

    chosen, seeds = _named(args.methods, rivals.METHODS, "method"), parse_seeds(args.seeds)
    datasets = _named(args.dataset, RIVAL_SETS) or RIVAL_SETS
    if args.study and chosen:
        raise UserError("--study is of FDN alone; leave --methods out")
    folder = args.out / (args.study or "")
    if not chosen:
        for dataset in map(data.load, datasets):
            recommended.run(dataset, recommended.protocols(args.study, dataset), seeds, folder)
    if not args.study:
        rivals.run(datasets, chosen or list(rivals.METHODS), seeds, folder)
    _say_written([rivals.table(folder), *([] if args.study else [page.write(folder)])])


@command(
    option("--quick", "fewer repeats and sizes", **FLAG),
    option("--to", "where the measurements go (default: data/claims)", **FOLDER),
    examples=("", "--quick --to out/latency"),
    checkout=True,
)
def _latency(args: argparse.Namespace) -> None:
    """Measure times of predictions and training steps as ratios, for the paper's sentences on cost."""
    from fdn.timing import latency

    frame = latency.measure(args.quick)
    print(frame.to_string(index=False, na_rep="", float_format="{:.3g}".format))
    _say_written(latency.write(frame, args.to))


@command(
    option("--results", "main results (default: the committed ones)", **FOLDER),
    option("--to", "where the page and its data go (default: data/claims)", **FOLDER),
    examples=("", "--results out --to out/claims"),
    checkout=True,
)
def _claims(args: argparse.Namespace) -> None:
    """Judge the paper's sentences by the committed results, and write the page."""
    from fdn.report import claims

    written = claims.write(args.to, extras.with_extras(args.results and results.load_metrics(args.results)))
    print(written[1].read_text(encoding="utf-8").split("\n")[2])  # the counts
    _say_written(written)


@command(
    option(DATASET, f"of {', '.join(published.DATASETS)} (default: all)"),
    option("--models", f"of {SIX} (default: all)", default=SIX),
    PROTOCOL,
    option("--epochs", "epochs of the sample (default: 5, on a GPU 50, for recording its graphs comes once)", **NUMBER),
    option("--device", f"{PLACES} (default: auto)", default="auto"),
    option("--quick", "no repeats, and fewer sizes", **FLAG),
    out("benchmark"),
    examples=("", "--quick", "--dataset step --models LP-FDNet,IC-FDNet --out out/bench"),
)
def _bench(args: argparse.Namespace) -> None:
    """Measure where the study's time goes, against a plain program that gives the same numbers; growth; memory."""
    import time

    from fdn.timing import benchmark

    names = _named(args.dataset, published.DATASETS) or published.DATASETS
    chosen = parse_names(args.models, models.PAPER_MODELS, "model")
    start = time.perf_counter()
    device = _device(args)
    epochs = benchmark.EPOCHS[device.type] if args.epochs is None else args.epochs
    frames = benchmark.measure(names, chosen, parse_protocol(args.protocol), epochs, args.quick, device=device)
    written = benchmark.write(frames, time.perf_counter() - start, args.out, device)
    for table in benchmark.tables(frames, device):
        print("\n".join([f"{table.title}. {table.caption}\n", console.text_of(table), *table.notes, ""]))
    print(f"Ran on: {benchmark.ran_on(device)}")
    _say_written(written)


@command(
    option("--results", "default: the committed results", default=paths.COMMITTED_RESULTS, **FOLDER),
    out("site"),
    examples=("", "--results out --out out/site"),
    checkout=True,
)
def _site(args: argparse.Namespace) -> None:
    """Write the static site: results, notebooks, reference of the code, provenance."""
    from fdn.report.site.build import build

    n_pages = build(args.results, args.out)
    print(f"Written: {n_pages} pages; open {console.shown_path(args.out / 'index.html')}")


@command(checkout=True)
def _smoke(args: argparse.Namespace) -> None:
    """Walk the whole path with few epochs, into out/smoke."""
    import shutil

    from fdn.workflow import engine, study

    out = paths.DEFAULT_OUT / "smoke"
    shutil.rmtree(out, ignore_errors=True)
    tasks = dict.fromkeys(("step", study.STAND_IN), "0:2")
    engine.run(study.plan(out, tasks, ALL_MODELS, epochs=2), out)


@command(
    option("file", "a table with the columns' names in its first row: CSV, Parquet or Excel (.xlsx)", type=_input),
    option("--target", "column to predict", required=True, metavar="COLUMN"),
    option(
        "--split-column",
        "train on its 20-80 %% band alone; the rows beyond it show what the model does outside its data",
        metavar="COLUMN",
    ),
    option("--leave-out", "a column that is no input, such as an id; may be repeated", metavar="COLUMN", **REPEATED),
    option("--missing", "a text, besides NA, nan, null and ?, that means no value; may be repeated", **REPEATED),
    *READING,
    option("--epochs", "of training, at most (default: 300, fewer for large tables)", **NUMBER),
    option("--seed", "of the split and the training (default: 0)", default="0"),
    out("model"),
    examples=(
        "houses.csv --target price --leave-out id --out model",
        "houses.csv --target price --leave-out id --split-column area --out trial",
        "houses.csv --target price --separator ';' --decimal , --encoding cp1252",
    ),
)
def _fit(args: argparse.Namespace) -> None:
    """Fit an FDN to your own table; a fifth of the rows is held out to check it."""
    from fdn.estimators import saving
    from fdn.estimators.tables import FEW, TableModel

    if args.out.is_dir() and any(args.out.iterdir()) and not (args.out / saving.DESCRIPTION).exists():
        raise UserError(f"{args.out} holds other things; name a new folder, an empty one or that of a model")
    model = TableModel.fit(
        args.file, args.target, args.split_column, given=_reading(args, args.missing), leave_out=args.leave_out,
        seed=parsed("--seed", args.seed, Whole), max_epochs=args.epochs or "auto", device=str(_device(args)), verbose=1,
    )  # fmt: skip
    model.save(args.out)
    check = model.check()
    print(*model.remarks, check.to_string(float_format=tables.plain_number), sep="\n")
    print("In units of the target. crps: error of the whole predicted distribution. The 90 % intervals are q05 to q95.")
    if (n := check["rows"].min()) < FEW:
        print(f"{n} rows say little.")
    _say_written([args.out])


@command(
    option("model", "folder that `fdn fit` wrote", type=_folder),
    option("file", "a table with the same columns, in any order", type=_input),
    option("--id", "column that names the rows in the predictions (default: their numbers)", metavar="COLUMN"),
    option("--missing", "a text that means no value, besides those of the fit; may be repeated", **REPEATED),
    *READING,
    option("--out", "a CSV file (default: out/predictions.csv)", default=paths.DEFAULT_OUT / "predictions.csv", **FILE),
    examples=("model new.csv --out pred.csv", "model new.csv --id house --out pred.csv"),
)
def _predict(args: argparse.Namespace) -> None:
    """Predict rows: mean, standard deviation and its parts, 90 % interval q05 to q95, and what is unlike the data."""
    import time

    from fdn.estimators.tables import TableModel

    model, start = TableModel.load(args.model, str(_device(args))), time.perf_counter()
    n, said = model.predict_file(args.file, args.out, _reading(args, args.missing), args.id)
    seconds = time.perf_counter() - start
    print(said, *([f"{n / seconds:,.0f} rows a second"] if seconds > 10 else []), sep="\n")
    _say_written([args.out])


@command(
    option("model", "folder that `fdn fit` wrote", type=_folder),
    option("--data", "where the table of `fdn fit` is now (default: where it was)", type=_input, metavar="FILE"),
    option("--out", "a page of HTML (default: out/report.html)", default=Path("out", "report.html"), **FILE),
    examples=("model --out report.html", "model --data houses.csv"),
)
def _report(args: argparse.Namespace) -> None:
    """Say how far to trust a model, in one page: data, fit, calibration, intervals, rows outside. It opens offline."""
    if absent := [extra for extra in ("study", "notebooks") if not all(map(find_spec, EXTRAS[extra]))]:
        raise UserError(f"the report takes more than is installed: pip install 'fdn[{','.join(absent)}]'")
    from fdn.estimators.tables import TableModel
    from fdn.workflow import notebooks

    model = TableModel.load(args.model)
    model.table(args.data)  # what cannot be is said before a notebook starts
    parameters = {"model": str(args.model)} | ({"path": str(args.data)} if args.data else {})
    notebooks.write_report(paths.report(), args.out, parameters, f"A model of {model.target}")
    _say_written([args.out])


# From the words typed to an exit status


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.register("type", None, _filled)  # of every option and argument that says no other

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None) -> tuple:
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:  # said here by the command's parser, which knows its name
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown

    def error(self, message: str) -> None:
        raise UserError(f"{message}; `{self.prog} --help` shows how it is called")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fdn",
        description="Functional Distribution Networks: run, compare and draw the paper's experiments.",
        epilog="`fdn COMMAND --help` explains a command and gives examples.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.type = str  # of all that follows, which the command's own parser reads
    for command in COMMANDS.values():
        examples = [f"  fdn {command.name} {example}".rstrip() for example in command.examples]
        one = commands.add_parser(
            command.name,
            help=command.text.replace("%", "%%"),
            description=command.text,
            epilog="\n".join(["examples:", *examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_options(one)
        one.set_defaults(command=command)
    return parser


def _call(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    for name in ("FDN_ROOT", "FDN_DATA_DIR"):  # kernels and jobs inherit them and start in other folders
        if os.environ.get(name):
            os.environ[name] = os.path.abspath(os.environ[name])
    if args.command.checkout and not paths.in_checkout():
        raise UserError(
            f"`fdn {args.command.name}` needs files of the repository, which are not in {paths.CHECKOUT}; "
            "set FDN_ROOT to a checkout of it"
        )
    args.command.call(args)
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    open_streams()
    try:
        _call(argv)
        return 0
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except UserError as error:
        return _complain(str(error), 2)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 2)
    except UnicodeEncodeError as error:  # not of printing: in a file, or in the name of one
        return _complain(f"{error}; this locale lacks the character: choose one of UTF-8, or set PYTHONUTF8=1", 2)
    except ImportError as error:
        if not (lacking := _lacking(error)):
            raise
        return _complain(lacking, 2)
    except RuntimeError as error:
        return _complain(str(error), 1)
    except KeyboardInterrupt:
        return _complain("interrupted; what was computed is kept, and the same command continues from there", 130)


def _complain(message: str, status: int) -> int:
    print(f"fdn: {message}", file=sys.stderr)
    return status


def _lacking(error: BaseException | None) -> str | None:
    """What to say if the package of an extra is not installed, which pandas reports by an error of its own."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    module = "" if error is None else str(error.name).partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return extra and f"{module} is not installed, which this needs; `pip install 'fdn[{extra}]'` brings it"
