"""How an answer is shown while it comes: what is said on stdout, thoughts and figures on stderr."""

import sys

from sporelm.cli.plain_text import has_colors, without_controls


class Screen:
    """One answer. Control characters are shown escaped: they could steer a terminal."""

    def __init__(self) -> None:
        self.thought = ""  # the latest piece of thoughts, if they are what stands last
        self.is_empty = True

    def think(self, text: str) -> None:
        """Show a piece of thoughts."""
        if text:
            self.thought, self.is_empty = text, False
            sys.stderr.write(dim(without_controls(text)))
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """Show a piece of the answer, on a line of its own after thoughts."""
        if text:
            self.end_thoughts()
            self.is_empty = False
            sys.stdout.write(without_controls(text))
            sys.stdout.flush()

    def end(self) -> None:
        """End the last line."""
        if self.thought:
            self.end_thoughts()
        else:
            print(flush=True)

    def end_thoughts(self) -> None:
        """End the line of thoughts, if they are what stands last."""
        if self.thought and not self.thought.endswith("\n"):
            print(file=sys.stderr, flush=True)
        self.thought = ""


def dim(text: str) -> str:
    """The text in a fainter colour, where stderr is a terminal that knows how."""
    if sys.platform == "win32" or not has_colors(sys.stderr):
        return text
    return f"\x1b[2m{text}\x1b[0m"
