"""Fill-in-the-middle (FIM): prompts that ask a model for the text between a prefix and a suffix.

Models that support it were trained with special tokens for the prefix, the suffix and the middle. GGUF files name these
tokens (the GGUF specification, "Tokenizer": tokenizer.ggml.fim_pre_token_id, ...); otherwise they are found by their
texts, which the model cards give.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sporelm.errors import RequestError
from sporelm.text.tokenizers.tokenizer import Tokenizer

# The FIM tokens of model families: prefix, suffix, middle.
FAMILIES: tuple[tuple[str, str, str | None], ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral: the suffix comes first, and there is no middle token
)
# Tokens after which a model would continue with another file: the middle is complete.
STOP_TEXTS = (
    "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<|file_separator|>", "<file_sep>", "<|repo_name|>",
    "<repo_name>", "▁<EOT>", "<EOT>",
)  # fmt: skip
ANCHOR = "☺"  # a text that does not merge with the beginning of another text


@dataclass(frozen=True)
class FimTokens:
    """The ids of the FIM tokens; without `middle`, the suffix comes first. `stop_ids` end the middle."""

    prefix: int
    suffix: int
    middle: int | None
    stop_ids: frozenset[int]


def find_fim_tokens(tokenizer: Tokenizer) -> FimTokens | None:
    """Return the FIM tokens of a model; None if it has none."""
    ids = _find_by_metadata(tokenizer)
    if ids is None:
        by_family = (_find_by_texts(tokenizer, *texts) for texts in FAMILIES)
        ids = next((family_ids for family_ids in by_family if family_ids is not None), None)
    if ids is None:
        return None
    stop_ids = {_find_token(tokenizer, text) for text in STOP_TEXTS} | {*ids}
    return FimTokens(*ids, frozenset(token for token in stop_ids if token is not None))


def _find_by_metadata(tokenizer: Tokenizer) -> tuple[int, int, int | None] | None:
    """Return the FIM tokens that the model's file names."""
    ids = tokenizer.special.fim
    if "prefix" not in ids or "suffix" not in ids:
        return None
    if tokenizer.id_to_piece(ids["prefix"]) == "[PREFIX]":
        return ids["prefix"], ids["suffix"], None
    return (ids["prefix"], ids["suffix"], ids["middle"]) if "middle" in ids else None


def _find_by_texts(tokenizer: Tokenizer, *texts: str | None) -> tuple[int, int, int | None] | None:
    prefix, suffix, middle = (None if text is None else _find_token(tokenizer, text) for text in texts)
    if prefix is None or suffix is None or (middle is None and texts[2] is not None):
        return None
    return prefix, suffix, middle


def _find_token(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the token with exactly this text, if there is one."""
    try:
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    except RequestError:  # the vocabulary cannot represent it
        return None
    return ids[0] if len(ids) == 1 and tokenizer.id_to_piece(ids[0]).replace(" ", "▁") == text else None


def encode_fim_prompt(tokenizer: Tokenizer, fim: FimTokens, prefix: str | Sequence[int], suffix: str) -> list[int]:
    """Return the ids that ask for the text between `prefix`, a text or its ids, and `suffix`. Special tokens are not
    parsed in either text. Raises RequestError for text that no ids can represent."""
    start = list(tokenizer.special.prefix)
    if isinstance(prefix, str):
        prefix_ids = tokenizer.encode(prefix, add_special_tokens=False, parse_special=False)
    else:
        prefix_ids = list(prefix)
        prefix_ids = prefix_ids[len(start) :] if start and prefix_ids[: len(start)] == start else prefix_ids
    suffix_ids = _encode_continuation(tokenizer, suffix)
    if fim.middle is None:
        return [*start, fim.suffix, *suffix_ids, fim.prefix, *prefix_ids]
    return [*start, fim.prefix, *prefix_ids, fim.suffix, *suffix_ids, fim.middle]


def _encode_continuation(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text that continues another: without the prefix space that some tokenizers add."""
    if not tokenizer.decoder.leading_spaces:
        return tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    anchor_ids = tokenizer.encode(ANCHOR, add_special_tokens=False, parse_special=False)
    ids = tokenizer.encode(ANCHOR + text, add_special_tokens=False, parse_special=False)
    if ids[: len(anchor_ids)] == anchor_ids:
        return ids[len(anchor_ids) :]
    return tokenizer.encode(text, add_special_tokens=False, parse_special=False)
