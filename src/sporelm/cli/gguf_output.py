"""What the commands that write model files share: -o, --force, --json, progress, and the table of what was written."""

import argparse
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from sporelm.cli import gguf_inputs, interrupt, options
from sporelm.cli.parser import Parser

if TYPE_CHECKING:
    from sporelm.tools.output import Output, Written

USUAL_THREADS = 8  # more of them wait for the disk


def add_output(parser: Parser, help_text: str) -> None:
    """-o, --force, --dry-run, --json and what every command has."""
    parser.add_argument("-o", "--output", metavar="OUT", help=help_text)
    parser.add_argument("--force", action="store_true", help="overwrite files that are there already")
    parser.add_argument("--dry-run", action="store_true", help="check everything and say what would be written")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_help(parser)


def save(outputs: "Sequence[Output]", args: argparse.Namespace, **more: Any) -> None:
    """Write the files with a progress bar, and print what was written; `more` goes into the JSON object."""
    from sporelm.cli.progress import ProgressLine
    from sporelm.tools import output

    with ProgressLine() as progress, ended_by_signals():
        written = output.save(
            outputs, force=args.force, dry_run=args.dry_run, threads=thread_count(args), progress=progress
        )
    tell(written, args, **more)


def tell(written: "Sequence[Written]", args: argparse.Namespace, **more: Any) -> None:
    """Print what was written."""
    if args.json:
        gguf_inputs.print_json({"written": not args.dry_run, "files": [file.as_json() for file in written]} | more)
    else:
        print_table(written, args.dry_run)


def save_each(models: "Mapping[Path, Sequence[Output]]", args: argparse.Namespace) -> "dict[Path, list[Written]]":
    """Write the files of several models, each model's whole or not at all; what was written, by source.

    One that fails costs a line on stderr, and the others are still done. Room for all is checked first. Raises
    RequestError where places are taken or there is not enough room.
    """
    from sporelm.cli.progress import ProgressLine
    from sporelm.tools import output

    output.check_places([file.path for files in models.values() for file in files], args.force)
    threads = thread_count(args)
    with ProgressLine() as progress, ended_by_signals():

        def write(path: Path, dry_run: bool) -> "list[Written]":
            return output.save(models[path], force=args.force, dry_run=dry_run, threads=threads, progress=progress)

        paths = list(models)
        if len(paths) > 1:
            sized = gguf_inputs.attempted(paths, lambda path: write(path, True))
            output.check_space([file for files in sized.values() for file in files])
            if args.dry_run:
                return sized
            paths = list(sized)
        return gguf_inputs.attempted(paths, lambda path: write(path, args.dry_run))


def add_threads(parser: Parser) -> None:
    parser.add_argument(
        "--threads", type=int, metavar="N", help=f"default: the cores that are there, {USUAL_THREADS} at most"
    )


def thread_count(args: argparse.Namespace) -> int:
    """How many threads compute: --threads where the command has it, else the cores that are there, few at most."""
    from sporelm.api.machine import choose_threads

    asked: int | None = getattr(args, "threads", None)
    if asked is None:
        return min(USUAL_THREADS, choose_threads())
    options.check_threads(asked)
    options.warn_of_threads(asked)
    return asked


def print_table(written: "Sequence[Written]", dry_run: bool) -> None:
    """A line for each file."""
    from sporelm.cli.gguf_text import bytes_text, plain
    from sporelm.cli.terminal_layout import table, terminal_width

    rows = [("would be written" if dry_run else "written", "size", "metadata", "tensors")]
    rows += [(plain(str(file.path)), bytes_text(file.nbytes), str(file.keys), str(file.tensors)) for file in written]
    width = max(len(row[0]) for row in rows)
    lines = [f"{row[0]:<{width}}  {row[1]:>10}  {row[2]:>8}  {row[3]:>8}" for row in rows]
    columns = terminal_width()
    print("\n".join(lines if columns is None or max(map(len, lines)) <= columns else table(rows, columns)))


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A request to end, or a terminal that closes, is taken as Ctrl-C: what was half written goes away first.

    More of them do not stop the tidying up.
    """
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            interrupt.note_end(number)
        interrupt.raise_once(before)

    for number in (signal.SIGINT, *interrupt.endings()):
        with suppress(ValueError):  # not in the main thread, where signals are not ours
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def beside(model: Path) -> Path:
    """The folder for what is made of a model: its own, or of a stored one the current folder.

    The store takes what lies in a model's folder for a part of that model, and for a second one.
    """
    from sporelm import settings

    is_stored = model.resolve().is_relative_to(settings.MODEL_STORE.path.resolve())
    return Path.cwd() if is_stored else model.parent


def place(model: Path, output: str | None, default: str) -> Path:
    """Where to write: -o if it names a file, in it if it is a folder, else beside the model."""
    if output is None:
        return beside(model) / default
    path = Path(output).expanduser()
    return path / default if path.is_dir() or output.endswith(("/", "\\")) else path
