"""From a text to the ids of a BPE vocabulary: special tokens, pieces, merges.

Merging is the library's; it is asked once for each piece that differs, and texts repeat themselves: a dictionary gives
the ids of the others. That is several times quicker than the library's own way through a text.
"""

import codecs
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.cutter import Cutter
from sporelm.text.fragments import Fragments
from sporelm.text.rendered_prompt import RenderedPrompt
from sporelm.text.token_bytes import SPACE, byte_alphabet
from sporelm.text.tokenizer import Encoded

_MOST_KNOWN = 64 << 20  # bytes that the memory of pieces may take; then it begins anew
_PIECE, _CHARACTER = 200, 6  # bytes that a piece takes, measured: by itself, and for each of its characters
_NO_UTF8 = 0xFF  # a byte that no text holds stands between pieces while they are spelled
_SPELLING = "".join("\n" if byte == _NO_UTF8 else sign for byte, sign in sorted(byte_alphabet().items()))


class Merging:
    """Turns a text without special tokens into ids. Safe to share between threads.

    cutter     cuts a text into pieces
    model      the library's BPE model: merges within a piece
    whole      pieces that are taken as they are: in the model's spelling -> id
    raw        the vocabulary is written in characters, with ▁ for a space; otherwise in the byte alphabet
    letters    the characters that a raw vocabulary without byte tokens can write; None: all
    """

    def __init__(
        self, cutter: Cutter, model: Any, whole: Mapping[str, int], *, raw: bool, letters: Collection[str] | None = None
    ) -> None:
        self._cutter, self._model, self._whole = cutter, model, whole
        self._raw, self._letters = raw, letters
        self._known: dict[str, tuple[int, ...]] = {}
        self._held = 0

    def ids(self, text: str) -> list[int]:
        """The ids of `text`. Raises RequestError for a character that no token can write."""
        pieces = self._cutter.cut(text.replace(" ", SPACE) if self._raw else text)
        known = self._known
        new = set(pieces).difference(known)
        if new:
            if self._held + _bytes(new) > _MOST_KNOWN:
                known = self._known = {}  # anew: another thread may go on with the old one
                new, self._held = set(pieces), 0
            self._held += _bytes(new)
            self._learn(known, list(new))
        return list(chain.from_iterable(map(known.__getitem__, pieces)))

    def _learn(self, known: dict[str, tuple[int, ...]], pieces: list[str]) -> None:
        spelled = pieces if self._raw else _spelled(pieces)
        if self._letters is not None:
            self._refuse_missing(pieces)
        whole, merge = self._whole.get, self._model.tokenize
        for piece, signs in zip(pieces, spelled, strict=True):
            token = whole(signs)
            known[piece] = (token,) if token is not None else tuple([part.id for part in merge(signs)])

    def _refuse_missing(self, pieces: list[str]) -> None:
        assert self._letters is not None
        missing = set("".join(pieces)).difference(self._letters)
        if missing:
            shown = min(missing).replace(SPACE, " ")
            raise RequestError(f"the text holds {shown!r}, which this model's vocabulary cannot write; remove it")


def _bytes(pieces: Collection[str]) -> int:
    """What these pieces take when they are known."""
    return _PIECE * len(pieces) + _CHARACTER * sum(map(len, pieces))


def _spelled(pieces: list[str]) -> list[str]:
    """`pieces` in the byte alphabet."""
    data = bytes([_NO_UTF8]).join(map(str.encode, pieces))
    return codecs.charmap_decode(data, "strict", _SPELLING)[0].split("\n")


class BpeEngine:
    """Stands where a `tokenizers.Tokenizer` stands for other vocabularies."""

    def __init__(self, fragments: Fragments, merging: Merging) -> None:
        """`fragments` cuts out the special tokens."""
        self._fragments, self._merging = fragments, merging

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoded:
        """The ids of `text`, without those that frame it."""
        del add_special_tokens  # the tokenizer adds them
        return self._encoded(self._fragments.split(text))

    def encode_prompt(self, prompt: RenderedPrompt, control: Collection[int]) -> list[int]:
        """The ids of a rendered prompt; tokens of `control` come from the template's own text alone."""
        return self._encoded(self._fragments.split_prompt(prompt, control)).ids

    def _encoded(self, parts: list[str | int]) -> Encoded:
        if len(parts) == 1 and isinstance(parts[0], str):
            return Encoded(self._merging.ids(parts[0]))
        ids: list[int] = []
        for part in parts:
            if isinstance(part, str):
                ids += self._merging.ids(part)
            else:
                ids.append(part)
        return Encoded(ids)
