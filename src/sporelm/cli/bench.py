"""`spore bench`: the speed of the whole engine, beside the machine's limits and a peer's figures."""

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
from sporelm.cli import bench_output, lora, options, terminal_layout, watching
from sporelm.cli.parser import Parser, listed
from sporelm.cli.terminal_layout import NARROW, terminal_width
from sporelm.errors import UsageError

if TYPE_CHECKING:
    from sporelm.api import LLM
    from sporelm.backends.backend import Missing, Ready
    from sporelm.bench import Case, Row
    from sporelm.bench.rows import Limit


def parser() -> Parser:
    made = Parser(
        "bench",
        "Measure the speed of the whole engine, as llama-bench does: pp is a prompt, tg is decoding. Each row has the "
        "limit of this machine, measured in the same run (reading memory for tg, products for pp), and with --peer "
        "the figure of llama.cpp on the same file, sample by sample in turn.",
        "[MODEL] [options]",
        [
            "spore bench -p 512 -n 128 -b 1,8",
            "spore bench --peer ~/peer/build/bin --threads 2 --json",
            "spore bench synthetic:llama-1b:q4_0 -n 64 --plot speed.svg",
        ],
    )
    made.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{options.MODEL_HELP}; or synthetic:SHAPE:FORMAT, random weights of a known shape, written once "
        "('synthetic:' lists what there is)",
    )
    numbers = listed(int)
    made.add_argument(
        "-p", type=numbers, default=[512], metavar="N,..", help="lengths of prompts, 0 for none; default: 512"
    )
    made.add_argument(
        "-n", type=numbers, default=[128], metavar="N,..", help="tokens to decode, 0 for none; default: 128"
    )
    made.add_argument(
        "-b",
        type=numbers,
        default=[1],
        metavar="N,..",
        help="sequences decoded together; above 1: 128 + 64 tokens each; default: 1",
    )
    made.add_argument(
        "--whole", action="store_true", help="for every -b also a row whose clock begins with the prompts"
    )
    made.add_argument(
        "-d", type=numbers, default=[0], metavar="N,..", help="tokens in the context before decoding; default: 0"
    )
    made.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="samples per row, of which the median counts; default: 5"
    )
    made.add_argument("--peer", type=Path, metavar="DIR", help="folder of llama.cpp's tools (see bench/peer.sh)")
    bench_output.add_output(made, plotted="draw the rows as a chart", as_json="print a JSON list of rows")
    options.add_engine(made)
    lora.add_lora(made)
    watching.add_watching(made)
    options.add_help(made)
    return made


class Adapted(NamedTuple):
    """A model with one of its adapters, as what is measured."""

    llm: "LLM"
    adapter: str

    def bench_prefill(self, n: int) -> float:
        return self.llm.bench_prefill(n, self.adapter)

    def bench_decode(self, n: int, batch: int = 1, depth: int = 0) -> float:
        return self.llm.bench_decode(n, batch, depth, self.adapter)

    def bench_whole(self, n: int, batch: int, prompt: int) -> float:
        return self.llm.bench_whole(n, batch, prompt, self.adapter)


def run(args: argparse.Namespace) -> int:
    from sporelm.bench import LlamaPeer, cases, context_for, measure, plot, rows
    from sporelm.cli.progress import ProgressLine
    from sporelm.engine.capacity import DEFAULT_CONTEXT

    wanted, adapters = cases(args.p, args.n, args.b, args.d, whole=args.whole), lora.adapters(args)
    if adapters and args.peer:
        raise UsageError("--peer has no adapter, so its figures say nothing of --lora: leave one of them out")
    bench_output.check(args, CONTEXT)
    asked, path = args.model, find(args.model)
    args.model = str(path)
    args.max_context = context_for(wanted, model_context(path), args.max_context, DEFAULT_CONTEXT)
    llm = watching.open_model(args, max_batch=max(case.batch for case in wanted), adapters=adapters)
    try:
        peer = LlamaPeer(args.peer, path, llm.threads) if args.peer else None
        # Measured at both ends of the run, the better counts: a busy moment must not make a limit that can be passed.
        before = llm.backend.limits()

        def limit(case: "Case") -> "Limit":
            return limit_of(llm, case, machine())

        @cache
        def machine() -> dict[str, float]:
            after = llm.backend.limits()
            return {name: max(value, after[name]) for name, value in before.items()}

        name = lora.first(adapters)
        measured = llm if name is None else Adapted(llm, name)
        with ProgressLine() as progress:
            found = measure(measured, wanted, args.repeat, limit, peer, progress)
        about = context(sys.argv[1:], llm.backend.probe())
        title = f"{asked if asked and ':' in asked else llm.config.name}, {llm.threads} thread{'s' * (llm.threads > 1)}"
    finally:
        llm.close()
        code = watching.tell(llm)
    print(render(found, args), flush=True)  # first: a full disk must not take minutes of measuring with it
    if args.save:
        rows.append(args.save, found, about)
    if args.plot:
        plot.write_svg(args.plot, plot.as_svg(found, title, f"{about['machine']}; {about['commit']}"))
    return code


