"""Search in stored conversations: what holds every word, and signatures that say which need not be read for it.

A signature is a set of bits, one for each piece of one to three letters that occurs, by its hash: a text without the
bit of a piece of a word does not hold the word. Others may hold it, and are read.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Json = dict[str, Any]

BITS = 1 << 14  # of a signature: some thousand pieces, as a conversation of a hundred kilobytes has, leave most unset
SNIPPET = 120  # characters of a search's find
LONGEST = 3  # letters of a piece
MIXES = np.uint32(0x9E3779B1)  # odd, and its bits are mixed: 2^32 by the golden ratio


def words_of(query: str) -> list[str]:
    """The words of a search, in any case."""
    return query.casefold().split()


def texts_of(conversation: Json) -> list[str]:
    """What is searched: the title, and then the messages."""
    return [conversation["title"], *(message["content"] for message in conversation["messages"])]


def signature(texts: Iterable[str]) -> bytes:
    """Which pieces occur in texts: BITS / 8 bytes."""
    found, whole = np.zeros(BITS, np.bool_), "\n".join(texts).casefold()
    for length in range(1, LONGEST + 1):
        found[_places(whole, length)] = True
    return np.packbits(found).tobytes()


def may_hold(signed: bytes, words: Sequence[str]) -> bool:
    """Whether texts of this signature may hold all the words."""
    found = np.unpackbits(np.frombuffer(signed, np.uint8))
    return all(found[_places(word, min(len(word), LONGEST))].all() for word in words)


def _places(text: str, length: int) -> NDArray[Any]:
    """The bits of a text's pieces of one length: integers [pieces], each below BITS."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    count = max(0, len(codes) - length + 1)
    mixed = np.full(count, length, np.uint32)
    for start in range(length):
        mixed = (mixed ^ codes[start : start + count]) * MIXES
    return (mixed ^ (mixed >> 15)) % BITS


def hit(summary: Json, texts: Sequence[str], words: Sequence[str]) -> Json | None:
    """The summary of a conversation, with the place that was found, if its texts hold every word."""
    folded = [text.casefold() for text in texts]
    if not all(any(word in text for text in folded) for word in words):
        return None
    for text, low in zip(texts[1:], folded[1:], strict=True):
        if words[0] in low:
            return summary | {"snippet": _snippet(text, low.index(words[0]))}
    return summary


def _snippet(text: str, place: int) -> str:
    start = max(0, min(place, len(text)) - SNIPPET // 3)
    piece = " ".join(text[start : start + SNIPPET].split())
    return ("…" if start else "") + piece + ("…" if start + SNIPPET < len(text) else "")
