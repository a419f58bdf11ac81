"""Which value of tokenizer.ggml.pre stands for the way in which a tokenizer.json cuts text."""

import json
from collections.abc import Mapping
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.text.cutter import Rule
from sporelm.text.exchange.known_vocabularies import CHECK_TEXT, name_by_hash
from sporelm.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, cutter_of, pre_tokenizer
from sporelm.text.token_bytes import BYTE_OF_CHARACTER

# Where several names cut alike: the one that llama.cpp also decodes exactly for (no spaces cleaned up).
_PREFERRED = ("smollm", "qwen2", "llama-bpe", "gpt-2")
_GPT2 = PRE_TOKENIZERS["gpt-2"].rules
# How files write "an apostrophe and an ending, in any case"; ours has the long s too, as the pattern does.
_ANY_CASE = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'d|'ll)")


def cutting_name(library: Any, spec: Mapping[str, Any], given: str | None, label: str) -> str:
    """The name for a byte-level tokenizer of the `tokenizers` library.

    spec     its tokenizer.json
    given    a name that the user vouches for

    Found by llama.cpp's hash, else by the patterns in the file. Raises UnsupportedModel for what neither knows.
    """
    if given is not None:
        pre_tokenizer(given, label)
        return given
    name = name_by_hash(library.encode(CHECK_TEXT, add_special_tokens=True).ids)
    if name in PRE_TOKENIZERS:
        return name
    rules = rules_of(spec.get("pre_tokenizer"))
    whole = bool(spec["model"].get("ignore_merges"))
    if rules is not None and (name := _name_of_rules(rules, whole)) is not None:
        return name
    near = _cut_alike(library, whole)
    hint = f"it cuts a check text as {near!r} does: --pre {near} takes that" if near else "--pre NAME names one"
    shown = json.dumps(spec.get("pre_tokenizer"), ensure_ascii=True)
    raise UnsupportedModel(
        f"{label}: its way to cut text is none that GGUF files have a name for ({shown[:200]}); {hint}"
    )


def rules_of(part: Any) -> tuple[Rule, ...] | None:
    """The patterns of a pre_tokenizer, one after the other; None for a part that is not a pattern."""
    parts = part.get("pretokenizers") if isinstance(part, Mapping) and part.get("type") == "Sequence" else [part]
    if not isinstance(parts, list):
        return None
    rules: list[Rule] = []
    for step in parts:
        kind = step.get("type") if isinstance(step, Mapping) else None
        if kind == "ByteLevel":
            if step.get("add_prefix_space"):
                return None
            rules += _GPT2 if step.get("use_regex", True) else ()
        elif kind == "Digits" and step.get("individual_digits"):
            rules.append(r"\p{N}")
        elif kind == "Split" and (pattern := _pattern(step)) is not None:
            rules.append(pattern)
        else:
            return None
    return tuple(rules)


def _pattern(step: Mapping[str, Any]) -> str | None:
    """The pattern of a Split that cuts around its matches."""
    how = (step.get("behavior"), bool(step.get("invert")))
    given = step.get("pattern")
    pattern = given.get("Regex") if isinstance(given, Mapping) else None
    if how not in (("Isolated", False), ("Removed", True)) or not isinstance(pattern, str):
        return None
    ours = _endings()
    for written in _ANY_CASE:
        pattern = pattern.replace(written, ours)
    return pattern


def _endings() -> str:
    rule = PRE_TOKENIZERS["llama-bpe"].rules[0]
    assert isinstance(rule, str)
    return rule[: rule.index(r"|[^\r\n")]


def _name_of_rules(rules: tuple[Rule, ...], whole: bool) -> str | None:
    names = [name for name, known in PRE_TOKENIZERS.items() if _fits(known, whole) and known.rules == rules]
    return _best(names)


def _fits(known: PreTokenizer, whole: bool) -> bool:
    return not known.raw and known.ignore_merges == whole


def _best(names: list[str]) -> str | None:
    return next((name for name in _PREFERRED if name in names), names[0] if names else None)


def _cut_alike(library: Any, whole: bool) -> str | None:
    """The name whose cuts of the check text are the library's."""
    if library.pre_tokenizer is None:
        return None
    pieces = [text for text, _ in library.pre_tokenizer.pre_tokenize_str(CHECK_TEXT)]
    try:
        cut = [bytes(map(BYTE_OF_CHARACTER.__getitem__, piece)).decode() for piece in pieces]
    except (KeyError, UnicodeDecodeError):
        return None
    names = [
        name
        for name, known in PRE_TOKENIZERS.items()
        if _fits(known, whole) and cutter_of(known.rules).cut(CHECK_TEXT) == cut
    ]
    return _best(names)
