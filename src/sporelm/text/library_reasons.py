"""Reasons for which the `tokenizers` library refuses a tokenizer.json, in our own words.

The library says little more than the name of a Rust type. So the file's parts are given to it one by one, until the
wrong one is found.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

REMEDY = "Correct the file, or save the tokenizer again."
LENGTH = 200  # characters of a reason
INNER = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors",
         "decoder": "decoders"}  # fmt: skip
TYPES = {
    "model": ("BPE", "Unigram", "WordLevel", "WordPiece"),
    "normalizer": ("BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled",
                   "Prepend", "Replace", "Sequence", "Strip", "StripAccents"),
    "pre_tokenizer": ("BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Delimiter", "Digits", "FixedLength",
                      "Metaspace", "Punctuation", "Sequence", "Split", "UnicodeScripts", "Whitespace",
                      "WhitespaceSplit"),
    "post_processor": ("BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"),
    "decoder": ("BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Replace",
                "Sequence", "Strip", "WordPiece"),
}  # fmt: skip
_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}
_PLACE = re.compile(r" at line \d+ column \d+")
_IN_WORDS = {"usize": "a whole number from 0", "u32": "a whole number from 0", "f64": "a number", "f32": "a number",
             "a sequence": "a list", "a map": "an object", "sequence": "a list", "map": "an object",
             "a boolean": "true or false", "integer": "the number"}  # fmt: skip
_SORTS_OF_VALUES = re.compile(rf"(?<=[ (])(?:{'|'.join(_IN_WORDS)})(?=[ ;)])")
_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r"invalid (?:type|value): (.*?), expected (.*)", r"a value is wrong (got \1; allowed \2)"),
        (r"unknown variant (.*?), expected (?:one of )?(.*)", r"a value is wrong (got \1; allowed \2)"),
        (r"missing field (.*)", r"the field \1 is missing"),
        (r"unknown field (.*?), expected.*", r"the field \1 is unknown"),
        (r"Oniguruma error: (.*)", r"a regular expression is wrong: \1"),
        (r"data did not match any variant of untagged enum MergeType", "merges is not a list of pairs of tokens"),
        (r"data did not match any variant of untagged enum .*", "a field is missing or has a wrong value"),
        (r"Merges text file invalid.*", "a merge is not a pair of tokens"),
        (r"Unable to load vocab EmptyVocabulary", "the vocabulary is empty"),
        (r"Unable to load vocab UnkIdNotInVocabulary", "unk_id is outside the vocabulary"),
        (r"(?:Word\w+ error: )?Missing (.*) token from the vocabulary", r"the vocabulary lacks the unk_token \1"),
        (r"Unk token (.*) not found in the vocabulary", r"the vocabulary lacks the unk_token \1"),
        (r"Model missing\.?", "the model is missing"),
        (r"Unknown tokenizer version (.*)", r"the version is unknown (got \1; allowed '1.0')"),
        (r"recursion limit exceeded", "it is nested too deep"),
        (r"(?:unexpected end of hex escape|lone leading surrogate in hex escape).*",
         "a text holds half of a surrogate pair, which is no character"),
        (r"(?:expected value|number out of range)", "a number is out of range"),
        (r"(?:index out of bounds|called `|no entry found|range |slice |assertion |attempt to |byte index ).*",
         "the library fails on what it asks for"),
    )
)  # fmt: skip


def in_words(reason: str) -> str:
    """Return one line for what the library says, without Rust's types and places."""
    line = (reason.splitlines() or [""])[0]
    line = _PLACE.sub("", line.removeprefix("Cannot instantiate Tokenizer from buffer: ")).strip()
    for pattern, words in _KNOWN:
        if found := pattern.fullmatch(line):
            return _SORTS_OF_VALUES.sub(lambda sort: _IN_WORDS[sort[0]], found.expand(words)).replace("`", "'")[:LENGTH]
    return line[:LENGTH]


def explain(spec: Mapping[str, Any], reason: str) -> str:
    """Return which part of a tokenizer.json the library refuses, and why; `reason` is what it says of the whole."""
    for name in ("model", *INNER):
        for part in _innermost_first(spec.get(name), INNER.get(name)):
            if part is None and name != "model":
                continue
            kind = part.get("type") if isinstance(part, Mapping) else None
            if part is None:
                return f"the model is missing. {REMEDY}"
            if not isinstance(part, Mapping):
                return f"{name}: it is not an object (got {_kind_of(part)}). {REMEDY}"
            if (isinstance(kind, str) and kind not in TYPES[name]) or (kind is None and name != "model"):
                given = "none" if kind is None else repr(kind[:60])
                return f"{name}: the type is not supported (got {given}; allowed {', '.join(TYPES[name])})."
            if found := _refusal(name, part):
                return f"{name}{f' {kind}' if kind else ''}: {found}. {REMEDY}"
    for name in ("added_tokens", "truncation", "padding", "version"):
        if spec.get(name) is not None and (found := _refusal(name, spec[name])):
            return f"{name}: {found}. {REMEDY}"
    return f"{in_words(reason)}. {REMEDY}"


def _refusal(name: str, part: Any) -> str | None:
    """What the library says of one part alone, in words; None where it takes it."""
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(json.dumps(_EMPTY | {name: part}))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic is no Exception
        return in_words(str(error)).rstrip(".")
    return None


def _innermost_first(part: Any, key: str | None, depth: int = 0) -> Iterator[Any]:
    inner = part.get(key) if isinstance(part, Mapping) and key is not None else None
    if isinstance(inner, list) and depth < 100:
        for each in inner:
            yield from _innermost_first(each, key, depth + 1)
    yield part


def _kind_of(value: Any) -> str:
    return {str: "a text", list: "a list", bool: "true or false"}.get(type(value), "a number")
