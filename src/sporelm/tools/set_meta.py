"""Changing metadata: values with types, keys taken away, and what must not be broken."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from sporelm.errors import RequestError, UsageError
from sporelm.files.gguf.encode import encode_value, kind_of
from sporelm.files.gguf.gguf_limits import ALIGNMENT_KEY, MAX_ALIGNMENT
from sporelm.files.gguf.metadata_values import KIND_IDS, StringArray
from sporelm.files.tensor_messages import quote
from sporelm.tools.lazy_model import SPLIT_KEYS, LazyModel, MetadataEntry
from sporelm.tools.model_files import filter_names

_KEY_PATTERN = re.compile(r"(?P<key>.+?)(?::(?P<kind>\[*[a-z0-9]+\]*))?", re.DOTALL)
_FLOAT_PATTERN = r"[+-]?([0-9]{1,40}\.[0-9]{0,40}|\.[0-9]{1,40}|[0-9]{1,40}(?=[eE]))([eE][+-]?[0-9]{1,3})?"
BEYOND_F32 = 2.0**128 - 2.0**103  # from here on, rounding to float32 gives infinity
_BOOLS = {"true": True, "false": False}

# Without these no program loads the model; another value does not fit the tensors either. {arch}: the architecture.
SHAPE_KEYS = ("general.architecture", "{arch}.block_count", "{arch}.embedding_length", "{arch}.feed_forward_length",
           "{arch}.attention.head_count", "{arch}.attention.head_count_kv", "{arch}.attention.key_length",
           "{arch}.attention.value_length", "{arch}.expert_count", "{arch}.vocab_size")  # fmt: skip
# Without these no program loads the model; another value may be what is wanted.
REQUIRED_KEYS = (
    "{arch}.context_length",
    "{arch}.attention.layer_norm_rms_epsilon",
    "{arch}.attention.layer_norm_epsilon",
    "{arch}.rope.dimension_count",
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
)


class Assignment(NamedTuple):
    """KEY[:KIND]=TEXT; without a kind the key keeps its own, a new key's follows from the text."""

    key: str
    kind: str | None
    text: str


class JsonAssignment(NamedTuple):
    """A key with a value of JSON, which has a type already. The kind is None as for `Assignment`."""

    key: str
    kind: str | None
    value: Any


def parse_assignment(word: str) -> Assignment:
    """Read KEY=VALUE or KEY:KIND=VALUE. Raises UsageError."""
    left, sign, text = word.partition("=")
    found = _KEY_PATTERN.fullmatch(left)
    if not sign or found is None:
        raise UsageError(f"{word[:80]!r} is not KEY=VALUE; give for example general.name=Mine or key:u32=4")
    kind = found["kind"]
    if kind is not None and element_kind(kind) not in KIND_IDS:
        raise UsageError(
            f"{word[:80]!r}: there is no kind {kind!r}; there are {', '.join(KIND_IDS)}, [kind] for arrays"
        )
    return Assignment(found["key"], kind, text)


def element_kind(kind: str) -> str:
    """Return the kind of the numbers or texts in arrays of a kind: "u32" for "[[u32]]"."""
    while kind.startswith("[") and kind.endswith("]"):
        kind = kind[1:-1]
    return kind


def set_meta(
    model: LazyModel,
    assignments: Sequence[Assignment | JsonAssignment],
    delete: Sequence[str] = (),
    *,
    force: bool = False,
) -> LazyModel:
    """The model with keys taken away (patterns, as for `filter_names`) and others set.

    Raises UsageError for a value that does not fit its kind or a key of splits, RequestError for a pattern without a
    key and, without `force`, for a change after which the model would not load.
    """
    metadata = dict(model.metadata)
    for pattern in delete:
        keys = filter_names(metadata, [pattern])
        if not keys:
            raise RequestError(f"no metadata key fits {pattern[:80]!r}; nothing was changed")
        for key in keys:
            _check_delete(model, key, force)
            del metadata[key]
    for assignment in assignments:
        key = assignment.key
        old = metadata.get(assignment.key)
        entry = _make_entry(assignment, old)
        _check_change(model, key, old, entry, force)
        metadata[key] = entry
    return replace(model, metadata=metadata)


def _make_entry(assignment: Assignment | JsonAssignment, old: MetadataEntry | None) -> MetadataEntry:
    """The value with its kind, tried against the format."""
    key, kind = assignment.key, assignment.kind
    given: Any = assignment.value if isinstance(assignment, JsonAssignment) else assignment.text
    _check_split_key(key)
    if old is None and any(sign.isspace() or not sign.isprintable() for sign in key):
        raise UsageError(
            f"metadata key {key[:80]!r} holds spaces or control characters; use letters, digits, . _ and -"
        )
    if kind is None:
        kind = old.kind if old is not None else None
    if isinstance(assignment, JsonAssignment):
        value = given
        kind = _kind_of_json(key, value) if kind is None else kind
        _check_json_bools(key, kind, value)
    elif kind is None:
        value = _guess_value(given)
        kind = kind_of(key, value)
    else:
        value = _parse_value(key, kind, given)
    try:
        for _ in encode_value("<", key, kind, value):
            pass
    except RequestError as reason:
        raise UsageError(str(reason)) from None
    _check_finite(key, kind, value)
    if key == ALIGNMENT_KEY and (kind != "u32" or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1)):
        raise UsageError(
            f"{ALIGNMENT_KEY} must be a u32, a power of two up to {MAX_ALIGNMENT}, not {str(given)[:40]!r}"
        )
    return MetadataEntry(kind, value)


