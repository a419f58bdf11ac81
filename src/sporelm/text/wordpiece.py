"""WordPiece: text is cut into words, each word into the longest pieces that the vocabulary has.

The rules are those of llama.cpp (llama-vocab.cpp, llm_tokenizer_wpm), whose vocabularies mark the beginning of a word
with ▁. They differ from BERT's own in three points, kept so that ids are equal: of a character's canonical
decomposition the first part alone counts, all marks are accents (not only those without width), and words may be long.
"""

import re
import unicodedata
from collections.abc import Mapping
from itertools import chain

from sporelm.text.known_words import Known
from sporelm.text.unicode_classes import CLASSES, class_table

# Unicode's White_Space.
_SPACES = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORDS = re.compile(f"[^{_SPACES}]+")
_SPACE = re.compile(f"[{_SPACES}]")
# Ideographs, each a word of its own. The bounds, holes included, are BERT's.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
# Printable ASCII: every other sign than letters and digits is a word of its own.
_ASCII_PARTS = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")


class Letters(dict[int, str]):
    """Code point -> what it is written as: a letter, nothing, or a word of its own between spaces."""

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase, self._strip_accents = lowercase, strip_accents

    def __missing__(self, point: int) -> str:
        found = self._written(chr(point))
        self[point] = found
        return found

    def _written(self, character: str) -> str:
        if self._strip_accents:
            character = unicodedata.normalize("NFD", character)[0]
        if _SPACE.match(character):
            return " "
        point = ord(character)
        kind = CLASSES[class_table()[point]]
        control = kind == "x" and unicodedata.category(character) in ("Cc", "Cf", "Co")
        if control or point == 0xFFFD or (self._strip_accents and kind == "m"):
            return ""
        # The first character: one capital has two for its small letter.
        letter = character.lower()[0] if self._lowercase else character
        alone = kind in "pc" or (kind == "y" and point < 0x7F) or any(a <= point <= b for a, b in _IDEOGRAPHS)
        return f" {letter} " if alone else letter


class WordPieces:
    """Turns text into ids. Safe to share between threads."""

    def __init__(
        self, ids: Mapping[str, int], unknown: int, *, lowercase: bool = True, strip_accents: bool = True
    ) -> None:
        """
        ids        text -> id, with ▁ in front of pieces that begin a word
        unknown    the id of a word that has no pieces
        """
        self._pieces = ids
        self._unknown = (unknown,)
        self._lowercase = lowercase
        self._letters = Letters(lowercase=lowercase, strip_accents=strip_accents)
        # Three characters -> the lengths of the tokens that begin so, longest first.
        self._lengths: dict[str, list[int]] = {}
        for text in sorted((text for text in ids if len(text) > 2), key=len, reverse=True):
            sizes = self._lengths.setdefault(text[:3], [])
            if not sizes or sizes[-1] != len(text):
                sizes.append(len(text))
        self._words = Known(self._ids_of_word)
        self._parts = Known(self._cut)

    def ids(self, text: str) -> list[int]:
        """The ids of `text`."""
        if self._lowercase and text.isascii():
            text = text.lower()  # fewer different words
        # str.split takes four separators for spaces that Unicode does not.
        words = _WORDS.findall(text) if any(map(text.__contains__, "\x1c\x1d\x1e\x1f")) else text.split()
        return list(chain.from_iterable(map(self._words.__getitem__, words)))

    def _ids_of_word(self, word: str) -> tuple[int, ...]:
        """The ids of what stands between two spaces."""
        known = self._parts
        if not word.isascii() or not word.isprintable():
            parts = word.translate(self._letters).split()
        else:
            if self._lowercase:
                word = word.lower()
            if word.isalnum():
                return known[word]
            if word[:-1].isalnum():  # a word and a sign
                return known[word[:-1]] + known[word[-1]]
            parts = _ASCII_PARTS.findall(word)
        return tuple(chain.from_iterable(map(known.__getitem__, parts)))

    def _cut(self, word: str) -> tuple[int, ...]:
        """The pieces of one normalized word: at each place the longest."""
        text = "▁" + word
        pieces = self._pieces.get
        if (token := pieces(text)) is not None:
            return (token,)
        lengths = self._lengths.get
        found = []
        start, end = 0, len(text)
        while start < end:
            for size in chain(lengths(text[start : start + 3], ()), (2, 1)):
                if start + size <= end and (token := pieces(text[start : start + size])) is not None:
                    found.append(token)
                    start += size
                    break
            else:
                return self._unknown
        return tuple(found)
