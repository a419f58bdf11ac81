"""Tiles of pictures as inputs of vision towers, and GGUF files of any metadata and tensors, for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.models.tower_inputs import ImageInput
from sporelm.vision.image_processor import cut_patches


def tiles_as_image(pixels: np.ndarray, patch: int, num_rows: int) -> ImageInput:
    """Return tiles [tiles, 3, height, width] as one picture."""
    grid = (1, pixels.shape[2] // patch, pixels.shape[3] // patch)
    return ImageInput(np.concatenate([cut_patches(tile, patch) for tile in pixels]), (grid,) * len(pixels), num_rows)


def write_gguf_tensors(path: Path, metadata: Mapping[str, tuple[str, Any]], tensors: Mapping[str, np.ndarray]) -> Path:
    """Write a GGUF file with metadata of given types and float32 tensors."""
    writer = GgufWriter(path)
    for key, (kind, value) in metadata.items():
        writer.add(key, value, kind)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write()
    return path


def copy_without(path: Path, source: Path, missing: str) -> Path:
    """Write a GGUF file without one of its tensors."""
    file = open_gguf(source)
    tensors = {name: file.tensor(name).dequantize() for name in file.tensors if name != missing}
    assert len(tensors) == len(file.tensors) - 1
    copied = write_gguf_tensors(path, {key: (file.kinds[key], value) for key, value in file.metadata.items()}, tensors)
    file.close()
    return copied
