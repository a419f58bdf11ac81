"""Cutting a model into several files, as llama.cpp's gguf-split does: same cuts, names, keys and bytes.

Source: tools/gguf-split in llama.cpp. The first file has all metadata, each one the three `split.*` keys; sizes count
the tensors' data, padded to 32 bytes, and not the headers.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sporelm.errors import RequestError, UsageError
from sporelm.files.gguf.gguf_limits import ALIGNMENT_KEY, DEFAULT_ALIGNMENT
from sporelm.files.gguf.splits import COUNT_KEY, MAX_SPLITS, NUMBER_KEY, TENSORS_KEY, split_path
from sporelm.tools.lazy_model import LazyModel, LazyTensor, MetadataEntry
from sporelm.tools.output_file import OutputFile

Cut = Callable[[Sequence[LazyTensor]], list[list[LazyTensor]]]

DEFAULT_MAX_TENSORS = 128
_SIZE_PATTERN = re.compile(r"(?P<number>[0-9]{1,15})(?P<unit>|[KMGT]i?)B?")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_STEM_PATTERN = re.compile(r"(.+?)(?:-[0-9]{5}-of-[0-9]{5})?(?:\.gguf)?", re.DOTALL | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of "500M", "2G" (powers of 1000, as llama.cpp has them), "2Gi" (of 1024) or "123". Raises UsageError."""
    found = _SIZE_PATTERN.fullmatch(text)
    size = 0
    if found is not None:
        size = int(found["number"]) * (1024 if "i" in found["unit"] else 1000) ** _POWERS[found["unit"].rstrip("i")]
    if size < 1:
        raise UsageError(f"size {text[:40]!r} must be a whole number from 1 with K, M, G, Ki, Mi, Gi or nothing behind")
    return size


def strip_split_suffix(path: Path) -> str:
    """A file's name without ".gguf" and without the numbers of a split."""
    found = _STEM_PATTERN.fullmatch(path.name)
    return found[1] if found else path.name


def choose_cut(max_tensors: int | None, max_size: str | None, *, prefix: str = "--") -> Cut | None:
    """Return how to group tensors by the two limits of the command line, None without a limit.

    `prefix` is that of the options, for errors. Raises UsageError for an invalid limit, or for both.
    """
    if max_tensors is not None and max_size is not None:
        raise UsageError(f"{prefix}max-size and {prefix}max-tensors exclude each other; give one")
    if max_size is not None:
        return partial(group_by_size, maximum=parse_size(max_size))
    if max_tensors is None:
        return None
    cut = partial(group_by_count, maximum=max_tensors, option=f"{prefix}max-tensors")
    cut([])  # checks the number before any file is opened
    return cut


def group_by_count(
    tensors: Sequence[LazyTensor], maximum: int, *, option: str = "--max-tensors"
) -> list[list[LazyTensor]]:
    """Group at most `maximum` tensors each. Raises UsageError if that is less than 1."""
    if maximum < 1:
        raise UsageError(f"{option} is {maximum}: it must be at least 1")
    return [list(tensors[start : start + maximum]) for start in range(0, len(tensors), maximum)]


def group_by_size(tensors: Sequence[LazyTensor], maximum: int) -> list[list[LazyTensor]]:
    """Group at most `maximum` bytes each; a larger tensor gets a file of its own."""
    groups: list[list[LazyTensor]] = []
    size = 0
    for tensor in tensors:
        nbytes = -(-tensor.nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
        if not groups or size + nbytes > maximum:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += nbytes
    return groups


def split_model(
    model: LazyModel,
    prefix: Path,
    cut: Cut,
    *,
    no_tensor_first: bool = False,
) -> list[OutputFile]:
    """The files PREFIX-00001-of-0000N.gguf that together are the model; `no_tensor_first` leaves the first without
    tensors. Raises RequestError if there would be more files than the format can count."""
    groups = cut(model.tensors) or [[]]
    if no_tensor_first:
        groups.insert(0, [])
    count = len(groups)
    if count > MAX_SPLITS:
        raise RequestError(
            f"the model would be split into {count} files, the limit is {MAX_SPLITS}; allow larger files"
        )
    outputs = []
    for number, tensors in enumerate(groups):
        metadata = dict(model.metadata) if number == 0 else _alignment_metadata(model)
        metadata |= {  # in the order in which llama.cpp leaves them
            NUMBER_KEY: MetadataEntry("u16", number),
            TENSORS_KEY: MetadataEntry("i32", len(model.tensors)),
            COUNT_KEY: MetadataEntry("u16", count),
        }
        path = split_path(prefix.parent, prefix.name, number, count)
        outputs.append(OutputFile(path, replace(model, metadata=metadata, tensors=tensors)))
    return outputs


def split_above_limit(
    model: LazyModel, path: Path, cut: Cut | None, *, no_tensor_first: bool = False
) -> list[OutputFile]:
    """Return the model as one file `path`, or as several where it exceeds the limit, as llama.cpp's converter does.

    Without a limit, `no_tensor_first` makes two files: the metadata, and all tensors. Raises as `split_model`.
    """
    groups = cut(model.tensors) if cut is not None else [list(model.tensors)]
    if not model.tensors or (len(groups) == 1 and not no_tensor_first):
        return [OutputFile(path, model)]
    prefix = path.with_name(strip_split_suffix(path))
    return split_model(model, prefix, lambda tensors: groups, no_tensor_first=no_tensor_first)


def _alignment_metadata(model: LazyModel) -> dict[str, MetadataEntry]:
    """The alignment, which each file tells for itself, where it is not the usual one."""
    entry = model.metadata.get(ALIGNMENT_KEY)
    return {} if entry is None or entry.value == DEFAULT_ALIGNMENT else {ALIGNMENT_KEY: entry}
