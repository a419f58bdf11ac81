"""Filling a gap: prompts that ask a model for what stands between two texts (fill-in-the-middle).

Models that can do this were trained with marks of their own around what stands before the gap and after it. GGUF files
name these tokens (the GGUF specification, "Tokenizer": tokenizer.ggml.fim_pre_token_id, ...); otherwise they are known
by their texts, as the models' own pages give them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sporelm.errors import RequestError
from sporelm.text.tokenizer import Tokenizer

# The marks of what is before the gap, of what is after it, and of the gap itself, by families.
FAMILIES: tuple[tuple[str, str, str | None], ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral: what is after the gap comes first, and nothing marks the gap
)
# Where a model writes one of these, it has filled the gap and goes on with another file.
ENDS = (
    "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<|file_separator|>", "<file_sep>", "<|repo_name|>",
    "<repo_name>", "▁<EOT>", "<EOT>",
)  # fmt: skip
ANCHOR = "☺"  # a text with which no beginning of another joins to one token


@dataclass(frozen=True)
class GapTokens:
    """The ids of the marks; without a `middle`, what is after the gap comes first. `ends`: a gap's text ends there."""

    prefix: int
    suffix: int
    middle: int | None
    ends: frozenset[int]


def gap_tokens(tokenizer: Tokenizer) -> GapTokens | None:
    """The marks of a model; None for one that has none."""
    found = _named(tokenizer)
    if found is None:
        found = next((each for each in (_family(tokenizer, *texts) for texts in FAMILIES) if each is not None), None)
    if found is None:
        return None
    ends = {_token(tokenizer, text) for text in ENDS} | {*found}
    return GapTokens(*found, frozenset(token for token in ends if token is not None))


def _named(tokenizer: Tokenizer) -> tuple[int, int, int | None] | None:
    """The marks that the model's file names."""
    named = tokenizer.special.gap
    if "prefix" not in named or "suffix" not in named:
        return None
    if tokenizer.id_to_piece(named["prefix"]) == "[PREFIX]":
        return named["prefix"], named["suffix"], None
    return (named["prefix"], named["suffix"], named["middle"]) if "middle" in named else None


def _family(tokenizer: Tokenizer, *texts: str | None) -> tuple[int, int, int | None] | None:
    before, after, middle = (None if text is None else _token(tokenizer, text) for text in texts)
    if before is None or after is None or (middle is None and texts[2] is not None):
        return None
    return before, after, middle


def _token(tokenizer: Tokenizer, text: str) -> int | None:
    """The token that a text is by itself, if it is one."""
    try:
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    except RequestError:  # the vocabulary cannot write it
        return None
    return ids[0] if len(ids) == 1 and tokenizer.id_to_piece(ids[0]).replace(" ", "▁") == text else None


def filling_prompt(tokenizer: Tokenizer, gap: GapTokens, before: str | Sequence[int], after: str) -> list[int]:
    """The ids that ask for what is between `before`, a text or its ids, and `after`. In neither text special tokens are
    looked for. Raises RequestError for text that no ids can stand for."""
    start = list(tokenizer.special.prefix)
    if isinstance(before, str):
        first = tokenizer.encode(before, add_special_tokens=False, parse_special=False)
    else:
        first = list(before)
        first = first[len(start) :] if start and first[: len(start)] == start else first
    second = _going_on(tokenizer, after)
    if gap.middle is None:
        return [*start, gap.suffix, *second, gap.prefix, *first]
    return [*start, gap.prefix, *first, gap.suffix, *second, gap.middle]


def _going_on(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text that is no beginning: without the space that some tokenizers put in front."""
    if not tokenizer.decoding.leading_spaces:
        return tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    anchor = tokenizer.encode(ANCHOR, add_special_tokens=False, parse_special=False)
    ids = tokenizer.encode(ANCHOR + text, add_special_tokens=False, parse_special=False)
    if ids[: len(anchor)] == anchor:
        return ids[len(anchor) :]
    return tokenizer.encode(text, add_special_tokens=False, parse_special=False)
