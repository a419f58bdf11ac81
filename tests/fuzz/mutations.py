"""Ways to damage a file that keep most of its structure: what a reader believes is changed, not only bytes.

Everything is drawn from a `random.Random`: a seeded one repeats a case, one of hypothesis lets it be shrunk.
"""

import json
from collections.abc import Callable
from math import prod
from random import Random
from struct import error as struct_error
from struct import pack_into, unpack_from
from typing import Any

from fuzz.gguf_edits import FILLS, NAMES, edited

WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of GGUF's value types, by id
STRING, ARRAY = 8, 9
DEEP = "a list in a list in a list"
EDGES = (0, 1, 2, 3, 7, 8, 31, 32, 33, 64, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
         1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 10**30, 0.5, -0.0, 1e308, 1e-320, "", "a", "\0",
    "../x", "\ud800", "x" * 300, [], {}, [0], [[]], [[[[[1]]]]], {"type": "a"}, float("nan"), float("inf"),
)  # fmt: skip


class GgufFields:
    """Where the numbers of a sound GGUF header are: (position, width) of counts, lengths, types, shapes, offsets."""

    def __init__(self, data: bytes) -> None:
        self.data, self.found, self.position = data, list[tuple[int, int]](), 4
        self.order = ">" if data[4:6] == b"\0\0" else "<"
        self.number(4)
        tensors, keys = self.number(8), self.number(8)
        for _ in range(keys):
            self.string()
            self.value(self.number(4))
        for _ in range(tensors):
            self.string()
            for _ in range(self.number(4)):
                self.number(8)
            self.number(4)
            self.number(8)

    def number(self, width: int) -> int:
        self.found.append((self.position, width))
        value: int = unpack_from(f"{self.order}{'BHIQ'[width.bit_length() - 1]}", self.data, self.position)[0]
        self.position += width
        return value

    def string(self) -> None:
        self.position += self.number(8)

    def value(self, kind: int) -> None:
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            inner, count = self.number(4), self.number(8)
            if inner in WIDTHS:
                self.found.append((self.position, WIDTHS[inner]))
                self.position += count * WIDTHS[inner]
            else:
                for _ in range(count):
                    self.value(inner)
        else:
            self.number(WIDTHS[kind])


def gguf_field(data: bytearray, random: Random) -> None:
    """Another number in one of the header's fields."""
    try:
        fields = GgufFields(bytes(data))
        position, width = random.choice(fields.found)
    except (struct_error, KeyError, IndexError, OverflowError):  # damaged before
        any_bytes(data, random)
        return
    letter = fields.order + "BHIQ"[width.bit_length() - 1]
    before: int = unpack_from(letter, data, position)[0]
    drawn = random.choice((before + 1, before - 1, before * 2, before ^ (1 << random.randrange(8 * width)),
                           random.choice(EDGES), random.randrange(40), len(data), len(data) - position))  # fmt: skip
    pack_into(letter, data, position, drawn % (1 << (8 * width)))


def any_bytes(data: bytearray, random: Random) -> None:
    """A few bytes overwritten, mostly near the beginning, where headers are."""
    for _ in range(random.randint(1, 8)):
        if data:
            end = len(data) if random.random() < 0.3 else min(len(data), 2000)
            data[random.randrange(end)] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def cut(data: bytearray, random: Random) -> None:
    """The end is missing."""
    del data[random.choice((random.randrange(len(data) + 1), min(len(data), random.randrange(200)))) :]


def moved(data: bytearray, random: Random) -> None:
    """A run of bytes is taken out, put in twice, or changes places with another."""
    if len(data) < 4:
        return
    start, length = random.randrange(len(data) - 1), random.choice((1, 3, 4, 8, 24, random.randint(1, 400)))
    run = bytes(data[start : start + length])
    how = random.choice(("out", "twice", "swap"))
    if how == "twice":
        data[start:start] = run
        return
    del data[start : start + length]
    if how == "swap":
        place = random.randrange(len(data) + 1)
        data[place:place] = run


def longer(data: bytearray, random: Random) -> None:
    """Something behind the end."""
    data += bytes([random.choice((0, 0x20, 0xFF))]) * random.choice((1, 7, 32, 5000))


