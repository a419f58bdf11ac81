"""Towers in tests: opened, run on pictures, and written as mmproj files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.backends.backend_registry import open_backend
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.checkpoints.loader import ModelSource, load_parameters, map_tensors
from sporelm.checkpoints.towers.open_tower import open_tower, tower_gguf_schema
from sporelm.engine.tower_runner import TowerRunner
from sporelm.files.gguf import GgufWriter
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import build_tower


def open_tower_config(path: Path) -> TowerConfig:
    source = open_tower(path)
    source.close()
    assert isinstance(source.config, TowerConfig)
    return source.config


def compute_rows(
    path: Path, images: Iterable[ImageInput], backend: str = "reference", *, eager: bool = True, piece: int = 0
) -> np.ndarray:
    """The rows of pictures, by the tower in a folder or file: float32 [rows, columns]. With `piece`, that many rows of
    a stage at a time."""
    source = open_tower(path)
    assert isinstance(source.config, TowerConfig)
    tower, device = build_tower(source.config), open_backend(backend)
    weights = load_parameters(source, tower.params(), device)
    weights |= {name: device.tensor(table) for name, table in tower.tables().items()}
    runner = TowerRunner(tower, weights, device, eager=eager)
    if piece:
        runner.max_piece_rows = runner.piece_rows = piece
    found = [runner.compute(image) for image in images]
    runner.close()
    source.close()
    return np.concatenate(found)


def write_mmproj(folder: Path, path: Path, more: Mapping[str, MetadataEntry]) -> Path:
    """Write the tower of a folder as an mmproj file, by its schema. `more` is metadata of the processor."""
    source = open_tower(folder)
    assert isinstance(source.config, TowerConfig)
    schema, params = tower_gguf_schema(source.config.model), build_tower(source.config).params()
    writer = GgufWriter(path)
    for key, (kind, value) in {**schema.metadata_from_config(source.config), **more}.items():
        writer.add(key, value, kind)
    for name, values in schema.resolve(params, source.config).save(read_parameters(source)).items():
        writer.add_tensor(name, values)
    for name, values in schema.extra_tensors(source.config).items():
        writer.add_tensor(name, values)
    writer.write()
    source.close()
    return path


def read_parameters(source: ModelSource) -> dict[str, np.ndarray]:
    """The values of a tower's parameters, by name."""
    assert isinstance(source.config, TowerConfig)
    mapping = map_tensors(source, build_tower(source.config).params())
    found: dict[str, Any] = {}
    for each in mapping.tensors:
        (name,) = each.sources
        found[each.param.name] = each.load(source.files.tensor(name)).dequantize()
    return found
