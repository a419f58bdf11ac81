"""`spore gguf show`: show header, metadata and tensors of model files."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import escape_line

if TYPE_CHECKING:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.show import FileDescription


def make_parser() -> Parser:
    parser = Parser(
        "gguf show",
        "Show the contents of model files: header, totals by number format, metadata and tensors. Shapes are printed "
        "as GGUF stores them, innermost axis first; with --json they are row-major.",
        "FILE... [options]",
        [
            "spore gguf show model.gguf",
            "spore gguf show model.gguf --filter-meta 'tokenizer.*' --array-detail 20 --no-tensors",
            "spore gguf show 'models/*.gguf' --filter-tensor 'blk.0.*|output.*' --no-meta",
            "spore gguf show folder --json",
        ],
    )
    gguf_inputs.add_files(parser)
    gguf_inputs.add_filters(parser)
    parser.add_argument(
        "-n",
        "--array-detail",
        type=parse_detail,
        default=8,
        metavar="N",
        help="array elements to show, or all; default: 8",
    )
    parser.add_argument("--full", action="store_true", help="show all elements and complete texts")
    parser.add_argument(
        "--meta", action=argparse.BooleanOptionalAction, default=True, help="show metadata; default: yes"
    )
    parser.add_argument(
        "--tensors", action=argparse.BooleanOptionalAction, default=True, help="show tensors; default: yes"
    )
    options.add_json(parser, "print a JSON array with an object for each model")
    gguf_inputs.add_color(parser)
    options.add_help(parser)
    return parser


def parse_detail(text: str) -> int | None:
    """Parse --array-detail; None is all."""
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither a number nor 'all'")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.model_files import open_model_files
    from sporelm.tools.show import describe_files

    page = Page(args.color)
    descriptions = []

    def show(path: Path) -> bool:
        with open_model_files(path, needs_data=False) as source:
            description = describe_files(
                source,
                meta=args.filter_meta if args.meta else ["!*"],
                tensors=args.filter_tensor if args.tensors else ["!*"],
                detail=None if args.full else args.array_detail,
            )
            if args.json:
                descriptions.append(description.as_json())
            else:
                print_description(page, description, args)
        return True

    code = gguf_inputs.process_each(args.files, show)
    if args.json:
        gguf_inputs.print_json(descriptions)
    return code


def print_description(page: "Page", description: "FileDescription", args: argparse.Namespace) -> None:
    """Print a description as text."""
    from sporelm.cli.gguf_text import bytes_text, count_text

    page.box(escape_line(description.path.name or str(description.path)))
    version = f"GGUF version {description.version}" if description.kind == "gguf" else "safetensors"
    files = "1 file" if len(description.paths) == 1 else f"{len(description.paths)} files"
    rows = [
        ("format", f"{version}, {description.byte_order}-endian"),
        ("size", f"{bytes_text(description.nbytes)} ({description.nbytes} bytes) in {files}"),
        ("metadata", str(description.metadata_count)),
        ("tensors", str(description.tensor_count)),
        ("parameters", f"{count_text(description.parameters)} ({description.parameters})"),
    ]
    if description.alignment is not None:
        rows.insert(2, ("alignment", str(description.alignment)))
    if not description.has_data:
        rows.insert(2, ("tensor data", "none; the file ends after its header, as --no-data writes it"))
    if description.bits_per_weight is not None:
        rows.append(("bits per weight", f"{description.bits_per_weight:.3f}"))
    page.heading("Header")
    page.leaders(rows)
    if description.types:
        page.heading("Types")
        total = sum(row.nbytes for row in description.types) or 1
        page.leaders([
            (row.type_name, f"{row.tensors:>6} tensors {count_text(row.values):>9} values {bytes_text(row.nbytes):>9} "
                            f"{row.nbytes / total:>6.1%}")
            for row in description.types
        ])  # fmt: skip
    if args.meta:
        print_metadata(page, description, args.full)
    if args.tensors:
        print_tensors(page, description)
    page.line()


def print_metadata(page: "Page", description: "FileDescription", full: bool) -> None:
    from sporelm.cli.gguf_text import format_lines, format_value

    page.heading(f"Metadata{filtered_note(len(description.metadata), description.metadata_count)}")
    rows = []
    for entry in description.metadata:
        is_text = isinstance(entry.value, str) and "\n" in entry.value.strip()
        text = "" if is_text else format_value(entry.value, entry.kind, entry.length, full)
        if is_text:
            text = "".join(f"\n      {line}" for line in format_lines(entry.value, full))
        note = f" {page.paint(f'({entry.note})', 'dim')}" if entry.note else ""
        kind = page.paint(entry.kind, "yellow")
        rows.append((escape_line(entry.key), f"{kind}: {text}{note}" if not is_text else f"{kind}:{text}"))
    page.leaders(rows)


def print_tensors(page: "Page", description: "FileDescription") -> None:
    page.heading(f"Tensors{filtered_note(len(description.tensors), description.tensor_count)}")
    width = max((len(entry.type_name) for entry in description.tensors), default=0)
    digits = len(f"{max((entry.offset for entry in description.tensors), default=0):x}")
    many = len(description.paths) > 1
    page.leaders([
        (escape_line(entry.name), f"{page.paint(f'{entry.type_name:<{width}}', 'yellow')} "
         f"{f'file {entry.file_index + 1} ' if many else ''}+0x{entry.offset:0{digits}x} {list(reversed(entry.shape))}")
        for entry in description.tensors
    ], "green")  # fmt: skip


def filtered_note(shown: int, count: int) -> str:
    """Return how many entries match the filters, if not all do."""
    return f" ({shown} of {count})" if shown < count else ""
