"""The command line: ``fdn COMMAND``, or ``python -m fdn COMMAND``.

A mistake of the person at the keyboard is answered by one sentence and status 2, cells that could not be
computed by status 1, an interruption by status 130.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fdn import data, devices, models, paths
from fdn.arguments import SEEDS_SYNTAX, choose, parse_names, parse_parameter, parse_protocol, parse_seeds
from fdn.data import uci
from fdn.data.dataset import Dataset
from fdn.devices import CPU, choose_device
from fdn.errors import UserError
from fdn.protocol import PROTOCOLS, Protocol
from fdn.report import published
from fdn.runs import experiment
from fdn.settings import Count, described, parsed
from fdn.terminal import open_streams

ALL_MODELS = (*models.MODEL_NAMES, models.BASELINE)
PROTOCOL_NAMES = " or ".join(PROTOCOLS)
OUT = paths.DEFAULT_OUT
FOLDER = {"type": Path, "metavar": "DIR"}
DATASETS = ("--dataset", "--datasets")


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.register("type", None, _filled)  # of every option and argument that says no other
        self.register("type", Path, _folder)

    def error(self, message: str) -> None:
        raise UserError(f"{message}; `{self.prog} --help` shows how it is called")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    open_streams()
    try:
        args = _parser().parse_args(argv)
        args.call(args)
        sys.stdout.flush()
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
    except RuntimeError as error:
        return _complain(str(error), 1)
    except KeyboardInterrupt:
        return _complain(
            "interrupted; what was computed is kept, and the same command continues from there", 130
        )


def _complain(message: str, status: int) -> int:
    print(f"fdn: {message}", file=sys.stderr)
    return status


def _run(args: argparse.Namespace) -> None:
    from fdn.report import console

    protocol, device = parse_protocol(args.protocol, args.set, args.epochs), _device(args)
    seeds = parse_seeds(args.seeds)
    chosen = parse_names(args.models, ALL_MODELS, "model")
    datasets: list[str | Dataset] = [] if args.dataset is None else parse_names(args.dataset, data.NAMES, "data set")
    if any(given is not None for given in (args.csv, args.target, args.split_column)):
        datasets.append(_own_table(args))
    datasets = datasets or list(published.DATASETS)
    options = {"workers": args.workers, "recompute": args.recompute, "device": device}
    if args.cells_only:
        experiment.compute(datasets, chosen, seeds, protocol, args.out, **options)
        return
    frame = experiment.run(datasets, chosen, seeds, protocol, args.out, **options)
    print(f"Medians over seeds, protocol {protocol.label}:\n\n{console.medians(frame)}\n")
    out = console.shown_path(args.out)
    print(f"Written: {out}/metrics.parquet, a row per cell, and {out}/points, a row per test point")


def _device(args: argparse.Namespace) -> torch.device:
    device = choose_device(args.device)
    if args.device == "auto" and device == CPU:
        print("There is no GPU that PyTorch can use; this runs on the CPU.", file=sys.stderr)
    return device


def _own_table(args: argparse.Namespace) -> Dataset:
    given = {"--csv": args.csv, "--target": args.target, "--split-column": args.split_column}
    if absent := [option for option, value in given.items() if value is None]:
        raise UserError(
            f"a table of your own needs --csv, --target and --split-column; {absent[0]} is missing"
        )
    name = args.csv.stem
    if name in data.NAMES or not re.fullmatch(r"\w[\w .-]*", name):
        raise UserError(
            f"the file name gives a data set its name, and {name!r} is the name of a built-in one or "
            "has other characters than letters, digits, blanks and ._-; rename the file"
        )
    return data.from_frame(args.csv, target=args.target, split_column=args.split_column, name=name)


def _stored(args: argparse.Namespace) -> tuple[Path, Protocol]:
    """The results folder to read and the protocol, whose changed settings are part of its label."""
    from fdn.report import console

    folder = console.find_results(args.results)
    print(f"Reading {console.shown_path(folder)}", file=sys.stderr)
    return folder, parse_protocol(args.protocol)


def _tables(args: argparse.Namespace) -> None:
    from fdn.report import console, tables

    folder, protocol = _stored(args)
    metrics = console.read_metrics(folder)
    console.check_protocol(metrics, protocol.label, folder)
    written = tables.all_tables(metrics, experiment.datasets_of(metrics, protocol), protocol.label, args.out)
    print(f"Written: {len(written)} files in {console.shown_path(args.out)} (Markdown, LaTeX and CSV)")


def _figures(args: argparse.Namespace) -> None:
    from fdn.report import console, figures

    folder, protocol = _stored(args)
    metrics = console.read_metrics(folder)
    console.check_protocol(metrics, protocol.label, folder)
    datasets = experiment.datasets_of(metrics, protocol)
    if args.dataset is not None:
        datasets = {name: datasets[name] for name in parse_names(args.dataset, datasets, "data set")}
    written, notes = figures.write_figures(folder, metrics, datasets, protocol.label, args.out)
    for note in notes:
        print(f"not drawn: {note}", file=sys.stderr)
    print(f"Written: {len(written)} files in {console.shown_path(args.out)} (PDF and PNG)")


def _compare(args: argparse.Namespace) -> None:
    from fdn.report import console
    from fdn.runs import extras

    folder, protocol = _stored(args)
    metrics = console.with_committed(folder)
    console.check_protocol(metrics, protocol.label, folder)
    if args.explain is not None:
        dataset, _, model = (part.strip() for part in args.explain.partition(","))
        choose(dataset, published.DATASETS, "data set")
        choose(model, models.PAPER_MODELS, "model")
        print(console.diagnosis(metrics, dataset, model, protocol.label))
        return
    comparison, more = console.compare(metrics, protocol.label), extras.with_extras(metrics)
    outside = console.misses(comparison)
    if args.all:
        print(console.numbers(comparison) + "\n")
    if not args.misses:
        print(console.scores(comparison) + "\n")
        print(console.uniformity(metrics, protocol.label) + "\n")
        if said := console.more_seeds(metrics, more, protocol.label):
            print(said + "\n")
    print(f"Outside the range of our seeds: {len(outside)}")
    if len(outside):
        print(console.numbers(outside))
    print("\n" + console.open_questions(comparison))
    if args.out is not None:
        written = console.write_comparison(args.out, metrics, protocol.label, more)
        print("\nWritten: " + ", ".join(map(console.shown_path, written)))


def _data(args: argparse.Namespace) -> None:
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
        if name not in data.UCI:
            print(f"{name:9} needs no file")
            continue
        row = table.loc[name]
        found = f"{row['file']} in {row['found']}, {row['rows']} rows, sha256 {row['sha256']}"
        print(
            f"{name:9} {'missing: ' + uci.SOURCES[name].how_to_get if row['found'] == 'missing' else found}"
        )
    if problems:
        raise UserError(" | ".join(problems))


def _budget(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from fdn.report import console, tables

    protocol = parse_protocol(args.protocol)
    if args.target is not None:
        protocol = replace(protocol, widths="budget", budget=args.target)
    n_features = args.features
    if args.dataset is not None:
        data.check_name(args.dataset)
        n_features = experiment.load_dataset(args.dataset, protocol).n_features
    print(console.text_of(tables.model_table(protocol, [n_features])))


def _reproduce(args: argparse.Namespace) -> None:
    from fdn.runs.reproduce import reproduce

    names = None if args.dataset is None else parse_names(args.dataset, data.NAMES, "data set")
    reproduce(args.out, args.seeds, args.ccpp_seeds, args.epochs, names)


def _collect(args: argparse.Namespace) -> None:
    from fdn.report import console
    from fdn.runs import results

    frame = results.collect(args.out)
    print(f"Written: {console.shown_path(args.out / 'metrics.parquet')}, {len(frame)} cells")


def _notebook(args: argparse.Namespace) -> None:
    from fdn.runs import notebooks

    source = paths.NOTEBOOKS / f"{args.name}.ipynb"
    types, parameters = notebooks.parameters_of(source), {}
    for setting in args.set:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"cannot read the parameter {setting!r}; expected name=value such as seeds=0:20")
        parameters[name] = parse_parameter(name, text, types.get(name))
    notebooks.run_with_parameters(source, args.out, parameters)


def _paper(args: argparse.Namespace) -> None:
    from fdn.runs import study

    names = published.DATASETS if args.dataset is None else parse_names(args.dataset, data.NAMES, "data set")
    tasks = {name: study.SEEDS.get(name, "0:20") if args.seeds is None else args.seeds for name in names}
    chosen = None if args.models is None else parse_names(args.models, ALL_MODELS, "model")
    out = Path(os.path.abspath(args.out))
    study.paper(study.plan(out, tasks, chosen, args.protocol, args.epochs), out, args.profile)


def _publish(args: argparse.Namespace) -> None:
    from fdn.runs.publish import publish

    publish(args.out)


def _differences(args: argparse.Namespace) -> None:
    from fdn.report import console
    from fdn.runs import differences

    differences.run(args.out, parse_seeds(args.seeds), args.workers)
    written = differences.write(args.out)
    print("Written: " + ", ".join(console.shown_path(path) for path in written))


def _extras(args: argparse.Namespace) -> None:
    from fdn.report import console
    from fdn.runs import extras

    if args.seeds is not None:
        parse_seeds(args.seeds)
    chosen = extras.choose(None if args.only is None else [name.strip() for name in args.only.split(",")])
    extras.run(chosen, args.out, args.seeds, args.workers)
    print("Written: " + ", ".join(console.shown_path(path) for path in extras.write(args.out, args.to)))


def _latency(args: argparse.Namespace) -> None:
    from fdn.report import console
    from fdn.timing import latency

    frame = latency.measure(args.quick)
    print(frame.to_string(index=False, na_rep="", float_format="{:.3g}".format))
    print("Written: " + ", ".join(console.shown_path(path) for path in latency.write(frame, args.to)))


def _claims(args: argparse.Namespace) -> None:
    from fdn.report import claims, console
    from fdn.runs import extras

    written = claims.write(args.to, extras.pool(args.results))
    print(written[1].read_text(encoding="utf-8").split("\n")[2])  # the counts
    print("Written: " + ", ".join(console.shown_path(path) for path in written))


def _bench(args: argparse.Namespace) -> None:
    import time

    from fdn.report import console
    from fdn.timing import benchmark

    names = published.DATASETS if args.dataset is None else parse_names(args.dataset, published.DATASETS, "data set")
    chosen = parse_names(args.models, models.PAPER_MODELS, "model")
    start = time.perf_counter()
    device = _device(args)
    epochs = benchmark.EPOCHS[device.type] if args.epochs is None else args.epochs
    frames = benchmark.measure(names, chosen, parse_protocol(args.protocol), epochs, args.quick, device=device)
    written = benchmark.write(frames, time.perf_counter() - start, args.out, device)
    for table in benchmark.tables(frames, device):
        print("\n".join([f"{table.title}. {table.caption}\n", console.text_of(table), *table.notes, ""]))
    print(f"Ran on: {benchmark.ran_on(device)}")
    print("Written: " + ", ".join(console.shown_path(path) for path in written))


def _site(args: argparse.Namespace) -> None:
    from fdn.report import console
    from fdn.report.site.build import build

    n_pages = build(args.results, args.out)
    print(f"Written: {n_pages} pages; open {console.shown_path(args.out / 'index.html')}")


def _smoke(args: argparse.Namespace) -> None:
    from fdn.runs.reproduce import smoke

    smoke()


def _filled(text: str) -> str:
    """What was given to an option or argument: something, or a variable of the shell was not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is empty; leave it out for its default, or give a value")
    return text


