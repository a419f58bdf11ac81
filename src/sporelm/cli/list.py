"""`spore list`: list the models in the store."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import escape_line

if TYPE_CHECKING:
    from sporelm.files.store import Entry

HEADINGS = ("name", "size", "type", "architecture", "parameters", "context", "modified")


def make_parser() -> Parser:
    parser = Parser(
        "list",
        "List the models in the store: name, size, number format or mix, architecture, parameters, context and time of "
        "download; and incomplete downloads. The name can be used as MODEL. The store is a folder (SPORE_MODEL_STORE).",
        "[options]",
        ["spore list", "spore list --json"],
    )
    options.add_json(parser)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    from sporelm import settings
    from sporelm.files import store

    rows = [row_of(entry) for entry in store.entries()]
    parts = [{"name": left.name, "bytes": left.nbytes} for left in store.unfinished()]
    if args.json:
        from sporelm.cli.gguf_inputs import print_json

        print_json({"store": str(settings.MODEL_STORE.path), "models": rows, "unfinished": parts})
    else:
        print_rows(rows, parts)


def row_of(entry: "Entry") -> dict[str, Any]:
    """Return the JSON object of a stored model; with the error if its file cannot be read."""
    from sporelm.errors import SporeError
    from sporelm.tools.model_summary import summarize_model

    facts: dict[str, Any]
    try:
        facts = summarize_model(entry.path).as_json()
    except (SporeError, OSError) as error:
        facts = {"error": " ".join(str(error).split())}
    modified = datetime.fromtimestamp(entry.modified, UTC).astimezone().isoformat(timespec="seconds")
    return {"name": entry.name, "path": str(entry.path)} | facts | {"bytes": entry.nbytes, "modified": modified}


def print_rows(rows: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """Print a table, and a line for each incomplete download."""
    from sporelm.cli.gguf_text import bytes_text, count_text
    from sporelm.cli.terminal_layout import format_table, print_folded, terminal_width

    lines: list[tuple[str, ...]] = [HEADINGS]
    for row in rows:
        facts = [row.get("quantization"), row.get("architecture"), count_text(row.get("parameters", 0)),
                 row.get("context_length")]  # fmt: skip
        if "error" in row:
            facts = ["cannot be read", None, None, None]
        shown = [escape_line(str(fact)) if fact is not None else "-" for fact in facts]
        lines.append(
            (escape_line(row["name"]), bytes_text(row["bytes"]), *shown, row["modified"][:16].replace("T", " "))
        )
    if rows:
        print("\n".join(format_table(lines, terminal_width())))
    else:
        print_folded("no models are stored; 'spore pull' downloads one: spore pull smollm2")
    for row in rows:
        if "error" in row:
            print_folded(f"{escape_line(row['name'])}: {escape_line(row['error'])}")
    for part in parts:
        print_folded(
            f"{part['name']}: {bytes_text(part['bytes'])} downloaded; 'spore pull' resumes, 'spore rm' deletes it"
        )
