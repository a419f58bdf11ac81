"""`spore gguf from-hf`: a Hugging Face folder as the GGUF file that llama.cpp's converter would make of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints import open_model as open_source
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.loader import ModelSource, check_shapes, map_tensors
from sporelm.checkpoints.multimodal_text import select_text_model
from sporelm.checkpoints.prompts import find_prompts_lost_in_gguf
from sporelm.checkpoints.quantized.folder import QuantizedFolder
from sporelm.checkpoints.quantized.groups import count_notes
from sporelm.checkpoints.rope_writing import rope_to_gguf
from sporelm.checkpoints.schema_registry import find_hf_schema, gguf_schema_for
from sporelm.checkpoints.tensor_mapping import TensorMapping
from sporelm.checkpoints.transforms import Divide, PermuteRotary
from sporelm.errors import ModelNotFound, UnsupportedModel, UsageError
from sporelm.files.gguf import GgufFile
from sporelm.files.json_object import read_object
from sporelm.models import build
from sporelm.models.config import MAX_VOCAB, ModelConfig
from sporelm.models.params import Param
from sporelm.models.rope_scaling import DynamicNtkScaling, LinearScaling
from sporelm.quant import F16, F32, FORMATS, QuantFormat, dequantize_tensor
from sporelm.text.tokenizers.conversion.tokenizer_to_gguf import convert_tokenizer_to_gguf
from sporelm.tools.hf.folder_tensors import FolderTensors
from sporelm.tools.hf.general_metadata import (
    find_model_name,
    format_size_label,
    read_card_metadata,
    read_sampling_metadata,
)
from sporelm.tools.hf.llama_cpp_support import llama_cpp_notes
from sporelm.tools.hf.missing_tensors import add_missing_tensors
from sporelm.tools.hf.tensor_layout import SHARED_TYPES, TensorConverter
from sporelm.tools.lazy_model import LazyModel, LazyTensor, MetadataEntry
from sporelm.tools.steps.cast_tensors import cast_tensor, set_file_type
from sporelm.tools.steps.permute_rows import ADJACENT, ORDER_KEY

TYPES = ("auto", "f32", "f16", "bf16", "q8_0")
GGUF_VERSION = 3
# In names of tensors that are F32 always.
ALWAYS_F32: tuple[str, ...] = (".ffn_gate_inp", ".ssm_conv1d", ".shortconv.conv.", ".time_mix_lerp", ".time_mix_first")
ALWAYS_F32 += ("_norm.", "position_embd", "token_types", "_coef.")


class GgufConversion(NamedTuple):
    """The model to write, and notes on what GGUF cannot express, a line each."""

    model: LazyModel
    notes: tuple[str, ...]


def from_hf(
    folder: Path, *, type_name: str = "auto", pre: str | None = None, vocab_only: bool = False
) -> GgufConversion:
    """A folder as a model to be written; no tensor is read yet.

    type_name     of the matrices: "auto" keeps floats as they are and makes F16 of what is quantized otherwise
    pre           a value for tokenizer.ggml.pre, given by the user
    vocab_only    the tokenizer alone

    Raises ModelNotFound, ModelFileError, UnsupportedModel for what cannot be converted, RequestError for a bad option.
    """
    if type_name not in TYPES:
        raise UsageError(f"--type {type_name[:40]!r}: not a supported type; use one of {', '.join(TYPES)}")
    if not folder.is_dir():
        raise ModelNotFound(f"{folder} is not a folder; give a Hugging Face folder with a config.json")
    if vocab_only:
        return _convert_vocabulary(folder, pre)
    values = read_object(folder / "config.json")
    source = open_source(folder)
    try:
        assert isinstance(source.schema, HfSchema)
        schema = gguf_schema_for(source.schema)
        config = source.config
        architecture = schema.name_for(config)
        params = build(config).params()
        mapping = match_params(source, params)
        found = convert_tokenizer_to_gguf(folder, config.vocab, pre)
        metadata = _general_metadata(folder, values, params, architecture)
        rope = rope_to_gguf(config, _count_positions(config), yarn_truncates=schema.yarn_truncates)
        metadata |= make_entries(rope.fields, f"{architecture}.")
        metadata |= _architecture_metadata(folder, schema, config)
        metadata |= make_entries(found.fields)
        metadata |= make_entries(schema.extra_metadata(config))
        assert not isinstance(source.files, GgufFile)
        folder_tensors = FolderTensors(source.files)
        stored = {name: folder_tensors.tensor(name) for each in mapping.tensors for name in each.sources}
        target = schema.resolve(params, config)
        tensors = TensorConverter(mapping, target, stored).tensors()
        in_metadata = [tensor for tensor in tensors if tensor.name in schema.metadata_tensors]
        metadata |= make_entries({tensor.name: ("[f32]", _read_numbers(tensor)) for tensor in in_metadata})
        metadata |= {ORDER_KEY: MetadataEntry("str", ADJACENT)} if target.has_permuted_rows else {}
        tensors = [tensor for tensor in tensors if tensor.name not in schema.metadata_tensors]
        tensors += [make_vector(name, factors) for name, factors in rope.tensors.items()]
        tensors = add_missing_tensors(tensors, schema.required_tensors(config))
        if any(isinstance(step, PermuteRotary) for each in target.tensors for step in each.transforms):
            metadata[ORDER_KEY] = MetadataEntry("str", ADJACENT)
        model = LazyModel(metadata, tensors, "little", GGUF_VERSION, tuple(source.files.paths))
        notes = [*source.notes, *_note_window(schema, config), *rope.notes, *found.notes]
        notes += find_prompts_lost_in_gguf(folder)
        notes += llama_cpp_notes(architecture, (tensor.name for tensor in model.tensors), rope.yarn_bounds)
        if config.is_headless:
            notes.append("it comes without the head that scores tokens: the file is for embeddings, not for generation")
        if type_name == "auto" and any(tensor.is_computed for tensor in model.tensors):
            notes.append("quantized weights that GGUF has no type for are written as F16; --type names another")
        if type_name == "auto" and _has_folded_multipliers(target):
            notes.append("its multipliers are put into the weights, which are written as F32; --type names another")
        changed: list[str] = []
        tensors = [choose_type(tensor, type_name, changed) for tensor in model.tensors]
        notes += count_notes(changed, "tensor")
    finally:
        if not isinstance(source.files, QuantizedFolder):  # whose weights are put together when they are written
            source.close()
    return GgufConversion(set_file_type(replace(model, tensors=tensors)), tuple(notes))


def _convert_vocabulary(folder: Path, pre: str | None) -> GgufConversion:
    """The tokenizer alone, as llama.cpp's vocabulary files have it."""
    path = folder / "config.json"
    values = read_object(path) if path.is_file() else {}
    vocab = ConfigValues(values, str(path)).integer("vocab_size", 1, MAX_VOCAB) if "vocab_size" in values else None
    try:
        architectures = select_text_model(values, str(path)).get("architectures")
        name = architectures[0] if isinstance(architectures, list) and architectures else ""
        architecture = gguf_schema_for(find_hf_schema(str(name))).names[0]
    except UnsupportedModel:  # a vocabulary says nothing about its model
        architecture = "llama"
    found = convert_tokenizer_to_gguf(folder, vocab, pre)
    metadata = {
        "general.architecture": MetadataEntry("str", architecture),
        "general.type": MetadataEntry("str", "vocab"),
        "general.name": MetadataEntry("str", find_model_name(values, folder)),
        **make_entries(found.fields),
    }
    return GgufConversion(LazyModel(metadata, [], "little", GGUF_VERSION), found.notes)


