"""`spore rm`: remove models from the store."""

import argparse
import sys

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import print_folded
from sporelm.cli.terminal_text import escape_line
from sporelm.errors import RequestError


def make_parser() -> Parser:
    parser = Parser(
        "rm",
        "Remove models and incomplete downloads from the store. NAME is a name that 'spore list' shows; hf:owner/name "
        "stands for everything of that repository. Files outside the store are never touched.",
        "NAME... [options]",
        ["spore rm smollm2", "spore rm hf:owner/name:Q4_K_M", "spore rm --yes hf:owner/name"],
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="a stored model's name, as 'spore list' shows it")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import bytes_text
    from sporelm.files import store

    models = store.plan_removal(args.names)
    for model in models:
        unfinished = " (incomplete download)" if isinstance(model, store.Unfinished) else ""
        print_folded(f"{escape_line(model.name)}{unfinished}: {bytes_text(model.nbytes)}")
    if not args.yes and not ask_to_confirm():
        print_folded("nothing was removed")
        return 1
    print_folded(f"removed, {bytes_text(store.remove(models))} are free")
    return 0


def ask_to_confirm() -> bool:
    """Ask on the terminal. Raises RequestError without a terminal."""
    if not sys.stdin.isatty():
        raise RequestError("there is no terminal to ask on: give --yes to remove these")
    sys.stderr.write("remove? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