def _folder(text: str) -> Path:
    """Absolute, so that no library takes a dash or tilde at its beginning for more than it is."""
    return Path(_filled(text)).absolute()


def _file(text: str) -> Path:
    if _folder(text).is_dir() or text.endswith(os.sep):
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; name a file, in it or elsewhere")
    return _folder(text)


def _number(text: str) -> int:
    try:
        return parsed("it", text, Count)
    except UserError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {described(Count)}") from error


def _device_option(one: argparse.ArgumentParser, default: str) -> None:
    text = f"{', '.join(devices.DEVICES)}: where training and prediction run (default: {default})"
    one.add_argument("--device", default=default, help=text)


def _run_options(one: argparse.ArgumentParser) -> None:
    one.add_argument(*DATASETS, help=f"of {', '.join(data.NAMES)} (default: the paper's six)")
    stochastic = ",".join(models.PAPER_MODELS)
    names = ", ".join(ALL_MODELS)
    one.add_argument("--models", default=stochastic, help=f"of {names} (default: the six stochastic ones)")
    one.add_argument("--seeds", default="0:5", help=f"{SEEDS_SYNTAX} (default: 0:5)")
    one.add_argument("--protocol", default="published", help=f"{PROTOCOL_NAMES} (default: published)")
    replaces = "replace a setting of the protocol, as an ablation; may be repeated"
    one.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help=replaces)
    one.add_argument("--epochs", type=_number, help="the same as --set epochs=EPOCHS")
    one.add_argument("--out", **FOLDER, default=OUT, help="results folder (default: out)")
    one.add_argument("--workers", type=_number, help="processes (default: one per core, or one on a GPU)")
    _device_option(one, "cpu")
    one.add_argument("--recompute", action="store_true", help="compute cells that exist again")
    one.add_argument("--cells-only", action="store_true", help="leave metrics.parquet to `fdn collect`")
    one.add_argument("--csv", type=_file, metavar="FILE", help="your own comma-separated table, with header")
    one.add_argument("--target", metavar="COLUMN", help="column of FILE to predict")
    band = "column of FILE whose 20-80 %% band is in distribution"
    one.add_argument("--split-column", metavar="COLUMN", help=band)


