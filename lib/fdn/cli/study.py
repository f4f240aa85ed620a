"""Commands of the study: cells, its data, and all of it in one call."""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace

from fdn import data, models, paths
from fdn.arguments import SEEDS_SYNTAX, parse_parameter, parse_protocol, parse_seeds
from fdn.cli import options
from fdn.cli.options import FILE, FLAG, NUMBER, REPEATED, command, named, one_of, option
from fdn.data import uci
from fdn.data.dataset import Dataset
from fdn.errors import UserError
from fdn.protocol import RECOMMENDED
from fdn.report import console, published, tables
from fdn.runs import experiment, results

DATASETS = option(options.DATASET, "default: the paper's six, as far as their files can be had")
EPOCHS = option("--epochs", "fewer epochs; the results then count as an ablation", **NUMBER)


@command(
    option(options.DATASET, f"of {', '.join(data.NAMES)} (default: the paper's six)"),
    option("--models", f"of {', '.join(options.ALL_MODELS)} (default: the six stochastic ones)"),
    options.seeds("0:5"),
    options.PROTOCOL,
    option(
        "--set", "replace a setting of the protocol, as an ablation; may be repeated", metavar="FIELD=VALUE", **REPEATED
    ),
    option("--epochs", "the same as --set epochs=EPOCHS", **NUMBER),
    options.out(what="results folder"),
    option("--workers", "processes (default: one per core, or one on a GPU)", **NUMBER),
    options.device("cpu"),
    option("--recompute", "compute cells that exist again", **FLAG),
    option("--cells-only", "leave metrics.parquet to `fdn collect`", **FLAG),
    option("--csv", "your own table with the columns' names in its first row: CSV, Parquet or Excel", **FILE),
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
    protocol, device = parse_protocol(args.protocol, args.set, args.epochs), options.chosen_device(args)
    seeds = parse_seeds(args.seeds)
    chosen = named(args.models, options.ALL_MODELS, "model") or list(models.PAPER_MODELS)
    datasets = [*(named(args.dataset) or ()), *_own_table(args)] or list(published.DATASETS)
    how = {"workers": args.workers, "recompute": args.recompute, "device": device, "gather": not args.cells_only}
    if protocol.dtype == "float32" and protocol.base != RECOMMENDED.base and device.type == "cpu":
        print("fdn: on the CPU float32 takes longer than float64, for which the loops are compiled", file=sys.stderr)
    frame = experiment.run(datasets, chosen, seeds, protocol, args.out, **how)
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
    return [data.from_frame(args.csv, target=args.target, split_column=args.split_column)]


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
        if name not in data.UCI:
            said = "needs no file"
        elif (row := table.loc[name])["found"] == "missing":
            said = f"missing: {uci.SOURCES[name].how_to_get}"
        else:
            said = f"{row['file']} in {row['found']}, {row['rows']} rows, sha256 {row['sha256']}"
        print(f"{name:9} {said}")
    if problems:
        raise UserError(" | ".join(problems))


@command(
    one_of(
        option("--features", "number of inputs", default=1, **NUMBER),
        option("--dataset", "as many inputs as this data set has"),
    ),
    option("--parameters --target", "solve the widths for about P parameters", metavar="P", **NUMBER),
    options.PROTOCOL,
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
    options.out(),
    options.seeds("0:5"),
    option("--ccpp-seeds", "seeds of ccpp, the largest set", default="0:2"),
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

    names = named(args.dataset)
    tasks = {name: args.ccpp_seeds if name == "ccpp" else args.seeds for name in names or published.DATASETS}
    how = {"epochs": args.epochs, "required": names is not None, "stand_in": args.seeds}
    engine.run(study.plan(args.out, tasks, options.ALL_MODELS, **how), args.out)


@command(
    options.out(what="results folder"),
    DATASETS,
    option(
        "--seeds",
        f"{SEEDS_SYNTAX}, for every data set (default: 20 for a toy task, 100 for airfoil, 3 for ccpp and energy)",
    ),
    option("--models", "default: the paper's six and the training mean"),
    options.PROTOCOL,
    EPOCHS,
    option(
        "--profile",
        "where jobs run: local, slurm or the folder of another Snakemake profile",
        default="local",
        metavar="NAME",
    ),
    examples=("--out out", "--out out --profile slurm", "--dataset step --seeds 0:2 --epochs 1"),
    checkout=True,
)
def _paper(args: argparse.Namespace) -> None:
    """The whole study, 20 to 100 seeds a task, on this machine's cores or a cluster; continues an earlier call."""
    from fdn.workflow import engine, study

    names = named(args.dataset)
    tasks = {name: study.STUDY_SEEDS.get(name, "0:20") if args.seeds is None else args.seeds
             for name in names or published.DATASETS}  # fmt: skip
    chosen, required = named(args.models, options.ALL_MODELS, "model"), names is not None
    engine.run(study.plan(args.out, tasks, chosen, args.protocol, args.epochs, required), args.out, args.profile)


@command(options.out(what="results folder"), examples=("--out out",))
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


@command(options.out(what="the run's folder"), examples=("--out out",), checkout=True)
def _publish(args: argparse.Namespace) -> None:
    """Copy results, figures and notebooks to the tracked places."""
    from fdn.workflow.publish import publish

    publish(args.out)


@command(checkout=True)
def _smoke(args: argparse.Namespace) -> None:
    """Walk the whole path with few epochs, into out/smoke."""
    from fdn.workflow import engine, study

    out = paths.DEFAULT_OUT / "smoke"
    shutil.rmtree(out, ignore_errors=True)
    tasks = dict.fromkeys(("step", study.STAND_IN), "0:2")
    engine.run(study.plan(out, tasks, options.ALL_MODELS, epochs=2), out)
