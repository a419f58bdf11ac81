"""Prints an answer while it is generated: the text on stdout, reasoning and statistics on stderr."""

import sys

from sporelm.cli.terminal_text import escape_controls, supports_colors


class ChatScreen:
    """Prints one answer. Control characters are escaped, since they could control the terminal."""

    def __init__(self) -> None:
        self._reasoning = ""  # the latest piece of reasoning, if it was printed last
        self.is_empty = True

    def print_reasoning(self, text: str) -> None:
        """Print a piece of reasoning."""
        if text:
            self._reasoning = text
            self.is_empty = False
            sys.stderr.write(dim(escape_controls(text)))
            sys.stderr.flush()

    def print_text(self, text: str) -> None:
        """Print a piece of the answer, on a new line after reasoning."""
        if text:
            self._end_reasoning()
            self.is_empty = False
            sys.stdout.write(escape_controls(text))
            sys.stdout.flush()

    def end(self) -> None:
        """End the last line."""
        if self._reasoning:
            self._end_reasoning()
        else:
            print(flush=True)

    def _end_reasoning(self) -> None:
        """End the line of reasoning, if it was printed last."""
        if self._reasoning and not self._reasoning.endswith("\n"):
            print(file=sys.stderr, flush=True)
        self._reasoning = ""


def dim(text: str) -> str:
    """Return the text in a fainter colour if stderr is a terminal that supports it."""
    if sys.platform == "win32" or not supports_colors(sys.stderr):
        return text
    return f"\x1b[2m{text}\x1b[0m"
