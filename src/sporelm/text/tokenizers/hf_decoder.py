"""Chooses a token decoder for the decoder of a tokenizer.json."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sporelm.text.tokenizers.byte_level import decode_byte_level, decode_sentencepiece
from sporelm.text.tokenizers.token_decoder import ByteTokenDecoder, LibraryDecoder, TokenDecoder


def make_hf_decoder(tokenizer: Any, spec: dict[str, Any] | None, added: dict[int, Any]) -> TokenDecoder:
    """Return the decoder of a `tokenizers.Tokenizer`.

    spec     its decoder as in tokenizer.json
    added    id -> added token, whose text stands for itself

    Where a text is the concatenated bytes of its tokens (ByteLevel; the SentencePiece chain Replace, ByteFallback,
    Fuse, Strip; Metaspace) we decode it here, exactly; everything else is left to the library.
    """
    steps = _flatten(spec)
    types = [step.get("type") for step in steps]
    if types == ["ByteLevel"]:
        return ByteTokenDecoder(_token_text_getter(tokenizer, added), decode_byte_level, verbatim_ids=added)
    if types == ["Metaspace"]:
        step = steps[0]
        strips = step.get("prepend_scheme", "always") != "never" and step.get("replacement") == "▁"
        if step.get("replacement") == "▁":
            to_bytes = partial(decode_sentencepiece, byte_tokens=False)
            return ByteTokenDecoder(
                _token_text_getter(tokenizer, added), to_bytes, verbatim_ids=added, leading_spaces=int(strips)
            )
    spaces = _sentencepiece_leading_spaces(steps)
    if spaces is not None:
        to_bytes = partial(decode_sentencepiece, byte_tokens="ByteFallback" in types)
        return ByteTokenDecoder(
            _token_text_getter(tokenizer, added), to_bytes, verbatim_ids=added, leading_spaces=spaces
        )
    return LibraryDecoder(tokenizer)


def _sentencepiece_leading_spaces(steps: list[dict[str, Any]]) -> int | None:
    """Return how many leading spaces the SentencePiece chain strips; None if the steps are another chain."""
    types = [step.get("type") for step in steps]
    if types[:1] != ["Replace"] or types[1:] not in (
        ["ByteFallback", "Fuse"],
        ["ByteFallback", "Fuse", "Strip"],
        ["Fuse"],
        ["Fuse", "Strip"],
    ):
        return None
    if steps[0].get("pattern") != {"String": "▁"} or steps[0].get("content") != " ":
        return None
    if types[-1] != "Strip":
        return 0
    strip = steps[-1]
    if strip.get("content") != " " or strip.get("stop") != 0 or not isinstance(strip.get("start"), int):
        return None
    return int(strip["start"])


def _flatten(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    if spec is None:
        return []
    if spec.get("type") == "Sequence":
        return [step for decoder in spec.get("decoders", []) for step in _flatten(decoder)]
    return [spec]


def _token_text_getter(tokenizer: Any, added: dict[int, Any]) -> Callable[[int], str | None]:
    added_texts = {token: str(entry.content) for token, entry in added.items()}

    def get_token_text(token: int) -> str | None:
        if token in added_texts:  # the library may give its normalized form instead
            return added_texts[token]
        try:
            text: str | None = tokenizer.id_to_token(token)
        except OverflowError:  # ids beyond 32 bits have no token
            return None
        return text

    return get_token_text