def _general_metadata(
    folder: Path, values: Mapping[str, Any], params: Sequence[Param], architecture: str
) -> dict[str, MetadataEntry]:
    generation = folder / "generation_config.json"
    return {
        "general.architecture": MetadataEntry("str", architecture),
        "general.type": MetadataEntry("str", "model"),
        "general.name": MetadataEntry("str", find_model_name(values, folder)),
        "general.size_label": MetadataEntry("str", format_size_label(sum(prod(param.shape) for param in params))),
        **make_entries(read_card_metadata(folder)),
        **make_entries(read_sampling_metadata(read_object(generation) if generation.is_file() else {})),
        "general.quantization_version": MetadataEntry("u32", 2),
    }


def _architecture_metadata(folder: Path, schema: GgufSchema, config: ModelConfig) -> dict[str, MetadataEntry]:
    if reason := schema.find_conversion_loss(config):
        reason += f", which a GGUF file of {schema.name_for(config)!r} cannot say"
        raise UnsupportedModel(f"{folder}: {reason}; run the folder as it is")
    return make_entries(schema.metadata_from_config(config))


def _note_window(schema: GgufSchema, config: ModelConfig) -> list[str]:
    """Return that llama.cpp reads no window for this architecture, if the model has one."""
    if schema.llama_cpp_has_window or config.window is None:
        return []
    return [f"llama.cpp leaves the sliding window aside: beyond {config.window} positions it computes something else"]


