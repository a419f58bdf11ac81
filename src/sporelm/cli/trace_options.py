"""The options --trace and --record, and the report about their files at the end."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from sporelm.cli import options

if TYPE_CHECKING:
    from sporelm.api import LLM
    from sporelm.engine.trace import Summary


def add_trace_and_record(parser: argparse.ArgumentParser) -> None:
    """Add --trace and --record."""
    parser.add_argument(
        "--trace", metavar="FILE", help="write the time of each step per op (Chrome trace, for Perfetto)"
    )
    parser.add_argument("--record", metavar="FILE", help="write every step with its results, for 'spore replay'")


def open_traced_model(args: argparse.Namespace, **more: Any) -> "LLM":
    """Open the model with its trace and recording, as the options say. Raises SporeError."""
    return options.open_model(args, **options.select(args, "trace", "record"), **more)


def report(llm: "LLM") -> int:
    """Print the trace's summary and notes on stderr, once the model is closed.

    Returns the exit code: 1 if a file could not be written.
    """
    if llm.trace_and_record.summary is not None:
        sys.stderr.write(format_summary(llm.trace_and_record.summary))
    for note in llm.trace_and_record.notes():
        sys.stderr.write(f"spore: {note}\n")
    return 1 if llm.trace_and_record.has_failed else 0


def format_summary(summary: "Summary") -> str:
    """Return a table of the time of all steps: the ops, then the engine's own work."""
    total_seconds = summary.seconds
    if not summary.steps or not total_seconds:
        return "no step was traced\n"
    ops = [(name, calls / summary.steps, seconds) for name, (calls, seconds) in summary.ops.items()]
    ops.sort(key=lambda op: -op[2])
    waiting = "waiting for threads, launching" if ops else "run"
    parts = [(name, seconds) for name, seconds in summary.parts.items() if name != "run"]
    lines = [
        f"{summary.steps} steps, {total_seconds:.3f} s, by op:",
        f"{'op':<34}{'calls':>8}{'ms/step':>10}{'share':>8}",
    ]
    for name, calls, seconds in ops:
        lines.append(f"{name:<34}{calls:>8.1f}{format_share(seconds, summary)}")
    lines += [f"{name:<42}{format_share(seconds, summary)}" for name, seconds in [(waiting, summary.waiting), *parts]]
    return "\n".join(lines) + "\n"


def format_share(seconds: float, summary: "Summary") -> str:
    return f"{1e3 * seconds / summary.steps:>10.3f}{100 * seconds / summary.seconds:>7.1f}%"
