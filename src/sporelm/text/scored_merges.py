"""SentencePiece's BPE: neighbours that form a token together are joined, the best-scored token first.

Of equal scores the leftmost pair goes first; real vocabularies have such ties (runs of spaces), which is why merges
in a fixed order, as the `tokenizers` library wants them, cannot give the same ids.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise

import numpy as np

from sporelm.text.known_words import MAX_LENGTH, Known
from sporelm.text.token_bytes import SPACE

_NONE = -float("inf")
_LOWEST = -1e300  # below every finite float32
_MAX_LISTED = 48  # symbols up to which looking through a list beats a heap


class ScoredMerges:
    """Turns text in which spaces are ▁ into ids. Safe to share between threads."""

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Mapping[str, float],
        spelled: Callable[[str], tuple[int, ...]],
        unknown: int | None = None,
    ) -> None:
        """
        ids        text -> id of every token that text may become
        scores     text -> score of the same; none is NaN
        spelled    the ids of a character that is no token: its bytes, or the unknown token
        unknown    the id of which several in a row become one; None: there is none
        """
        self._ids = ids
        self._scores = {text: max(score, _LOWEST) for text, score in scores.items() if len(text) > 1}
        self._spelled = spelled
        self._unknown = unknown
        self._neighbours = Neighbours(self._scores)
        self._words = _words(self._neighbours.before(SPACE))
        self._known = Known(self._ids_of_word)

    def ids(self, text: str) -> list[int]:
        """The ids of `text`."""
        found = list(chain.from_iterable(map(self._known.__getitem__, self._words(text))))
        if self._unknown is not None and self._unknown in found:
            unknown = self._unknown
            found = [
                token for token, before in zip(found, [-1, *found], strict=False) if token != before or token != unknown
            ]
        return found

    def _ids_of_word(self, word: str) -> tuple[int, ...]:
        cuts = self._neighbours.cuts(word)
        if not cuts:
            return self._merged(word)
        known = self._known
        return tuple(
            chain.from_iterable([known[word[a:b]] for a, b in zip([0, *cuts], [*cuts, len(word)], strict=True)])
        )

    def _merged(self, word: str) -> tuple[int, ...]:
        symbols = self._join_listed(word) if len(word) <= _MAX_LISTED else self._join_queued(word)
        ids = self._ids
        found: list[int] = []
        for symbol in symbols:
            token = ids.get(symbol)
            if token is None:
                found += self._spelled(symbol)
            else:
                found.append(token)
        return tuple(found)

    def _join_listed(self, word: str) -> list[str]:
        """The symbols of a short word."""
        score = self._scores.get
        symbols = list(word)
        pairs = [score(a + b, _NONE) for a, b in pairwise(symbols)]
        while pairs and (best := max(pairs)) != _NONE:
            i = pairs.index(best)  # the leftmost
            symbols[i] += symbols.pop(i + 1)
            del pairs[i]
            if i:
                pairs[i - 1] = score(symbols[i - 1] + symbols[i], _NONE)
            if i < len(pairs):
                pairs[i] = score(symbols[i] + symbols[i + 1], _NONE)
        return symbols

    def _join_queued(self, word: str) -> list[str]:
        """The same for a word of any length, in n log n steps."""
        score = self._scores.get
        symbols = list(word)
        count = len(symbols)
        after, before = list(range(1, count + 1)), list(range(-1, count - 1))
        queue = []
        for i in range(count - 1):
            found = score(symbols[i] + symbols[i + 1])
            if found is not None:
                queue.append((-found, i, 2))
        heapify(queue)
        while queue:
            _, i, size = heappop(queue)
            j = after[i]
            if not symbols[i] or j >= count or len(symbols[i]) + len(symbols[j]) != size:
                continue  # one of the two was joined with another meanwhile
            symbols[i] += symbols[j]
            symbols[j] = ""
            after[i] = k = after[j]
            if k < count:
                before[k] = i
                if (found := score(pair := symbols[i] + symbols[k])) is not None:
                    heappush(queue, (-found, i, len(pair)))
            if (h := before[i]) >= 0 and (found := score(pair := symbols[h] + symbols[i])) is not None:
                heappush(queue, (-found, h, len(pair)))
        return [symbol for symbol in symbols if symbol]


class Neighbours:
    """Every two characters that stand side by side in a token.

    Between two others no join ever happens, so a text may be cut there, and each part be looked at alone.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        listed = [text for text in texts if len(text) > 1]
        points = _points("".join(listed))
        inside = np.ones(len(points), bool)
        inside[np.cumsum([len(text) for text in listed], dtype=np.int64) - 1] = False
        pairs = np.unique((points[:-1].astype(np.uint64) << np.uint64(32) | points[1:])[inside[:-1]])
        # For long texts: a table in which pairs may share a place. It only ever asks for fewer cuts.
        self._table = np.zeros(1 << _TABLE_BITS, bool)
        self._table[_places((pairs >> np.uint64(32)).astype(np.uint32), pairs.astype(np.uint32))] = True
        letters = pairs.astype("<u8").view("<u4").tobytes().decode("utf-32-le")
        self._pairs = frozenset(map("".join, zip(letters[1::2], letters[::2], strict=True)))

    def before(self, character: str) -> set[str]:
        """The characters that stand before `character` in a token."""
        return {pair[0] for pair in self._pairs if pair[1] == character}

    def cuts(self, text: str) -> list[int]:
        """Where `text` may be cut."""
        if len(text) > MAX_LENGTH:
            points = _points(text)
            cuts: list[int] = (np.flatnonzero(~self._table[_places(points[:-1], points[1:])]) + 1).tolist()
            return cuts
        pairs = self._pairs
        return [i for i in range(1, len(text)) if text[i - 1 : i + 1] not in pairs]


_TABLE_BITS = 20


def _points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _places(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Places of pairs in the table. uint32 arithmetic wraps."""
    mixed: np.ndarray = first * np.uint32(0x9E3779B1) + second * np.uint32(0x85EBCA6B)
    return mixed >> (32 - _TABLE_BITS)


def _words(crossing: set[str]) -> Callable[[str], list[str]]:
    """What cuts a text into words that are likely to come again: before spaces, where no token crosses.

    `crossing` are the characters that a token may have before a space.
    """
    others = "".join(sorted(crossing - {SPACE}))
    if not others:
        return re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+").findall
    return re.compile(f"(?<=[^{SPACE}{re.escape(others)}])(?={SPACE})").split
