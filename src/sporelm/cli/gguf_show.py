"""`spore gguf show`: header, metadata and tensors of model files."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser

if TYPE_CHECKING:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.show import Description


def parser() -> Parser:
    made = Parser(
        "gguf show",
        "Show what model files hold: header, sums by number format, metadata and tensors. Shapes are printed as GGUF "
        "stores them, the innermost axis first; --json gives them row-major.",
        "FILE... [options]",
        [
            "spore gguf show model.gguf",
            "spore gguf show model.gguf --filter-meta 'tokenizer.*' --array-detail 20 --no-tensors",
            "spore gguf show 'models/*.gguf' --filter-tensor 'blk.0.*|output.*' --no-meta",
            "spore gguf show folder --json",
        ],
    )
    gguf_inputs.add_files(made)
    gguf_inputs.add_filters(made)
    made.add_argument(
        "-n",
        "--array-detail",
        type=detail,
        default=8,
        metavar="N",
        help="elements shown of an array, or all; default: 8",
    )
    made.add_argument("--full", action="store_true", help="every element and the whole of long texts")
    made.add_argument("--meta", action=argparse.BooleanOptionalAction, default=True, help="show metadata; default: yes")
    made.add_argument(
        "--tensors", action=argparse.BooleanOptionalAction, default=True, help="show tensors; default: yes"
    )
    made.add_argument("--json", action="store_true", help="print a JSON array with an object for each model")
    gguf_inputs.add_color(made)
    options.add_help(made)
    return made


def detail(text: str) -> int | None:
    """A number of elements; None for all."""
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither a number nor 'all'")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.show import describe
    from sporelm.tools.sources import open_source

    page, found = Page(args.color), []

    def show(path: Path) -> bool:
        with open_source(path) as source:
            described = describe(
                source,
                meta=args.filter_meta if args.meta else ["!*"],
                tensors=args.filter_tensor if args.tensors else ["!*"],
                detail=None if args.full else args.array_detail,
            )
            if args.json:
                found.append(described.as_json())
            else:
                print_description(page, described, args)
        return True

    code = gguf_inputs.each_model(args.files, show)
    if args.json:
        gguf_inputs.print_json(found)
    return code


def print_description(page: "Page", it: "Description", args: argparse.Namespace) -> None:
    """A description as text."""
    from sporelm.cli.gguf_text import bytes_text, count_text, plain

    page.box(plain(it.path.name or str(it.path)))
    version = f"GGUF version {it.version}" if it.kind == "gguf" else "safetensors"
    files = "1 file" if len(it.paths) == 1 else f"{len(it.paths)} files"
    rows = [
        ("format", f"{version}, {it.byte_order}-endian"),
        ("size", f"{bytes_text(it.nbytes)} ({it.nbytes} bytes) in {files}"),
        ("metadata", str(it.metadata_count)),
        ("tensors", str(it.tensor_count)),
        ("parameters", f"{count_text(it.parameters)} ({it.parameters})"),
    ]
    if it.alignment is not None:
        rows.insert(2, ("alignment", str(it.alignment)))
    if it.bits_per_weight is not None:
        rows.append(("bits per weight", f"{it.bits_per_weight:.3f}"))
    page.heading("Header")
    page.leaders(rows)
    if it.types:
        page.heading("Types")
        total = sum(row.nbytes for row in it.types) or 1
        page.leaders([
            (row.type_name, f"{row.tensors:>6} tensors {count_text(row.values):>9} values {bytes_text(row.nbytes):>9} "
                            f"{row.nbytes / total:>6.1%}")
            for row in it.types
        ])  # fmt: skip
    if args.meta:
        print_metadata(page, it, args.full)
    if args.tensors:
        print_tensors(page, it)
    page.line()


def print_metadata(page: "Page", it: "Description", full: bool) -> None:
    from sporelm.cli.gguf_text import plain, shown_value, text_lines

    page.heading(f"Metadata{left_out(len(it.metadata), it.metadata_count)}")
    rows = []
    for entry in it.metadata:
        is_text = isinstance(entry.value, str) and "\n" in entry.value.strip()
        text = "" if is_text else shown_value(entry.value, entry.kind, entry.length, full)
        if is_text:
            text = "".join(f"\n      {line}" for line in text_lines(entry.value, full))
        note = f" {page.paint(f'({entry.note})', 'dim')}" if entry.note else ""
        kind = page.paint(entry.kind, "yellow")
        rows.append((plain(entry.key), f"{kind}: {text}{note}" if not is_text else f"{kind}:{text}"))
    page.leaders(rows)


def print_tensors(page: "Page", it: "Description") -> None:
    from sporelm.cli.gguf_text import plain

    page.heading(f"Tensors{left_out(len(it.tensors), it.tensor_count)}")
    width = max((len(entry.type_name) for entry in it.tensors), default=0)
    digits = len(f"{max((entry.offset for entry in it.tensors), default=0):x}")
    many = len(it.paths) > 1
    page.leaders([
        (plain(entry.name), f"{page.paint(f'{entry.type_name:<{width}}', 'yellow')} "
         f"{f'file {entry.part + 1} ' if many else ''}+0x{entry.offset:0{digits}x} {list(reversed(entry.shape))}")
        for entry in it.tensors
    ], "green")  # fmt: skip


def left_out(shown: int, count: int) -> str:
    """How many the filters let through, where that is not all."""
    return f" ({shown} of {count})" if shown < count else ""
