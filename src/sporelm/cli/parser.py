"""An argument parser whose help is laid out here, so that it reads the same under every Python version.

`docs/commands.md` holds this help and a test compares the two; argparse's own layout changes between releases. Only a
terminal that is narrower than the page gets another layout.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from sporelm.cli.terminal_layout import MIN_BESIDE, fold, terminal_width

WIDTH = 100
COLUMN = 30


class Parser(argparse.ArgumentParser):
    """The parser of one command. A wrong call ends with one line and exit code 2."""

    def __init__(self, name: str, summary: str, usage: str, examples: list[str]) -> None:
        super().__init__(prog=f"spore {name}", description=summary, allow_abbrev=False, add_help=False)
        self.usage_line = f"spore {name} {usage}".rstrip()
        self.examples = examples
        self.words: list[str] = []
        self.takes_options_between = False  # positional arguments, the first of which may be left out

    def format_help(self, width: int = WIDTH) -> str:
        """Usage, summary, arguments, options, then those of groups with titles, and examples, at a width of 100.

        A narrower terminal gives its own width: usage and examples are folded there, and what an option does stands
        below its names.
        """
        actions = [action for action in self._actions if action.help is not argparse.SUPPRESS]
        summary = textwrap.wrap(self.description or "", width, break_long_words=False)
        is_narrow = width < WIDTH  # else usage and examples are lines that can be copied
        lines = [*fold(f"usage: {self.usage_line}", width if is_narrow else None, 2), "", *summary]
        grouped = {id(action) for group in self.titled for action in group._group_actions}
        plain = [action for action in actions if id(action) not in grouped]
        parts = [
            ("arguments", [action for action in plain if not action.option_strings]),
            ("options", [action for action in plain if action.option_strings]),
            *((str(group.title), group._group_actions) for group in self.titled),
        ]
        for title, members in parts:
            if members:
                lines += ["", *fold(f"{title}:", width), *(line for action in members for line in row(action, width))]
        examples = [line for each in self.examples for line in fold(f"  {each}", width if is_narrow else None)]
        lines += ["", "example:" if len(self.examples) == 1 else "examples:", *examples]
        return "\n".join(lines) + "\n"

    def print_help(self, file: Any = None) -> None:
        """Print the help at the terminal's width, 100 at most."""
        stream = sys.stdout if file is None else file
        stream.write(self.format_help(min(terminal_width(stream) or WIDTH, WIDTH)))

    @property
    def titled(self) -> list[Any]:
        """The groups that commands made, beside argparse's own two."""
        return self._action_groups[2:]

    def format_usage(self) -> str:
        return f"usage: {self.usage_line}\n"

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but collect all positional arguments first where MODEL may be left out: argparse
        assigns those before an option at once, so in `MODEL --option TEXT` it would take MODEL for TEXT."""
        if self.takes_options_between:
            return self.parse_intermixed_args(args, namespace)
        return super().parse_args(args, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; keeps the words for `error`."""
        self.words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def given(self, words: list[str]) -> frozenset[str]:
        """The names of the arguments that these words hold, which must be right: defaults are not among them."""
        defaults = [(action, action.default) for action in self._actions]
        try:
            for action, _ in defaults:
                action.default = argparse.SUPPRESS
            found, _ = super().parse_known_args(words, argparse.Namespace())
        finally:
            for action, default in defaults:
                action.default = default
        return frozenset(vars(found))

    def error(self, message: str) -> NoReturn:
        dashed = next((word for word in self.words if word.startswith("-") and os.path.lexists(word)), None)
        hint = f"; {dashed[:80]!r} is taken for an option, the file of that name is './{dashed[:80]}'" if dashed else ""
        sys.stderr.write(f"{self.prog}: {message}{hint} (see '{self.prog} --help')\n")
        raise SystemExit(2)


def row(action: argparse.Action, width: int = WIDTH) -> list[str]:
    """The lines of help for one argument: its names, then what it does."""
    if action.option_strings:
        value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        head = f"  {', '.join(action.option_strings)}{value}"
    else:
        head = f"  {action.metavar or action.dest.upper()}"
    if width < COLUMN + MIN_BESIDE:
        indent = " " * min(6, width // 4)
        text = textwrap.wrap(action.help or "", width - len(indent), break_long_words=False, break_on_hyphens=False)
        return [*fold(head, width), *(indent + line for line in text)]
    words = textwrap.wrap(action.help or "", width - COLUMN)
    if len(head) >= COLUMN - 1:
        return [head, *(" " * COLUMN + line for line in words)]
    return [f"{head:<{COLUMN}}{words[0] if words else ''}".rstrip(), *(" " * COLUMN + line for line in words[1:])]


def listed(convert: Callable[[str], int]) -> Callable[[str], list[int]]:
    """An argument type for values with commas between them, as in `1,8,16`."""

    def parse(text: str) -> list[int]:
        return [convert(word) for word in text.split(",")]

    parse.__name__ = "list of numbers"
    return parse
