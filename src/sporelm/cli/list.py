"""`spore list`: the models in the store."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sporelm.cli import options
from sporelm.cli.parser import Parser

if TYPE_CHECKING:
    from sporelm.weights.store import Entry

HEADS = ("name", "size", "type", "architecture", "parameters", "context", "modified")


def parser() -> Parser:
    made = Parser(
        "list",
        "List the models in the store: the name that MODEL takes, size, number format or mix, architecture, "
        "parameters, context and when it was fetched; and what was not fetched to its end. The store is a folder "
        "(SPORE_MODEL_STORE).",
        "[options]",
        ["spore list", "spore list --json"],
    )
    made.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm import settings
    from sporelm.weights import store

    rows = [row_of(entry) for entry in store.entries()]
    parts = [{"name": left.name, "bytes": left.nbytes} for left in store.unfinished()]
    if args.json:
        from sporelm.cli.gguf_inputs import print_json

        print_json({"store": str(settings.MODEL_STORE.path), "models": rows, "unfinished": parts})
    else:
        print_rows(rows, parts)


def row_of(entry: "Entry") -> dict[str, Any]:
    """The facts of a stored model; where its file cannot be read, the reason."""
    from sporelm.errors import SporeError
    from sporelm.tools.describe import describe

    facts: dict[str, Any]
    try:
        facts = describe(entry.path).as_json()
    except (SporeError, OSError) as error:
        facts = {"error": " ".join(str(error).split())}
    modified = datetime.fromtimestamp(entry.modified, UTC).astimezone().isoformat(timespec="seconds")
    return {"name": entry.name, "path": str(entry.path)} | facts | {"bytes": entry.nbytes, "modified": modified}


def print_rows(rows: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """A table, and a line for each model that was not fetched to its end."""
    from sporelm.cli.gguf_text import bytes_text, count_text, plain
    from sporelm.cli.terminal_layout import print_folded, table, terminal_width

    lines: list[tuple[str, ...]] = [HEADS]
    for row in rows:
        facts = [row.get("quantization"), row.get("architecture"), count_text(row.get("parameters", 0)),
                 row.get("context_length")]  # fmt: skip
        if "error" in row:
            facts = ["cannot be read", None, None, None]
        shown = [plain(str(fact)) if fact is not None else "-" for fact in facts]
        lines.append((plain(row["name"]), bytes_text(row["bytes"]), *shown, row["modified"][:16].replace("T", " ")))
    if rows:
        print("\n".join(table(lines, terminal_width())))
    else:
        print_folded("no models are stored; 'spore pull' fetches one: spore pull smollm2")
    for row in rows:
        if "error" in row:
            print_folded(f"{plain(row['name'])}: {plain(row['error'])}")
    for part in parts:
        print_folded(
            f"{part['name']}: {bytes_text(part['bytes'])} fetched so far; 'spore pull' resumes, 'spore rm' deletes it"
        )
