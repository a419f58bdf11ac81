"""`spore bench`: measure the speed of the whole engine, next to the machine's limits and a peer."""

import argparse
import json
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sporelm import __version__
from sporelm.cli import bench_output, image_options, lora_options, options, terminal_layout, trace_options
from sporelm.cli.parser import Parser, comma_separated
from sporelm.cli.terminal_layout import NARROW, terminal_width
from sporelm.errors import UsageError

if TYPE_CHECKING:
    from sporelm.api import LLM
    from sporelm.backends.protocol import Missing, Ready
    from sporelm.bench import BenchCase, BenchRow
    from sporelm.bench.bench_rows import SpeedLimit
    from sporelm.bench.roofline import Workload


def make_parser() -> Parser:
    parser = Parser(
        "bench",
        "Measure the speed of the whole engine, as llama-bench does: pp is prompt processing, tg is text generation. "
        "Each row shows the roofline limit of this machine, measured in the same run (memory bandwidth for tg, compute "
        "for pp), and with --peer the speed of llama.cpp or ik_llama.cpp on the same file, with alternating samples.",
        "[MODEL] [options]",
        [
            "spore bench -p 512 -n 128 -b 1,8",
            "spore bench --peer ~/peer/build/bin --threads 2 --json",
            "spore bench synthetic:llama-1b:q4_0 -n 64 --plot speed.svg",
        ],
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{options.MODEL_HELP}; or synthetic:SHAPE:FORMAT, random weights of a known shape, written once "
        "('synthetic:' lists the shapes)",
    )
    numbers = comma_separated(int)
    parser.add_argument(
        "-p", type=numbers, default=[512], metavar="N,..", help="prompt lengths, 0 for none; default: 512"
    )
    parser.add_argument(
        "-n", type=numbers, default=[128], metavar="N,..", help="tokens to decode, 0 for none; default: 128"
    )
    parser.add_argument(
        "-b",
        type=numbers,
        default=[1],
        metavar="N,..",
        help="batch sizes for decoding; above 1: 128 + 64 tokens per sequence; default: 1",
    )
    parser.add_argument("--whole", action="store_true", help="for every -b, add a row whose time includes prefill")
    parser.add_argument(
        "-d", type=numbers, default=[0], metavar="N,..", help="tokens in the context before decoding; default: 0"
    )
    parser.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="samples per row, whose median is printed; default: 5"
    )
    parser.add_argument(
        "--peer", type=Path, metavar="DIR", action="append", default=[],
        help="folder of the tools of llama.cpp or ik_llama.cpp (see bench/peer.sh); may be repeated",
    )  # fmt: skip
    bench_output.add_output(parser, plot_help="draw the rows as a chart", json_help="print a JSON list of rows")
    options.add_engine(parser)
    image_options.add_mmproj(parser)
    lora_options.add_lora(parser)
    trace_options.add_trace_and_record(parser)
    options.add_help(parser)
    return parser


class LoraBenchModel(NamedTuple):
    """A model with one of its LoRA adapters, to be measured."""

    llm: "LLM"
    adapter: str

    def bench_prefill(self, n: int) -> float:
        return self.llm.bench_prefill(n, self.adapter)

    def bench_decode(self, n: int, batch: int = 1, depth: int = 0) -> float:
        return self.llm.bench_decode(n, batch, depth, self.adapter)

    def bench_whole(self, n: int, batch: int, prompt: int) -> float:
        return self.llm.bench_whole(n, batch, prompt, self.adapter)


def run(args: argparse.Namespace) -> int:
    from sporelm.bench import bench_chart, bench_rows, build_cases, choose_context, measure_cases, open_peer
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.engine.capacity import DEFAULT_CONTEXT

    selected = build_cases(args.p, args.n, args.b, args.d, whole=args.whole)
    adapters = lora_options.parse_lora(args)
    if adapters and args.peer:
        raise UsageError("--peer cannot use adapters, so the comparison would be unfair: leave one of them out")
    bench_output.check_files(args, CONTEXT)
    requested = args.model
    path = find_model(args.model)
    args.model = str(path)
    args.max_context = choose_context(selected, read_context_length(path), args.max_context, DEFAULT_CONTEXT)
    llm = trace_options.open_traced_model(args, max_batch=max(case.batch for case in selected), adapters=adapters)
    try:
        peers = [open_peer(folder, path, llm.threads) for folder in args.peer]
        # Measured before and after the run; the higher value counts, because a limit measured while the machine was
        # busy could be exceeded. Read bandwidth is also measured around each decode sample.
        with ProgressLine() as progress:
            progress("the machine's limits", 0, 1)
            before = llm.backend.measure_limits()

        def limit(case: "BenchCase", stream: float | None) -> "SpeedLimit":
            rates = machine()
            return workload().limit(case, rates if stream is None else rates | {"stream_bytes_s": stream})

        @cache
        def workload() -> "Workload":
            return workload_of(llm)

        @cache
        def machine() -> dict[str, float]:
            after = llm.backend.measure_limits()
            return {name: max(value, after[name]) for name, value in before.items()}

        name = lora_options.first_name(adapters)
        measured = llm if name is None else LoraBenchModel(llm, name)
        with ProgressLine() as progress:
            found = measure_cases(measured, selected, args.repeat, limit, peers, progress, llm.backend.measure_stream)
        about = describe_run(sys.argv[1:], llm.backend.probe())
        model_name = requested if requested and ":" in requested else llm.config.name
        title = f"{model_name}, {llm.threads} thread{'s' * (llm.threads > 1)}"
    finally:
        llm.close()
        code = trace_options.report(llm)
    print(render(found, args), flush=True)  # first, because a full disk must not lose minutes of measuring
    if args.save:
        bench_rows.append_rows(args.save, found, about)
    if args.plot:
        bench_chart.write_svg(
            args.plot, bench_chart.render_chart(found, title, f"{about['machine']}; {about['commit']}")
        )
    return code


