"""SentencePiece's BPE: adjacent symbols that form a token together are merged, the highest-scored token first.

Among equal scores the leftmost pair is merged first. Real vocabularies have such ties (runs of spaces), so an ordered
list of merges, as the `tokenizers` library requires, cannot give the same ids.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise

import numpy as np

from sporelm.text.tokenizers.byte_level import SPACE
from sporelm.text.tokenizers.word_cache import MAX_WORD_CHARACTERS, WordCache

_NO_TOKEN = -float("inf")
_MIN_SCORE = -1e300  # below every finite float32
_MAX_LIST_SYMBOLS = 48  # up to which scanning a list is faster than a heap


class SentencePieceBpe:
    """Turns text in which spaces are ▁ into ids. Safe to share between threads."""

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Mapping[str, float],
        fallback: Callable[[str], tuple[int, ...]],
        unknown: int | None = None,
    ) -> None:
        """
        ids        text -> id of every token that text may become
        scores     text -> its score, never NaN
        fallback   encodes a character without a token: as its bytes, or as the unknown token
        unknown    the id of the unknown token, whose runs become one token; None: the vocabulary has none
        """
        self._ids = ids
        self._scores = {text: max(score, _MIN_SCORE) for text, score in scores.items() if len(text) > 1}
        self._fallback = fallback
        self._unknown = unknown
        self._pairs = CharacterPairs(self._scores)
        self._split_words = _make_word_splitter(self._pairs.find_predecessors(SPACE))
        self._cache = WordCache(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        ids = list(chain.from_iterable(map(self._cache.__getitem__, self._split_words(text))))
        if self._unknown is not None and self._unknown in ids:
            unknown = self._unknown
            ids = [
                token for token, previous in zip(ids, [-1, *ids], strict=False) if token != previous or token != unknown
            ]
        return ids

    def _encode_word(self, word: str) -> tuple[int, ...]:
        cuts = self._pairs.find_cuts(word)
        if not cuts:
            return self._merge(word)
        cache = self._cache
        return tuple(
            chain.from_iterable([cache[word[a:b]] for a, b in zip([0, *cuts], [*cuts, len(word)], strict=True)])
        )

    def _merge(self, word: str) -> tuple[int, ...]:
        symbols = self._merge_by_list(word) if len(word) <= _MAX_LIST_SYMBOLS else self._merge_by_heap(word)
        ids: list[int] = []
        for symbol in symbols:
            token = self._ids.get(symbol)
            if token is None:
                ids += self._fallback(symbol)
            else:
                ids.append(token)
        return tuple(ids)

    def _merge_by_list(self, word: str) -> list[str]:
        """Return the symbols of a short word."""
        score = self._scores.get
        symbols = list(word)
        pairs = [score(a + b, _NO_TOKEN) for a, b in pairwise(symbols)]
        while pairs and (best := max(pairs)) != _NO_TOKEN:
            i = pairs.index(best)  # the leftmost
            symbols[i] += symbols.pop(i + 1)
            del pairs[i]
            if i:
                pairs[i - 1] = score(symbols[i - 1] + symbols[i], _NO_TOKEN)
            if i < len(pairs):
                pairs[i] = score(symbols[i] + symbols[i + 1], _NO_TOKEN)
        return symbols

    def _merge_by_heap(self, word: str) -> list[str]:
        """Return the symbols of a word of any length, in n log n steps."""
        score = self._scores.get
        symbols = list(word)
        count = len(symbols)
        following = list(range(1, count + 1))
        previous = list(range(-1, count - 1))
        queue = []
        for i in range(count - 1):
            pair_score = score(symbols[i] + symbols[i + 1])
            if pair_score is not None:
                queue.append((-pair_score, i, 2))
        heapify(queue)
        while queue:
            _, i, size = heappop(queue)
            j = following[i]
            if not symbols[i] or j >= count or len(symbols[i]) + len(symbols[j]) != size:
                continue  # one of the two was merged with another symbol meanwhile
            symbols[i] += symbols[j]
            symbols[j] = ""
            k = following[j]
            following[i] = k
            if k < count:
                previous[k] = i
                if (pair_score := score(pair := symbols[i] + symbols[k])) is not None:
                    heappush(queue, (-pair_score, i, len(pair)))
            if (h := previous[i]) >= 0 and (pair_score := score(pair := symbols[h] + symbols[i])) is not None:
                heappush(queue, (-pair_score, h, len(pair)))
        return [symbol for symbol in symbols if symbol]


class CharacterPairs:
    """All pairs of characters that are adjacent in some token.

    No merge crosses any other pair, so a text may be cut there and each part merged separately.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        tokens = [text for text in texts if len(text) > 1]
        points = _to_code_points("".join(tokens))
        inside = np.ones(len(points), bool)
        inside[np.cumsum([len(text) for text in tokens], dtype=np.int64) - 1] = False
        pairs = np.unique((points[:-1].astype(np.uint64) << np.uint64(32) | points[1:])[inside[:-1]])
        # For long texts: a hash table in which pairs may collide. Collisions only ever reduce the number of cuts.
        self._table = np.zeros(1 << _TABLE_BITS, bool)
        self._table[_hash_pairs((pairs >> np.uint64(32)).astype(np.uint32), pairs.astype(np.uint32))] = True
        letters = pairs.astype("<u8").view("<u4").tobytes().decode("utf-32-le")
        self._pairs = frozenset(map("".join, zip(letters[1::2], letters[::2], strict=True)))

    def find_predecessors(self, character: str) -> set[str]:
        """Return the characters that precede `character` in a token."""
        return {pair[0] for pair in self._pairs if pair[1] == character}

    def find_cuts(self, text: str) -> list[int]:
        """Return the positions at which `text` may be cut."""
        if len(text) > MAX_WORD_CHARACTERS:
            points = _to_code_points(text)
            cuts: list[int] = (np.flatnonzero(~self._table[_hash_pairs(points[:-1], points[1:])]) + 1).tolist()
            return cuts
        pairs = self._pairs
        return [i for i in range(1, len(text)) if text[i - 1 : i + 1] not in pairs]


_TABLE_BITS = 20


def _to_code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _hash_pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the positions of pairs in the hash table. uint32 arithmetic wraps."""
    mixed: np.ndarray = first * np.uint32(0x9E3779B1) + second * np.uint32(0x85EBCA6B)
    return mixed >> (32 - _TABLE_BITS)


def _make_word_splitter(predecessors: set[str]) -> Callable[[str], list[str]]:
    """Return a function that splits a text into words likely to repeat: before spaces, where no token crosses.

    `predecessors` are the characters that a token may have before a space.
    """
    others = "".join(sorted(predecessors - {SPACE}))
    if not others:
        return re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+").findall
    return re.compile(f"(?<=[^{SPACE}{re.escape(others)}])(?={SPACE})").split
