"""What the model-file tools share on the command line: their FILE arguments, and one failing line per bad file."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sporelm.cli.full_output import is_full_output
from sporelm.errors import ModelNotFound, SporeError, UsageError

Result = TypeVar("Result")

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
        help="auto (on a terminal, unless NO_COLOR is set or TERM is dumb), always or never; default: auto",
    )  # fmt: skip


def add_filters(parser: argparse.ArgumentParser) -> None:
    for short, option, what in (("-m", "--filter-meta", "metadata"), ("-t", "--filter-tensor", "tensors")):
        parser.add_argument(
            short, option, action="append", default=[], metavar="GLOB", help=f"only {what} like this: {PATTERN_NOTE}"
        )


def each_model(words: Sequence[str], work: Callable[[Path], bool]) -> int:
    """Do `work` for every model that the words stand for, and say in one line why one fails. Exit code: 0 if all
    returned True, else 1."""
    paths, are_found = found_models(words)
    done = attempted(paths, work)
    return 0 if are_found and len(done) == len(paths) and all(done.values()) else 1


def found_models(words: Sequence[str]) -> tuple[list[Path], bool]:
    """The models that the words stand for, and whether each word had one; a line on stderr for one that has none."""
    from sporelm.tools.sources import find_models

    missing: list[ModelNotFound] = []
    paths = find_models(words, missing.append)
    for reason in missing:
        complain(reason)
    return paths, not missing


def attempted(paths: Iterable[Path], work: Callable[[Path], Result]) -> dict[Path, Result]:
    """What `work` returned for each model; those where it fails cost a line on stderr and are left out.

    What is wrong with the call, or with standard output, is wrong for all of them and raised.
    """
    done = {}
    for path in paths:
        try:
            done[path] = work(path)
        except UsageError:
            raise
        except (SporeError, OSError) as error:
            if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and is_full_output(error)):
                raise
            sys.stdout.flush()  # in order, where both go to one place
            complain(error)
    return done


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
