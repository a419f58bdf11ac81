"""`spore rm`: take models out of the store."""

import argparse
import sys

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.errors import RequestError


def parser() -> Parser:
    made = Parser(
        "rm",
        "Remove models from the store, each whole, and what was not fetched to its end. NAME is a name that "
        "'spore list' shows; hf:owner/name stands for everything of that repository. Files outside the store are never "
        "touched.",
        "NAME... [options]",
        ["spore rm smollm2", "spore rm hf:owner/name:Q4_K_M", "spore rm --yes hf:owner/name"],
    )
    made.add_argument("names", nargs="+", metavar="NAME", help="a stored model's name, as 'spore list' shows it")
    made.add_argument("-y", "--yes", action="store_true", help="do not ask")
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import bytes_text, plain
    from sporelm.weights import store

    models = store.planned_removal(args.names)
    for model in models:
        unfinished = " (not fetched to its end)" if isinstance(model, store.Unfinished) else ""
        print(f"{plain(model.name)}{unfinished}: {bytes_text(model.nbytes)}")
    if not args.yes and not agreed():
        print("nothing was removed")
        return 1
    print(f"removed, {bytes_text(store.remove(models))} are free")
    return 0


def agreed() -> bool:
    """Ask on the terminal. Raises RequestError where there is none."""
    if not sys.stdin.isatty():
        raise RequestError("there is no terminal to ask on: give --yes to remove these")
    sys.stderr.write("remove? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