def _stored_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--results", **FOLDER, help="default: out if it holds results, else the committed ones")
    labels = "a protocol, or the label of an ablation such as published+warmup=50 (default: published)"
    one.add_argument("--protocol", default="published", help=labels)


def _tables_options(one: argparse.ArgumentParser) -> None:
    _stored_options(one)
    one.add_argument("--out", **FOLDER, default=OUT / "tables", help="default: out/tables")


def _figures_options(one: argparse.ArgumentParser) -> None:
    _stored_options(one)
    one.add_argument(*DATASETS, help="default: all that have results")
    one.add_argument("--out", **FOLDER, default=OUT / "figures", help="default: out/figures")


def _compare_options(one: argparse.ArgumentParser) -> None:
    _stored_options(one)
    which = one.add_mutually_exclusive_group()
    which.add_argument("--misses", action="store_true", help="only the numbers outside the range of the seeds")
    which.add_argument("--all", action="store_true", help="every number as well")
    seed_by_seed = "only this data set and model, seed by seed, with the published values in standard deviations"
    which.add_argument("--explain", metavar="DATASET,MODEL", help=seed_by_seed)
    one.add_argument("--out", **FOLDER, help="also write DIR/compare.csv and the page DIR/compare.md")


def _data_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(data.NAMES)} (default: all)")
    one.add_argument("--fetch", action="store_true", help="download what is missing")


