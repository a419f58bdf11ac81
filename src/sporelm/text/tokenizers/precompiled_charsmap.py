"""SentencePiece's compiled character map (precompiled_charsmap): replacements applied to a text before tokenization.

Format: the size in bytes of a double array (u32, little-endian), the array's units (u32), then UTF-8 texts, each
terminated by NUL. Units are those of the Darts-clone library: the offset of the children, a flag for a value, a label,
or the value itself, which is the offset of a text.
"""

import re
from collections.abc import Mapping

import numpy as np

from sporelm.errors import ModelFileError

_LEAF = 1 << 31  # flag of the units that hold a value
_LABELS = np.arange(1, 256, dtype=np.int64)
_MAX_BYTES = 64 << 20
_MAX_KEY_BYTES = 256
_MAX_PREFIXES = 1 << 20
_BATCH_UNITS = 4096  # units expanded at once; each has 255 possible children


def parse_charsmap(data: bytes, label: str) -> dict[str, str]:
    """Return the replacements of a map: text -> its replacement. Raises ModelFileError for a damaged map."""
    if not data:
        return {}
    size = int.from_bytes(data[:4], "little")
    if len(data) > _MAX_BYTES or size % 4 or not 4 <= size <= len(data) - 4:
        raise _make_error(label, f"{len(data)} bytes cannot hold an array of {size}")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    texts = data[4 + size :]
    replacements: dict[str, str] = {}
    num_prefixes = 0
    keys = [b""]
    bases = _find_children(np.zeros(1, np.int64), units)
    while keys:
        if len(keys[0]) > _MAX_KEY_BYTES or int((bases | 255).max()) >= len(units):
            raise _make_error(label, "its array refers to units outside of it")
        next_keys: list[bytes] = []
        next_units = []
        for start in range(0, len(keys), _BATCH_UNITS):
            candidates = bases[start : start + _BATCH_UNITS, None] ^ _LABELS
            parents, labels = np.nonzero((units[candidates] & (_LEAF | 255)) == _LABELS)
            num_prefixes += len(parents)  # suffixes are shared, so a small array may hold endless texts
            if num_prefixes > _MAX_PREFIXES:
                raise _make_error(label, f"its array holds more than {_MAX_PREFIXES} prefixes of texts")
            next_units.append(candidates[parents, labels])
            children = zip((parents + start).tolist(), (labels + 1).tolist(), strict=True)
            next_keys += [keys[parent] + bytes([byte]) for parent, byte in children]
        keys = next_keys
        indices = np.concatenate(next_units)
        bases = _find_children(indices, units)
        _add_values(replacements, keys, bases, np.flatnonzero((units[indices] >> 8) & 1), units, texts, label)
    return replacements


def _add_values(
    replacements: dict[str, str],
    keys: list[bytes],
    bases: np.ndarray,
    leaf_keys: np.ndarray,
    units: np.ndarray,
    texts: bytes,
    label: str,
) -> None:
    """Add the replacements of the keys with the indices `leaf_keys`."""
    for i in leaf_keys.tolist():
        if int(bases[i]) >= len(units):
            raise _make_error(label, "its array refers to units outside of it")
        offset = int(units[bases[i]]) & (_LEAF - 1)
        end = texts.find(b"\0", offset)
        if end < 0:
            raise _make_error(label, f"a text at {offset} of {len(texts)} bytes does not end")
        try:
            replacements[keys[i].decode()] = texts[offset:end].decode()
        except UnicodeDecodeError:
            raise _make_error(label, "it is not UTF-8") from None


def _find_children(indices: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return the base from which each unit's children are addressed."""
    values = units[indices]
    return indices ^ ((values >> 10) << ((values & (1 << 9)) >> 6))


def _make_error(label: str, reason: str) -> ModelFileError:
    return ModelFileError(f"{label}: the precompiled_charsmap is damaged: {reason}")


class CharsMap:
    """Applies a character map: at each position the longest entry is replaced."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries = entries
        self._single = {ord(text): replacement for text, replacement in entries.items() if len(text) == 1}
        continuing = sorted({character for text in entries for character in text[1:]})
        self._max_characters = max(map(len, entries), default=0)
        # Several entries can match only where a character that may continue an entry follows another.
        self._ambiguous = re.compile("(?s).[" + re.escape("".join(continuing)) + "]+") if continuing else None

    def __call__(self, text: str) -> str:
        """Return `text` with all replacements."""
        if self._ambiguous is None:
            return text.translate(self._single)
        parts = []
        start = 0
        for match in self._ambiguous.finditer(text):
            parts += [text[start : match.start()].translate(self._single), self._replace_longest(match[0])]
            start = match.end()
        return "".join(parts) + text[start:].translate(self._single)

    def _replace_longest(self, text: str) -> str:
        parts = []
        start = 0
        while start < len(text):
            for size in range(min(self._max_characters, len(text) - start), 0, -1):
                replacement = self._entries.get(text[start : start + size])
                if replacement is not None:
                    break
            else:
                replacement = text[start]
            parts.append(replacement)
            start += size
        return "".join(parts)
