"""Structure-aware mutations of model files: they change values that a reader trusts, not only bytes.

All choices are drawn from a `random.Random`: a seeded one repeats a case, one of hypothesis can be shrunk.
"""

import json
from collections.abc import Callable
from math import prod
from random import Random
from struct import error as struct_error
from struct import pack_into, unpack_from
from typing import Any

from fuzz.gguf_edits import FILLS, NAMES, edit

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
    """The positions and widths of the numbers in a valid GGUF header: counts, lengths, types, shapes, offsets."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.numbers: list[tuple[int, int]] = []
        self.position = 4
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
        self.numbers.append((self.position, width))
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
                self.numbers.append((self.position, WIDTHS[inner]))
                self.position += count * WIDTHS[inner]
            else:
                for _ in range(count):
                    self.value(inner)
        else:
            self.number(WIDTHS[kind])


def change_gguf_field(data: bytearray, random: Random) -> None:
    """Change a number in one field of the header."""
    try:
        fields = GgufFields(bytes(data))
        position, width = random.choice(fields.numbers)
    except (struct_error, KeyError, IndexError, OverflowError):  # damaged before
        overwrite_bytes(data, random)
        return
    letter = fields.order + "BHIQ"[width.bit_length() - 1]
    before: int = unpack_from(letter, data, position)[0]
    drawn = random.choice((before + 1, before - 1, before * 2, before ^ (1 << random.randrange(8 * width)),
                           random.choice(EDGES), random.randrange(40), len(data), len(data) - position))  # fmt: skip
    pack_into(letter, data, position, drawn % (1 << (8 * width)))


def overwrite_bytes(data: bytearray, random: Random) -> None:
    """Overwrite a few bytes, mostly near the beginning, where headers are."""
    for _ in range(random.randint(1, 8)):
        if data:
            end = len(data) if random.random() < 0.3 else min(len(data), 2000)
            data[random.randrange(end)] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def truncate(data: bytearray, random: Random) -> None:
    """Remove the end."""
    del data[random.choice((random.randrange(len(data) + 1), min(len(data), random.randrange(200)))) :]


def move_bytes(data: bytearray, random: Random) -> None:
    """Remove a run of bytes, insert it twice, or move it."""
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


def append_bytes(data: bytearray, random: Random) -> None:
    """Append bytes."""
    data += bytes([random.choice((0, 0x20, 0xFF))]) * random.choice((1, 7, 32, 5000))


def change_json(text: str, random: Random) -> str:
    """Change one value or key of a JSON text. Text that is not valid JSON is returned unchanged."""
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
        if not _holds(other[name], node):  # no cycles
            node[key] = other[name]
    depth = random.choice((5, 100, 5000))
    return json.dumps(value).replace(f'"{DEEP}"', "[" * depth + "]" * depth)


def _holds(value: Any, node: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is node or any(_holds(each, node) for each in inner)


def change_json_file(data: bytearray, random: Random) -> None:
    """Change one value of a JSON file."""
    try:
        text = bytes(data).decode()
    except ValueError:
        overwrite_bytes(data, random)
        return
    data[:] = change_json(text, random).encode("utf-8", "surrogatepass")


def change_safetensors_header(data: bytearray, random: Random) -> None:
    """Change one value of a safetensors header and correct its length."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        overwrite_bytes(data, random)
        return
    try:
        text = bytes(data[8 : 8 + length]).decode()
    except ValueError:
        overwrite_bytes(data, random)
        return
    header = change_json(text, random).encode("utf-8", "surrogatepass")
    data[: 8 + length] = len(header).to_bytes(8, "little") + header


def change_gguf_content(data: bytearray, random: Random) -> None:
    """Change metadata or tensors; the structure of the file stays valid."""
    changed = edit(bytes(data), random)
    if changed is None:
        change_gguf_field(data, random)
    else:
        data[:] = changed


def change_safetensors_content(data: bytearray, random: Random) -> None:
    """Change a name, shape, type or value in a safetensors file; its structure stays valid."""
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
        overwrite_bytes(data, random)
        return
    text = json.dumps(header).encode()
    data[: 8 + length] = len(text).to_bytes(8, "little") + text


Mutation = Callable[[bytearray, Random], None]
GENERAL: tuple[Mutation, ...] = (overwrite_bytes, truncate, move_bytes, append_bytes)


def mutations_of(name: str) -> tuple[Mutation, ...]:
    """Return the mutations for a file name, frequent ones several times: mostly its content, often its structure."""
    if name.endswith(".gguf"):
        return (change_gguf_content,) * 12 + (change_gguf_field,) * 4 + GENERAL
    if name.endswith(".safetensors"):
        return (change_safetensors_content,) * 8 + (change_safetensors_header,) * 4 + GENERAL
    return ((change_json_file,) * 12 if name.endswith(".json") else (overwrite_bytes,) * 6) + GENERAL


def damage(files: dict[str, bytes], random: Random) -> dict[str, bytes]:
    """Damage one or two files, each by one mutation or several; return the damaged ones."""
    changed: dict[str, bytes] = {}
    for name in random.sample(sorted(files), k=min(len(files), random.choice((1, 1, 1, 2)))):
        data = bytearray(files[name])
        for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5))):
            random.choice(mutations_of(name))(data, random)
        changed[name] = bytes(data)
    return changed
