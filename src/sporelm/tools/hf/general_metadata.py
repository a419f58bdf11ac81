"""Conversion of a folder's name, license, languages and sampling defaults to general.* metadata, and back.

Keys: the GGUF specification, "General metadata", and llama.cpp's gguf-py/gguf/metadata.py. A model card is README.md
with YAML in front of it; of YAML the few forms that model cards use for these fields are read.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sporelm.checkpoints.config_values import MAX_TEXT_LENGTH

MAX_CARD_BYTES = 1 << 20
MAX_ITEMS = 1000
_FRONT = re.compile(r"---\r?\n(.*?)\r?\n---", re.DOTALL)
_ENTRY = re.compile(r"([A-Za-z_]+):\s*(.*)")
# Key of the card -> key of the metadata.
CARD_TEXTS = {
    "license": "general.license",
    "license_name": "general.license.name",
    "license_link": "general.license.link",
}
CARD_LISTS = {"tags": "general.tags", "language": "general.languages"}
# generation_config.json -> metadata and its kind.
SAMPLING = {
    "top_k": ("general.sampling.top_k", "i32"),
    "top_p": ("general.sampling.top_p", "f32"),
    "min_p": ("general.sampling.min_p", "f32"),
    "temperature": ("general.sampling.temp", "f32"),
    "repetition_penalty": ("general.sampling.penalty_repeat", "f32"),
}
_SIZES = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def read_card_metadata(folder: Path) -> dict[str, tuple[str, Any]]:
    """License, tags and languages of the folder's model card, with their kinds; nothing where there is none."""
    card = _read_card(folder)
    fields: dict[str, tuple[str, Any]] = {}
    for word, key in CARD_TEXTS.items():
        if isinstance(value := card.get(word), str) and value:
            fields[key] = ("str", value)
    for word, key in CARD_LISTS.items():
        value = card.get(word)
        items = [value] if isinstance(value, str) and value else value
        if items:
            fields[key] = ("[str]", items)
    return fields


def format_card(metadata: Mapping[str, Any]) -> str | None:
    """The model card with what the metadata says; None where it says nothing."""
    lines = []
    for word, key in CARD_TEXTS.items():
        if isinstance(value := metadata.get(key), str) and value:
            lines.append(f"{word}: {_format_yaml_scalar(value)}")
    for word, key in CARD_LISTS.items():
        items: Any = metadata.get(key)
        decoded = items.decode_all() if hasattr(items, "decode_all") and len(items) <= MAX_ITEMS else items
        if isinstance(decoded, list) and decoded:
            lines += [f"{word}:", *(f"- {_format_yaml_scalar(str(item))}" for item in decoded)]
    return "\n".join(["---", *lines, "---", ""]) if lines else None


def read_sampling_metadata(generation: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """How the model's makers sample, unless they do not."""
    if generation.get("do_sample") is False:
        return {}
    found = {key: (kind, _sampling_number(generation.get(word), kind)) for word, (key, kind) in SAMPLING.items()}
    return {key: entry for key, entry in found.items() if entry[1] is not None}


def sampling_to_json(metadata: Mapping[str, Any]) -> dict[str, int | float]:
    """The same out of metadata, as generation_config.json has it; empty where it does not say."""
    found = {word: _sampling_number(metadata.get(key), kind) for word, (key, kind) in SAMPLING.items()}
    return {word: value for word, value in found.items() if value is not None}


def _sampling_number(value: Any, kind: str) -> int | float | None:
    """A number of sampling; None for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int if kind == "i32" else int | float):
        return None
    return value if abs(value) < 2**31 else None  # which NaN is not


def format_size_label(values: int) -> str:
    """The number of a model's values in two digits at least: "135M", "1.1B"."""
    for size, letter in _SIZES:
        if values >= size or size == 1000:
            scaled = values / size
            return f"{scaled:.{max(0, 2 - len(str(round(scaled)).lstrip('0')))}f}{letter}"
    raise AssertionError("unreachable: the last size is the default")


def find_model_name(values: Mapping[str, Any], folder: Path) -> str:
    """The model's name: what its configuration calls it, without the owner, else the folder's name."""
    given = values.get("_name_or_path")
    name = given.replace("\\", "/").rstrip("/").rpartition("/")[2] if isinstance(given, str) else ""
    name = name if name.strip(". ") else folder.resolve().name
    return "".join(letter for letter in name if letter.isprintable())[:MAX_TEXT_LENGTH] or "model"


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / "README.md"
    try:
        if not path.is_file() or path.stat().st_size > MAX_CARD_BYTES:
            return {}
        match = _FRONT.match(path.read_text("utf-8"))
    except (OSError, ValueError):  # a card that cannot be read says nothing
        return {}
    return dict(_parse_yaml_entries(match[1])) if match else {}


def _parse_yaml_entries(text: str) -> Iterator[tuple[str, Any]]:
    """The entries at the outermost level: texts, [a, b], and lists with an item a line."""
    name = ""
    items = list[str]()
    for line in text.splitlines():
        if line.lstrip().startswith("- ") and name:
            items.append(_unquote(line.lstrip()[2:]))
            continue
        if items and name:
            yield name, items[:MAX_ITEMS]
        name = ""
        items = []
        if (match := _ENTRY.fullmatch(line)) is None:
            continue
        word = match[1]
        value = match[2].strip()
        if not value:
            name = word
        elif value.startswith("[") and value.endswith("]"):
            yield word, [_unquote(item) for item in value[1:-1].split(",") if item.strip()][:MAX_ITEMS]
        elif value[0] not in "{|>&*!":
            yield word, _unquote(value)
    if items and name:
        yield name, items[:MAX_ITEMS]


def _unquote(value: str) -> str:
    """A scalar without quotes and comments."""
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].strip()


def _format_yaml_scalar(value: str) -> str:
    """A text as YAML: in quotes unless it is a plain word."""
    if re.fullmatch(r"[A-Za-z][\w./+-]*(?: [\w./+-]+)*", value) and value.lower() not in (
        "no",
        "yes",
        "true",
        "false",
        "null",
    ):
        return value
    line = "".join(letter if letter.isprintable() else " " for letter in value)
    return "'" + " ".join(line.split()).replace("'", "''") + "'"
