"""Commands that show what a results folder holds: tables, figures, the comparison, the claims, the site."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from fdn import models, paths
from fdn.arguments import parse_protocol
from fdn.cli import options
from fdn.cli.options import FLAG, FOLDER, command, named, one_of, option, say_written
from fdn.protocol import Protocol
from fdn.report import comparison, console, findings, published, tables
from fdn.runs import experiment, extras
from fdn.runs.results import load_metrics
from fdn.settings import choose

STORED = (
    option("--results", "default: out if it holds results, else the committed ones", **FOLDER),
    option("--protocol", "a protocol, or the label of an ablation such as published+warmup=50", default="published"),
)


def _stored(args: argparse.Namespace, with_committed: bool = False) -> tuple[Path, Protocol, pd.DataFrame]:
    """The results folder to read, the protocol of the given label, and the metrics."""
    folder = console.find_results(args.results)
    print(f"Reading {console.shown_path(folder)}", file=sys.stderr)
    protocol = parse_protocol(args.protocol)
    metrics = comparison.with_committed(folder) if with_committed else extras.read(folder)
    console.check_protocol(metrics, protocol.label, folder)
    return folder, protocol, metrics


@command(*STORED, options.out("tables"), examples=("", "--results out --out out/tables"), checkout=True)
def _tables(args: argparse.Namespace) -> None:
    """Write every table of a results folder."""
    _, protocol, metrics = _stored(args)
    written = tables.all_tables(metrics, experiment.datasets_of(metrics, protocol), protocol.label, args.out)
    print(f"Written: {len(written)} files in {console.shown_path(args.out)} (Markdown, LaTeX and CSV)")


@command(
    *STORED,
    option(options.DATASET, "default: all that have results"),
    options.out("figures"),
    examples=("", "--dataset step --results out --out out/figures"),
)
def _figures(args: argparse.Namespace) -> None:
    """Draw every figure of a results folder."""
    from fdn.report import figures

    folder, protocol, metrics = _stored(args)
    datasets = experiment.datasets_of(metrics, protocol)
    shown = {name: datasets[name] for name in named(args.dataset, datasets) or datasets}
    written, notes = figures.write_figures(folder, metrics, shown, protocol, args.out)
    for note in notes:
        print(f"not drawn: {note}", file=sys.stderr)
    print(f"Written: {len(written)} files in {console.shown_path(args.out)} (PDF and PNG)")


@command(
    *STORED,
    one_of(
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
        say_written(written)


@command(
    option("--results", "main results (default: the committed ones)", **FOLDER),
    option("--to", "where the page and its data go (default: data/claims)", **FOLDER),
    examples=("", "--results out --to out/claims"),
    checkout=True,
)
def _claims(args: argparse.Namespace) -> None:
    """Judge the paper's sentences by results, and write the page."""
    from fdn.report import claims

    given = () if args.results is None else (
        extras.with_extras(load_metrics(args.results)),
        f"`{findings.place(args.results)}` and the committed extras (`data/extras`)",
    )  # fmt: skip
    written = claims.write(args.to, *given)
    print(written[1].read_text(encoding="utf-8").split("\n")[2])  # the counts
    say_written(written)


@command(
    option("--results", "default: the committed results", default=paths.COMMITTED_RESULTS, **FOLDER),
    options.out("site"),
    examples=("", "--results out --out out/site"),
    checkout=True,
)
def _site(args: argparse.Namespace) -> None:
    """Write the static site: results, notebooks, reference of the code, provenance."""
    from fdn.report.site.build import build

    n_pages = build(args.results, args.out)
    print(f"Written: {n_pages} pages; open {console.shown_path(args.out / 'index.html')}")
