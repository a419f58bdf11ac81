"""Finds the texts of a list in a text: from the left, at each place the longest."""

import re
from collections.abc import Collection


class WholeTexts:
    """What `re.split` does with all texts as alternatives, in a time that does not grow with their number."""

    def __init__(self, texts: Collection[str]) -> None:
        """`texts` are not empty, and there is at least one."""
        self._texts = frozenset(texts)
        sizes: dict[str, set[int]] = {}
        for text in self._texts:
            sizes.setdefault(text[0], set()).add(len(text))
        self._sizes = {first: sorted(found, reverse=True) for first, found in sizes.items()}
        self._begin = re.compile("[" + "".join(map(re.escape, sorted(sizes))) + "]").search

    def split(self, text: str) -> list[str]:
        """`text` in parts: those with an odd index are texts of the list, the others what lies between, or empty."""
        parts: list[str] = []
        start = at = 0
        while match := self._begin(text, at):
            at = match.start()
            for size in self._sizes[match[0]]:
                if (found := text[at : at + size]) in self._texts:
                    parts += [text[start:at], found]
                    start = at = at + len(found)
                    break
            else:
                at += 1
        return [*parts, text[start:]]
