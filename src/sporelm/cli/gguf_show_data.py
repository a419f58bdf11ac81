"""`spore gguf show-data`: show values, statistics and a histogram of tensors."""

import argparse
import re
from math import log1p
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import escape_line
from sporelm.errors import ModelFileError, SporeError

if TYPE_CHECKING:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.model_files import ModelFiles
    from sporelm.tools.show_data import Statistics, TensorSlice

BAR_COLUMNS = 40
DEFAULT_HEAD = 8
SLICE = re.compile(r"(-?\d{1,18})?(:)?(-?\d{1,18})?")


def make_parser() -> Parser:
    parser = Parser(
        "gguf show-data",
        "Show the values of tensors, their statistics and a histogram. Quantized tensors are dequantized, a part at a "
        "time. A tensor is viewed as rows of its innermost axis. Percentiles are values of the tensor.",
        "FILE TENSOR... [options]",
        [
            "spore gguf show-data model.gguf token_embd.weight",
            "spore gguf show-data model.gguf 'blk.*.attn_q.weight' --no-values --log",
            "spore gguf show-data model.gguf output_norm.weight --rows 0 --cols 0:64 --no-stats",
            "spore gguf show-data 'models/*.gguf' output.weight --json",
        ],
    )
    parser.add_argument("file", metavar="FILE", help=gguf_inputs.FILE_HELP)
    parser.add_argument("names", nargs="+", metavar="TENSOR", help=f"a name, or a pattern: {gguf_inputs.PATTERN_HELP}")
    parser.add_argument(
        "--rows",
        type=parse_slice,
        metavar="A:B",
        help=f"rows to show: 3, or 2:5 as in Python (--rows=-4: the last four); default: 0:{DEFAULT_HEAD}",
    )
    parser.add_argument("--cols", type=parse_slice, metavar="A:B", help=f"columns to show; default: 0:{DEFAULT_HEAD}")
    parser.add_argument(
        "--head",
        type=int,
        default=DEFAULT_HEAD,
        metavar="N",
        help=f"same as --rows 0:N --cols 0:N; default: {DEFAULT_HEAD}",
    )
    parser.add_argument("--bins", type=int, default=20, metavar="N", help="bins of the histogram; default: 20")
    parser.add_argument("--log", action="store_true", help="logarithmic bars")
    parser.add_argument(
        "--values", action=argparse.BooleanOptionalAction, default=True, help="show values; default: yes"
    )
    parser.add_argument(
        "--stats",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="show statistics and histogram; default: yes",
    )
    options.add_json(parser, "print a JSON array with an object for each tensor")
    gguf_inputs.add_color(parser)
    options.add_help(parser)
    return parser


def parse_slice(text: str) -> slice:
    """Parse `3` or `A:B`, where either end may be left out or count from the end."""
    found = SLICE.fullmatch(text)
    if not text or found is None or (found[2] is None and found[3] is not None):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither a number nor A:B")
    if found[2] is None:
        first = int(text)
        return slice(first, first + 1 or None)
    return slice(int(found[1]) if found[1] else None, int(found[3]) if found[3] else None)


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.model_files import open_model_files
    from sporelm.tools.show_data import check_bins

    if args.head < 0:
        make_parser().error(f"--head is {args.head}: it must be at least 0")
    check_bins(args.bins)
    page = Page(args.color)
    objects = []

    def show(path: Path) -> bool:
        with open_model_files(path) as source:
            all_shown = True
            for name in find_tensors(source, args.names):
                try:
                    objects.append(show_tensor(page, source, name, args))
                except SporeError as error:  # a tensor that cannot be read must not hide the others
                    gguf_inputs.print_problem(error)
                    all_shown = False
            return all_shown

    code = gguf_inputs.process_each([args.file], show)
    if args.json:
        gguf_inputs.print_json(objects)
    return code


def find_tensors(source: "ModelFiles", patterns: list[str]) -> list[str]:
    """Return the tensors that names and patterns stand for. Raises ModelFileError for one without a match."""
    from sporelm.files.tensor_messages import no_such_tensor, quote
    from sporelm.tools.model_files import filter_names

    names: dict[str, None] = {}
    for pattern in patterns:
        found = [pattern] if pattern in source.tensors else filter_names(source.tensors, [pattern])
        if not found and re.search(r"[*?\[|!]", pattern):
            raise ModelFileError(f"{source.path}: no tensor matches {quote(pattern)}")
        if not found:
            raise no_such_tensor(source.path, pattern, source.tensors)
        names |= dict.fromkeys(found)
    return list(names)


