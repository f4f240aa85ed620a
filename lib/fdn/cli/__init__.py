"""The command line: ``fdn COMMAND``, or ``python -m fdn COMMAND``.

A mistake of the person at the keyboard is answered by one sentence and status 2, cells that could not be
computed by status 1, an interruption by status 130. The commands are functions of the modules beside this one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from fdn import paths
from fdn.cli import measuring, own_data, results, study  # which define the commands
from fdn.cli.options import DEFINED, filled
from fdn.cli.packages import lacking
from fdn.errors import UserError
from fdn.terminal import open_streams

ORDER = (  # of --help: every command has its place
    "run", "tables", "figures", "compare", "data", "budget", "reproduce", "paper", "collect", "notebook", "publish",
    "differences", "extras", "seeds", "adapters", "latency", "claims", "bench", "site", "smoke",
    "fit", "predict", "report",
)  # fmt: skip
COMMANDS = {name: DEFINED[name] for name in sorted(DEFINED, key=ORDER.index)}


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.register("type", None, filled)  # of every option and argument that says no other

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
        for add in command.options:
            add(one)
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
        if not (said := lacking(error)):
            raise
        return _complain(said, 2)
    except RuntimeError as error:
        return _complain(str(error), 1)
    except KeyboardInterrupt:
        return _complain("interrupted; what was computed is kept, and the same command continues from there", 130)


def _complain(message: str, status: int) -> int:
    print(f"fdn: {message}", file=sys.stderr)
    return status
