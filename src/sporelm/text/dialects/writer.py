"""What goes out of a parser: deltas in their order, and the rules of white space."""

from collections.abc import Callable, Sequence
from itertools import groupby

from sporelm.text.dialects.deltas import Arguments, CallBegun, CallEnded, Content, Delta, Reasoning


class Writer:
    """Collects deltas; neighbours of one kind become one.

    Content is the answer with its blocks (reasoning, calls) cut out, without the white space at its beginning if a
    block came before it, and without that at its end if a block came after it. Each block of reasoning goes without
    white space around it; between two there is an empty line.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.blank = True  # nothing but white space and reasoning has come
        self.line_blank = True  # nothing but white space has come in this line, or after the block before it
        self.reasoned = False
        self.reasons = False  # what comes now is reasoning
        self._new_id = new_id
        self._deltas: list[Delta] = []
        self._space = ""  # white space of content that may be at its end
        self._written = False  # some content is out
        self._block = False  # a block has come after the last content that was not white space
        self._before = ""  # what goes before the next reasoning
        self._ids: set[str] = set()
        self._calls = 0

    def drain(self) -> list[Delta]:
        """The deltas since the last time."""
        deltas, self._deltas = self._deltas, []
        return [joined(list(group)) for _, group in groupby(deltas, key=_kind)]

    def content(self, text: str) -> None:
        """Text for the reader."""
        if not text:
            return
        words = text.rstrip()
        if not words:
            self._space += text
            self.line_blank = self.line_blank or "\n" in text
            return
        if self._written or not self._block:
            words = self._space + words
        else:
            words = words.lstrip()
        self._space = text[len(text.rstrip()) :]
        self.line_blank = "\n" in self._space
        self._written, self._block, self.blank = True, False, False
        self._deltas.append(Content(words))

    def block(self) -> None:
        """Something that is no content begins or ends here."""
        self._block = self.line_blank = True
        self.reasons = False

    def begin_reasoning(self) -> None:
        """Reasoning begins."""
        self.block()
        self._before = "\n\n" if self.reasoned else ""
        self._thought, self.reasons = False, True

    def reasoning(self, text: str) -> None:
        """Reasoning, after `begin_reasoning`."""
        words = text.rstrip()
        if not words:
            self._before += text if self._thought else ""
            return
        if not self._thought:
            words = words.lstrip()
        self._deltas.append(Reasoning(self._before + words))
        self._before = text[len(text.rstrip()) :]
        self._thought = self.reasoned = True

    def begin_call(self, name: str, id: str | None = None) -> None:
        """A call begins; an id that the model gave is used if no call had it before."""
        self.block()
        self.blank = False
        if not id or id in self._ids:
            id = self._new_id()
        self._ids.add(id)
        self._deltas.append(CallBegun(self._calls, id, name))

    def arguments(self, text: str) -> None:
        """A piece of the arguments of the call that has begun."""
        if text:
            self._deltas.append(Arguments(self._calls, text))

    def end_call(self, complete: bool) -> None:
        """The call that has begun has all of its arguments."""
        self._deltas.append(CallEnded(self._calls, complete))
        self._calls += 1
        self.block()

    def finish(self) -> None:
        """The text has ended."""
        if self._space and not self._block:
            self._deltas.append(Content(self._space))
        self._space = ""


def _kind(delta: Delta) -> tuple[type, int]:
    return type(delta), getattr(delta, "index", 0)


def joined(deltas: Sequence[Delta]) -> Delta:
    """Neighbours of one kind as one."""
    first = deltas[0]
    if isinstance(first, CallBegun | CallEnded):
        return first
    text = "".join(delta.text for delta in deltas if not isinstance(delta, CallBegun | CallEnded))
    return Arguments(first.index, text) if isinstance(first, Arguments) else type(first)(text)
