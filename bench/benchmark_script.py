"""The ends of a benchmark's command line: its parser, its model, the origin of its figures, and its errors.

Scripts of this folder import it first: that makes the modules of `src` and `tests` importable.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
sys.path.append(str(ROOT / "tests"))

DEFAULT_MODEL = "synthetic:llama-1b:Q4_0"


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option --json; `description` is the script's docstring."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def add_model(parser: argparse.ArgumentParser, default: str = DEFAULT_MODEL) -> None:
    """Add MODEL: what `find_model` takes."""
    parser.add_argument("model", nargs="?", default=default, metavar="MODEL", help=f"default: {default}")


def find_model(name: str) -> Path:
    """Return the path of a model: of synthetic:SHAPE:FORMAT, which is written if it does not exist, or of what
    `spore run` takes. Raises SporeError."""
    from sporelm.bench import is_synthetic, synthetic_file
    from sporelm.files import store

    return synthetic_file(name) if is_synthetic(name) else store.resolve(name)


def describe_script(state: Any = None) -> dict[str, str]:
    """Return the origin of figures: time, machine, commit, and the command. `state` is a back-end's `probe()`."""
    from sporelm.cli.bench import describe_run, strip_folders

    words = [f"bench/{Path(sys.argv[0]).name}", *map(strip_folders, sys.argv[1:])]
    return {**describe_run([], state), "command": " ".join(["python", *words])}


def print_json(value: Any) -> int:
    """Print JSON; return the exit code."""
    print(json.dumps(value, indent=1))
    return 0


def run_script(main: Callable[[], int]) -> NoReturn:
    """End with the exit code of `main`, or with its SporeError as one line behind the script's name."""
    from sporelm.errors import SporeError

    try:
        code = main()
    except SporeError as error:
        raise SystemExit(f"{Path(sys.argv[0]).stem}: {error}") from None
    raise SystemExit(code)
