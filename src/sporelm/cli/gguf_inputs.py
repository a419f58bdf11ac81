"""What the model-file tools share on the command line: their FILE arguments, and one failing line per bad file."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sporelm.errors import SporeError

FILE_HELP = (
    "a .gguf or .safetensors file, a Hugging Face folder, a stored name, or a pattern such as 'models/*.gguf'; "
    "a split model is named by its first file"
)
PATTERN_NOTE = "*, ?, [...], a|b for either, !... for all others; may be repeated"


def add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help=FILE_HELP)


def add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", metavar="WHEN",
        help="auto (on a terminal), always or never; default: auto",
    )  # fmt: skip


def add_filters(parser: argparse.ArgumentParser) -> None:
    for short, option, what in (("-m", "--filter-meta", "metadata"), ("-t", "--filter-tensor", "tensors")):
        parser.add_argument(
            short, option, action="append", default=[], metavar="GLOB", help=f"only {what} like this: {PATTERN_NOTE}"
        )


def each_model(words: Sequence[str], work: Callable[[Path], bool]) -> int:
    """Do `work` for every model that the words stand for, and say in one line why one fails. Exit code: 0 if all
    returned True, else 1."""
    from sporelm.tools.sources import find_models

    is_good = True
    for path in find_models(words):
        try:
            is_good = work(path) and is_good
        except (SporeError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            sys.stdout.flush()  # in order, where both go to one place
            complain(error)
            is_good = False
    return 0 if is_good else 1


def one_model(word: str) -> Path:
    """The one model that a word stands for. Raises RequestError for a pattern with several, ModelNotFound."""
    from sporelm.errors import RequestError
    from sporelm.tools.sources import find_models

    found = find_models([word])
    if len(found) > 1:
        raise RequestError(f"{word[:200]!r} stands for {len(found)} models; name one")
    return found[0]


def complain(reason: Exception | str) -> None:
    """The reason of a failure as one line on stderr, which cannot steer a terminal."""
    from sporelm.cli.plain_text import plain

    sys.stderr.write(f"spore: {plain(' '.join(str(reason).split()))}\n")


def print_json(value: Any) -> None:
    """One JSON value on stdout, in ASCII: names out of files cannot steer a terminal."""
    print(json.dumps(value, indent=2, allow_nan=False))