def show_tensor(page: "Page", source: "ModelFiles", name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Print one tensor; with --json, only return its object."""
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.tools.show import to_jsonable
    from sporelm.tools.show_data import compute_statistics, slice_tensor

    found = stats = None
    if args.values:
        found = slice_tensor(source, name, args.rows or slice(args.head), args.cols or slice(args.head))
    if args.stats:
        with ProgressLine() as progress:
            stats = compute_statistics(source, name, bins=args.bins, progress=progress)
    entry = source.tensors[name]
    if not args.json:
        print_tensor(page, source, name, found, stats, args.log)
        return {}
    result: dict[str, Any] = {
        "path": str(source.path), "name": name, "type": entry.type_name, "shape": list(entry.shape),
    }  # fmt: skip
    if found is not None:
        result |= {"row": found.row, "column": found.column, "values": to_jsonable(found.values.tolist())}
    return result | ({"statistics": stats.as_json()} if stats else {})


def print_tensor(
    page: "Page", source: "ModelFiles", name: str, found: "TensorSlice | None", stats: "Statistics | None", log: bool
) -> None:
    from sporelm.cli.gguf_text import bytes_text

    entry = source.tensors[name]
    page.box(escape_line(name))
    page.line(
        f"  {entry.type_name} {list(reversed(entry.shape))} innermost first, {entry.size} values,"
        f" {bytes_text(entry.nbytes)} in {escape_line(source.path.name)}"
    )
    if found is not None:
        page.heading("Values")
        print_values(page, found)
    if stats is not None:
        page.heading("Statistics")
        print_statistics(page, stats)
        if stats.minimum is not None:
            page.heading(f"Histogram{' (logarithmic)' if log else ''}")
            print_histogram(page, stats, log)
    page.line()


def print_values(page: "Page", found: "TensorSlice") -> None:
    """Print a table of the values, with numbered rows and columns."""
    rows, columns = found.values.shape
    if not found.values.size:
        page.line(f"  none of {found.row_count} rows and {found.column_count} columns")
        return
    head = "".join(f"{column:>12}" for column in range(found.column, found.column + columns))
    page.line(f"  {'':>8}{page.paint(head, 'dim')}")
    for index in range(rows):
        cells = []
        for value in found.values[index].tolist():
            cell = f"{value:>12.4e}" if isinstance(value, float) and value else f"{value:>12g}"
            cells.append(page.paint(cell, "dim" if value == 0 else "red") if value == 0 or value != value else cell)
        page.line(f"  {page.paint(f'{found.row + index:>8}', 'dim')}{''.join(cells)}")
    if rows < found.row_count or columns < found.column_count:
        page.line(f"  {rows} of {found.row_count} rows, {columns} of {found.column_count} columns")


def print_statistics(page: "Page", stats: "Statistics") -> None:
    """Print counts, moments and percentiles."""
    bad = [(label, count) for label, count in (("NaN", stats.nan), ("infinite", stats.infinite)) if count]
    rows = [("values", str(stats.count)), ("zeros", f"{stats.zeros} ({stats.zeros / max(1, stats.count):.2%})")]
    rows += [(label, page.paint(str(count), "red")) for label, count in bad] or [("NaN, infinite", "0")]
    moments = ("minimum", "maximum", "mean", "deviation", "rms")
    rows += [(label, f"{getattr(stats, label):.6g}") for label in moments if getattr(stats, label) is not None]
    rows += [(f"{percent} %", f"{value:.6g}") for percent, value in stats.percentiles.items()]
    page.leaders(rows)


def print_histogram(page: "Page", stats: "Statistics", log: bool) -> None:
    """Print one line for each bin: its lower end, a bar, its count."""
    assert stats.minimum is not None
    assert stats.maximum is not None
    weights = [log1p(count) if log else count for count in stats.bins]
    most = max(weights) or 1
    sign = "█" if page.is_unicode else "#"
    step = stats.maximum / len(stats.bins) - stats.minimum / len(stats.bins)
    for index, (count, weight) in enumerate(zip(stats.bins, weights, strict=True)):
        length = round(weight / most * BAR_COLUMNS) or (1 if count else 0)
        bar = page.paint(sign * length, "blue") + " " * (BAR_COLUMNS - length)
        page.line(f"  {stats.minimum + index * step:>12.4g} {bar} {count}")
