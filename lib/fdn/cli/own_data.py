"""Commands for a table of one's own: fit, predict, report."""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path

from fdn import paths
from fdn.cli import options
from fdn.cli.options import FILE, NUMBER, REPEATED, command, option, say_written
from fdn.cli.packages import EXTRAS
from fdn.data.reading import Reading
from fdn.errors import UserError
from fdn.report import tables
from fdn.settings import Whole, parsed


def _input(text: str) -> Path:
    if not (path := options.file(text)).exists():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def _sign(text: str) -> str:
    """A separator, which may be a tab."""
    return "\t" if text in ("\t", r"\t", "tab") else options.filled(text)


READING = (
    option("--separator", "of a CSV file's columns (default: found)", type=_sign, metavar="SIGN"),
    option("--decimal", "the decimal sign, . or , (default: found)", metavar="SIGN"),
    option("--encoding", "of a CSV file, such as utf-8 or cp1252 (default: found)", metavar="NAME"),
    options.device("cpu"),
)


def _reading(args: argparse.Namespace) -> Reading:
    return Reading(args.separator or "", args.decimal or "", args.encoding or "", [*Reading.missing, *args.missing])


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
    option("--seed", "of the split and the training", default="0"),
    options.out("model"),
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
        args.file, args.target, args.split_column, given=_reading(args), leave_out=args.leave_out,
        seed=parsed("--seed", args.seed, Whole), max_epochs=args.epochs or "auto",
        device=str(options.chosen_device(args)), verbose=1,
    )  # fmt: skip
    model.save(args.out)
    check = model.check()
    print(*model.remarks, check.to_string(float_format=tables.plain_number), sep="\n")
    print("In units of the target. crps: error of the whole predicted distribution. The 90 % intervals are q05 to q95.")
    if (n := check["rows"].min()) < FEW:
        print(f"{n} rows say little.")
    say_written([args.out])


@command(
    option("model", "folder that `fdn fit` wrote", type=options.folder),
    option("file", "a table with the same columns, in any order", type=_input),
    option("--id", "column that names the rows in the predictions (default: their numbers)", metavar="COLUMN"),
    option("--missing", "a text that means no value, besides those of the fit; may be repeated", **REPEATED),
    *READING,
    options.out("predictions.csv", "a CSV file", **FILE),
    examples=("model new.csv --out pred.csv", "model new.csv --id house --out pred.csv"),
)
def _predict(args: argparse.Namespace) -> None:
    """Predict rows: mean, standard deviation and its parts, 90 % interval q05 to q95, and what is unlike the data."""
    from fdn.estimators.tables import TableModel

    model, start = TableModel.load(args.model, str(options.chosen_device(args))), time.perf_counter()
    n, said = model.predict_file(args.file, args.out, _reading(args), args.id)
    seconds = time.perf_counter() - start
    print(said, *([f"{n / seconds:,.0f} rows a second"] if seconds > 10 else []), sep="\n")
    say_written([args.out])


@command(
    option("model", "folder that `fdn fit` wrote", type=options.folder),
    option("--data", "where the table of `fdn fit` is now (default: where it was)", type=_input, metavar="FILE"),
    options.out("report.html", "a page of HTML", **FILE),
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
    say_written([args.out])
