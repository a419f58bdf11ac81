"""Small GGUF files for the tests of the tools, sound ones and damaged ones."""

from pathlib import Path
from struct import pack
from typing import Any

import numpy as np

from sporelm.files.gguf import GgufWriter
from sporelm.quant import F16, Q4_K, Q8_0, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor

TEMPLATE = "{% for m in messages %}\n{{ m.content }}\n{% endfor %}"


def values_of(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(name: str, number_format: type[QuantFormat], values: np.ndarray) -> StoredTensor:
    return StoredTensor(name, number_format, values.shape, quantize_tensor(number_format, values).reshape(-1))


def sample(path: Path, *, more: dict[str, Any] | None = None, tensors: bool = True, **options: Any) -> Path:
    """Write a valid file of an unknown architecture: five tensors in four formats, metadata of every type."""
    writer = GgufWriter(path, **options)
    writer.add("general.architecture", "sample")
    writer.add("general.file_type", 15, "u32")
    writer.add("sample.block_count", 2, "u32")
    writer.add("sample.eps", 1e-5, "f32")
    writer.add("sample.flags", [True, False], "[bool]")
    writer.add("sample.nested", [[1, 2, 3], [4]], "[[i32]]")
    writer.add("tokenizer.ggml.model", "gpt2")
    writer.add("tokenizer.ggml.tokens", [f"t{i}" for i in range(32)], "[str]")
    writer.add("tokenizer.ggml.scores", np.arange(32, dtype=np.float32))
    writer.add("tokenizer.ggml.token_type", np.ones(32, np.int32))
    writer.add("tokenizer.ggml.eos_token_id", 3, "u32")
    writer.add("tokenizer.chat_template", TEMPLATE)
    for key, value in (more or {}).items():
        writer.add(key, value)
    if tensors:
        writer.add_tensor("token_embd.weight", stored("token_embd.weight", Q4_K, values_of((32, 256))))
        writer.add_tensor("blk.0.norm.weight", values_of((8,), 1))
        writer.add_tensor("blk.0.ffn.weight", stored("blk.0.ffn.weight", Q8_0, values_of((5, 64), 2)))
        writer.add_tensor("blk.1.norm.weight", values_of((8,), 3))
        writer.add_tensor("blk.1.ffn.weight", stored("blk.1.ffn.weight", F16, values_of((3, 7), 4)))
    writer.write()
    return path


def splits(folder: Path) -> list[Path]:
    """A model in two files of one tensor each."""
    paths = [folder / f"model-{number:05d}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(paths):
        writer = GgufWriter(path)
        if number == 0:
            writer.add("general.architecture", "sample")
        writer.add("split.no", number, "u16")
        writer.add("split.count", 2, "u16")
        writer.add("split.tensors.count", 2, "i32")
        writer.add_tensor(f"blk.{number}.norm.weight", values_of((8,), number))
        writer.write()
    return paths


def entry_position(data: bytes, name: str) -> int:
    """Where a tensor's rank is in a little-endian file: behind its name."""
    raw = name.encode()
    return data.index(pack("<Q", len(raw)) + raw) + 8 + len(raw)


def patch(path: Path, position: int, raw: bytes) -> Path:
    """Overwrite bytes of a file."""
    data = bytearray(path.read_bytes())
    data[position : position + len(raw)] = raw
    path.write_bytes(data)
    return path


def patch_entry(
    path: Path, name: str, *, dims: list[int] | None = None, type_id: int | None = None, offset: int | None = None
) -> Path:
    """Change what the header says of a tensor."""
    data = path.read_bytes()
    at = entry_position(data, name)
    rank = int.from_bytes(data[at : at + 4], "little")
    if dims is not None:
        patch(path, at + 4, pack(f"<{rank}Q", *dims))
    if type_id is not None:
        patch(path, at + 4 + 8 * rank, pack("<I", type_id))
    if offset is not None:
        patch(path, at + 8 + 8 * rank, pack("<Q", offset))
    return path
