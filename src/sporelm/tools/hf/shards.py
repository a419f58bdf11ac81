"""Safetensors files to be written: which tensor lies in which, their headers, and their bytes as a stream.

Layout: the safetensors specification (`weights.safetensors` reads it). Names and the index of several files: those of
huggingface_hub's save_torch_model; a tensor is never cut, and one larger than a file may be has one for itself.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sporelm.files.safetensors import INDEX_NAME, SINGLE_NAME
from sporelm.tools.lazy_model import LazyTensor
from sporelm.tools.output_file import read_chunks

HEADER_ALIGNMENT = 8  # of the data, by spaces behind the header
Advance = Callable[[int], object]


class Shard(NamedTuple):
    """One file and its tensors, in their order in it."""

    path: Path
    tensors: tuple[LazyTensor, ...]

    def header(self) -> bytes:
        """The length of the header, and the header."""
        entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for tensor in self.tensors:
            entries[tensor.name] = {
                "dtype": tensor.ggml_type.name,
                "shape": list(tensor.shape),
                "data_offsets": [offset, offset + tensor.nbytes],
            }
            offset += tensor.nbytes
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % HEADER_ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    @property
    def nbytes(self) -> int:
        return len(self.header()) + sum(tensor.nbytes for tensor in self.tensors)

    def write(self, file: BinaryIO, pool: ThreadPoolExecutor, ahead: int, advance: Advance) -> None:
        """Header and data into an empty file that is open; `advance` is told of the bytes of data."""
        file.write(self.header())
        for tensor in self.tensors:
            for chunk in read_chunks(tensor, "little", pool, ahead):
                data = chunk.reshape(-1).data
                file.write(data)
                advance(len(data))


def plan_shards(tensors: Sequence[LazyTensor], folder: Path, max_bytes: int) -> list[Shard]:
    """Distribute tensors to files of at most `max_bytes` bytes of tensors."""
    groups: list[list[LazyTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if groups[-1] and size + tensor.nbytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.nbytes
    if len(groups) == 1:
        return [Shard(folder / SINGLE_NAME, tuple(groups[0]))]
    stem, _, suffix = SINGLE_NAME.partition(".")
    return [
        Shard(folder / f"{stem}-{number:05d}-of-{len(groups):05d}.{suffix}", tuple(group))
        for number, group in enumerate(groups, 1)
    ]


def build_index(shards: Sequence[Shard]) -> tuple[str, str] | None:
    """Return name and contents of the index; None for a single file."""
    if len(shards) == 1:
        return None
    total = sum(tensor.nbytes for shard in shards for tensor in shard.tensors)
    names = {tensor.name: shard.path.name for shard in shards for tensor in shard.tensors}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
    return INDEX_NAME, json.dumps(index, indent=2) + "\n"


def text_writer(text: str) -> Callable[[BinaryIO], object]:
    """Return a function that writes a text as UTF-8."""
    return partial(_write_text, text)


def _write_text(text: str, file: BinaryIO) -> None:
    file.write(text.encode())
