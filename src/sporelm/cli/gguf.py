"""`spore gguf`: the tools for model files. Each is a command, `spore gguf NAME`, in `cli/gguf_NAME.py`."""

import argparse
import sys

from sporelm.cli import main, options
from sporelm.cli.parser import WIDTH, Parser
from sporelm.cli.terminal_layout import label_text

PREFIX = "gguf "


class OverviewParser(Parser):
    """A parser whose help lists the tools."""

    def format_help(self, width: int = WIDTH) -> str:
        """Return the help, with the tools after the summary."""
        head, options_title, tail = super().format_help(width).partition("\noptions:")
        tools = {name.removeprefix(PREFIX): text for name, text in main.COMMANDS.items() if name.startswith(PREFIX)}
        rows = [line for name, summary in tools.items() for line in label_text(f"  {name}", summary, 14, width)]
        tool_list = "".join(f"{line}\n" for line in rows)
        return f"{head}\ntools:\n{tool_list}{options_title}{tail}"


def make_parser() -> Parser:
    """Return the parser of `spore gguf` without a tool."""
    parser = OverviewParser(
        "gguf",
        "Tools for model files. 'spore gguf TOOL --help' says more about each.",
        "TOOL ...",
        ["spore gguf show model.gguf"],
    )
    parser.add_argument("tool", nargs="*", help=argparse.SUPPRESS)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print which tools there are, if none of them is named. Returns exit code 2."""
    if args.tool:
        make_parser().error(f"unknown tool {args.tool[0]!r:.80}")
    make_parser().print_help(sys.stderr)
    return 2
