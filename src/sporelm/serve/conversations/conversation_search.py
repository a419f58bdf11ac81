"""Full-text search in stored conversations, and signatures that tell which files need not be read.

A signature is a set of bits, one for each n-gram of one to three characters in a text, by its hash. A text without the
bits of a word's n-grams does not contain the word. Other texts may contain it, and are read.
"""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Json = dict[str, Any]

SIGNATURE_BITS = 1 << 14  # the some thousand n-grams of a conversation of a hundred kilobytes leave most unset
SNIPPET_CHARACTERS = 120
CHARACTERS_BEFORE = 24  # of a snippet before the first word: the list shows about 40 in a line
MAX_OCCURRENCES = 200  # of a word in one message that are considered for the snippet
MAX_NGRAM = 3  # characters
MARKDOWN = re.compile(r"^ *(?:#{1,6}|>|[-*+]) |\|[\s|:-]*\||[|`]+|\*\*+", re.MULTILINE)
MULTIPLIER = np.uint32(0x9E3779B1)  # odd, with mixed bits: 2^32 divided by the golden ratio


def query_words(query: str) -> list[str]:
    """Return the words of a query, case-folded."""
    return query.casefold().split()


def searched_texts(conversation: Json) -> list[str]:
    """Return the searched texts: the title, then the messages."""
    return [conversation["title"], *(message["content"] for message in conversation["messages"])]


def signature_of(texts: Iterable[str]) -> bytes:
    """Return the signature of texts: SIGNATURE_BITS / 8 bytes."""
    bits = np.zeros(SIGNATURE_BITS, np.bool_)
    text = "\n".join(texts).casefold()
    for length in range(1, MAX_NGRAM + 1):
        bits[_ngram_bits(text, length)] = True
    return np.packbits(bits).tobytes()


def may_contain(signature: bytes, words: Sequence[str]) -> bool:
    """Return whether texts with this signature may contain all the words."""
    bits = np.unpackbits(np.frombuffer(signature, np.uint8))
    return all(bits[_ngram_bits(word, min(len(word), MAX_NGRAM))].all() for word in words)


def _ngram_bits(text: str, length: int) -> NDArray[Any]:
    """Return the bit of each n-gram of one length: integers [n-grams], each below SIGNATURE_BITS."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    count = max(0, len(codes) - length + 1)
    hashes = np.full(count, length, np.uint32)
    for start in range(length):
        hashes = (hashes ^ codes[start : start + count]) * MULTIPLIER
    return (hashes ^ (hashes >> 15)) % SIGNATURE_BITS


@dataclass(frozen=True, slots=True)
class SearchHit:
    """The best match of a search in a conversation; both fields are None where only the title matches."""

    message: int | None = None  # its index in the conversation
    snippet: str | None = None


def find_hit(texts: Sequence[str], words: Sequence[str], shown: Container[int] = ()) -> SearchHit | None:
    """Return the best match of a search, or None unless the texts together contain every word.

    `texts` is what `searched_texts` returns: the title, then the messages. `shown` has the indices of the messages on
    the branch that the page shows. The best match is the snippet with the most distinct words; a tie goes to the
    snippet with the whole query as a phrase, then to whole words, then to the shown branch, then to the earliest.
    """
    folded = [text.casefold() for text in texts]
    if not all(any(word in text for text in folded) for word in words):
        return None
    best: tuple[tuple[int, bool, int, bool], int, int] | None = None
    for index, text in enumerate(folded[1:]):
        for score, start in _scored_windows(text, words):
            rank = (*score, index in shown)
            if best is None or rank > best[0]:
                best = (rank, index, start)
    if best is None:
        return SearchHit()
    _, index, start = best
    return SearchHit(index, _snippet(texts[index + 1], _unfolded_index(texts[index + 1], folded[index + 1], start)))


def shown_branch(conversation: Json) -> set[int]:
    """Return the indices of the messages from the first one to `current`."""
    index_of = {message["id"]: index for index, message in enumerate(conversation["messages"])}
    branch: set[int] = set()
    index = index_of.get(conversation["current"])
    while index is not None and index not in branch:
        branch.add(index)
        index = index_of.get(conversation["messages"][index]["parent"])
    return branch


def _scored_windows(text: str, words: Sequence[str]) -> Iterator[tuple[tuple[int, bool, int], int]]:
    """Yield the score and start of each window of a case-folded text that begins with a word."""
    phrase = " ".join(words)
    matches = {start: len(word) for word in sorted(words, key=len) for start in _occurrences(text, word)}
    for start, length in sorted(matches.items()):
        window = text[start : start + SNIPPET_CHARACTERS]
        num_distinct = sum(word in window for word in words)
        neighbours = (text[max(0, start - 1) : start], text[start + length : start + length + 1])
        num_word_edges = sum(not each.isalnum() for each in neighbours)
        yield (num_distinct, text.startswith(phrase, start), num_word_edges), start


def _occurrences(text: str, word: str) -> Iterator[int]:
    """Yield the first MAX_OCCURRENCES positions of a word in a text."""
    start = text.find(word)
    for _ in range(MAX_OCCURRENCES):
        if start < 0:
            return
        yield start
        start = text.find(word, start + len(word))


def _unfolded_index(text: str, folded: str, position: int) -> int:
    """Return the index in a text of a position in its case-folded form, where one character may have become two."""
    if len(text) == len(folded):
        return position
    length = 0
    for index, character in enumerate(text):
        length += len(character.casefold())
        if length > position:
            return index
    return len(text)


def _snippet(text: str, position: int) -> str:
    """Return the text around a position on one line, without Markdown, cut at white space where some is near."""
    start = max(0, position - CHARACTERS_BEFORE)
    if start and (space := re.search(r"\s", text[start:position])):
        start += space.end()
    snippet = " ".join(MARKDOWN.sub(" ", text[start : start + SNIPPET_CHARACTERS]).split())
    return ("…" if start else "") + snippet + ("…" if start + SNIPPET_CHARACTERS < len(text) else "")