def _budget_options(one: argparse.ArgumentParser) -> None:
    inputs = one.add_mutually_exclusive_group()
    inputs.add_argument("--features", type=_number, default=1, help="number of inputs (default: 1)")
    inputs.add_argument("--dataset", help="as many inputs as this data set has")
    one.add_argument("--target", type=_number, metavar="P", help="solve the widths for about P parameters")
    one.add_argument("--protocol", default="published", help=f"{PROTOCOL_NAMES} (default: published)")


def _reproduce_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--out", **FOLDER, default=OUT, help="default: out")
    one.add_argument("--seeds", default="0:5", help=f"{SEEDS_SYNTAX} (default: 0:5)")
    one.add_argument("--ccpp-seeds", default="0:2", help="seeds of ccpp, the largest set (default: 0:2)")
    one.add_argument("--epochs", type=_number, help="fewer epochs; the results then count as an ablation")
    one.add_argument(*DATASETS, help="default: the paper's six, as far as their files can be had")


def _collect_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--out", **FOLDER, default=OUT, help="results folder (default: out)")


def _notebook_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("name", metavar="NAME", help="of a notebook, such as 03_toy")
    one.add_argument("--out", type=_file, metavar="FILE", required=True, help="the notebook as it ran")
    parameter = "set one of its parameters; may be repeated"
    one.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=parameter)


