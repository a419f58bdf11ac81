"""Changing metadata: values with types, keys taken away, and what must not be broken."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from sporelm.errors import RequestError, UsageError
from sporelm.tools.lazy import SPLIT_KEYS, Entry, Model
from sporelm.tools.sources import matching
from sporelm.weights.gguf.encode import encode_value, kind_of
from sporelm.weights.gguf.limits import ALIGNMENT_KEY, MAX_ALIGNMENT
from sporelm.weights.gguf.values import KIND_IDS, StringArray
from sporelm.weights.messages import shown

_KEY = re.compile(r"(?P<key>.+?)(?::(?P<kind>\[*[a-z0-9]+\]*))?", re.DOTALL)
_FLOAT = r"[+-]?([0-9]{1,40}\.[0-9]{0,40}|\.[0-9]{1,40}|[0-9]{1,40}(?=[eE]))([eE][+-]?[0-9]{1,3})?"
BEYOND_F32 = 2.0**128 - 2.0**103  # from here on, rounding to float32 gives infinity
_WORDS = {"true": True, "false": False}

# Without these no program loads the model; another value does not fit the tensors either. {arch}: the architecture.
SHAPING = ("general.architecture", "{arch}.block_count", "{arch}.embedding_length", "{arch}.feed_forward_length",
           "{arch}.attention.head_count", "{arch}.attention.head_count_kv", "{arch}.attention.key_length",
           "{arch}.attention.value_length", "{arch}.expert_count", "{arch}.vocab_size")  # fmt: skip
# Without these no program loads the model; another value may be what is wanted.
NEEDED = ("{arch}.context_length", "{arch}.attention.layer_norm_rms_epsilon", "{arch}.attention.layer_norm_epsilon",
          "{arch}.rope.dimension_count", "tokenizer.ggml.model", "tokenizer.ggml.tokens")  # fmt: skip


class Assignment(NamedTuple):
    """KEY[:KIND]=TEXT; without a kind the key keeps its own, a new key's follows from the text."""

    key: str
    kind: str | None
    text: str


def parse_assignment(word: str) -> Assignment:
    """Read KEY=VALUE or KEY:KIND=VALUE. Raises UsageError."""
    left, sign, text = word.partition("=")
    found = _KEY.fullmatch(left)
    if not sign or found is None:
        raise UsageError(f"{word[:80]!r} is no KEY=VALUE; give for example general.name=Mine or key:u32=4")
    kind = found["kind"]
    if kind is not None and _innermost(kind) not in KIND_IDS:
        raise UsageError(
            f"{word[:80]!r}: there is no kind {kind!r}; there are {', '.join(KIND_IDS)}, [kind] for arrays"
        )
    return Assignment(found["key"], kind, text)


def _innermost(kind: str) -> str:
    while kind.startswith("[") and kind.endswith("]"):
        kind = kind[1:-1]
    return kind


def set_meta(
    model: Model, assignments: Sequence[Assignment], delete: Sequence[str] = (), *, force: bool = False
) -> Model:
    """The model with keys taken away (patterns, as `matching` has them) and others set.

    Raises UsageError for a value that does not fit its kind or a key of splits, RequestError for a pattern without a
    key and, without `force`, for a change after which the model would not load.
    """
    metadata = dict(model.metadata)
    for pattern in delete:
        keys = matching(metadata, [pattern])
        if not keys:
            raise RequestError(f"no metadata key fits {pattern[:80]!r}; nothing was changed")
        for key in keys:
            _check_delete(model, key, force)
            del metadata[key]
    for assignment in assignments:
        key, old = assignment.key, metadata.get(assignment.key)
        entry = _entry(assignment, old)
        _check_change(model, key, old, entry, force)
        metadata[key] = entry
    return replace(model, metadata=metadata)


def _entry(assignment: Assignment, old: Entry | None) -> Entry:
    """The value with its kind, tried against the format."""
    key, kind, text = assignment
    _check_split_key(key)
    if old is None and any(sign.isspace() or not sign.isprintable() for sign in key):
        raise UsageError(
            f"metadata key {key[:80]!r} holds spaces or control characters; use letters, digits, . _ and -"
        )
    if kind is None:
        kind = old.kind if old is not None else None
    if kind is None:
        value = _guessed(text)
        kind = kind_of(key, value)
    else:
        value = _value(key, kind, text)
    try:
        for _ in encode_value("<", key, kind, value):
            pass
    except RequestError as reason:
        raise UsageError(str(reason)) from None
    _check_finite(key, kind, value)
    if key == ALIGNMENT_KEY and (kind != "u32" or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1)):
        raise UsageError(f"{ALIGNMENT_KEY} must be a u32, a power of two up to {MAX_ALIGNMENT}, not {text[:40]!r}")
    return Entry(kind, value)


