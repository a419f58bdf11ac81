"""Steps padded to buckets as in ADR 0045: sequences of one row first, then blocks of a fixed number of rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from conformance.tiny_decoder import TABLE
from sporelm.ops import Spec, Symbol
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import I32

Arrays = dict[str, np.ndarray]


def padded_specs(columns: int = TABLE, tokens: int = 512, sequences: int = 64) -> dict[str, Spec]:
    """Return the inputs of the tiny decoder, with `columns` of page tables."""
    token, sequence = Symbol("tokens", tokens), Symbol("sequences", sequences)
    shapes: dict[str, tuple[Any, ...]] = dict.fromkeys(("ids", "positions", "slots"), (token,))
    shapes |= {"starts": (Symbol("starts", sequences + 1),), "lengths": (sequence,), "pages": (sequence, columns)}
    return {name: Spec(shape, I32) for name, shape in (shapes | {"rows": (Symbol("rows", tokens),)}).items()}


def next_bucket(buckets: Sequence[int], number: int) -> int:
    return next(bucket for bucket in buckets if bucket >= number)


def empty_step(decodes: int, blocks: int, block: int, columns: int, outputs: int, dump_page: int) -> Arrays:
    """Return a step that has only padding."""
    tokens, sequences = decodes + blocks * block, decodes + blocks
    return {
        "ids": np.zeros(tokens, np.int32),
        "positions": np.zeros(tokens, np.int32),
        "slots": np.full(tokens, dump_page * PAGE, np.int32),
        "starts": np.arange(sequences + 1, dtype=np.int32),
        "lengths": np.ones(sequences, np.int32),
        "pages": np.full((sequences, columns), dump_page, np.int32),
        "rows": np.zeros(outputs, np.int32),
    }


def pad_step(
    exact: Arrays, block: int, decodes: Sequence[int], blocks: Sequence[int], columns: int, dump_page: int
) -> tuple[Arrays, np.ndarray]:
    """Return a step padded to buckets, and the padded row of each row of the exact one."""
    starts, lengths = exact["starts"], exact["lengths"]
    counts = np.diff(starts)
    single = np.flatnonzero(counts == 1)
    pieces = [
        (sequence, first, min(block, int(counts[sequence]) - first))
        for sequence in np.flatnonzero(counts > 1)
        for first in range(0, int(counts[sequence]), block)
    ]
    num_decodes, num_blocks = next_bucket(decodes, len(single)), next_bucket(blocks, len(pieces))
    padded = empty_step(num_decodes, num_blocks, block, columns, len(exact["rows"]) + 2, dump_page)
    places = np.zeros(int(starts[-1]), np.int64)
    real = np.ones(num_decodes + num_blocks, np.int32)
    width = exact["pages"].shape[1]
    for index, sequence in enumerate(single):
        places[starts[sequence]] = index
        padded["lengths"][index] = lengths[sequence]
        padded["pages"][index, :width] = exact["pages"][sequence]
    for number, (sequence, first, count) in enumerate(pieces):
        index = num_decodes + number
        rows = np.arange(starts[sequence] + first, starts[sequence] + first + count)
        places[rows] = num_decodes + number * block + np.arange(count)
        padded["lengths"][index] = lengths[sequence] - counts[sequence] + first + count
        padded["pages"][index, :width] = exact["pages"][sequence]
        real[index] = count
    padded["starts"][1:] = np.cumsum(real)
    for name in ("ids", "positions", "slots"):
        padded[name][places] = exact[name]
    padded["rows"][: len(exact["rows"])] = places[exact["rows"]]
    return padded, places
