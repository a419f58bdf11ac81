"""Which way of decoding the decoder of a tokenizer.json asks for."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sporelm.text.token_bytes import (
    ByteDecoding,
    Decoding,
    LibraryDecoding,
    bytes_of_byte_level,
    bytes_of_sentencepiece,
)


def decoding_of(tokenizer: Any, spec: dict[str, Any] | None, added: dict[int, Any]) -> Decoding:
    """The decoding for a `tokenizers.Tokenizer`.

    spec     its decoder as in tokenizer.json
    added    id -> added token, whose text means itself

    Where a text is its tokens' bytes one after the other (ByteLevel; the SentencePiece chain Replace, ByteFallback,
    Fuse, Strip; Metaspace) we do it ourselves, and exactly; anything else is left to the library.
    """
    steps = _flatten(spec)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteDecoding(_text_of(tokenizer, added), bytes_of_byte_level, plain=added)
    if kinds == ["Metaspace"]:
        step = steps[0]
        strips = step.get("prepend_scheme", "always") != "never" and step.get("replacement") == "▁"
        if step.get("replacement") == "▁":
            convert = partial(bytes_of_sentencepiece, byte_tokens=False)
            return ByteDecoding(_text_of(tokenizer, added), convert, plain=added, leading_spaces=int(strips))
    spaces = _sentencepiece_spaces(steps)
    if spaces is not None:
        convert = partial(bytes_of_sentencepiece, byte_tokens="ByteFallback" in kinds)
        return ByteDecoding(_text_of(tokenizer, added), convert, plain=added, leading_spaces=spaces)
    return LibraryDecoding(tokenizer)


def _sentencepiece_spaces(steps: list[dict[str, Any]]) -> int | None:
    """How many leading spaces the SentencePiece chain takes away; None if the steps are another chain."""
    kinds = [step.get("type") for step in steps]
    if kinds[:1] != ["Replace"] or kinds[1:] not in (
        ["ByteFallback", "Fuse"],
        ["ByteFallback", "Fuse", "Strip"],
        ["Fuse"],
        ["Fuse", "Strip"],
    ):
        return None
    if steps[0].get("pattern") != {"String": "▁"} or steps[0].get("content") != " ":
        return None
    if kinds[-1] != "Strip":
        return 0
    strip = steps[-1]
    if strip.get("content") != " " or strip.get("stop") != 0 or not isinstance(strip.get("start"), int):
        return None
    return int(strip["start"])


def _flatten(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    if spec is None:
        return []
    if spec.get("type") == "Sequence":
        return [step for part in spec.get("decoders", []) for step in _flatten(part)]
    return [spec]


def _text_of(tokenizer: Any, added: dict[int, Any]) -> Callable[[int], str | None]:
    plain = {token: str(entry.content) for token, entry in added.items()}

    def text_of(token: int) -> str | None:
        if token in plain:  # the library may give its normalized form instead
            return plain[token]
        try:
            text: str | None = tokenizer.id_to_token(token)
        except OverflowError:  # beyond 32 bits: no token's id
            return None
        return text

    return text_of