def _kind_of_json(key: str, value: Any) -> str:
    try:
        return kind_of(key, value)
    except RequestError as reason:
        raise UsageError(str(reason)) from None


def _check_json_bools(key: str, kind: str, value: Any) -> None:
    """Refuse true and false as numbers, and numbers as bools, which encoding would convert. Raises UsageError."""
    if isinstance(value, list):
        for item in value:
            _check_json_bools(key, kind, item)
    elif isinstance(value, bool) != (element_kind(kind) == "bool"):
        raise _kind_error(key, kind, f"{json.dumps(value)[:40]} is not a {element_kind(kind)}")


def _check_split_key(key: str) -> None:
    if key in SPLIT_KEYS:
        raise UsageError(f"metadata {key!r} says how the model is split; 'spore gguf split' and 'merge' set it")


def _guess_value(text: str) -> Any:
    """A bool, a whole number, a float, or the text itself."""
    if text in _BOOLS:
        return _BOOLS[text]
    if re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        return int(text)
    return float(text) if re.fullmatch(_FLOAT_PATTERN, text) else text


def _parse_value(key: str, kind: str, text: str) -> Any:
    """The text as a value of a kind: arrays between commas, or as JSON. Raises UsageError."""
    if kind == "str":
        return text
    if not kind.startswith("["):
        return _parse_number(key, kind, text)
    element = kind[1:-1]
    if text.startswith("[") or element.startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as reason:
            raise _kind_error(key, kind, f"{text[:80]!r} is not JSON: {str(reason)[:80]}") from None
        if not isinstance(items, list):
            raise _kind_error(key, kind, f"{text[:80]!r} is not a JSON array")
        return items
    words = text.split(",") if text else []
    return words if element == "str" else [_parse_number(key, element, word) for word in words]


def _parse_number(key: str, kind: str, text: str) -> int | float | bool:
    word = text.strip()
    if kind == "bool":
        if word not in _BOOLS:
            raise _kind_error(key, kind, f"{word[:40]!r} is neither true nor false")
        return _BOOLS[word]
    try:
        if len(word) > 100:
            raise ValueError
        if kind in ("f32", "f64"):
            return float(word)
        return int(word, 16 if word.lower().startswith("0x") else 10)
    except ValueError:
        raise _kind_error(
            key, kind, f"{word[:40]!r} is not a {'number' if kind in ('f32', 'f64') else 'whole number'}"
        ) from None


def _check_finite(key: str, kind: str, value: Any) -> None:
    """Refuse numbers of arrays, too, that a float of this kind does not hold, and NaN. Raises UsageError."""
    if isinstance(value, list):
        for item in value:
            _check_finite(key, kind, item)
    elif isinstance(value, float):
        width = element_kind(kind)
        if not isfinite(value) or (width == "f32" and abs(value) >= BEYOND_F32):
            raise _kind_error(key, kind, f"{value} does not fit {width}, which must be finite here")


def _kind_error(key: str, kind: str, reason: str) -> UsageError:
    return UsageError(f"metadata {quote(key)} is of kind {kind}: {reason}")


def _check_delete(model: LazyModel, key: str, force: bool) -> None:
    _check_split_key(key)
    if not force and key in _expand_keys(model, SHAPE_KEYS + REQUIRED_KEYS):
        raise RequestError(f"metadata {quote(key)} is needed to load the model; --force deletes it")


def _check_change(model: LazyModel, key: str, old: MetadataEntry | None, new: MetadataEntry, force: bool) -> None:
    """Refuse what would break the model, unless forced."""
    if force or old is None:
        return
    if key in _expand_keys(model, SHAPE_KEYS) and not _is_same(old.value, new.value):
        raise RequestError(f"metadata {quote(key)} must match the tensors; --force changes it")
    if key in _expand_keys(model, SHAPE_KEYS + REQUIRED_KEYS) and old.kind != new.kind:
        raise RequestError(
            f"metadata {quote(key)} is of kind {old.kind}, which loaders ask for, not {new.kind}; --force changes it"
        )
    if key.startswith("tokenizer.ggml.") and isinstance(old.value, (np.ndarray, StringArray, list)):
        counts = len(old.value), len(new.value) if hasattr(new.value, "__len__") else 1
        if counts[0] != counts[1]:
            raise RequestError(
                f"metadata {quote(key)} has {counts[0]} elements, the new one {counts[1]}; --force changes it"
            )


def _expand_keys(model: LazyModel, templates: Sequence[str]) -> set[str]:
    return {template.replace("{arch}", model.architecture) for template in templates}


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, np.ndarray):
        return isinstance(new, Sequence) and old.tolist() == list(new)
    return bool(old == new)


def describe_changes(before: Mapping[str, MetadataEntry], after: Mapping[str, MetadataEntry]) -> dict[str, str]:
    """Key -> "added", "changed" or "deleted"."""
    found = {key: "deleted" for key in before if key not in after}
    for key, entry in after.items():
        if key not in before:
            found[key] = "added"
        elif before[key] is not entry and not (
            before[key].kind == entry.kind and _is_same(before[key].value, entry.value)
        ):
            found[key] = "changed"
    return found
