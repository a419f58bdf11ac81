"""The FILE arguments of the model-file tools, and their errors: one line for each file that fails."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sporelm.cli.output_errors import is_output_full
from sporelm.cli.terminal_text import format_error
from sporelm.errors import ModelNotFound, SporeError, UsageError

Result = TypeVar("Result")

FILE_HELP = (
    "a .gguf or .safetensors file, a Hugging Face folder, a stored name, or a pattern such as 'models/*.gguf'; "
    "a split model is named by its first file"
)
GGUF_FILE_HELP = "a .gguf file, the first file of a split model, or a stored name"
GGUF_FILES_HELP = "a .gguf file, the first file of a split model, a stored name or a pattern"
PATTERN_HELP = "*, ?, [...], a|b for either, !... for all others; may be repeated"


def add_files(parser: argparse.ArgumentParser, help_text: str = FILE_HELP) -> None:
    """Add FILE..."""
    parser.add_argument("files", nargs="+", metavar="FILE", help=help_text)


def add_color(parser: argparse.ArgumentParser) -> None:
    """Add --color."""
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", metavar="WHEN",
        help="auto (on a terminal, unless NO_COLOR is set or TERM is dumb), always or never; default: auto",
    )  # fmt: skip


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add --filter-meta and --filter-tensor."""
    for short, option, what in (("-m", "--filter-meta", "metadata"), ("-t", "--filter-tensor", "tensors")):
        parser.add_argument(
            short, option, action="append", default=[], metavar="GLOB", help=f"only matching {what}: {PATTERN_HELP}"
        )


def process_each(words: Sequence[str], process: Callable[[Path], bool]) -> int:
    """Call `process` for every model that the words stand for, and print one line for each that fails.

    Returns exit code 0 if all calls returned True, else 1.
    """
    paths, all_found = find_all(words)
    results = try_each(paths, process)
    return 0 if all_found and len(results) == len(paths) and all(results.values()) else 1


def find_all(words: Sequence[str]) -> tuple[list[Path], bool]:
    """Return the models that the words stand for, and whether each word has one; print a line for one without."""
    from sporelm.tools.model_files import find_models

    missing: list[ModelNotFound] = []
    paths = find_models(words, missing.append)
    for reason in missing:
        print_problem(reason)
    return paths, not missing


def try_each(paths: Iterable[Path], process: Callable[[Path], Result]) -> dict[Path, Result]:
    """Return the results of `process` for the models; print a line for each that fails, and leave it out.

    Invalid usage, and an error of standard output, concerns all models and is raised.
    """
    results = {}
    for path in paths:
        try:
            results[path] = process(path)
        except UsageError:
            raise
        except (SporeError, OSError) as error:
            if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and is_output_full(error)):
                raise
            sys.stdout.flush()  # keeps the order if both streams go to one file
            print_problem(error)
    return results


def find_one(word: str) -> Path:
    """Return the one model that a word stands for. Raises RequestError for a pattern with several, ModelNotFound."""
    from sporelm.errors import RequestError
    from sporelm.tools.model_files import find_models

    paths = find_models([word])
    if len(paths) > 1:
        raise RequestError(f"{word[:200]!r} stands for {len(paths)} models; name one")
    return paths[0]


def print_problem(reason: Exception | str) -> None:
    """Print an error or a note as one line on stderr."""
    sys.stderr.write(f"spore: {format_error(reason)}\n")


def print_json(value: Any) -> None:
    """Print one JSON value on stdout, in ASCII, so that names out of files cannot control the terminal."""
    print(json.dumps(value, indent=2, allow_nan=False))