def _check_split_key(key: str) -> None:
    if key in SPLIT_KEYS:
        raise UsageError(f"metadata {key!r} says how the model is split; 'spore gguf split' and 'merge' set it")


def _guessed(text: str) -> Any:
    """A bool, a whole number, a float, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        return int(text)
    return float(text) if re.fullmatch(_FLOAT, text) else text


def _value(key: str, kind: str, text: str) -> Any:
    """The text as a value of a kind: arrays between commas, or as JSON. Raises UsageError."""
    if kind == "str":
        return text
    if not kind.startswith("["):
        return _number(key, kind, text)
    element = kind[1:-1]
    if text.startswith("[") or element.startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as reason:
            raise _misfit(key, kind, f"{text[:80]!r} is not JSON: {str(reason)[:80]}") from None
        if not isinstance(items, list):
            raise _misfit(key, kind, f"{text[:80]!r} is no JSON array")
        return items
    words = text.split(",") if text else []
    return words if element == "str" else [_number(key, element, word) for word in words]


def _number(key: str, kind: str, text: str) -> int | float | bool:
    word = text.strip()
    if kind == "bool":
        if word not in _WORDS:
            raise _misfit(key, kind, f"{word[:40]!r} is neither true nor false")
        return _WORDS[word]
    try:
        if len(word) > 100:
            raise ValueError
        if kind in ("f32", "f64"):
            return float(word)
        return int(word, 16 if word.lower().startswith("0x") else 10)
    except ValueError:
        raise _misfit(
            key, kind, f"{word[:40]!r} is no {'number' if kind in ('f32', 'f64') else 'whole number'}"
        ) from None


def _check_finite(key: str, kind: str, value: Any) -> None:
    """Refuse numbers of arrays, too, that a float of this kind does not hold, and NaN. Raises UsageError."""
    if isinstance(value, list):
        for item in value:
            _check_finite(key, kind, item)
    elif isinstance(value, float):
        width = _innermost(kind)
        if not isfinite(value) or (width == "f32" and abs(value) >= BEYOND_F32):
            raise _misfit(key, kind, f"{value} does not fit {width}, which must be finite here")


def _misfit(key: str, kind: str, reason: str) -> UsageError:
    return UsageError(f"metadata {shown(key)} is of kind {kind}: {reason}")


def _check_delete(model: Model, key: str, force: bool) -> None:
    _check_split_key(key)
    if not force and key in _keys(model, SHAPING + NEEDED):
        raise RequestError(f"metadata {shown(key)} is needed to load the model; --force takes it away all the same")


def _check_change(model: Model, key: str, old: Entry | None, new: Entry, force: bool) -> None:
    """Refuse what would break the model, unless forced."""
    if force or old is None:
        return
    if key in _keys(model, SHAPING) and not _same(old.value, new.value):
        raise RequestError(f"metadata {shown(key)} must fit the tensors; --force changes it all the same")
    if key in _keys(model, SHAPING + NEEDED) and old.kind != new.kind:
        raise RequestError(
            f"metadata {shown(key)} is of kind {old.kind}, which loaders ask for, not {new.kind}; --force changes it"
        )
    if key.startswith("tokenizer.ggml.") and isinstance(old.value, (np.ndarray, StringArray, list)):
        counts = len(old.value), len(new.value) if hasattr(new.value, "__len__") else 1
        if counts[0] != counts[1]:
            raise RequestError(
                f"metadata {shown(key)} has {counts[0]} elements, the new one {counts[1]}; --force changes it"
            )


def _keys(model: Model, templates: Sequence[str]) -> set[str]:
    return {template.replace("{arch}", model.architecture) for template in templates}


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, np.ndarray):
        return isinstance(new, Sequence) and old.tolist() == list(new)
    return bool(old == new)


def changes(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> dict[str, str]:
    """Key -> "added", "changed" or "deleted"."""
    found = {key: "deleted" for key in before if key not in after}
    for key, entry in after.items():
        if key not in before:
            found[key] = "added"
        elif before[key] is not entry and not (
            before[key].kind == entry.kind and _same(before[key].value, entry.value)
        ):
            found[key] = "changed"
    return found
