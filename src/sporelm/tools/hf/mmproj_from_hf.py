"""`spore gguf from-hf --mmproj`: the vision tower of a Hugging Face folder as the mmproj file of llama.cpp's converter.

Types of tensors: llama.cpp's conversion/base.py (class MmprojModel) and gemma.py (Gemma3VisionModel).
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from typing import Any

from sporelm.checkpoints.quantized.folder import QuantizedFolder
from sporelm.checkpoints.quantized.groups import count_notes
from sporelm.checkpoints.towers.open_tower import open_tower, tower_gguf_schema
from sporelm.errors import ModelNotFound, UsageError
from sporelm.files.gguf import GgufFile
from sporelm.files.json_object import read_object
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_registry import build_tower
from sporelm.quant import F16, F32
from sporelm.tools.hf.folder_tensors import FolderTensors
from sporelm.tools.hf.from_hf import (
    GGUF_VERSION,
    TYPES,
    GgufConversion,
    cast_to_format,
    choose_type,
    make_entries,
    make_vector,
    match_params,
)
from sporelm.tools.hf.general_metadata import find_model_name, format_size_label, read_card_metadata
from sporelm.tools.hf.tensor_layout import TensorConverter
from sporelm.tools.lazy_model import LazyModel, LazyTensor, MetadataEntry
from sporelm.tools.quantize_tower import is_transposed
from sporelm.tools.steps.cast_tensors import set_file_type
from sporelm.vision.image_processor import ImageProcessor
from sporelm.vision.processor_registry import open_processor, processor_from_metadata

PATCH_KERNELS = (".patch_embd.weight", ".patch_merger.weight")


def mmproj_from_hf(folder: Path, *, type_name: str = "auto") -> GgufConversion:
    """Return the vision tower of a folder as an mmproj file to be written; no tensor is read yet.

    type_name   of the matrices: "auto" keeps floats as they are and makes F16 of what is quantized otherwise. Norms,
                biases and positions are F32, kernels of patches F16 in a file of F16, else F32

    Raises ModelNotFound, ModelFileError; UnsupportedModel for a folder without a supported tower, and for a tower or a
    processor that an mmproj file cannot express; UsageError for another type.
    """
    if type_name not in TYPES:
        raise UsageError(f"--type {type_name[:40]!r}: not a supported type; use one of {', '.join(TYPES)}")
    if not folder.is_dir():
        raise ModelNotFound(f"{folder} is not a folder; give a Hugging Face folder with a config.json")
    source = open_tower(folder)
    try:
        config = source.config
        assert isinstance(config, TowerConfig)
        assert not isinstance(source.files, GgufFile)
        schema = tower_gguf_schema(config.model)
        params = build_tower(config).params()
        mapping = match_params(source, params)
        processor = open_processor(source, lambda text: True)
        metadata = {
            **_general_metadata(folder, sum(prod(param.shape) for param in params)),
            **make_entries(schema.metadata_from_config(config)),
            **make_entries(processor.to_metadata()),
        }
        folder_tensors = FolderTensors(source.files)
        stored = {name: folder_tensors.tensor(name) for each in mapping.tensors for name in each.sources}
        tensors = TensorConverter(mapping, schema.resolve(params, config), stored).tensors()
        tensors += [make_vector(name, values) for name, values in schema.extra_tensors(config).items()]
        notes = list(source.files.notes) if isinstance(source.files, QuantizedFolder) else []
        notes += _note_lost_settings(processor, {key: entry.value for key, entry in metadata.items()}, config)
        changed: list[str] = []
        tensors = [_choose_type(tensor, type_name, changed) for tensor in tensors]
        notes += count_notes(changed, "tensor")
        model = LazyModel(metadata, tensors, "little", GGUF_VERSION, tuple(source.files.paths))
    finally:
        if not isinstance(source.files, QuantizedFolder):  # whose weights are put together when they are written
            source.close()
    return GgufConversion(set_file_type(replace(model, tensors=tensors)), tuple(notes))


def _general_metadata(folder: Path, num_values: int) -> Mapping[str, MetadataEntry]:
    values: Mapping[str, Any] = read_object(folder / "config.json")
    return {
        "general.architecture": MetadataEntry("str", "clip"),
        "general.type": MetadataEntry("str", "mmproj"),
        "general.name": MetadataEntry("str", find_model_name(values, folder)),
        "general.size_label": MetadataEntry("str", format_size_label(num_values)),
        **make_entries(read_card_metadata(folder)),
        "general.quantization_version": MetadataEntry("u32", 2),
    }


def _note_lost_settings(processor: ImageProcessor, metadata: Mapping[str, Any], config: TowerConfig) -> list[str]:
    """Return a note on the settings of an image processor that the file does not hold, if any are unusual."""
    settings = getattr(processor, "settings", None)
    stored = getattr(processor_from_metadata(metadata, config), "settings", None)
    if settings is None or settings == stored:
        return []
    lost = [each.name for each in fields(settings) if getattr(settings, each.name) != getattr(stored, each.name)]
    return [f"the image processor's {', '.join(lost)} have no keys: the file's pictures are prepared differently"]


def _choose_type(tensor: LazyTensor, type_name: str, changed: list[str]) -> LazyTensor:
    """Return the tensor in the type that it has in the file."""
    is_kernel = any(name in tensor.name for name in PATCH_KERNELS)
    if is_kernel or (is_transposed(tensor.name) and type_name not in ("auto", "f32")):
        is_half = not is_kernel or type_name == "f16" or (type_name == "auto" and tensor.type_id == F16.ggml_id)
        return cast_to_format(tensor, F16 if is_half else F32)
    return choose_type(tensor, type_name, changed)
