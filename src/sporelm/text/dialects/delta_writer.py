"""The output of a parser: deltas in their order, and the rules of white space."""

from collections.abc import Callable, Sequence
from itertools import groupby

from sporelm.text.dialects.deltas import Arguments, CallEnd, CallStart, Content, Delta, Reasoning


class DeltaWriter:
    """Collects deltas; adjacent deltas of one kind become one.

    Content is the answer with its blocks (reasoning, calls) removed, without the white space at its beginning if a
    block came before it, and without that at its end if a block came after it. Each block of reasoning is stripped of
    white space; an empty line separates two.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.is_blank = True  # only white space and reasoning have come
        self.is_line_blank = True  # only white space has come in this line, or after the block before it
        self.has_reasoned = False
        self.in_reasoning = False
        self._new_id = new_id
        self._deltas: list[Delta] = []
        self._space = ""  # white space of content that may be at its end
        self._has_content = False
        self._after_block = False  # a block has come after the last content that was not white space
        self._separator = ""  # before the next reasoning
        self._block_has_text = False  # of the current block of reasoning
        self._ids: set[str] = set()
        self._num_calls = 0

    def drain(self) -> list[Delta]:
        """Return the deltas since the last call."""
        deltas = self._deltas
        self._deltas = []
        return [join_deltas(list(group)) for _, group in groupby(deltas, key=_kind)]

    def content(self, text: str) -> None:
        """Add text for the reader."""
        if not text:
            return
        words = text.rstrip()
        if not words:
            self._space += text
            self.is_line_blank = self.is_line_blank or "\n" in text
            return
        if self._has_content or not self._after_block:
            words = self._space + words
        else:
            words = words.lstrip()
        self._space = text[len(text.rstrip()) :]
        self.is_line_blank = "\n" in self._space
        self._has_content = True
        self._after_block = False
        self.is_blank = False
        self._deltas.append(Content(words))

    def block(self) -> None:
        """Begin or end a block that is not content."""
        self._after_block = True
        self.is_line_blank = True
        self.in_reasoning = False

    def begin_reasoning(self) -> None:
        """Begin reasoning."""
        self.block()
        self._separator = "\n\n" if self.has_reasoned else ""
        self._block_has_text = False
        self.in_reasoning = True

    def reasoning(self, text: str) -> None:
        """Add reasoning, after `begin_reasoning`."""
        words = text.rstrip()
        if not words:
            self._separator += text if self._block_has_text else ""
            return
        if not self._block_has_text:
            words = words.lstrip()
        self._deltas.append(Reasoning(self._separator + words))
        self._separator = text[len(text.rstrip()) :]
        self._block_has_text = True
        self.has_reasoned = True

    def begin_call(self, name: str, id: str | None = None) -> None:
        """Begin a call; the model's id is used if it is the first with it."""
        self.block()
        self.is_blank = False
        if not id or id in self._ids:
            id = self._new_id()
        self._ids.add(id)
        self._deltas.append(CallStart(self._num_calls, id, name))

    def arguments(self, text: str) -> None:
        """Add a piece of the arguments of the current call."""
        if text:
            self._deltas.append(Arguments(self._num_calls, text))

    def end_call(self, complete: bool) -> None:
        """End the current call."""
        self._deltas.append(CallEnd(self._num_calls, complete))
        self._num_calls += 1
        self.block()

    def finish(self) -> None:
        """End the text."""
        if self._space and not self._after_block:
            self._deltas.append(Content(self._space))
        self._space = ""


def _kind(delta: Delta) -> tuple[type, int]:
    return type(delta), getattr(delta, "index", 0)


def join_deltas(deltas: Sequence[Delta]) -> Delta:
    """Return adjacent deltas of one kind as one."""
    first = deltas[0]
    if isinstance(first, CallStart | CallEnd):
        return first
    text = "".join(delta.text for delta in deltas if not isinstance(delta, CallStart | CallEnd))
    return Arguments(first.index, text) if isinstance(first, Arguments) else type(first)(text)