def json_values(text: str, random: Random) -> str:
    """A JSON text with one value, or one key, changed. A text that is no JSON comes back as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, inner in items:
            places.append((node, key))
            walk(inner)

    walk(value)
    if not places:
        return json.dumps(random.choice(ODD_VALUES))
    node, key = random.choice(places)
    how = random.choice(("odd", "near", "out", "name", "other", "deep"))
    if how == "odd":
        node[key] = random.choice(ODD_VALUES)
    elif how == "near" and isinstance(node[key], int | float):
        node[key] = random.choice((node[key] + 1, node[key] - 1, -node[key], node[key] * 1000, random.choice(EDGES)))
    elif how == "out":
        del node[key]
    elif how == "name" and isinstance(node, dict):
        node[random.choice(("", "a", "__metadata__", "x" * 2000, str(key) + "."))] = node.pop(key)
    elif how == "deep":
        node[key] = DEEP
    else:
        other, name = random.choice(places)
        if not _holds(other[name], node):  # never a ring
            node[key] = other[name]
    depth = random.choice((5, 100, 5000))
    return json.dumps(value).replace(f'"{DEEP}"', "[" * depth + "]" * depth)


def _holds(value: Any, node: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is node or any(_holds(each, node) for each in inner)


def json_file(data: bytearray, random: Random) -> None:
    """One value of a JSON file changed."""
    try:
        text = bytes(data).decode()
    except ValueError:
        any_bytes(data, random)
        return
    data[:] = json_values(text, random).encode("utf-8", "surrogatepass")


def safetensors_header(data: bytearray, random: Random) -> None:
    """One value of a safetensors header changed, its length told rightly."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        any_bytes(data, random)
        return
    try:
        text = bytes(data[8 : 8 + length]).decode()
    except ValueError:
        any_bytes(data, random)
        return
    header = json_values(text, random).encode("utf-8", "surrogatepass")
    data[: 8 + length] = len(header).to_bytes(8, "little") + header


def gguf_content(data: bytearray, random: Random) -> None:
    """Other metadata or tensors in a file whose structure stays sound."""
    changed = edited(bytes(data), random)
    if changed is None:
        gguf_field(data, random)
    else:
        data[:] = changed


def safetensors_content(data: bytearray, random: Random) -> None:
    """Other names, shapes, types or values in a safetensors file whose structure stays sound."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        name = random.choice([name for name in header if name != "__metadata__"])
        entry = header[name]
        begin, end = entry["data_offsets"]
        how = random.choice(("name", "out", "shape", "type", "data", "data"))
        if how == "name":
            header[random.choice((*NAMES, "model.embed_tokens.weight", "model.norm.weight"))] = header.pop(name)
        elif how == "out":
            del header[name]
        elif how == "shape":
            count = prod(entry["shape"])
            entry["shape"] = random.choice(([count], [count, 1], [1, count], entry["shape"][::-1], [1, 1, count]))
        elif how == "type":
            wide = {2: ("F16", "BF16", "I16", "U16"), 4: ("F32", "I32", "U32"), 8: ("F64", "I64", "U64")}
            entry["dtype"] = random.choice(
                wide.get((end - begin) // max(1, prod(entry["shape"])), ("U8", "I8", "BOOL"))
            )
        else:
            start = 8 + length + begin
            count = min(end, len(data)) - begin  # an earlier mutation may have moved the end anywhere
            run = random.choice(FILLS) * (count // 2 + 1)
            data[start : start + count] = run[:count]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        any_bytes(data, random)
        return
    text = json.dumps(header).encode()
    data[: 8 + length] = len(text).to_bytes(8, "little") + text


Mutation = Callable[[bytearray, Random], None]
GENERAL: tuple[Mutation, ...] = (any_bytes, cut, moved, longer)


def mutations_of(name: str) -> tuple[Mutation, ...]:
    """How a file of this name may be damaged: its content most of the time, its structure often."""
    if name.endswith(".gguf"):
        return (gguf_content,) * 12 + (gguf_field,) * 4 + GENERAL
    if name.endswith(".safetensors"):
        return (safetensors_content,) * 8 + (safetensors_header,) * 4 + GENERAL
    return ((json_file,) * 12 if name.endswith(".json") else (any_bytes,) * 6) + GENERAL


def damaged(files: dict[str, bytes], random: Random) -> dict[str, bytes]:
    """Those of the files that were damaged, damaged: one of them mostly, in one place or some."""
    changed: dict[str, bytes] = {}
    for name in random.sample(sorted(files), k=min(len(files), random.choice((1, 1, 1, 2)))):
        data = bytearray(files[name])
        for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5))):
            random.choice(mutations_of(name))(data, random)
        changed[name] = bytes(data)
    return changed
