"""The command line: ``fdn COMMAND``, or ``python -m lib COMMAND``.

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

from lib import data, experiment, models, paths, published
from lib.arguments import SEEDS_SYNTAX, parse_names, parse_protocol, parse_seeds
from lib.data import uci
from lib.data.dataset import Dataset
from lib.errors import UserError
from lib.protocol import PROTOCOLS, Protocol

ALL_MODELS = (*models.MODEL_NAMES, models.BASELINE)
PROTOCOL_NAMES = " or ".join(PROTOCOLS)
OUT = paths.DEFAULT_OUT
FOLDER = {"type": Path, "metavar": "DIR"}
DATASETS = ("--dataset", "--datasets")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise UserError(f"{message}; `{self.prog} --help` shows how it is called")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
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
    from lib import report

    protocol = parse_protocol(args.protocol, args.set, args.epochs)
    seeds = parse_seeds(args.seeds)
    chosen = parse_names(args.models, ALL_MODELS, "model")
    datasets: list[str | Dataset] = parse_names(args.dataset, data.NAMES, "data set") if args.dataset else []
    if args.csv or args.target or args.split_column:
        datasets.append(_own_table(args))
    datasets = datasets or list(published.DATASETS)
    frame = experiment.run(
        datasets, chosen, seeds, protocol, args.out, args.workers, recompute=args.recompute
    )
    print(f"Medians over seeds, protocol {protocol.label}:\n\n{report.medians(frame)}\n")
    out = report.shown_path(args.out)
    print(f"Written: {out}/metrics.parquet, a row per cell, and {out}/points, a row per test point")


def _own_table(args: argparse.Namespace) -> Dataset:
    given = {"--csv": args.csv, "--target": args.target, "--split-column": args.split_column}
    if absent := [option for option, value in given.items() if not value]:
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
    from lib import report

    folder = report.find_results(args.results)
    print(f"Reading {report.shown_path(folder)}", file=sys.stderr)
    base, *settings = args.protocol.split("+")
    return folder, parse_protocol(base, settings)


def _tables(args: argparse.Namespace) -> None:
    from lib import report, reproduce, tables

    folder, protocol = _stored(args)
    metrics = report.read_metrics(folder)
    report.check_protocol(metrics, protocol.label, folder)
    written = tables.all_tables(metrics, reproduce.datasets_of(metrics, protocol), protocol.label, args.out)
    print(f"Written: {len(written)} files in {report.shown_path(args.out)} (Markdown, LaTeX and CSV)")


def _figures(args: argparse.Namespace) -> None:
    from lib import report, reproduce

    folder, protocol = _stored(args)
    metrics = report.read_metrics(folder)
    report.check_protocol(metrics, protocol.label, folder)
    datasets = reproduce.datasets_of(metrics, protocol)
    if args.dataset:
        datasets = {name: datasets[name] for name in parse_names(args.dataset, datasets, "data set")}
    written, notes = reproduce.write_figures(folder, metrics, datasets, protocol, args.out)
    for note in notes:
        print(f"not drawn: {note}", file=sys.stderr)
    print(f"Written: {len(written)} files in {report.shown_path(args.out)} (PDF and PNG)")


def _compare(args: argparse.Namespace) -> None:
    from lib import report, results

    folder, protocol = _stored(args)
    metrics = report.with_committed(folder)
    report.check_protocol(metrics, protocol.label, folder)
    comparison = report.compare(metrics, protocol.label)
    outside = report.misses(comparison)
    if args.all:
        print(report.numbers(comparison) + "\n")
    if not args.misses:
        print(report.scores(comparison) + "\n")
    print(f"Outside the widened range: {len(outside)}")
    if len(outside):
        print(report.numbers(outside))
    if args.out:
        with results.atomic(args.out / "compare.csv") as path:
            comparison.to_csv(path, index=False)
        print(f"\nWritten: {report.shown_path(args.out / 'compare.csv')}")


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

    from lib import report, tables

    protocol = parse_protocol(args.protocol)
    if args.target is not None:
        protocol = replace(protocol, widths="budget", budget=args.target)
    n_features = args.features
    if args.dataset:
        data.check_name(args.dataset)
        n_features = experiment.load_dataset(args.dataset, protocol).n_features
    print(report.text_of(tables.model_table(protocol, [n_features])))


def _reproduce(args: argparse.Namespace) -> None:
    from lib.reproduce import reproduce

    names = parse_names(args.dataset, data.NAMES, "data set") if args.dataset else None
    reproduce(args.out, args.seeds, args.ccpp_seeds, args.epochs, names)


def _publish(args: argparse.Namespace) -> None:
    from lib.publish import publish

    publish(args.out)


def _differences(args: argparse.Namespace) -> None:
    from lib import differences, report

    differences.run(args.out, parse_seeds(args.seeds), args.workers)
    written = differences.write(args.out)
    print("Written: " + ", ".join(report.shown_path(path) for path in written))


def _bench(args: argparse.Namespace) -> None:
    from lib import benchmark

    protocol = parse_protocol(args.protocol, epochs=args.epochs)
    names = parse_names(args.models, [m for m in models.MODEL_NAMES if m != "DeepEnsembleNet"], "model")
    data.check_name(args.dataset)
    dataset = experiment.load_dataset(args.dataset, protocol)
    specs = [models.model_spec(name, dataset.n_features, protocol) for name in names]
    frame = benchmark.stacking(specs, dataset, protocol, parse_seeds(args.seeds))
    print("Times of the plain loop over seeds, and of the op's reference backend in the stacked program (op_), in units of the\n"
          "stacked program's (same numbers, one thread):\n")  # fmt: skip
    print(frame.round(2).to_string(index=False))


def _smoke(args: argparse.Namespace) -> None:
    from lib.reproduce import smoke

    smoke()


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _run_options(one: argparse.ArgumentParser) -> None:
    one.add_argument(*DATASETS, help=f"of {', '.join(data.NAMES)} (default: the paper's six)")
    stochastic = ",".join(models.STOCHASTIC_MODELS)
    names = ", ".join(ALL_MODELS)
    one.add_argument("--models", default=stochastic, help=f"of {names} (default: the six stochastic ones)")
    one.add_argument("--seeds", default="0:5", help=f"{SEEDS_SYNTAX} (default: 0:5)")
    one.add_argument("--protocol", default="published", help=f"{PROTOCOL_NAMES} (default: published)")
    replaces = "replace a setting of the protocol, as an ablation; may be repeated"
    one.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help=replaces)
    one.add_argument("--epochs", type=_number, help="the same as --set epochs=EPOCHS")
    one.add_argument("--out", **FOLDER, default=OUT, help="results folder (default: out)")
    one.add_argument("--workers", type=_number, help="processes (default: one per core)")
    one.add_argument("--recompute", action="store_true", help="compute cells that exist again")
    one.add_argument("--csv", type=Path, metavar="FILE", help="your own comma-separated table, with header")
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
    which.add_argument("--misses", action="store_true", help="only the numbers outside the widened range")
    which.add_argument("--all", action="store_true", help="every number as well")
    one.add_argument("--out", **FOLDER, help="also write DIR/compare.csv")


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


def _differences_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--out", **FOLDER, default=OUT / "differences", help="default: out/differences")
    one.add_argument("--seeds", default="0:5", help=f"{SEEDS_SYNTAX} (default: 0:5)")
    one.add_argument("--workers", type=_number, help="processes (default: one per core)")


def _bench_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--dataset", default="step", help="default: step")
    one.add_argument("--models", default="LP-FDNet", help="default: LP-FDNet")
    one.add_argument("--seeds", default="0:20", help=f"{SEEDS_SYNTAX} (default: 0:20)")
    one.add_argument("--protocol", default="published", help=f"{PROTOCOL_NAMES} (default: published)")
    one.add_argument("--epochs", type=_number, default=3, help="default: 3")


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
        "", "--results out --misses", "--results data/results --all --out out",
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
    ("publish", "Copy results, figures and notebooks to the tracked places.", _publish_options, _publish, (
        "--out out",
    )),
    ("differences", "Measure what each difference between print and published runs does, and write the page.",
     _differences_options, _differences, ("", "--seeds 0:3 --out out/differences")),
    ("bench", "Time stacked training against the plain loop over seeds, after checking that they agree.",
     _bench_options, _bench, ("", "--models LP-FDNet,IC-FDNet --seeds 0:20 --epochs 5")),
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
