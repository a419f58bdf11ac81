"""Metadata in a JSON file: KEY -> VALUE, or KEY -> {"type": KIND, "value": VALUE}.

A file of `convert_hf_to_gguf.py --metadata` has the plain form: GGUF keys with their values.
"""

import json
from typing import Any

from sporelm.errors import UsageError
from sporelm.files.gguf.metadata_values import KIND_IDS
from sporelm.files.tensor_messages import quote
from sporelm.tools.set_meta import JsonAssignment, element_kind

_FORMS = 'a number, true, false, a text, an array, or {"type": KIND, "value": VALUE}'


def parse_metadata(text: str, name: str) -> list[JsonAssignment]:
    """Return the keys of a JSON object with their values, in order; `name` is that of the file, for errors.

    Raises UsageError for anything but such an object, and for a key that appears twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=_make_object)
    except (ValueError, RecursionError) as reason:
        raise UsageError(f"--metadata {name[:200]!r}: not valid JSON ({str(reason)[:120]}). Correct the file") from None
    if not isinstance(value, dict):
        raise UsageError(
            f"--metadata {name[:200]!r}: not an object (got {type(value).__name__}; allowed an object of KEY: VALUE). "
            'Write it as {"general.name": "Mine"}'
        )
    return [_make_assignment(key, entry) for key, entry in value.items()]


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {quote(next(key for key in keys if keys.count(key) > 1))} appears twice")
    return found


def _make_assignment(key: str, entry: Any) -> JsonAssignment:
    if not key:
        raise UsageError(f"metadata {quote(key)}: the key is empty. Give it a name")
    kind = None
    if isinstance(entry, dict):
        if set(entry) != {"type", "value"} or not isinstance(entry["type"], str):
            raise _form_error(key, entry)
        kind, entry = entry["type"], entry["value"]
        if element_kind(kind) not in KIND_IDS:
            allowed = f"{', '.join(KIND_IDS)}, [kind] for arrays"
            raise UsageError(f"metadata {quote(key)}: unknown type (got {quote(kind)}; allowed {allowed})")
    if entry is None or isinstance(entry, dict):
        raise _form_error(key, entry)
    return JsonAssignment(key, kind, entry)


def _form_error(key: str, entry: Any) -> UsageError:
    return UsageError(
        f"metadata {quote(key)}: not a metadata value (got {json.dumps(entry)[:60]}; allowed {_FORMS}). "
        "--delete removes a key"
    )
