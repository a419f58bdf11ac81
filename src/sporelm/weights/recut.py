"""Tensors that a folder holds cut at other rows than the model's weights."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sporelm.weights.safetensors import SafetensorInfo, SafetensorsFiles, with_blocks


class RowCut(NamedTuple):
    """Tensors that together are one, by name, and how many rows of it each weight has."""

    names: Sequence[str]
    rows: Sequence[int]


def recut(files: SafetensorsFiles, cuts: Iterable[RowCut]) -> SafetensorsFiles:
    """Return the files with the rows of each cut's tensors where its weights have them.

    Tensors whose rows are as wanted already, and those that do not add up to the weights, stay as they are.
    """
    found: dict[str, tuple[SafetensorInfo, np.ndarray]] = {}
    for names, rows in cuts:
        held = [files.tensors.get(name) for name in names]
        infos = [info for info in held if info is not None and info.shape]
        counts = [info.shape[0] for info in infos]
        alike = len({(info.type_name, info.shape[1:]) for info in infos}) == 1
        if len(infos) < len(names) or not alike or counts == list(rows) or sum(counts) != sum(rows):
            continue
        whole = np.concatenate([files.raw(name).reshape(count, -1) for name, count in zip(names, counts, strict=True)])
        parts = np.split(whole, np.cumsum(rows)[:-1])
        for info, part in zip(infos, parts, strict=True):
            shape = (len(part), *info.shape[1:])
            found[info.name] = info._replace(shape=shape, nbytes=part.size), np.ascontiguousarray(part)
    return with_blocks(files, found.values()) if found else files
