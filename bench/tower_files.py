"""Writes mmproj files of random vision towers, for the measurements beside llama.cpp's libmtmd."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.checkpoints.loader import ModelSource, map_tensors
from sporelm.checkpoints.towers.open_tower import open_tower, tower_gguf_schema
from sporelm.files.gguf import GgufWriter
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_registry import build_tower
from sporelm.quant import F16, F32, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.vision.processor_registry import open_processor

Parameters = dict[str, NDArray[np.float32]]  # by name


def choose_format(name: str, shape: tuple[int, ...], wanted: type[QuantFormat]) -> type[QuantFormat]:
    """Return the format of a tensor in a file of this format: that of llama.cpp's converters, which leave vectors,
    positions and the queries of a resampler in F32, and kernels and rows of partial blocks in F16."""
    if len(shape) < 2 or "position_embd" in name or ".weight" not in name or wanted is F32:
        return F32
    return F16 if len(shape) > 2 or shape[-1] % wanted.values else wanted


def write_tower(
    path: Path,
    config: TowerConfig,
    values: Parameters,
    more: Mapping[str, MetadataEntry],
    number_format: type[QuantFormat],
) -> Path:
    """Write a tower from its parameters by name. `more` is metadata of the processor."""
    schema, params = tower_gguf_schema(config.model), build_tower(config).params()
    writer = GgufWriter(path)
    for key, (kind, value) in {**schema.metadata_from_config(config), **more}.items():
        writer.add(key, value, kind)
    tensors = schema.resolve(params, config).save(values) | schema.extra_tensors(config)
    for name, array in tensors.items():
        chosen = choose_format(name, array.shape, number_format)
        blocks = quantize_tensor(chosen, np.ascontiguousarray(array, np.float32))
        writer.add_tensor(name, StoredTensor(name, chosen, array.shape, blocks.reshape(-1).view(np.uint8)))
    writer.write()
    return path


def write_folder_tower(
    folder: Path, path: Path, number_format: type[QuantFormat], change: Callable[[Parameters], Parameters]
) -> Path:
    """Write the tower and the processor of a Hugging Face folder, after a change of the tower's parameters."""
    source = open_tower(folder)
    config = source.config
    assert isinstance(config, TowerConfig)
    metadata = open_processor(source, lambda text: True).to_metadata()
    write_tower(path, config, change(read_parameters(source)), metadata, number_format)
    source.close()
    return path


def read_parameters(source: ModelSource) -> Parameters:
    """Return a tower's parameters by name."""
    assert isinstance(source.config, TowerConfig)
    found = {}
    for each in map_tensors(source, build_tower(source.config).params()).tensors:
        (name,) = each.sources
        found[each.param.name] = each.load(source.files.tensor(name)).dequantize()
    return found
