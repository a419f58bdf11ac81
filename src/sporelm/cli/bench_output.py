"""The output options of `spore bench` and `spore bench serve`: where measured rows go, and in which form."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def add_output(parser: argparse._ActionsContainer, *, plot_help: str, json_help: str) -> None:
    """Add --save, --plot and the options for the printed form."""
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="append the rows to a CSV file, with machine, commit, command"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help=f"{plot_help}; the file name ends in .svg")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=json_help)
    form.add_argument("--md", action="store_true", help="print a Markdown table")
    form.add_argument("--csv", action="store_true", help="print CSV")


def check_files(args: argparse.Namespace, *headings: Sequence[str]) -> None:
    """Check the files to be written before measuring, which takes minutes. Raises SporeError."""
    from sporelm.bench import bench_chart, bench_rows

    if args.save:
        bench_rows.check_results_file(args.save, *headings)
    if args.plot:
        bench_chart.check_plot(args.plot)
