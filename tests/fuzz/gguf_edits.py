"""GGUF files with a valid structure and invalid content, as a careless or hostile tool could write them.

A file is parsed, some of its metadata and tensors are changed, and it is written again with correct lengths, counts and
offsets. So the damage passes the reader of headers and reaches the code that uses the values.
"""

from dataclasses import dataclass
from math import prod
from random import Random
from struct import calcsize, pack, unpack_from
from typing import Any

from sporelm.quant.ggml_types import GGML_TYPES

LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
FLOATS = (0.0, -0.0, 1e-45, 1e30, -1.0, float("nan"), float("inf"), 0.5)
TEXTS = (
    *("", "a", "llama", "gpt2", "t5", "bert", "no_vocab", "../x", "x" * 3000, "\0", "\x1b[31m", "{{ 1/0 }}", "{% for"),
    *("\U0001f600", "▁", "<0x41>", "<0xZZ>", "a b", "default", "qwen2", "llama-bpe", "yarn", "linear"),
)
NAMES = (
    *("token_embd.weight", "output.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight"),
    *("blk.9999999.attn_q.weight", "blk.0.ffn_gate_exps.weight", "blk.0.attn_qkv.weight", "rope_freqs.weight", ""),
    *("\n", "x" * 60, "blk.-1.ffn_up.weight", "a.in_sum2", "a.counts", "größe"),
)
FILLS = (b"\0", b"\xff", b"\x7f", b"\x00\x7e", b"\x80\x7f\x00\x00", b"\x01\x00", b"\x00\xfc", b"\x55\xaa")


@dataclass
class Key:
    """One entry of the metadata: `kind` is the id of its type, `inner` the id of an array's element type."""

    name: bytes
    kind: int
    value: Any
    inner: int = 0


@dataclass
class Tensor:
    """One tensor; `dims` are innermost first, as in the file."""

    name: bytes
    type_id: int
    dims: list[int]
    data: bytes


