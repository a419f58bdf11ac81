"""Search in stored conversations: what holds every word, and signatures that say which need not be read for it.

A signature is a set of bits, one for each piece of one to three letters that occurs, by its hash: a text without the
bit of a piece of a word does not hold the word. Others may hold it, and are read.
"""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Json = dict[str, Any]

BITS = 1 << 14  # of a signature: some thousand pieces, as a conversation of a hundred kilobytes has, leave most unset
SNIPPET = 120  # characters of a snippet
BEFORE = 24  # characters of a snippet before the first word: the list shows about 40 in a line
OCCURRENCES = 200  # of a word in one message that are considered for the snippet
LONGEST = 3  # letters of a piece
MARKUP = re.compile(r"^ *(?:#{1,6}|>|[-*+]) |\|[\s|:-]*\||[|`]+|\*\*+", re.MULTILINE)  # of Markdown, in a snippet
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


@dataclass(frozen=True, slots=True)
class SearchHit:
    """The best match of a search in a conversation; both fields are None where only the title matches."""

    message: int | None = None  # its index in the conversation
    snippet: str | None = None


def find_hit(texts: Sequence[str], words: Sequence[str], shown: Container[int] = ()) -> SearchHit | None:
    """Return the best match of a search, or None unless the texts together contain every word.

    `texts` is what `texts_of` returns: the title, then the messages. `shown` has the indices of the messages on the
    branch that the page shows. The best match is the window of SNIPPET characters with the most distinct words; a tie
    goes to the window with the whole query as a phrase, then to whole words, then to the shown branch, then to the
    earliest.
    """
    folded = [text.casefold() for text in texts]
    if not all(any(word in text for text in folded) for word in words):
        return None
    best: tuple[tuple[int, bool, int, bool], int, int] | None = None
    for index, low in enumerate(folded[1:]):
        for score, start in _windows(low, words):
            ranked = (*score, index in shown)
            if best is None or ranked > best[0]:
                best = (ranked, index, start)
    if best is None:
        return SearchHit()
    _, index, start = best
    return SearchHit(index, _snippet(texts[index + 1], _unfolded(texts[index + 1], folded[index + 1], start)))


def shown_branch(conversation: Json) -> set[int]:
    """The indices of the messages from the first one to `current`."""
    places = {message["id"]: index for index, message in enumerate(conversation["messages"])}
    found: set[int] = set()
    place = places.get(conversation["current"])
    while place is not None and place not in found:
        found.add(place)
        place = places.get(conversation["messages"][place]["parent"])
    return found


def _windows(text: str, words: Sequence[str]) -> Iterator[tuple[tuple[int, bool, int], int]]:
    """The windows of a case-folded text that begin with a word, each with its score and start."""
    phrase = " ".join(words)
    places = {place: len(word) for word in sorted(words, key=len) for place in _occurrences(text, word)}
    for start, length in sorted(places.items()):
        window = text[start : start + SNIPPET]
        distinct = sum(word in window for word in words)
        edges = (text[max(0, start - 1) : start], text[start + length : start + length + 1])
        yield (distinct, text.startswith(phrase, start), sum(not edge.isalnum() for edge in edges)), start


def _occurrences(text: str, word: str) -> Iterator[int]:
    """The first OCCURRENCES places of a word in a text."""
    place = text.find(word)
    for _ in range(OCCURRENCES):
        if place < 0:
            return
        yield place
        place = text.find(word, place + len(word))


def _unfolded(text: str, folded: str, place: int) -> int:
    """The index in a text of an index in its case-folded form, which is longer where one letter becomes two."""
    if len(text) == len(folded):
        return place
    length = 0
    for index, letter in enumerate(text):
        length += len(letter.casefold())
        if length > place:
            return index
    return len(text)


def _snippet(text: str, place: int) -> str:
    """The text around a place on one line, without the signs of Markdown and cut at white space where some is near."""
    start = max(0, place - BEFORE)
    if start and (space := re.search(r"\s", text[start:place])):
        start += space.end()
    piece = " ".join(MARKUP.sub(" ", text[start : start + SNIPPET]).split())
    return ("…" if start else "") + piece + ("…" if start + SNIPPET < len(text) else "")