def _has_folded_multipliers(target: TensorMapping) -> bool:
    """Return whether GGUF files have multipliers of the configuration in their matrices; vectors are always F32."""
    matrices = [each for each in target.tensors if len(each.param.shape) > 1]
    return any(isinstance(step, Divide) and step.changes_values for each in matrices for step in each.transforms)


def make_entries(fields: Mapping[str, tuple[str, Any]], prefix: str = "") -> dict[str, MetadataEntry]:
    """Return metadata, given as kinds and values, with a prefix in front of its keys."""
    return {f"{prefix}{key}": MetadataEntry(kind, value) for key, (kind, value) in fields.items()}


def _count_positions(config: ModelConfig) -> int:
    """Return the number of positions that config.json gives, or its default."""
    scaling = config.rope_scaling
    usual = scaling.original if isinstance(scaling, LinearScaling | DynamicNtkScaling) else config.context_length
    return config.declared_positions or usual


def match_params(source: ModelSource, params: Sequence[Param]) -> TensorMapping:
    """Return the stored tensors of the parameters. Raises ModelFileError unless there are all, in their shapes."""
    mapping = map_tensors(source, params)
    check_shapes(source, mapping)
    return mapping


def make_vector(name: str, values: NDArray[np.float32]) -> LazyTensor:
    """A small F32 tensor that is there already."""
    blocks = np.frombuffer(values.tobytes(), np.uint8).reshape(-1, 4)
    return LazyTensor(name, F32.ggml_id, values.shape, lambda start, stop: blocks[start:stop])


def _read_numbers(tensor: LazyTensor) -> list[float]:
    """The values of a small tensor."""
    blocks = tensor.read(0, tensor.block_count)
    found: list[float] = dequantize_tensor(tensor.number_format, blocks, (tensor.size,)).tolist()
    return found


def choose_type(tensor: LazyTensor, type_name: str, changed: list[str]) -> LazyTensor:
    """The tensor in the type that it has in the file: vectors, norms, biases of experts, routers and taps F32, as
    llama.cpp wants them, matrices as asked for.

    Changes that the user did not request add a note to `changed`.
    """
    exact = any(part in tensor.name for part in ALWAYS_F32) or not tensor.name.endswith(".weight")
    if len(tensor.shape) < 2 or exact:
        return cast_to_format(tensor, F32)
    if type_name == "auto":
        if tensor.is_computed:  # values of a quantization that GGUF has no type for
            return cast_to_format(tensor, F16)
        if tensor.ggml_type.name in SHARED_TYPES or tensor.ggml_type.values > 1:
            return tensor
        changed.append(f"{tensor.ggml_type.name} is written as F32; --type names another")
        return cast_to_format(tensor, F32)
    target = FORMATS[type_name.upper()]
    if tensor.shape[-1] % target.values:
        changed.append(
            f"written as F16, because rows of {tensor.shape[-1]} values are not whole blocks of {target.name}"
        )
        target = F16
    return cast_to_format(tensor, target)


def cast_to_format(tensor: LazyTensor, target: type[QuantFormat]) -> LazyTensor:
    """The tensor in a number format; itself if it has it. Reading it raises RequestError for what it cannot hold."""
    return tensor if tensor.type_id == target.ggml_id else cast_tensor(tensor, target)
