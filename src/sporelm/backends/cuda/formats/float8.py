"""Plane formats of 8-bit floats: value = number * scale, in groups of 32, 64 or 128, or the number itself."""

from typing import Any

import torch
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    plain_steps,
    read_singles,
    unit_steps,
)

GROUPS = (32, 64, 128)


def group_formats(level: Any) -> dict[int, PlaneFormat]:
    """Return the format of each group size, with one scale for a group; `level` reads the numbers."""
    return {
        size: PlaneFormat(
            bits=8,
            group=size,
            unpack=_unpack,
            level=level,
            steps=plain_steps,
            is_lifted=False,
            scale_type=torch.float32,
        )
        for size in GROUPS
    }


def plain_format(level: Any) -> PlaneFormat:
    """Return the format without scales."""
    return PlaneFormat(
        bits=8, group=64, unpack=UnpackedBlocks, level=level, steps=unit_steps, is_lifted=False, scale_type=None
    )


def _unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(blocks[:, 4:], read_singles(blocks, 0))
