"""What becomes of measured rows, as the options of `spore bench` and `spore bench serve` say."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def add_output(parser: argparse._ActionsContainer, *, plotted: str, as_json: str) -> None:
    """--save, --plot, and the form in which rows are printed; `plotted` and `as_json` say what these are."""
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="append the rows to a CSV file, with machine, commit, command"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help=f"{plotted}; the file's name ends in .svg")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=as_json)
    form.add_argument("--md", action="store_true", help="print a Markdown table")
    form.add_argument("--csv", action="store_true", help="print CSV")


def check(args: argparse.Namespace, *heads: Sequence[str]) -> None:
    """Refuse now what can be refused of the files to be written: measuring takes minutes. Raises SporeError."""
    from sporelm.bench import plot, rows

    if args.save:
        rows.check_file(args.save, *heads)
    if args.plot:
        plot.check_plot(args.plot)
