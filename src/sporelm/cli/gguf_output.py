"""The output of the commands that write model files: -o, --force, --json, progress, and the table of files."""

import argparse
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from sporelm.cli import gguf_inputs, interrupt, options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import escape_line

if TYPE_CHECKING:
    from sporelm.tools.output_file import OutputFile, WrittenFile

MAX_DEFAULT_THREADS = 8  # more would wait for the disk


def add_no_data(parser: Parser) -> None:
    """Add --no-data."""
    parser.add_argument(
        "--no-data", action="store_true",
        help="write metadata and the names, types and shapes of tensors, without their data; for 'spore gguf show'",
    )  # fmt: skip


def add_output(parser: Parser, help_text: str) -> None:
    """Add -o, --force, --dry-run, --json and the options of every command."""
    parser.add_argument("-o", "--output", metavar="OUT", help=help_text)
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.add_argument("--dry-run", action="store_true", help="check everything and show what would be written")
    options.add_json(parser)
    options.add_help(parser)


def save(outputs: "Sequence[OutputFile]", args: argparse.Namespace, **more: Any) -> None:
    """Write the files with a progress bar, and print them; `more` is added to the JSON object."""
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.tools import output_file

    with ProgressLine() as progress, handle_signals():
        written = output_file.save_models(
            outputs,
            force=args.force,
            dry_run=args.dry_run,
            has_data=not args.no_data,
            threads=choose_num_threads(args),
            progress=progress,
        )
    print_written(written, args, **more)


def print_written(written: "Sequence[WrittenFile]", args: argparse.Namespace, **more: Any) -> None:
    """Print the files that were written."""
    if args.json:
        gguf_inputs.print_json({"written": not args.dry_run, "files": [file.as_json() for file in written]} | more)
    else:
        print_table(written, args.dry_run)


def save_each(
    models: "Mapping[Path, Sequence[OutputFile]]", args: argparse.Namespace
) -> "dict[Path, list[WrittenFile]]":
    """Write the files of several models, each model completely or not at all. Returns the written files by source.

    A model that fails prints a line on stderr, and the others are still written. Disk space for all is checked first.
    Raises RequestError if files exist or disk space is short.
    """
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.tools import output_file

    output_file.check_output_paths([file.path for files in models.values() for file in files], args.force)
    threads = choose_num_threads(args)
    with ProgressLine() as progress, handle_signals():

        def write(path: Path, dry_run: bool) -> "list[WrittenFile]":
            return output_file.save_models(
                models[path],
                force=args.force,
                dry_run=dry_run,
                has_data=not args.no_data,
                threads=threads,
                progress=progress,
            )

        paths = list(models)
        if len(paths) > 1:
            sized = gguf_inputs.try_each(paths, lambda path: write(path, True))
            output_file.check_space([file for files in sized.values() for file in files])
            if args.dry_run:
                return sized
            paths = list(sized)
        return gguf_inputs.try_each(paths, lambda path: write(path, args.dry_run))


def add_threads(parser: Parser) -> None:
    """Add --threads."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help=f"default: the usable cores, at most {MAX_DEFAULT_THREADS}"
    )


def choose_num_threads(args: argparse.Namespace) -> int:
    """Return the number of compute threads: --threads if given, else the usable cores up to a limit."""
    from sporelm.api.cpu_count import choose_threads

    requested: int | None = getattr(args, "threads", None)
    if requested is None:
        return min(MAX_DEFAULT_THREADS, choose_threads())
    options.check_threads(requested)
    options.warn_about_threads(requested)
    return requested


def print_table(written: "Sequence[WrittenFile]", dry_run: bool) -> None:
    """Print a line for each file."""
    from sporelm.cli.gguf_text import bytes_text
    from sporelm.cli.terminal_layout import format_table, terminal_width

    rows = [("would be written" if dry_run else "written", "size", "metadata", "tensors")]
    rows += [
        (escape_line(str(file.path)), bytes_text(file.nbytes), str(file.keys), str(file.tensors)) for file in written
    ]
    width = max(len(row[0]) for row in rows)
    lines = [f"{row[0]:<{width}}  {row[1]:>10}  {row[2]:>8}  {row[3]:>8}" for row in rows]
    columns = terminal_width()
    print("\n".join(lines if columns is None or max(map(len, lines)) <= columns else format_table(rows, columns)))


@contextmanager
def handle_signals() -> Iterator[None]:
    """Handle termination signals like Ctrl-C, so that incomplete files are removed first.

    Further signals do not interrupt the cleanup.
    """
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            interrupt.record_termination(number)
        interrupt.raise_once(before)

    for number in (signal.SIGINT, *interrupt.termination_signals()):
        with suppress(ValueError):  # not in the main thread, which alone can handle signals
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def default_folder(model: Path) -> Path:
    """Return the default folder for files made from a model: its own, or for a stored model the current folder.

    The store would treat a new file in a model's folder as a part of that model, or as a second one.
    """
    from sporelm import settings

    is_stored = model.resolve().is_relative_to(settings.MODEL_STORE.path.resolve())
    return Path.cwd() if is_stored else model.parent


def output_path(model: Path, output: str | None, default_name: str) -> Path:
    """Return the path to write: -o if it is a file, a file in it if it is a folder, else in the default folder."""
    if output is None:
        return default_folder(model) / default_name
    path = Path(output).expanduser()
    return path / default_name if path.is_dir() or output.endswith(("/", "\\")) else path
