"""`spore gguf`: the tools for model files. Each is a command of its own, `spore gguf NAME`, in `cli/gguf_NAME.py`."""

import argparse
import sys

from sporelm.cli import main, options
from sporelm.cli.parser import WIDTH, Parser
from sporelm.cli.terminal_layout import labelled

PREFIX = "gguf "


class Overview(Parser):
    """The help of `spore gguf`, which lists the tools."""

    def format_help(self, width: int = WIDTH) -> str:
        """The usual help, with the tools after the summary."""
        head, options_title, tail = super().format_help(width).partition("\noptions:")
        tools = {name.removeprefix(PREFIX): text for name, text in main.COMMANDS.items() if name.startswith(PREFIX)}
        rows = [line for name, summary in tools.items() for line in labelled(f"  {name}", summary, 14, width)]
        listed = "".join(f"{line}\n" for line in rows)
        return f"{head}\ntools:\n{listed}{options_title}{tail}"


def parser() -> Parser:
    """The arguments of `spore gguf` without a tool."""
    result = Overview(
        "gguf",
        "Tools for model files. 'spore gguf TOOL --help' says more about each.",
        "TOOL ...",
        ["spore gguf show model.gguf"],
    )
    result.add_argument("tool", nargs="*", help=argparse.SUPPRESS)
    options.add_help(result)
    return result


def run(args: argparse.Namespace) -> int:
    """Only reached without a tool that exists: says which there are. Exit code 2."""
    if args.tool:
        parser().error(f"no tool {args.tool[0]!r:.80}")
    parser().print_help(sys.stderr)
    return 2
