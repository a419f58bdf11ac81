"""A rendered chat whose characters are marked by origin: template text, or content."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

CONTENT, TEMPLATE = 0, 1  # the mark of a character
_RUNS = re.compile(b"\x00+|\x01+")


@dataclass(frozen=True)
class RenderedPrompt:
    """The text that a chat template rendered, in spans by origin. Plain data: it can be pickled.

    spans    (text, is_template), none empty, neighbours of different origin. Only text with is_template may become a
             control token; all other text (contents, names, roles, results and descriptions of tools) stays plain text.
    images   the runs of image rows in the text, in order, as the caller knows them
    """

    spans: tuple[tuple[str, bool], ...] = ()
    images: tuple[Any, ...] = ()

    @classmethod
    def join(cls, spans: Iterable[tuple[str, bool]]) -> "RenderedPrompt":
        """Return the prompt of these spans; empty ones are dropped, neighbours of one origin joined."""
        joined: list[tuple[list[str], bool]] = []
        for text, is_template in spans:
            if joined and joined[-1][1] == is_template:
                joined[-1][0].append(text)
            elif text:
                joined.append(([text], is_template))
        return cls(tuple(("".join(texts), is_template) for texts, is_template in joined))

    @cached_property
    def text(self) -> str:
        """The whole text, without its marks."""
        return "".join(text for text, _ in self.spans)

    @cached_property
    def origins(self) -> "Origins":
        """The marks of the characters of `text`."""
        return Origins(self.spans)

    def __str__(self) -> str:
        return self.text

    def __len__(self) -> int:
        return len(self.text)

    def __add__(self, other: "RenderedPrompt") -> "RenderedPrompt":
        return replace(RenderedPrompt.join([*self.spans, *other.spans]), images=(*self.images, *other.images))

    def count_template_text(self, text: str) -> int:
        """Return how often the template wrote this text; 0 for an empty one."""
        return sum(part.count(text) for part, is_template in self.spans if is_template) if text else 0

    def replace_template_text(self, text: str, replacements: Iterable[str]) -> "RenderedPrompt":
        """Return the prompt with the template's occurrences of a text replaced, each by the next replacement."""
        following, spans = iter(replacements), list[tuple[str, bool]]()
        for part, is_template in self.spans:
            if is_template:
                first, *others = part.split(text)
                part = first + "".join(next(following) + other for other in others)
            spans.append((part, is_template))
        return replace(RenderedPrompt.join(spans), images=self.images)

    def up_to(self, length: int) -> "RenderedPrompt":
        """Return the first `length` characters, with all images: some may stand behind them."""
        spans = []
        for text, is_template in self.spans:
            if length <= 0:
                break
            spans.append((text[:length], is_template))
            length -= len(text)
        return RenderedPrompt(tuple(spans), self.images)

    def __getstate__(self) -> tuple[tuple[tuple[str, bool], ...], tuple[Any, ...]]:
        return self.spans, self.images  # not the cached properties

    def __setstate__(self, state: tuple[tuple[tuple[str, bool], ...], tuple[Any, ...]]) -> None:
        self.__dict__["spans"], self.__dict__["images"] = state


class Origins:
    """The marks of the characters of a text."""

    def __init__(self, spans: Iterable[tuple[str, bool]]) -> None:
        """`spans` are like those of `RenderedPrompt`."""
        span_list = list(spans)
        self._ends = list(accumulate(len(text) for text, _ in span_list))
        self._flags = [is_template for _, is_template in span_list]

    def is_template(self, start: int, end: int) -> bool:
        """Whether all characters from `start` up to `end` are template text; there is at least one."""
        index = bisect_right(self._ends, start)
        return index < len(self._ends) and self._flags[index] and end <= self._ends[index]

    def template_spans(self) -> list[tuple[int, int]]:
        """Return the positions of template text: (start, end)."""
        starts = [0, *self._ends]
        return [(starts[i], end) for i, end in enumerate(self._ends) if self._flags[i]]


def spans_of(text: str, marks: bytes) -> list[tuple[str, bool]]:
    """Return a text in spans of one mark; `marks` has CONTENT or TEMPLATE for each character."""
    return [(text[run.start() : run.end()], marks[run.start()] == TEMPLATE) for run in _RUNS.finditer(marks)]
