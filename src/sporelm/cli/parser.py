"""An argument parser whose help is laid out here, so that it reads the same under every Python version.

`docs/commands.md` holds this help and a test compares the two; argparse's own layout changes between releases and
with the width of the terminal.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

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

    def format_help(self) -> str:
        """Usage, summary, arguments, options, then those of groups with titles, and examples, at a fixed width."""
        actions = [action for action in self._actions if action.help is not argparse.SUPPRESS]
        lines = [f"usage: {self.usage_line}", "", *textwrap.wrap(self.description or "", WIDTH)]
        grouped = {id(action) for group in self.titled for action in group._group_actions}
        plain = [action for action in actions if id(action) not in grouped]
        parts = [
            ("arguments", [action for action in plain if not action.option_strings]),
            ("options", [action for action in plain if action.option_strings]),
            *((str(group.title), group._group_actions) for group in self.titled),
        ]
        for title, members in parts:
            if members:
                lines += ["", f"{title}:", *(line for action in members for line in row(action))]
        lines += ["", "example:" if len(self.examples) == 1 else "examples:", *(f"  {line}" for line in self.examples)]
        return "\n".join(lines) + "\n"

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


def row(action: argparse.Action) -> list[str]:
    """The lines of help for one argument: its names, then what it does."""
    if action.option_strings:
        value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        head = f"  {', '.join(action.option_strings)}{value}"
    else:
        head = f"  {action.metavar or action.dest.upper()}"
    words = textwrap.wrap(action.help or "", WIDTH - COLUMN)
    if len(head) >= COLUMN - 1:
        return [head, *(" " * COLUMN + line for line in words)]
    return [f"{head:<{COLUMN}}{words[0] if words else ''}".rstrip(), *(" " * COLUMN + line for line in words[1:])]


def listed(convert: Callable[[str], int]) -> Callable[[str], list[int]]:
    """An argument type for values with commas between them, as in `1,8,16`."""

    def parse(text: str) -> list[int]:
        return [convert(word) for word in text.split(",")]

    parse.__name__ = "list of numbers"
    return parse
