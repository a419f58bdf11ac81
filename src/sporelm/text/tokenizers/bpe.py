"""BPE: the merges of a vocabulary, applied within each pre-token.

The merging itself is the library's. It is asked once for each different pre-token; since texts repeat themselves, a
cache gives the ids of the others. That is several times faster than the library's own way through a text.
"""

import codecs
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.tokenizers.byte_level import SPACE, byte_alphabet
from sporelm.text.tokenizers.pre_tokenizer_split import PreTokenizerSplitter

_MAX_CACHE_BYTES = 64 << 20  # of the cache of pre-tokens; a full cache is dropped
_PRE_TOKEN_BYTES, _CHARACTER_BYTES = 200, 6  # measured memory of a cached pre-token: by itself, and for each character
_SEPARATOR = 0xFF  # a byte that valid UTF-8 never contains, between pre-tokens while they are translated
_BYTE_LEVEL_TABLE = "".join(
    "\n" if byte == _SEPARATOR else character for byte, character in sorted(byte_alphabet().items())
)


class BpeModel:
    """Turns a text without special tokens into ids. Safe to share between threads.

    splitter     splits a text into pre-tokens
    model        the library's BPE model, which merges within a pre-token
    unmerged     pre-tokens that are a token as they are: as the vocabulary writes them -> id
    metaspace    the vocabulary is written in characters, with ▁ for a space; otherwise in the byte-level alphabet
    characters   the characters that a metaspace vocabulary without byte tokens can represent; None: all
    """

    def __init__(
        self,
        splitter: PreTokenizerSplitter,
        model: Any,
        unmerged: Mapping[str, int],
        *,
        metaspace: bool,
        characters: Collection[str] | None = None,
    ) -> None:
        self._splitter = splitter
        self._model = model
        self._unmerged = unmerged
        self._metaspace = metaspace
        self._characters = characters
        self._cache: dict[str, tuple[int, ...]] = {}
        self._cache_bytes = 0

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`. Raises RequestError for a character that no token can represent."""
        pre_tokens = self._splitter.split(text.replace(" ", SPACE) if self._metaspace else text)
        cache = self._cache
        new = set(pre_tokens).difference(cache)
        if new:
            if self._cache_bytes + _count_bytes(new) > _MAX_CACHE_BYTES:
                cache = self._cache = {}  # a new one: another thread may still use the old one
                new = set(pre_tokens)
                self._cache_bytes = 0
            self._cache_bytes += _count_bytes(new)
            self._add_to_cache(cache, list(new))
        return list(chain.from_iterable(map(cache.__getitem__, pre_tokens)))

    def _add_to_cache(self, cache: dict[str, tuple[int, ...]], pre_tokens: list[str]) -> None:
        spellings = pre_tokens if self._metaspace else _to_byte_level(pre_tokens)
        if self._characters is not None:
            self._check_characters(pre_tokens)
        find_unmerged = self._unmerged.get
        merge = self._model.tokenize
        for pre_token, spelling in zip(pre_tokens, spellings, strict=True):
            token = find_unmerged(spelling)
            cache[pre_token] = (token,) if token is not None else tuple([merged.id for merged in merge(spelling)])

    def _check_characters(self, pre_tokens: list[str]) -> None:
        assert self._characters is not None
        missing = set("".join(pre_tokens)).difference(self._characters)
        if missing:
            character = min(missing).replace(SPACE, " ")
            raise RequestError(f"text: no token of the model represents a character (got {character!r}). Remove it.")


def _count_bytes(pre_tokens: Collection[str]) -> int:
    """Return how many bytes of the cache these pre-tokens take."""
    return _PRE_TOKEN_BYTES * len(pre_tokens) + _CHARACTER_BYTES * sum(map(len, pre_tokens))


def _to_byte_level(pre_tokens: list[str]) -> list[str]:
    """Return pre-tokens in the byte-level alphabet."""
    data = bytes([_SEPARATOR]).join(map(str.encode, pre_tokens))
    return codecs.charmap_decode(data, "strict", _BYTE_LEVEL_TABLE)[0].split("\n")
