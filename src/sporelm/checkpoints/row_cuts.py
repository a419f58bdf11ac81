"""Tensors that a checkpoint splits at other rows than the model's parameters."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sporelm.files.safetensors import SafetensorInfo, SafetensorsFiles, with_blocks


class RowCut(NamedTuple):
    """Names of tensors that form one matrix together, and the number of its rows in each parameter."""

    names: Sequence[str]
    rows: Sequence[int]


def recut_rows(files: SafetensorsFiles, cuts: Iterable[RowCut]) -> SafetensorsFiles:
    """Return the files with each cut's tensors concatenated and split again at its parameters' rows.

    Tensors that are already split there, or whose rows do not add up to the parameters', stay as they are.
    """
    found: dict[str, tuple[SafetensorInfo, np.ndarray]] = {}
    for names, rows in cuts:
        stored = [files.tensors.get(name) for name in names]
        infos = [info for info in stored if info is not None and info.shape]
        counts = [info.shape[0] for info in infos]
        is_uniform = len({(info.type_name, info.shape[1:]) for info in infos}) == 1
        if len(infos) < len(names) or not is_uniform or counts == list(rows) or sum(counts) != sum(rows):
            continue
        whole = np.concatenate([files.raw(name).reshape(count, -1) for name, count in zip(names, counts, strict=True)])
        parts = np.split(whole, np.cumsum(rows)[:-1])
        for info, part in zip(infos, parts, strict=True):
            shape = (len(part), *info.shape[1:])
            found[info.name] = info._replace(shape=shape, nbytes=part.size), np.ascontiguousarray(part)
    return with_blocks(files, found.values()) if found else files
