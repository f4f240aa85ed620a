"""Commands that measure what the published tables do not hold, each with its page."""

from __future__ import annotations

import argparse
import time

import pandas as pd

from fdn import data, models, paths
from fdn.arguments import SEEDS_SYNTAX, parse_protocol, parse_seeds
from fdn.cli import options
from fdn.cli.options import FLAG, FOLDER, NUMBER, command, named, option, say_written
from fdn.report import console, published
from fdn.runs import extras


@command(
    options.out("differences"),
    options.seeds("0:5"),
    options.WORKERS,
    examples=("", "--seeds 0:3 --out out/differences"),
    checkout=True,
)
def _differences(args: argparse.Namespace) -> None:
    """Measure what each difference between print and published runs does, and write the page."""
    from fdn.report.pages import differences as page
    from fdn.runs import differences, groups

    groups.run(differences.MEASURED, args.out, args.seeds, args.workers)
    say_written(page.write(args.out))


@command(
    option("--only", "of those on the page data/extras (default: all)", metavar="GROUPS"),
    option("--seeds", f"{SEEDS_SYNTAX} (default: every group's own)"),
    options.out("extras", "results folder"),
    option("--to", "where the page and its data go (default: data/extras)", **FOLDER),
    options.WORKERS,
    examples=("", "--only beta,hypernetwork,warm-up", "--only iwae --seeds 0:2 --to out/iwae"),
    checkout=True,
)
def _extras(args: argparse.Namespace) -> None:
    """Runs beyond the published tables: the print as written, other objectives and settings; and their page."""
    from fdn.report.pages import extras as page
    from fdn.runs import groups

    names = [extra.name for extra in extras.EXTRAS]
    chosen = named(args.only, names, "group") or names
    groups.run([e for e in extras.EXTRAS if e.name in chosen], args.out, args.seeds, args.workers)
    say_written(page.write(args.out, args.to))


@command(
    option("--results", "a run's folder, which keeps its fits (default: out)", default=paths.DEFAULT_OUT, **FOLDER),
    option(options.DATASET, "default: all that have results"),
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
        page.gather(args.results, to, named(args.dataset) or published.DATASETS)
    if args.to is None:
        say_written([page.write()])


@command(
    option(options.DATASET, "digits or any real table", default="airfoil,diabetes,digits"),
    options.seeds("0:10"),
    option("--epochs", "of every training (default: 100 and, of FDN layers, 40; of digits 20 and 15)", **NUMBER),
    options.out("layers"),
    examples=("", "--dataset digits --seeds 0:3 --epochs 2", "--out data/layers"),
)
def _adapters(args: argparse.Namespace) -> None:
    """Trained networks whose last layers become FDN layers, beside MC dropout and an ensemble."""
    from fdn.runs import adapters, digits

    seeds = parse_seeds(args.seeds)
    for name in named(args.dataset, (*data.REAL, "digits")):
        is_table = name != "digits"
        task = adapters.table_task(data.load(name), args.epochs) if is_table else digits.digits_task(args.epochs)
        frames = []
        for seed in seeds:
            frames.append(adapters.study(task, [seed]))
            written = adapters.write(pd.concat(frames), args.out)  # after each seed: what is computed is kept
        say_written(written)


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
    say_written(latency.write(frame, args.to))


@command(
    option(options.DATASET, f"of {', '.join(published.DATASETS)} (default: all)"),
    option("--models", f"of {','.join(models.PAPER_MODELS)} (default: all)"),
    options.PROTOCOL,
    option("--epochs", "epochs of the sample (default: 5, on a GPU 50, for recording its graphs comes once)", **NUMBER),
    options.device("auto"),
    option("--quick", "no repeats, and fewer sizes", **FLAG),
    options.out("benchmark"),
    examples=("", "--quick", "--dataset step --models LP-FDNet,IC-FDNet --out out/bench"),
)
def _bench(args: argparse.Namespace) -> None:
    """Measure where the study's time goes, against a plain program that gives the same numbers; growth; memory."""
    from fdn.timing import benchmark

    names = named(args.dataset, published.DATASETS) or published.DATASETS
    chosen = named(args.models, models.PAPER_MODELS, "model") or models.PAPER_MODELS
    start = time.perf_counter()
    device = options.chosen_device(args)
    epochs = benchmark.EPOCHS[device.type] if args.epochs is None else args.epochs
    frames = benchmark.measure(names, chosen, parse_protocol(args.protocol), epochs, args.quick, device=device)
    written = benchmark.write(frames, time.perf_counter() - start, args.out, device)
    for table in benchmark.tables(frames, device):
        print("\n".join([f"{table.title}. {table.caption}\n", console.text_of(table), *table.notes, ""]))
    print(f"Ran on: {benchmark.ran_on(device)}")
    say_written(written)
