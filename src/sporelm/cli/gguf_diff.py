"""`spore gguf diff`: show how two models differ."""

import argparse
from typing import TYPE_CHECKING, Any

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import escape_line
from sporelm.errors import RequestError

if TYPE_CHECKING:
    from sporelm.cli.gguf_text import Page
    from sporelm.tools.diff import MetaChange, ModelDifference, TensorChange


def make_parser() -> Parser:
    parser = Parser(
        "gguf diff",
        "Compare two models: metadata, and tensors by name, type, shape and bytes; with --distance also their values, "
        "whatever the types. The order and the offsets of tensors are ignored. Exit code 0: the same, 1: they differ "
        "or cannot be compared.",
        "FIRST SECOND [options]",
        [
            "spore gguf diff a.gguf b.gguf",
            "spore gguf diff f16.gguf q4.gguf --distance --filter-tensor 'blk.*.ffn_*' --no-meta",
            "spore gguf diff a.gguf b.gguf --filter-meta '!tokenizer.*' --no-data --json",
        ],
    )
    parser.add_argument("first", metavar="FIRST", help=gguf_inputs.FILE_HELP)
    parser.add_argument("second", metavar="SECOND", help="the model to compare with")
    gguf_inputs.add_filters(parser)
    parser.add_argument(
        "--distance", action="store_true", help="maximum and rms distance and cosine of differing tensors"
    )
    parser.add_argument("--meta", action=argparse.BooleanOptionalAction, default=True, help="metadata; default: yes")
    parser.add_argument("--tensors", action=argparse.BooleanOptionalAction, default=True, help="tensors; default: yes")
    parser.add_argument(
        "--data", action=argparse.BooleanOptionalAction, default=True, help="the tensors' bytes; default: yes"
    )
    options.add_json(parser)
    gguf_inputs.add_color(parser)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.gguf_text import Page
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.tools.diff import compare_models
    from sporelm.tools.model_files import find_models, open_model_files

    paths = []
    for word in (args.first, args.second):
        matches = find_models([word])
        if len(matches) != 1:
            raise RequestError(f"{word[:200]!r} stands for {len(matches)} models; diff compares two")
        paths += matches
    needs_data = args.tensors and (args.data or args.distance)
    with (
        open_model_files(paths[0], needs_data=needs_data) as first,
        open_model_files(paths[1], needs_data=needs_data) as second,
        ProgressLine() as progress,
    ):
        difference = compare_models(
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


def print_difference(page: "Page", difference: "ModelDifference") -> None:
    """Print every change on a line or two: - for the first model, + for the second."""
    page.line(page.paint(f"--- {escape_line(str(difference.first))}", "red"))
    page.line(page.paint(f"+++ {escape_line(str(difference.second))}", "green"))
    if difference.metadata:
        page.heading(f"Metadata: {len(difference.metadata)} differ")
    for change in difference.metadata:
        print_meta(page, change)
    if difference.tensors:
        page.heading(f"Tensors: {len(difference.tensors)} differ")
    for tensor in difference.tensors:
        print_change(page, tensor)
    if difference.same:
        page.line(f"the same ({difference.compared} tensors)")
    if difference.other_order:
        page.line("the tensors are in another order")


def print_meta(page: "Page", change: "MetaChange") -> None:
    page.line(f"  {page.paint(escape_line(change.key), 'cyan')}{f': {change.detail}' if change.detail else ''}")
    for sign, style, kind, value in (
        ("-", "red", change.first_kind, change.first),
        ("+", "green", change.second_kind, change.second),
    ):
        if kind is not None:
            page.line(page.paint(f"    {sign} {kind}: {format_side(kind, value)}", style))


def format_side(kind: str, value: Any) -> str:
    """Return one side's value; arrays are clipped already."""
    from sporelm.cli.gguf_text import format_value

    return format_value(value, kind, None, False)


def print_change(page: "Page", change: "TensorChange") -> None:
    first, second = (
        f"{type_name} {list(reversed(shape))}" if type_name is not None and shape is not None else ""
        for type_name, shape in (
            (change.first_type, change.first_shape),
            (change.second_type, change.second_shape),
        )
    )
    name = escape_line(change.name)
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
        page.line(f"      {escape_line(change.why_unread)}")
