"""Explains why the `tokenizers` library refuses a tokenizer.json.

The library's message is little more than the name of a Rust type. So the file's parts are given to it one by one, until
it refuses one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

REMEDY = "Correct the file, or save the tokenizer again."
MAX_CHARACTERS = 200  # of a reason
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
_POSITION = re.compile(r" at line \d+ column \d+")
_TYPE_NAMES = {"usize": "a whole number from 0", "u32": "a whole number from 0", "f64": "a number", "f32": "a number",
             "a sequence": "a list", "a map": "an object", "sequence": "a list", "map": "an object",
             "a boolean": "true or false", "integer": "the number"}  # fmt: skip
_RUST_TYPES = re.compile(rf"(?<=[ (])(?:{'|'.join(_TYPE_NAMES)})(?=[ ;)])")
_REASONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
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
         "a string contains half of a surrogate pair, which is not a character"),
        (r"(?:expected value|number out of range)", "a number is out of range"),
        (r"(?:index out of bounds|called `|no entry found|range |slice |assertion |attempt to |byte index ).*",
         "the library fails on the file's contents"),
    )
)  # fmt: skip


def translate_library_error(reason: str) -> str:
    """Return a message of the library in one line, without Rust's types and positions in the file."""
    line = (reason.splitlines() or [""])[0]
    line = _POSITION.sub("", line.removeprefix("Cannot instantiate Tokenizer from buffer: ")).strip()
    for pattern, template in _REASONS:
        if match := pattern.fullmatch(line):
            message = _RUST_TYPES.sub(lambda rust_type: _TYPE_NAMES[rust_type[0]], match.expand(template))
            return message.replace("`", "'")[:MAX_CHARACTERS]
    return line[:MAX_CHARACTERS]


def explain_refusal(spec: Mapping[str, Any], reason: str) -> str:
    """Return which part of a tokenizer.json the library refuses, and why; `reason` is its message on the whole file."""
    for name in ("model", *INNER):
        for part in _innermost_first(spec.get(name), INNER.get(name)):
            if part is None and name != "model":
                continue
            kind = part.get("type") if isinstance(part, Mapping) else None
            if part is None:
                return f"the model is missing. {REMEDY}"
            if not isinstance(part, Mapping):
                return f"{name}: it is not an object (got {_describe_type(part)}). {REMEDY}"
            if (isinstance(kind, str) and kind not in TYPES[name]) or (kind is None and name != "model"):
                actual = "none" if kind is None else repr(kind[:60])
                return f"{name}: the type is not supported (got {actual}; allowed {', '.join(TYPES[name])})."
            if refusal := _find_refusal(name, part):
                return f"{name}{f' {kind}' if kind else ''}: {refusal}. {REMEDY}"
    for name in ("added_tokens", "truncation", "padding", "version"):
        if spec.get(name) is not None and (refusal := _find_refusal(name, spec[name])):
            return f"{name}: {refusal}. {REMEDY}"
    return f"{translate_library_error(reason)}. {REMEDY}"


def _find_refusal(name: str, part: Any) -> str | None:
    """Return the library's message on one part alone; None if it accepts the part."""
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(json.dumps(_EMPTY | {name: part}))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic is not an Exception
        return translate_library_error(str(error)).rstrip(".")
    return None


def _innermost_first(part: Any, key: str | None, depth: int = 0) -> Iterator[Any]:
    inner = part.get(key) if isinstance(part, Mapping) and key is not None else None
    if isinstance(inner, list) and depth < 100:
        for each in inner:
            yield from _innermost_first(each, key, depth + 1)
    yield part


def _describe_type(value: Any) -> str:
    return {str: "a string", list: "a list", bool: "true or false"}.get(type(value), "a number")
