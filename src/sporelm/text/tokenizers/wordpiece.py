"""WordPiece: text is split into words, each word into the longest tokens of the vocabulary.

The rules are those of llama.cpp (llama-vocab.cpp, llm_tokenizer_wpm), whose vocabularies mark the beginning of a word
with ▁. They differ from BERT's own in three points, so that ids are equal to llama.cpp's: only the first code point of
a character's canonical decomposition counts, all marks are accents (not only nonspacing ones), and words may be long.
"""

import re
import unicodedata
from collections.abc import Mapping
from itertools import chain

from sporelm.text.tokenizers.unicode_classes import CLASSES, class_table
from sporelm.text.tokenizers.word_cache import WordCache

# Unicode's White_Space.
_SPACES = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORDS = re.compile(f"[^{_SPACES}]+")
_SPACE = re.compile(f"[{_SPACES}]")
# Ideographs, each a separate word. The bounds, gaps included, are BERT's.
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
# Printable ASCII: every character other than letters and digits is a separate word.
_ASCII_WORDS = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")


class NormalizationTable(dict[int, str]):
    """Code point -> its normalized form: a character, nothing, or a separate word between spaces."""

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase = lowercase
        self._strip_accents = strip_accents

    def __missing__(self, point: int) -> str:
        normalized = self._normalize(chr(point))
        self[point] = normalized
        return normalized

    def _normalize(self, character: str) -> str:
        if self._strip_accents:
            character = unicodedata.normalize("NFD", character)[0]
        if _SPACE.match(character):
            return " "
        point = ord(character)
        kind = CLASSES[class_table()[point]]
        control = kind == "x" and unicodedata.category(character) in ("Cc", "Cf", "Co")
        if control or point == 0xFFFD or (self._strip_accents and kind == "m"):
            return ""
        # Only the first character: the lower case of one capital has two.
        letter = character.lower()[0] if self._lowercase else character
        is_word = kind in "pc" or (kind == "y" and point < 0x7F) or any(a <= point <= b for a, b in _IDEOGRAPHS)
        return f" {letter} " if is_word else letter


class WordPiece:
    """Turns text into ids. Safe to share between threads."""

    def __init__(
        self, ids: Mapping[str, int], unknown: int, *, lowercase: bool = True, strip_accents: bool = True
    ) -> None:
        """
        ids        text -> id, with ▁ in front of tokens that begin a word
        unknown    the id of a word that no tokens cover
        """
        self._ids = ids
        self._unknown = (unknown,)
        self._lowercase = lowercase
        self._normalization = NormalizationTable(lowercase=lowercase, strip_accents=strip_accents)
        # Three characters -> the lengths of the tokens that begin with them, longest first.
        self._lengths: dict[str, list[int]] = {}
        for text in sorted((text for text in ids if len(text) > 2), key=len, reverse=True):
            sizes = self._lengths.setdefault(text[:3], [])
            if not sizes or sizes[-1] != len(text):
                sizes.append(len(text))
        self._cache = WordCache(self._encode_word)
        self._normalized_cache = WordCache(self._encode_normalized_word)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        if self._lowercase and text.isascii():
            text = text.lower()  # fewer different words
        # str.split also splits at four separators that are not white space in Unicode.
        words = _WORDS.findall(text) if any(map(text.__contains__, "\x1c\x1d\x1e\x1f")) else text.split()
        return list(chain.from_iterable(map(self._cache.__getitem__, words)))

    def _encode_word(self, word: str) -> tuple[int, ...]:
        """Return the ids of the text between two spaces."""
        cache = self._normalized_cache
        if not word.isascii() or not word.isprintable():
            words = word.translate(self._normalization).split()
        else:
            if self._lowercase:
                word = word.lower()
            if word.isalnum():
                return cache[word]
            if word[:-1].isalnum():  # a word and a punctuation character
                return cache[word[:-1]] + cache[word[-1]]
            words = _ASCII_WORDS.findall(word)
        return tuple(chain.from_iterable(map(cache.__getitem__, words)))

    def _encode_normalized_word(self, word: str) -> tuple[int, ...]:
        """Return the ids of one normalized word: at each position the longest token."""
        text = "▁" + word
        find_token = self._ids.get
        if (token := find_token(text)) is not None:
            return (token,)
        lengths = self._lengths.get
        ids = []
        start = 0
        end = len(text)
        while start < end:
            for size in chain(lengths(text[start : start + 3], ()), (2, 1)):
                if start + size <= end and (token := find_token(text[start : start + size])) is not None:
                    ids.append(token)
                    start += size
                    break
            else:
                return self._unknown
        return tuple(ids)
