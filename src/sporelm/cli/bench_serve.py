"""`spore bench serve`: how fast a running server answers, ours or another's."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from sporelm.cli import bench_output, options, terminal_layout
from sporelm.cli.parser import Parser, listed
from sporelm.cli.terminal_layout import NARROW, terminal_width

if TYPE_CHECKING:
    from rich.table import Table

    from sporelm.bench.serving.measure import Plan, Report

WIDE = 132  # columns that the table needs
LONGEST_SEED = 31  # bits of one that is drawn


def parser() -> Parser:
    made = Parser(
        "bench serve",
        "Measure a running server that speaks OpenAI's API: tokens and requests a second, and percentiles of the time "
        "to the first token, between tokens and of whole answers. Either so many users who each wait for their answer "
        "(-c), or requests that come at random moments (--rate). Failures are counted and told.",
        "--url URL [options]",
        [
            "spore bench serve --url http://127.0.0.1:8000",
            "spore bench serve --url http://127.0.0.1:8000 -c 1,4,16,64 --requests 128 --plot server.svg",
            "spore bench serve --url https://host/v1 --model NAME --rate 2,8 --json",
        ],
    )
    made.add_argument("--url", required=True, metavar="URL", help="of the server; without a path it is URL/v1")
    made.add_argument("--model", default="", metavar="NAME", help="default: the first one that the server lists")
    made.add_argument("--api-key", metavar="KEY", help="the key that the server wants, sent as it is (SPORE_API_KEY)")
    made.add_argument(
        "--endpoint", choices=("chat", "completions"), default="chat", metavar="E", help="chat (default) or completions"
    )
    load = made.add_argument_group("load")
    load.add_argument(
        "-c", type=listed(int), metavar="N,..", help="users at a time; default: 1,4,16 unless --rate is given"
    )
    load.add_argument("--rate", type=rates, metavar="R,..", help="requests a second, with exponential gaps")
    load.add_argument(
        "--requests", type=int, metavar="N", help="per load; default: 4 a user, or 10 s of a rate, at least 16"
    )
    load.add_argument("--warmup", type=int, default=1, metavar="N", help="requests before, not counted; default: 1")
    load.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each load, in turns; default: 1")
    load.add_argument("-p", type=int, default=128, metavar="N", help="tokens of a prompt, about; default: 128")
    load.add_argument("-n", type=int, default=64, metavar="N", help="tokens of an answer; default: 64")
    load.add_argument(
        "--shared-prefix",
        type=float,
        default=0.0,
        metavar="S",
        help="share of a prompt, from its beginning, that is the same in all; default: 0, so that no cache answers",
    )
    load.add_argument("--temp", type=float, default=0.0, metavar="T", help="temperature; default: 0")
    load.add_argument("--seed", type=int, metavar="S", help="of prompts and moments; default: random, and told")
    load.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds of a request; default: 600")
    output = made.add_argument_group("output")
    bench_output.add_output(output, plotted="draw them as charts", as_json="print one JSON object")
    options.add_help(made)
    return made


def rates(text: str) -> list[float]:
    """The type of --rate."""
    return [float(word) for word in text.split(",")]


rates.__name__ = "list of numbers"  # argparse names it in its message


def run(args: argparse.Namespace) -> int:
    from sporelm.bench import plot, rows
    from sporelm.bench.serving import chart, forms
    from sporelm.bench.serving.measure import measure
    from sporelm.cli.bench import CONTEXT, context
    from sporelm.cli.interrupt import interrupt_flag
    from sporelm.cli.plain_text import plain
    from sporelm.cli.progress import ProgressLine

    wanted = plan_of(args)
    bench_output.check(args, CONTEXT, forms.CSV_HEADS)
    with interrupt_flag() as stopped, ProgressLine() as progress:
        found = measure(wanted, progress, lambda: bool(stopped))
    print(render(found, args), flush=True)
    if not args.json:
        for note in found.notes:
            sys.stderr.write(f"spore: {plain(note)}\n")  # notes quote the server
    about = context(without_secrets(sys.argv[1:]), None)
    if args.save and found.rows:
        rows.append_lines(args.save, about, forms.CSV_HEADS, forms.csv_lines(found))
    if args.plot and found.rows:
        plot.write_svg(args.plot, chart.as_svg(found.rows, found.title, f"{about['machine']}; {about['commit']}"))
    if found.stopped:
        sys.stderr.write("spore: stopped: these are the answers that had come\n")
    return 130 if found.stopped else 0


def plan_of(args: argparse.Namespace) -> "Plan":
    """What the options ask for. Raises UsageError."""
    import secrets

    from sporelm.bench.serving.loads import Load
    from sporelm.bench.serving.measure import Plan
    from sporelm.bench.serving.target import Target
    from sporelm.cli.remote.address import Address
    from sporelm.cli.remote.key import key_of

    users = args.c if args.c is not None else ([] if args.rate else [1, 4, 16])
    loads = [*(Load(users=count) for count in users), *(Load(rate=rate) for rate in args.rate or ())]
    place = Address.of(args.url)
    return Plan(
        Target(place.scheme, place.host, place.port, place.origin, place.path, key_of(args.api_key) or ""),
        tuple(dict.fromkeys(loads)),
        **options.given(args, "model", "endpoint", "requests", "warmup", "repeat", "timeout"),
        prompt_tokens=args.p,
        new_tokens=args.n,
        shared=args.shared_prefix,
        seed=secrets.randbits(LONGEST_SEED) if args.seed is None else args.seed,
        temperature=args.temp,
    )


def render(found: "Report", args: argparse.Namespace) -> str:
    """The rows in the form that was asked for; a table for a person otherwise."""
    from sporelm.bench.serving import forms

    if args.json:
        return json.dumps(found.as_json(), indent=2)
    if args.md:
        return forms.as_markdown(found.rows).rstrip()
    if args.csv:
        return forms.as_csv(found).rstrip()
    return table(found)


def table(found: "Report") -> str:
    """A line that says what was asked, and the rows."""
    from rich.console import Console
    from rich.text import Text

    from sporelm.cli.plain_text import plain

    # A file or a pipe gets the wide table.
    console = Console() if sys.stdout.isatty() else Console(width=2 * WIDE)
    width = terminal_width()
    if width is not None and width < NARROW:  # where a table would cut figures
        return "\n".join(records(found, width))
    made = wide(found) if console.width >= WIDE else narrow(found)
    counted = ", ".join(sorted({row.counted_by for row in found.rows} - {""}))
    with console.capture() as capture:
        words = f"{found.title}, seed {found.plan.seed}" + (f", tokens counted by {counted}" if counted else "")
        console.print(Text(plain(words)))
        console.print(made)
    return capture.get().rstrip()


def records(found: "Report", width: int) -> list[str]:
    """What was asked for, and the figures of each load one below the other."""
    from sporelm.bench.serving.figures import HEADS
    from sporelm.cli.plain_text import plain

    lines = terminal_layout.fold(plain(f"{found.title}, seed {found.plan.seed}"), width)
    cells = [[plain(cell) for cell in row.cells()] for row in found.rows]
    return lines + terminal_layout.table([list(HEADS), *cells], width)


def wide(found: "Report") -> "Table":
    """A line for each load."""
    from rich.table import Table
    from rich.text import Text

    from sporelm.bench.serving.figures import HEADS

    made = Table(*HEADS)
    for row in found.rows:
        made.add_row(*(Text(cell, overflow="fold") for cell in row.cells()))
    return made


def narrow(found: "Report") -> "Table":
    """Percentiles one below the other; what failed is told in the lines below the table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from sporelm.bench.serving.figures import HEADS, SPREAD

    made = Table(box=box.SIMPLE, pad_edge=False)
    names = [name.removesuffix(" p50/p90/p99/mean") for name in HEADS]
    for name in (*names[:2], *names[3:5], "", *names[5:]):
        made.add_column(name, overflow="fold", no_wrap=name in ("", "load"))
    for row in found.rows:
        cells = [cell.replace("/", "\n") if at > 4 else cell for at, cell in enumerate(row.cells())]
        cells = [*cells[:2], *cells[3:5], "\n".join(SPREAD), *cells[5:]]
        made.add_row(*(Text(cell, overflow="fold") for cell in cells))
    return made


def without_secrets(words: list[str]) -> list[str]:
    """A command line with a word in place of its key."""
    found: list[str] = []
    for word in words:
        hidden = "KEY" if found and found[-1] == "--api-key" else word
        found.append("--api-key=KEY" if word.startswith("--api-key=") else hidden)
    return found