def _paper_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--out", **FOLDER, default=OUT, help="results folder (default: out)")
    one.add_argument(*DATASETS, help="default: the paper's six, as far as their files can be had")
    whole = "20 for a toy task, 100 for airfoil, 3 for ccpp and energy"
    one.add_argument("--seeds", help=f"{SEEDS_SYNTAX}, for every data set (default: {whole})")
    one.add_argument("--models", help="default: the paper's six and the training mean")
    one.add_argument("--protocol", default="published", help=f"{PROTOCOL_NAMES} (default: published)")
    one.add_argument("--epochs", type=_number, help="fewer epochs; the results then count as an ablation")
    where = "where jobs run: local, slurm or the folder of another Snakemake profile (default: local)"
    one.add_argument("--profile", default="local", metavar="NAME", help=where)


def _differences_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--out", **FOLDER, default=OUT / "differences", help="default: out/differences")
    one.add_argument("--seeds", default="0:5", help=f"{SEEDS_SYNTAX} (default: 0:5)")
    one.add_argument("--workers", type=_number, help="processes (default: one per core)")


def _extras_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--only", metavar="GROUPS", help="of those on the page data/extras (default: all)")
    one.add_argument("--seeds", help=f"{SEEDS_SYNTAX} (default: every group's own)")
    one.add_argument("--out", **FOLDER, default=OUT / "extras", help="results folder (default: out/extras)")
    one.add_argument("--to", **FOLDER, help="where the page and its data go (default: data/extras)")
    one.add_argument("--workers", type=_number, help="processes (default: one per core)")


def _latency_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--quick", action="store_true", help="fewer repeats and sizes")
    one.add_argument("--to", **FOLDER, help="where the measurements go (default: data/claims)")


def _claims_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--results", **FOLDER, help="main results (default: the committed ones)")
    one.add_argument("--to", **FOLDER, help="where the page and its data go (default: data/claims)")


def _bench_options(one: argparse.ArgumentParser) -> None:
    one.add_argument(*DATASETS, help=f"of {', '.join(published.DATASETS)} (default: all)")
    stochastic = ",".join(models.PAPER_MODELS)
    one.add_argument("--models", default=stochastic, help=f"of {stochastic} (default: all)")
    one.add_argument("--protocol", default="published", help=f"{PROTOCOL_NAMES} (default: published)")
    sample = "epochs of the sample (default: 5, on a GPU 50, for recording its graphs comes once)"
    one.add_argument("--epochs", type=_number, help=sample)
    _device_option(one, "auto")
    one.add_argument("--quick", action="store_true", help="no repeats, and fewer sizes")
    one.add_argument("--out", **FOLDER, default=OUT / "benchmark", help="default: out/benchmark")


def _site_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--results", **FOLDER, default=paths.COMMITTED_RESULTS, help="default: the committed results")
    one.add_argument("--out", **FOLDER, default=OUT / "site", help="default: out/site")


def _publish_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--out", **FOLDER, default=OUT, help="the run's folder (default: out)")


