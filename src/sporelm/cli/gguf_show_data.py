"""`spore gguf show-data`: values, statistics and a histogram of tensors."""

import argparse
import re
from math import log1p
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser
from sporelm.errors import ModelFileError, SporeError

if TYPE_CHECKING:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.show_data import CutOut, Statistics
    from sporelm.tools.sources import Source

BAR = 40
HEAD = 8
SLICE = re.compile(r"(-?\d{1,18})?(:)?(-?\d{1,18})?")


def parser() -> Parser:
    made = Parser(
        "gguf show-data",
        "Show the values of tensors, their statistics and a histogram; quantized ones are dequantized, a part at a "
        "time. A tensor is taken as rows of its innermost axis. Percentiles are values that occur.",
        "FILE TENSOR... [options]",
        [
            "spore gguf show-data model.gguf token_embd.weight",
            "spore gguf show-data model.gguf 'blk.*.attn_q.weight' --no-values --log",
            "spore gguf show-data model.gguf output_norm.weight --rows 0 --cols 0:64 --no-stats",
            "spore gguf show-data 'models/*.gguf' output.weight --json",
        ],
    )
    made.add_argument("file", metavar="FILE", help=gguf_inputs.FILE_HELP)
    made.add_argument("names", nargs="+", metavar="TENSOR", help=f"a name, or a pattern: {gguf_inputs.PATTERN_NOTE}")
    made.add_argument(
        "--rows",
        type=part,
        metavar="A:B",
        help=f"rows shown: 3, or 2:5 as in Python (--rows=-4: the last four); default: 0:{HEAD}",
    )
    made.add_argument("--cols", type=part, metavar="A:B", help=f"columns shown; default: 0:{HEAD}")
    made.add_argument("--head", type=int, default=HEAD, metavar="N", help=f"as --rows 0:N --cols 0:N; default: {HEAD}")
    made.add_argument("--bins", type=int, default=20, metavar="N", help="ranges of the histogram; default: 20")
    made.add_argument("--log", action="store_true", help="bars by the logarithm of the count")
    made.add_argument("--values", action=argparse.BooleanOptionalAction, default=True, help="show values; default: yes")
    made.add_argument(
        "--stats", action=argparse.BooleanOptionalAction, default=True, help="statistics and histogram; default: yes"
    )
    made.add_argument("--json", action="store_true", help="print a JSON array with an object for each tensor")
    gguf_inputs.add_color(made)
    options.add_help(made)
    return made


def part(text: str) -> slice:
    """`3` or `A:B`, where either end may be left out or count from the back."""
    found = SLICE.fullmatch(text)
    if not text or found is None or (found[2] is None and found[3] is not None):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither a number nor A:B")
    if found[2] is None:
        first = int(text)
        return slice(first, first + 1 or None)
    return slice(int(found[1]) if found[1] else None, int(found[3]) if found[3] else None)


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.show_data import check_bins
    from sporelm.tools.sources import open_source

    if args.head < 0:
        parser().error(f"--head is {args.head}: it must be at least 0")
    check_bins(args.bins)
    page, found = Page(args.color), []

    def show(path: Path) -> bool:
        with open_source(path) as source:
            is_good = True
            for name in chosen(source, args.names):
                try:
                    found.append(look_at(page, source, name, args))
                except SporeError as error:  # a type that cannot be read must not hide the other tensors
                    gguf_inputs.complain(error)
                    is_good = False
            return is_good

    code = gguf_inputs.each_model([args.file], show)
    if args.json:
        gguf_inputs.print_json(found)
    return code


def chosen(source: "Source", patterns: list[str]) -> list[str]:
    """The tensors that names and patterns stand for. Raises ModelFileError for one that fits none."""
    from sporelm.tools.sources import matching
    from sporelm.weights.messages import no_such_tensor, shown

    names: dict[str, None] = {}
    for pattern in patterns:
        found = [pattern] if pattern in source.tensors else matching(source.tensors, [pattern])
        if not found and re.search(r"[*?\[|!]", pattern):
            raise ModelFileError(f"{source.path}: no tensor fits {shown(pattern)}")
        if not found:
            raise no_such_tensor(source.path, pattern, source.tensors)
        names |= dict.fromkeys(found)
    return list(names)


def look_at(page: "Page", source: "Source", name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Print one tensor, or only return it as an object where --json is given."""
    from sporelm.cli.progress import ProgressLine
    from sporelm.tools.show import jsonable
    from sporelm.tools.show_data import cut_out, statistics

    found = stats = None
    if args.values:
        found = cut_out(source, name, args.rows or slice(args.head), args.cols or slice(args.head))
    if args.stats:
        with ProgressLine() as progress:
            stats = statistics(source, name, bins=args.bins, progress=progress)
    entry = source.tensors[name]
    if not args.json:
        print_tensor(page, source, name, found, stats, args.log)
        return {}
    result: dict[str, Any] = {
        "path": str(source.path), "name": name, "type": entry.type_name, "shape": list(entry.shape),
    }  # fmt: skip
    if found is not None:
        result |= {"row": found.row, "column": found.column, "values": jsonable(found.values.tolist())}
    return result | ({"statistics": stats.as_json()} if stats else {})


def print_tensor(
    page: "Page", source: "Source", name: str, found: "CutOut | None", stats: "Statistics | None", log: bool
) -> None:
    from sporelm.cli.gguf_text import bytes_text, plain

    entry = source.tensors[name]
    page.box(plain(name))
    page.line(
        f"  {entry.type_name} {list(reversed(entry.shape))} innermost first, {entry.size} values,"
        f" {bytes_text(entry.nbytes)} in {plain(source.path.name)}"
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


def print_values(page: "Page", found: "CutOut") -> None:
    """A table of the values, rows and columns numbered."""
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
    """Counts, moments and percentiles."""
    bad = [(label, count) for label, count in (("NaN", stats.nan), ("infinite", stats.infinite)) if count]
    rows = [("values", str(stats.count)), ("zeros", f"{stats.zeros} ({stats.zeros / max(1, stats.count):.2%})")]
    rows += [(label, page.paint(str(count), "red")) for label, count in bad] or [("NaN, infinite", "0")]
    moments = ("minimum", "maximum", "mean", "deviation", "rms")
    rows += [(label, f"{getattr(stats, label):.6g}") for label in moments if getattr(stats, label) is not None]
    rows += [(f"{percent} %", f"{value:.6g}") for percent, value in stats.percentiles.items()]
    page.leaders(rows)


def print_histogram(page: "Page", stats: "Statistics", log: bool) -> None:
    """One line for each range: its lower end, a bar, its count."""
    assert stats.minimum is not None
    assert stats.maximum is not None
    weights = [log1p(count) if log else count for count in stats.bins]
    most = max(weights) or 1
    sign = "█" if page.drawn else "#"
    step = stats.maximum / len(stats.bins) - stats.minimum / len(stats.bins)
    for index, (count, weight) in enumerate(zip(stats.bins, weights, strict=True)):
        length = round(weight / most * BAR) or (1 if count else 0)
        bar = page.paint(sign * length, "blue") + " " * (BAR - length)
        page.line(f"  {stats.minimum + index * step:>12.4g} {bar} {count}")