def find(model: str | None) -> Path:
    """The file or folder that MODEL names, fetched, or written if it is a made-up one. Raises SporeError."""
    from sporelm.bench import is_synthetic, synthetic_file
    from sporelm.cli.progress import ProgressLine
    from sporelm.weights import store

    with ProgressLine() as progress:
        if model is not None and is_synthetic(model):
            return synthetic_file(model, progress)
        return store.resolve(model, progress)


def model_context(path: Path) -> int:
    """Positions that the model itself allows."""
    from sporelm.models import open_model

    source = open_model(path)
    try:
        return source.config.context_length
    finally:
        source.close()


def limit_of(llm: "LLM", case: "Case", machine: dict[str, float]) -> "Limit":
    from sporelm.bench.limits import work_of
    from sporelm.ops.cache import KV_TYPES

    kind = KV_TYPES[llm.kv]
    work = work_of(llm.config, llm.model_bytes, kind.nbytes / kind.values, llm.expert_bytes)
    return work.limit(case, machine)


def render(found: Sequence["Row"], args: argparse.Namespace) -> str:
    """The rows in the form that was asked for; a table for a person otherwise."""
    from sporelm.bench import rows

    if args.json:
        return json.dumps([row.as_json() for row in found], indent=2)
    if args.md:
        return rows.as_markdown(found).rstrip()
    if args.csv:
        return rows.as_csv(found).rstrip()
    from rich.console import Console
    from rich.table import Table

    width = terminal_width()
    if width is not None and width < NARROW:  # where a table would cut figures
        return "\n".join(terminal_layout.table([rows.HEADS, *(row.cells() for row in found)], width))
    table = Table(*rows.HEADS)
    for row in found:
        table.add_row(*row.cells())
    # A narrow terminal wraps the table as it must; a file or a pipe gets all of it.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()


CONTEXT = ("time", "machine", "commit", "command")  # the columns of `context`


def context(words: Sequence[str], state: "Ready | Missing | None") -> dict[str, str]:
    """What makes a row traceable: when, on which machine, of which commit, by which command (paths without folders)."""
    from sporelm.api.machine import usable_cores
    from sporelm.cli.doctor import cpu_model

    details = getattr(state, "details", {})
    hardware = [cpu_model(), *(details[name] for name in ("cpu", "target") if name in details)]
    values = (
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "; ".join([*hardware, f"{usable_cores()} cores", platform.system()]),
        commit(),
        shlex.join(["spore", *map(without_folders, words)]),
    )
    return dict(zip(CONTEXT, values, strict=True))


def without_folders(word: str) -> str:
    """A word of a command line, paths cut to their last part: folders are the user's own, and differ between machines.

    Of a build's folder of programs the build's name stays too: it tells which build of the peer it was. An address
    stays, but for what may be a secret in it: user and password, and what stands after '?' or '#'.
    """
    option, sign, value = word.partition("=")
    if word.startswith("--") and sign:
        return f"{option}={without_folders(value)}"
    if "://" in word:
        scheme, _, rest = re.split(r"[?#]", word, maxsplit=1)[0].partition("://")
        place, slash, below = rest.partition("/")
        return f"{scheme}://{place.rpartition('@')[2]}{slash}{below}"
    if not Path(word).is_absolute() and "/" not in word:
        return word
    path = Path(word)
    return f"{path.parent.name}/{path.name}" if path.name == "bin" else path.name


def commit(source: Path = Path(__file__)) -> str:
    """The commit of this source tree, '+' if it has changes; the version where no repository tracks `source`.

    An installed package may lie inside somebody's repository, whose commit would say nothing about it.
    """
    tracked = git(source, "ls-files", "--error-unmatch", source.name)
    return (tracked and git(source, "describe", "--always", "--dirty=+", "--match", "")) or __version__


def git(source: Path, *words: str) -> str:
    """What git says in the folder of `source`; nothing if it fails or is not there."""
    command = ["git", "-C", str(source.parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