COMMANDS = (  # name, what it does, options, code, examples
    ("run", "Train and test models; only cells that DIR lacks are computed.", _run_options, _run, (
        "--dataset step,sine --models LP-FDNet,BayesNet --seeds 0:20 --protocol published --out out",
        "--dataset step --models LP-FDNet --seeds 3,7 --set warmup=50 --set noise=independent",
        "--csv houses.csv --target price --split-column area --seeds 0:5",
    )),
    ("tables", "Write every table of a results folder.", _tables_options, _tables, (
        "", "--results out --out out/tables",
    )),
    ("figures", "Draw every figure of a results folder.", _figures_options, _figures, (
        "", "--dataset step --results out --out out/figures",
    )),
    ("compare", "Compare the 252 published numbers with reproduced ones.", _compare_options, _compare, (
        "", "--results out --misses", "--explain step,LP-FDNet", "--results data/results --out data/comparison",
    )),
    ("data", "Show, verify and fetch the data sets.", _data_options, _data, (
        "", "--fetch", "--fetch airfoil energy",
    )),
    ("budget", "Show the models' parameter counts, or solve widths for a target.", _budget_options, _budget, (
        "", "--features 8 --target 1000", "--dataset energy --protocol as_written",
    )),
    ("reproduce", "The paper in one call, from data to figures; continues an earlier call.",
     _reproduce_options, _reproduce, (
        "--out out --seeds 0:5 --ccpp-seeds 0:2",
        "--dataset step,diabetes --seeds 0:2 --epochs 20 --out out/short",
    )),
    ("paper", "The whole study, 20 to 100 seeds a task, on this machine's cores or a cluster; continues an earlier call.",
     _paper_options, _paper, ("--out out", "--out out --profile slurm", "--dataset step --seeds 0:2 --epochs 1")),
    ("collect", "Gather the cells of a results folder into its metrics.parquet.",
     _collect_options, _collect, ("--out out",)),
    ("notebook", "Run a notebook with parameters; FILE appears once every cell of it has run.",
     _notebook_options, _notebook, (
        "03_toy --out out/03_toy-step.ipynb --set dataset=step --set seeds=0:20 --set out=$PWD/out",
    )),
    ("publish", "Copy results, figures and notebooks to the tracked places.", _publish_options, _publish, (
        "--out out",
    )),
    ("differences", "Measure what each difference between print and published runs does, and write the page.",
     _differences_options, _differences, ("", "--seeds 0:3 --out out/differences")),
    ("extras", "Runs beyond the published tables: the print as written, other objectives and settings; and their page.",
     _extras_options, _extras, ("", "--only beta,hypernetwork,warm-up", "--only iwae --seeds 0:2 --to out/iwae")),
    ("latency", "Measure times of predictions and training steps as ratios, for the paper's sentences on cost.",
     _latency_options, _latency, ("", "--quick --to out/latency")),
    ("claims", "Judge the paper's sentences by the committed results, and write the page.",
     _claims_options, _claims, ("", "--results out --to out/claims")),
    ("bench", "Measure where the study's time goes, against a plain program that gives the same numbers; growth; memory.",
     _bench_options, _bench, ("", "--quick", "--dataset step --models LP-FDNet,IC-FDNet --out out/bench")),
    ("site", "Write the static site: results, notebooks, reference of the code, provenance.", _site_options, _site, (
        "", "--results out --out out/site",
    )),
    ("smoke", "Walk the whole path with few epochs, into out/smoke.", lambda one: None, _smoke, ("",)),
)  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fdn",
        description="Functional Distribution Networks: run, compare and draw the paper's experiments.",
        epilog="`fdn COMMAND --help` explains a command and gives examples.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.type = str  # of all that follows, which the command's own parser reads
    for name, text, options, call, examples in COMMANDS:
        one = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog="\n".join(["examples:", *(f"  fdn {name} {example}".rstrip() for example in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        options(one)
        one.set_defaults(call=call)
    return parser
