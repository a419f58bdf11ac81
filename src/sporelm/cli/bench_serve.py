"""`spore bench serve`: measure how fast a running server answers."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from sporelm.cli import bench_output, options, terminal_layout
from sporelm.cli.parser import Parser, comma_separated
from sporelm.cli.terminal_layout import NARROW, terminal_width

if TYPE_CHECKING:
    from rich.table import Table

    from sporelm.bench.serving.serving_measurement import ServingPlan, ServingReport

TABLE_COLUMNS = 132  # columns that the full table needs
SEED_BITS = 31  # of a random seed


def make_parser() -> Parser:
    parser = Parser(
        "bench serve",
        "Measure a running server with OpenAI's API: tokens and requests per second, and percentiles of the time to "
        "first token, the inter-token latency and the total latency. The load is either a number of users who each "
        "wait for their answer (-c), or a request rate (--rate). Failures are counted and reported.",
        "--url URL [options]",
        [
            "spore bench serve --url http://127.0.0.1:8000",
            "spore bench serve --url http://127.0.0.1:8000 -c 1,4,16,64 --requests 128 --plot server.svg",
            "spore bench serve --url https://host/v1 --model NAME --rate 2,8 --json",
        ],
    )
    parser.add_argument(
        "--url", required=True, metavar="URL", help="address of the server; without a path it is URL/v1"
    )
    parser.add_argument("--model", default="", metavar="NAME", help="default: the first model that the server lists")
    parser.add_argument("--api-key", metavar="KEY", help="API key of the server, sent unchanged (SPORE_API_KEY)")
    parser.add_argument(
        "--endpoint", choices=("chat", "completions"), default="chat", metavar="E", help="chat (default) or completions"
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "-c", type=comma_separated(int), metavar="N,..", help="concurrent users; default: 1,4,16 unless --rate is given"
    )
    load.add_argument("--rate", type=parse_rates, metavar="R,..", help="requests per second, with exponential gaps")
    load.add_argument(
        "--requests",
        type=int,
        metavar="N",
        help="requests per load; default: 4 per user, or 10 s of a rate, at least 16",
    )
    load.add_argument("--warmup", type=int, default=1, metavar="N", help="requests before the measurement; default: 1")
    load.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each load, alternating; default: 1")
    load.add_argument("-p", type=int, default=128, metavar="N", help="approximate tokens of a prompt; default: 128")
    load.add_argument("-n", type=int, default=64, metavar="N", help="tokens of an answer; default: 64")
    load.add_argument(
        "--shared-prefix",
        type=float,
        default=0.0,
        metavar="S",
        help="fraction of the prompts that is a common prefix; default: 0, so that no prefix cache helps",
    )
    load.add_argument("--temp", type=float, default=0.0, metavar="T", help="temperature; default: 0")
    load.add_argument(
        "--seed", type=int, metavar="S", help="seed of prompts and arrival times; default: random, and printed"
    )
    load.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds per request; default: 600")
    output = parser.add_argument_group("output")
    bench_output.add_output(output, plot_help="draw them as charts", json_help="print one JSON object")
    options.add_help(parser)
    return parser


def parse_rates(text: str) -> list[float]:
    """Parse --rate."""
    return [float(word) for word in text.split(",")]


parse_rates.__name__ = "list of numbers"  # argparse names it in its message


def run(args: argparse.Namespace) -> int:
    from sporelm.bench import bench_chart, bench_rows
    from sporelm.bench.serving import serving_chart, serving_tables
    from sporelm.bench.serving.serving_measurement import measure_server
    from sporelm.cli.bench import CONTEXT, describe_run
    from sporelm.cli.interrupt import interrupt_flag
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.cli.terminal_text import escape_line

    plan = make_plan(args)
    bench_output.check_files(args, CONTEXT, serving_tables.SERVING_CSV_COLUMNS)
    with interrupt_flag() as stopped, ProgressLine() as progress:
        found = measure_server(plan, progress, lambda: bool(stopped))
    print(render(found, args), flush=True)
    if not args.json:
        for note in found.notes:
            sys.stderr.write(f"spore: {escape_line(note)}\n")  # notes quote the server
    about = describe_run(hide_secrets(sys.argv[1:]), None)
    if args.save and found.rows:
        bench_rows.append_lines(
            args.save, about, serving_tables.SERVING_CSV_COLUMNS, serving_tables.report_to_csv_lines(found)
        )
    if args.plot and found.rows:
        bench_chart.write_svg(
            args.plot,
            serving_chart.render_serving_chart(found.rows, found.title, f"{about['machine']}; {about['commit']}"),
        )
    if found.stopped:
        sys.stderr.write("spore: stopped: only answers so far are counted\n")
    return 130 if found.stopped else 0


def make_plan(args: argparse.Namespace) -> "ServingPlan":
    """Return the plan of the measurement. Raises UsageError."""
    import secrets

    from sporelm.bench.serving.load_generator import OfferedLoad
    from sporelm.bench.serving.server_target import ServerTarget
    from sporelm.bench.serving.serving_measurement import ServingPlan
    from sporelm.cli.remote.api_key_option import resolve_key
    from sporelm.cli.remote.server_address import ServerAddress

    users = args.c if args.c is not None else ([] if args.rate else [1, 4, 16])
    loads = [*(OfferedLoad(users=count) for count in users), *(OfferedLoad(rate=rate) for rate in args.rate or ())]
    address = ServerAddress.parse(args.url)
    return ServingPlan(
        ServerTarget(
            address.scheme, address.host, address.port, address.origin, address.path, resolve_key(args.api_key) or ""
        ),
        tuple(dict.fromkeys(loads)),
        **options.select(args, "model", "endpoint", "requests", "warmup", "repeat", "timeout"),
        prompt_tokens=args.p,
        new_tokens=args.n,
        shared=args.shared_prefix,
        seed=secrets.randbits(SEED_BITS) if args.seed is None else args.seed,
        temperature=args.temp,
    )


def render(found: "ServingReport", args: argparse.Namespace) -> str:
    """Return the rows in the requested form, by default a table."""
    from sporelm.bench.serving import serving_tables

    if args.json:
        return json.dumps(found.as_json(), indent=2)
    if args.md:
        return serving_tables.serving_rows_to_markdown(found.rows).rstrip()
    if args.csv:
        return serving_tables.report_to_csv(found).rstrip()
    return format_rows(found)


def format_rows(found: "ServingReport") -> str:
    """Return a line about the load, and a table of the rows."""
    from rich.console import Console
    from rich.text import Text

    from sporelm.cli.terminal_text import escape_line

    # A file or a pipe gets the wide table.
    console = Console() if sys.stdout.isatty() else Console(width=2 * TABLE_COLUMNS)
    width = terminal_width()
    if width is not None and width < NARROW:  # a table would truncate numbers
        return "\n".join(format_records(found, width))
    table = make_wide_table(found) if console.width >= TABLE_COLUMNS else make_narrow_table(found)
    counted = ", ".join(sorted({row.counted_by for row in found.rows} - {""}))
    with console.capture() as capture:
        words = f"{found.title}, seed {found.plan.seed}" + (f", tokens counted by {counted}" if counted else "")
        console.print(Text(escape_line(words)))
        console.print(table)
    return capture.get().rstrip()


def format_records(found: "ServingReport", width: int) -> list[str]:
    """Return a line about the load, and one record per load."""
    from sporelm.bench.serving.serving_rows import SERVING_COLUMNS
    from sporelm.cli.terminal_text import escape_line

    lines = terminal_layout.fold(escape_line(f"{found.title}, seed {found.plan.seed}"), width)
    cells = [[escape_line(cell) for cell in row.cells()] for row in found.rows]
    return lines + terminal_layout.format_table([list(SERVING_COLUMNS), *cells], width)


def make_wide_table(found: "ServingReport") -> "Table":
    """Return a table with one line per load."""
    from rich.table import Table
    from rich.text import Text

    from sporelm.bench.serving.serving_rows import SERVING_COLUMNS

    table = Table(*SERVING_COLUMNS)
    for row in found.rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row.cells()))
    return table


def make_narrow_table(found: "ServingReport") -> "Table":
    """Return a table with percentiles below each other; failures are printed below the table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from sporelm.bench.serving.serving_rows import SERVING_COLUMNS, STATISTICS

    table = Table(box=box.SIMPLE, pad_edge=False)
    names = [name.removesuffix(" p50/p90/p99/mean") for name in SERVING_COLUMNS]
    for name in (*names[:2], *names[3:5], "", *names[5:]):
        table.add_column(name, overflow="fold", no_wrap=name in ("", "load"))
    for row in found.rows:
        cells = [cell.replace("/", "\n") if at > 4 else cell for at, cell in enumerate(row.cells())]
        cells = [*cells[:2], *cells[3:5], "\n".join(STATISTICS), *cells[5:]]
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    return table


def hide_secrets(words: list[str]) -> list[str]:
    """Return a command line with its API key replaced."""
    result: list[str] = []
    for word in words:
        hidden = "KEY" if result and result[-1] == "--api-key" else word
        result.append("--api-key=KEY" if word.startswith("--api-key=") else hidden)
    return result
