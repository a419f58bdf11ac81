"""The options that write down what the engine does, and what is said of them at the end."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from sporelm.cli import options

if TYPE_CHECKING:
    from sporelm.api import LLM
    from sporelm.engine.trace import Summary


def add_watching(parser: argparse.ArgumentParser) -> None:
    """--trace and --record."""
    parser.add_argument(
        "--trace", metavar="FILE", help="write where the time of each step goes, per op (Chrome trace, for Perfetto)"
    )
    parser.add_argument("--record", metavar="FILE", help="write every step with its results, for 'spore replay'")


def open_model(args: argparse.Namespace, **more: Any) -> "LLM":
    """The model that the options name, watched as they say. Raises SporeError."""
    return options.open_model(args, **options.given(args, "trace", "record"), **more)


def tell(llm: "LLM") -> int:
    """Report on stderr what was traced and recorded, after the model is closed; return the exit code, 1 if a file could
    not be written."""
    if llm.watching.summary is not None:
        sys.stderr.write(table(llm.watching.summary))
    for note in llm.watching.notes():
        sys.stderr.write(f"spore: {note}\n")
    return 1 if llm.watching.has_failed else 0


def table(summary: "Summary") -> str:
    """Where the time of all steps went: lines for ops, then for what the engine itself did."""
    whole = summary.seconds
    if not summary.steps or not whole:
        return "no step was traced\n"
    rows = [(name, calls / summary.steps, seconds) for name, (calls, seconds) in summary.ops.items()]
    rows.sort(key=lambda row: -row[2])
    waiting = "waiting for threads, launching" if rows else "run"
    own = [(name, seconds) for name, seconds in summary.parts.items() if name != "run"]
    lines = [
        f"{summary.steps} steps, {whole:.3f} s: where it went",
        f"{'op':<34}{'calls':>8}{'ms/step':>10}{'share':>8}",
    ]
    for name, calls, seconds in rows:
        lines.append(f"{name:<34}{calls:>8.1f}{row(seconds, summary)}")
    lines += [f"{name:<42}{row(seconds, summary)}" for name, seconds in [(waiting, summary.waiting), *own]]
    return "\n".join(lines) + "\n"


def row(seconds: float, summary: "Summary") -> str:
    return f"{1e3 * seconds / summary.steps:>10.3f}{100 * seconds / summary.seconds:>7.1f}%"
