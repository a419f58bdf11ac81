"""`spore gguf diff`: how two model files differ."""

import argparse
from typing import TYPE_CHECKING, Any

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser
from sporelm.errors import RequestError

if TYPE_CHECKING:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.diff import Difference, MetaChange, TensorChange


def parser() -> Parser:
    made = Parser(
        "gguf diff",
        "Compare two models: metadata, and tensors by name, type, shape and bytes; with --distance also how far their "
        "values are apart, whatever the types. Where tensors lie in the file, and in which order, does not count. "
        "Exit code 0: the same, 1: they differ or cannot be compared.",
        "FIRST SECOND [options]",
        [
            "spore gguf diff a.gguf b.gguf",
            "spore gguf diff f16.gguf q4.gguf --distance --filter-tensor 'blk.*.ffn_*' --no-meta",
            "spore gguf diff a.gguf b.gguf --filter-meta '!tokenizer.*' --no-data --json",
        ],
    )
    made.add_argument("first", metavar="FIRST", help=gguf_inputs.FILE_HELP)
    made.add_argument("second", metavar="SECOND", help="what it is compared with")
    gguf_inputs.add_filters(made)
    made.add_argument(
        "--distance", action="store_true", help="largest and rms distance and cosine of the values that differ"
    )
    made.add_argument("--meta", action=argparse.BooleanOptionalAction, default=True, help="metadata; default: yes")
    made.add_argument("--tensors", action=argparse.BooleanOptionalAction, default=True, help="tensors; default: yes")
    made.add_argument(
        "--data", action=argparse.BooleanOptionalAction, default=True, help="the tensors' bytes; default: yes"
    )
    made.add_argument("--json", action="store_true", help="print one JSON object")
    gguf_inputs.add_color(made)
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import Page
    from sporelm.cli.progress import ProgressLine
    from sporelm.tools.diff import diff
    from sporelm.tools.sources import find_models, open_source

    paths = []
    for word in (args.first, args.second):
        found = find_models([word])
        if len(found) != 1:
            raise RequestError(f"{word[:200]!r} stands for {len(found)} models; diff compares two")
        paths += found
    with open_source(paths[0]) as first, open_source(paths[1]) as second, ProgressLine() as progress:
        difference = diff(
            first,
            second,
            meta=args.filter_meta if args.meta else ["!*"],
            tensors=args.filter_tensor if args.tensors else ["!*"],
            data=args.data,
            distance=args.distance,
            progress=progress,
        )
    if args.json:
        gguf_inputs.print_json(difference.as_json())
    else:
        print_difference(Page(args.color), difference)
    return 0 if difference.same else 1


def print_difference(page: "Page", it: "Difference") -> None:
    """Every change on a line or two: - is the first model's, + the second's."""
    from sporelm.cli.gguf_text import plain

    page.line(page.paint(f"--- {plain(str(it.first))}", "red"))
    page.line(page.paint(f"+++ {plain(str(it.second))}", "green"))
    if it.metadata:
        page.heading(f"Metadata: {len(it.metadata)} differ")
    for change in it.metadata:
        print_meta(page, change)
    if it.tensors:
        page.heading(f"Tensors: {len(it.tensors)} differ")
    for tensor in it.tensors:
        print_change(page, tensor)
    if it.same:
        page.line(f"the same ({it.compared} tensors)")
    if it.other_order:
        page.line("the tensors are in another order")


def print_meta(page: "Page", change: "MetaChange") -> None:
    from sporelm.cli.gguf_text import plain

    page.line(f"  {page.paint(plain(change.key), 'cyan')}{f': {change.detail}' if change.detail else ''}")
    for sign, style, kind, value in (
        ("-", "red", change.first_kind, change.first),
        ("+", "green", change.second_kind, change.second),
    ):
        if kind is not None:
            page.line(page.paint(f"    {sign} {kind}: {side(kind, value)}", style))


def side(kind: str, value: Any) -> str:
    """A value on one side; arrays are clipped already."""
    from sporelm.cli.gguf_text import shown_value

    return shown_value(value, kind, None, False)


def print_change(page: "Page", change: "TensorChange") -> None:
    from sporelm.cli.gguf_text import plain

    first, second = (
        f"{type_name} {list(reversed(shape))}" if type_name is not None and shape is not None else ""
        for type_name, shape in (
            (change.first_type, change.first_shape),
            (change.second_type, change.second_shape),
        )
    )
    name = plain(change.name)
    if not second:
        page.line(page.paint(f"  - {name}: {first}", "red"))
        return
    if not first:
        page.line(page.paint(f"  + {name}: {second}", "green"))
        return
    what = f"{first} -> {second}" if first != second else f"{first}, other values"
    page.line(f"  {page.paint('~', 'yellow')} {name}: {what}")
    if (distance := change.distance) is not None:
        parts = [f"max {distance.max_abs:.4g}", f"rms {distance.rms:.4g}"]
        if distance.relative is not None:
            parts.append(f"relative {distance.relative:.4g}")
        if distance.cosine is not None:
            parts.append(f"cosine {distance.cosine:.7f}")
        if distance.mismatched:
            parts.append(f"{distance.mismatched} NaN or infinite on one side")
        page.line(f"      {', '.join(parts)}")
    elif change.why_unread:
        page.line(f"      {plain(change.why_unread)}")