class ParsedFile:
    """The metadata and tensors of a GGUF file. Nested arrays raise ValueError: few files have them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 4
        self.order = ">" if data[4:6] == b"\0\0" else "<"
        self.version = self.number("I")
        tensors, keys = self.number("Q"), self.number("Q")
        self.keys = [self.key() for _ in range(keys)]
        self.alignment = next((key.value for key in self.keys if key.name == b"general.alignment"), 32)
        infos = [self.info() for _ in range(tensors)]
        start = -(-self.position // self.alignment) * self.alignment
        self.tensors = []
        for name, dims, type_id, offset in infos:
            known = GGML_TYPES[type_id]
            nbytes = prod(dims) // known.values * known.nbytes
            self.tensors.append(Tensor(name, type_id, dims, data[start + offset : start + offset + nbytes]))

    def number(self, letter: str) -> Any:
        value = unpack_from(self.order + letter, self.data, self.position)[0]
        self.position += calcsize(self.order + letter)
        return value

    def string(self) -> bytes:
        length = self.number("Q")
        self.position += length
        return self.data[self.position - length : self.position]

    def key(self) -> Key:
        name, kind = self.string(), self.number("I")
        if kind != ARRAY:
            return Key(name, kind, self.string() if kind == STRING else self.number(LETTERS[kind]))
        inner, count = self.number("I"), self.number("Q")
        if inner == ARRAY:
            raise ValueError("nested arrays")
        return Key(
            name, kind, [self.string() if inner == STRING else self.number(LETTERS[inner]) for _ in range(count)], inner
        )

    def info(self) -> tuple[bytes, list[int], int, int]:
        name = self.string()
        dims = [self.number("Q") for _ in range(self.number("I"))]
        return name, dims, self.number("I"), self.number("Q")

    def to_bytes(self) -> bytes:
        """Write the file."""
        order, out = self.order, bytearray(b"GGUF")
        out += pack(order + "IQQ", self.version, len(self.tensors), len(self.keys))
        for key in self.keys:
            out += pack(order + "Q", len(key.name)) + key.name + pack(order + "I", key.kind)
            out += self._array(key) if key.kind == ARRAY else self._one(key.kind, key.value)
        align = next((key.value for key in self.keys if key.name == b"general.alignment" and key.kind == 4), 32)
        align = align if 0 < align < 4096 else 32
        place, body = 0, bytearray()
        for tensor in self.tensors:
            out += pack(order + "Q", len(tensor.name)) + tensor.name
            out += pack(order + f"I{len(tensor.dims)}QIQ", len(tensor.dims), *tensor.dims, tensor.type_id, place)
            body += tensor.data + b"\0" * (-len(tensor.data) % align)
            place = len(body)
        out += b"\0" * (-len(out) % align)
        return bytes(out + body)

    def _array(self, key: Key) -> bytes:
        head = pack(self.order + "IQ", key.inner, len(key.value))
        return head + b"".join(self._one(key.inner, value) for value in key.value)

    def _one(self, kind: int, value: Any) -> bytes:
        if kind == STRING:
            return pack(self.order + "Q", len(value)) + value
        letter = LETTERS[kind]
        if letter in "fd":
            return pack(self.order + letter, value)
        bits = 8 * calcsize("<" + letter)
        return pack(self.order + letter.upper(), int(value) % (1 << bits))


def edit(data: bytes, random: Random) -> bytes | None:
    """Change one to four entries of a valid file; None if it cannot be parsed or written."""
    try:
        parsed = ParsedFile(data)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            if parsed.tensors and random.random() < 0.5:
                edit_tensor(parsed, random)
            elif parsed.keys:
                edit_key(parsed, random)
        return parsed.to_bytes()
    except Exception:  # it was damaged before, or a number does not fit its type
        return None


def edit_key(parsed: ParsedFile, random: Random) -> None:
    """Change, remove, duplicate or rename one entry of the metadata."""
    place = random.randrange(len(parsed.keys))
    key = parsed.keys[place]
    how = random.choice(("value", "value", "value", "value", "kind", "out", "twice", "name"))
    if how == "out":
        del parsed.keys[place]
    elif how == "twice":
        parsed.keys.append(Key(key.name, key.kind, key.value, key.inner))
    elif how == "name":
        key.name = random.choice(
            (b"", b"a.b", b"general.alignment", random.choice(parsed.keys).name, key.name + b"\xff")
        )
    elif how == "kind":
        key.kind = random.choice((4, 5, 6, 7, 8, 10, 12))
        key.value = text(random) if key.kind == STRING else random.choice((0, 1, 7, -1))
    elif key.kind == ARRAY:
        edit_array(key, random)
    else:
        key.value = one_value(key.kind, key.value, random)


def edit_array(key: Key, random: Random) -> None:
    """Shorten or extend an array, or change its elements."""
    values, how = key.value, random.choice(("short", "long", "one", "one", "some", "empty", "same"))
    if how == "short":
        del values[random.randrange(len(values) + 1) :]
    elif how == "long":
        values += [one_value(key.inner, values[0] if values else 0, random) for _ in range(random.randint(1, 40))]
    elif how == "empty":
        values.clear()
    elif how == "same" and values:
        values[:] = [random.choice(values)] * len(values)
    else:
        for _ in range(1 if how == "one" else 5):
            if values:
                values[random.randrange(len(values))] = one_value(key.inner, values[0], random)


def one_value(kind: int, before: Any, random: Random) -> Any:
    if kind == STRING:
        return text(random)
    if LETTERS[kind] in "fd":
        return random.choice(FLOATS)
    near = int(before) if isinstance(before, int) else 0
    return random.choice((0, 1, 2, near + 1, near - 1, near * 2, -1, 127, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 62))


def text(random: Random) -> bytes:
    return random.choice((*(each.encode() for each in TEXTS), b"\xff\xfe", b"\xe2\x96"))


def edit_tensor(parsed: ParsedFile, random: Random) -> None:
    """Change, remove, duplicate or rename one tensor."""
    place = random.randrange(len(parsed.tensors))
    tensor, known = parsed.tensors[place], GGML_TYPES[parsed.tensors[place].type_id]
    how = random.choice(
        ("shape", "shape", "type", "type", "data", "data", "data", "name", "out", "twice", "order", "less")
    )
    if how == "out":
        del parsed.tensors[place]
    elif how == "twice":
        name = random.choice(NAMES).encode()
        parsed.tensors.append(Tensor(name, tensor.type_id, list(tensor.dims), tensor.data))
    elif how == "order":
        random.shuffle(parsed.tensors)
    elif how == "name":
        tensor.name = random.choice((*(name.encode() for name in NAMES), random.choice(parsed.tensors).name, b"\xff"))
    elif how == "data":
        fill_data(tensor, random)
    elif how == "less" and len(tensor.dims) > 1 and tensor.dims[-1] > 1:
        rows = random.randint(1, tensor.dims[-1] - 1)
        tensor.data = tensor.data[: len(tensor.data) // tensor.dims[-1] * rows]
        tensor.dims[-1] = rows
    elif how == "type":
        type_id = random.choice(sorted(GGML_TYPES))
        other = GGML_TYPES[type_id]
        tensor.dims[0] = max(1, tensor.dims[0] // other.values) * other.values if tensor.dims else 1
        tensor.type_id, nbytes = type_id, prod(tensor.dims) // other.values * other.nbytes
        tensor.data = (tensor.data * (nbytes // max(1, len(tensor.data)) + 1) + b"\0" * nbytes)[:nbytes]
    else:
        count = prod(tensor.dims)
        shapes = [
            tensor.dims,
            [count],
            [count, 1],
            [count, 1, 1, 1],
            tensor.dims[::-1],
            [known.values, count // known.values],
        ]
        tensor.dims = random.choice(
            [shape for shape in shapes if shape[0] % known.values == 0 and prod(shape) == count]
        )


def fill_data(tensor: Tensor, random: Random) -> None:
    """Fill the data, or one run of it, with bytes that make extreme values."""
    fill, size = random.choice(FILLS), len(tensor.data)
    start = 0 if random.random() < 0.4 else random.randrange(size + 1)
    length = size - start if random.random() < 0.5 else random.randint(0, min(64, size - start))
    tensor.data = tensor.data[:start] + (fill * (length // len(fill) + 1))[:length] + tensor.data[start + length :]
