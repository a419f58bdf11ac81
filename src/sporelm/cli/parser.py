"""An argument parser with its own help layout, which is the same under every Python version.

`docs/commands.md` contains this help and a test compares the two; argparse's layout changes between releases. Only a
terminal narrower than the page gets another layout.
"""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from sporelm.cli.terminal_layout import MIN_BESIDE, fold, terminal_width

WIDTH = 100
COLUMN = 30
TYPE_NAMES: dict[Any, str] = {int: "whole number", float: "number"}


class Parser(argparse.ArgumentParser):
    """The parser of one command. Invalid usage prints one line and exits with code 2."""

    def __init__(self, name: str, summary: str, usage: str, examples: list[str]) -> None:
        super().__init__(prog=f"spore {name}", description=summary, allow_abbrev=False, add_help=False)
        self.usage_line = f"spore {name} {usage}".rstrip()
        self.examples = examples
        self.words: list[str] = []
        self.takes_options_between = False  # options may stand between positional arguments, the first of them optional

    def format_help(self, width: int = WIDTH) -> str:
        """Return usage, summary, arguments, options, titled groups and examples, at a width of 100 columns.

        At a smaller width, usage and examples are folded, and the help of an option may stand below its name.
        """
        actions = [action for action in self._actions if action.help is not argparse.SUPPRESS]
        summary = textwrap.wrap(self.description or "", width, break_long_words=False)
        is_narrow = width < WIDTH  # else usage and examples stay on one line, to be copied
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
                lines += [
                    "",
                    *fold(f"{title}:", width),
                    *(line for action in members for line in format_action(action, width)),
                ]
        examples = [line for each in self.examples for line in fold(f"  {each}", width if is_narrow else None)]
        lines += ["", "example:" if len(self.examples) == 1 else "examples:", *examples]
        return "\n".join(lines) + "\n"

    def print_help(self, file: Any = None) -> None:
        """Print the help at the terminal's width, 100 at most."""
        stream = sys.stdout if file is None else file
        stream.write(self.format_help(min(terminal_width(stream) or WIDTH, WIDTH)))

    @property
    def titled(self) -> list[Any]:
        """The argument groups that the command added, without argparse's own two."""
        return self._action_groups[2:]

    def format_usage(self) -> str:
        return f"usage: {self.usage_line}\n"

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; collect all positional ones first if MODEL is optional.

        argparse assigns the positional arguments before an option at once, so it would parse the MODEL of
        `MODEL --option TEXT` as TEXT.
        """
        if self.takes_options_between:
            return self.parse_intermixed_args(args, namespace)
        return super().parse_args(args, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments as argparse does, and keep the words for `error`."""
        self.words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def find_given(self, words: list[str]) -> frozenset[str]:
        """Return the names of the arguments given in these words, which must be valid; defaults are not included."""
        defaults = [(action, action.default) for action in self._actions]
        try:
            for action, _ in defaults:
                action.default = argparse.SUPPRESS
            found, _ = super().parse_known_args(words, argparse.Namespace())
        finally:
            for action, default in defaults:
                action.default = default
        return frozenset(vars(found))

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return the value of a text, with an error in the form of ours."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if not error.message.startswith("invalid "):  # of a type of ours
                raise
            name = TYPE_NAMES.get(action.type) or getattr(action.type, "__name__", "valid value")
            raise argparse.ArgumentError(action, f"not a {name} (got {arg_string!r:.80})") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise an error in the form of ours for a value that is not one of the choices."""
        if action.choices is not None and value not in action.choices:
            allowed = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(action, f"unknown (got {value!r:.80}; allowed {allowed})")

    def error(self, message: str) -> NoReturn:
        dashed = next((word for word in self.words if word.startswith("-") and os.path.lexists(word)), None)
        hint = (
            f"; {dashed[:80]!r} is parsed as an option; for the file of that name write './{dashed[:80]}'"
            if dashed
            else ""
        )
        sys.stderr.write(f"{self.prog}: {restate(message)}{hint}. See '{self.prog} --help'.\n")
        raise SystemExit(2)


# argparse's own texts, and ours: THING: problem.
RESTATED = (
    (r"argument ([^:]+): expected one argument", r"\1: the value is missing"),
    (r"argument ([^:]+): expected at least one argument", r"\1: the values are missing"),
    (r"argument ([^:]+): (.*)", r"\1: \2"),
    (r"the following arguments are required: (.*)", r"\1: missing"),
)


def restate(message: str) -> str:
    """Return a message of argparse in the form of ours."""
    for pattern, ours in RESTATED:
        if found := re.fullmatch(pattern, message, re.DOTALL):
            return found.expand(ours)
    return message


def format_action(action: argparse.Action, width: int = WIDTH) -> list[str]:
    """Return the lines of help for one argument: its names, then its help text."""
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


def comma_separated(convert: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Return an argument type for comma-separated values, as in `1,8,16`."""

    def parse(text: str) -> list[int]:
        return [convert(word) for word in text.split(",")]

    parse.__name__ = "list of numbers"
    return parse
