"""SentencePiece's compiled character map: which letters a text's letters are replaced by before it is cut.

Its form: the size in bytes of a double array (u32, little-endian), the array's units (u32), then UTF-8 texts, each
ended by NUL. Units as the Darts-clone library has them: where children begin, a mark of a value, a label, or the
value itself, which is where a text begins.
"""

import re
from collections.abc import Mapping

import numpy as np

from sporelm.errors import ModelFileError

_LEAF = 1 << 31  # marks the units that hold a value
_LABELS = np.arange(1, 256, dtype=np.int64)
_MAX_BYTES = 64 << 20
_MAX_KEY_BYTES = 256
_MAX_STEPS = 1 << 20
_AT_ONCE = 4096  # each has 255 places to look at


def read_charsmap(data: bytes, label: str) -> dict[str, str]:
    """Every text that the map replaces -> what by. Raises ModelFileError for a damaged map."""
    if not data:
        return {}
    size = int.from_bytes(data[:4], "little")
    if len(data) > _MAX_BYTES or size % 4 or not 4 <= size <= len(data) - 4:
        raise _damaged(label, f"{len(data)} bytes cannot hold an array of {size}")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    texts = data[4 + size :]
    found: dict[str, str] = {}
    total = 0
    keys, bases = [b""], _children_of(np.zeros(1, np.int64), units)
    while keys:
        if len(keys[0]) > _MAX_KEY_BYTES or int((bases | 255).max()) >= len(units):
            raise _damaged(label, "its array leads outside")
        longer, places = [], []
        for start in range(0, len(keys), _AT_ONCE):
            reached = bases[start : start + _AT_ONCE, None] ^ _LABELS
            parents, labels = np.nonzero((units[reached] & (_LEAF | 255)) == _LABELS)
            total += len(parents)  # endings are shared, so a small array may hold endless texts
            if total > _MAX_STEPS:
                raise _damaged(label, f"its array holds more than {_MAX_STEPS} beginnings of texts")
            places.append(reached[parents, labels])
            found_here = zip((parents + start).tolist(), (labels + 1).tolist(), strict=True)
            longer += [keys[parent] + bytes([byte]) for parent, byte in found_here]
        keys, all_places = longer, np.concatenate(places)
        bases = _children_of(all_places, units)
        _add_values(found, keys, bases, np.flatnonzero((units[all_places] >> 8) & 1), units, texts, label)
    return found


def _add_values(
    found: dict[str, str],
    keys: list[bytes],
    bases: np.ndarray,
    chosen: np.ndarray,
    units: np.ndarray,
    texts: bytes,
    label: str,
) -> None:
    """What the keys numbered `chosen` are replaced by."""
    for i in chosen.tolist():
        if int(bases[i]) >= len(units):
            raise _damaged(label, "its array leads outside")
        value = int(units[bases[i]]) & (_LEAF - 1)
        end = texts.find(b"\0", value)
        if end < 0:
            raise _damaged(label, f"a text at {value} of {len(texts)} bytes does not end")
        try:
            found[keys[i].decode()] = texts[value:end].decode()
        except UnicodeDecodeError:
            raise _damaged(label, "it is not UTF-8") from None


def _children_of(places: np.ndarray, units: np.ndarray) -> np.ndarray:
    """From where each unit's children are counted."""
    found = units[places]
    return places ^ ((found >> 10) << ((found & (1 << 9)) >> 6))


def _damaged(label: str, why: str) -> ModelFileError:
    return ModelFileError(f"{label}: the precompiled_charsmap is damaged: {why}")


class Replacements:
    """Replaces letters: at each place the longest text that the map has."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries = entries
        self._single = {ord(text): by for text, by in entries.items() if len(text) == 1}
        later = sorted({character for text in entries for character in text[1:]})
        self._longest = max(map(len, entries), default=0)
        # Only where a character that may continue an entry follows another is there a choice.
        self._together = re.compile("(?s).[" + re.escape("".join(later)) + "]+") if later else None

    def __call__(self, text: str) -> str:
        """`text` with everything replaced."""
        if self._together is None:
            return text.translate(self._single)
        parts = []
        start = 0
        for match in self._together.finditer(text):
            parts += [text[start : match.start()].translate(self._single), self._replaced(match[0])]
            start = match.end()
        return "".join(parts) + text[start:].translate(self._single)

    def _replaced(self, text: str) -> str:
        found = []
        start = 0
        while start < len(text):
            for size in range(min(self._longest, len(text) - start), 0, -1):
                by = self._entries.get(text[start : start + size])
                if by is not None:
                    break
            else:
                by = text[start]
            found.append(by)
            start += size
        return "".join(found)
