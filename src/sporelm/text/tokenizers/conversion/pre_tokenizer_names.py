"""Finds the value of tokenizer.ggml.pre for the pre-tokenizer of a tokenizer.json."""

import json
from collections.abc import Mapping
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.text.tokenizers.byte_level import BYTE_OF_CHARACTER
from sporelm.text.tokenizers.conversion.pre_tokenizer_hashes import CHECK_TEXT, find_name_by_hash
from sporelm.text.tokenizers.pre_tokenizer_split import SplitRule
from sporelm.text.tokenizers.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, find_pre_tokenizer, get_splitter

# Preferred among names with equal rules: llama.cpp also decodes these exactly (without cleaning up spaces).
_PREFERRED = ("smollm", "qwen2", "llama-bpe", "gpt-2")
_GPT2 = PRE_TOKENIZERS["gpt-2"].rules
# Spellings of "an apostrophe and an ending, in any case" in files; our pattern includes the long s, as these do.
_ENDINGS_IN_ANY_CASE = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'d|'ll)")


def find_pre_tokenizer_name(library_tokenizer: Any, spec: Mapping[str, Any], override: str | None, label: str) -> str:
    """Return the name for a byte-level tokenizer of the `tokenizers` library.

    spec       its tokenizer.json
    override   a name that the user chose

    It is identified by llama.cpp's hash, else by the patterns in the file. Raises UnsupportedModel if neither matches.
    """
    if override is not None:
        find_pre_tokenizer(override, label)
        return override
    name = find_name_by_hash(library_tokenizer.encode(CHECK_TEXT, add_special_tokens=True).ids)
    if name in PRE_TOKENIZERS:
        return name
    rules = read_rules(spec.get("pre_tokenizer"))
    ignore_merges = bool(spec["model"].get("ignore_merges"))
    if rules is not None and (name := _find_name_by_rules(rules, ignore_merges)) is not None:
        return name
    similar = _find_name_by_check_text(library_tokenizer, ignore_merges)
    hint = f"--pre {similar}, which splits a check text in the same way" if similar else "--pre NAME"
    description = json.dumps(spec.get("pre_tokenizer"), ensure_ascii=True)
    raise UnsupportedModel(
        f"{label}: no value of tokenizer.ggml.pre matches the pre-tokenizer (got {description[:200]}). Choose one with "
        f"{hint}."
    )


def read_rules(component: Any) -> tuple[SplitRule, ...] | None:
    """Return the patterns of a pre_tokenizer, in their order; None if one of its parts is not a pattern."""
    is_sequence = isinstance(component, Mapping) and component.get("type") == "Sequence"
    steps = component.get("pretokenizers") if is_sequence else [component]
    if not isinstance(steps, list):
        return None
    rules: list[SplitRule] = []
    for step in steps:
        kind = step.get("type") if isinstance(step, Mapping) else None
        if kind == "ByteLevel":
            if step.get("add_prefix_space"):
                return None
            rules += _GPT2 if step.get("use_regex", True) else ()
        elif kind == "Digits" and step.get("individual_digits"):
            rules.append(r"\p{N}")
        elif kind == "Split" and (pattern := _read_pattern(step)) is not None:
            rules.append(pattern)
        else:
            return None
    return tuple(rules)


def _read_pattern(step: Mapping[str, Any]) -> str | None:
    """Return the pattern of a Split that splits around its matches."""
    behavior = (step.get("behavior"), bool(step.get("invert")))
    value = step.get("pattern")
    pattern = value.get("Regex") if isinstance(value, Mapping) else None
    if behavior not in (("Isolated", False), ("Removed", True)) or not isinstance(pattern, str):
        return None
    endings = _get_endings()
    for spelling in _ENDINGS_IN_ANY_CASE:
        pattern = pattern.replace(spelling, endings)
    return pattern


def _get_endings() -> str:
    rule = PRE_TOKENIZERS["llama-bpe"].rules[0]
    assert isinstance(rule, str)
    return rule[: rule.index(r"|[^\r\n")]


def _find_name_by_rules(rules: tuple[SplitRule, ...], ignore_merges: bool) -> str | None:
    names = [
        name for name, entry in PRE_TOKENIZERS.items() if _has_flags(entry, ignore_merges) and entry.rules == rules
    ]
    return _choose(names)


def _has_flags(entry: PreTokenizer, ignore_merges: bool) -> bool:
    return not entry.metaspace and entry.ignore_merges == ignore_merges


def _choose(names: list[str]) -> str | None:
    return next((name for name in _PREFERRED if name in names), names[0] if names else None)


def _find_name_by_check_text(library_tokenizer: Any, ignore_merges: bool) -> str | None:
    """Return a name that splits the check text as the library does."""
    if library_tokenizer.pre_tokenizer is None:
        return None
    pieces = [text for text, _ in library_tokenizer.pre_tokenizer.pre_tokenize_str(CHECK_TEXT)]
    try:
        expected = [bytes(map(BYTE_OF_CHARACTER.__getitem__, piece)).decode() for piece in pieces]
    except (KeyError, UnicodeDecodeError):
        return None
    names = [
        name
        for name, entry in PRE_TOKENIZERS.items()
        if _has_flags(entry, ignore_merges) and get_splitter(entry.rules).split(CHECK_TEXT) == expected
    ]
    return _choose(names)