def find_model(model: str | None) -> Path:
    """Return the file or folder of MODEL, downloaded, or written if it is synthetic. Raises SporeError."""
    from sporelm.bench import is_synthetic, synthetic_file
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.files import store

    with ProgressLine() as progress:
        if model is not None and is_synthetic(model):
            return synthetic_file(model, progress)
        return store.resolve(model, progress)


def read_context_length(path: Path) -> int:
    """Return the context length of the model's files."""
    from sporelm.checkpoints import open_model

    source = open_model(path)
    try:
        return source.config.context_length
    finally:
        source.close()


def workload_of(llm: "LLM") -> "Workload":
    """Return what a step of the model reads and computes."""
    from sporelm.bench.roofline import compute_workload
    from sporelm.ops.canonical_pages import KV_TYPES

    kind = KV_TYPES[llm.kv]
    return compute_workload(llm.config, llm.model_bytes, kind.nbytes / kind.values, llm.expert_bytes)


def render(found: Sequence["BenchRow"], args: argparse.Namespace) -> str:
    """Return the rows in the requested form, by default a table."""
    from sporelm.bench import bench_rows

    if args.json:
        return json.dumps([row.as_json() for row in found], indent=2)
    if args.md:
        return bench_rows.rows_to_markdown(found).rstrip()
    if args.csv:
        return bench_rows.rows_to_csv(found).rstrip()
    from rich.console import Console
    from rich.table import Table

    width = terminal_width()
    if width is not None and width < NARROW:  # a table would truncate numbers
        return "\n".join(
            terminal_layout.format_table([bench_rows.TABLE_COLUMNS, *(row.cells() for row in found)], width)
        )
    table = Table(*bench_rows.TABLE_COLUMNS)
    for row in found:
        table.add_row(*row.cells())
    # A narrow terminal wraps the table; a file or a pipe gets the full width.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()


CONTEXT = ("time", "machine", "commit", "command")  # the columns of `describe_run`


def describe_run(words: Sequence[str], state: "Ready | Missing | None") -> dict[str, str]:
    """Return what makes a row reproducible: time, machine, commit and command (paths without folders)."""
    from sporelm.backends.host_cores import usable_cores
    from sporelm.cli.doctor import read_cpu_model

    details = getattr(state, "details", {})
    hardware = [read_cpu_model(), *(details[name] for name in ("cpu", "target", "split") if name in details)]
    values = (
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "; ".join([*hardware, f"{usable_cores()} cores", platform.system()]),
        find_commit(),
        shlex.join(["spore", *map(strip_folders, words)]),
    )
    return dict(zip(CONTEXT, values, strict=True))


def strip_folders(word: str) -> str:
    """Return a word of a command line without the folders of its path, which are the user's own.

    Of a build's folder of programs the build's name stays too, to identify the build of the peer. An address loses its
    user and password, and the part after '?' or '#'.
    """
    option, sign, value = word.partition("=")
    if word.startswith("--") and sign:
        return f"{option}={strip_folders(value)}"
    if "://" in word:
        scheme, _, rest = re.split(r"[?#]", word, maxsplit=1)[0].partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
    if not Path(word).is_absolute() and "/" not in word:
        return word
    path = Path(word)
    return f"{path.parent.name}/{path.name}" if path.name == "bin" else path.name


def find_commit(source: Path = Path(__file__)) -> str:
    """Return the commit of this source tree, with '+' if it has changes; the version if `source` is not tracked.

    An installed package may lie inside another repository, whose commit is unrelated.
    """
    tracked = run_git(source, "ls-files", "--error-unmatch", source.name)
    return (tracked and run_git(source, "describe", "--always", "--dirty=+", "--match", "")) or __version__


def run_git(source: Path, *words: str) -> str:
    """Return the output of git in the folder of `source`; empty if it fails or is not installed."""
    command = ["git", "-C", str(source.parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
