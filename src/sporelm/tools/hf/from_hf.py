"""`spore gguf from-hf`: a Hugging Face folder as the GGUF file that llama.cpp's converter would make of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelNotFound, UnsupportedModel, UsageError
from sporelm.models import build, model_of
from sporelm.models import open_model as open_source
from sporelm.models.wrapped import text_values
from sporelm.quant import F16, F32, FORMATS, QuantFormat, dequantize_tensor
from sporelm.text.exchange.gguf_fields import fields_of_folder
from sporelm.tools.hf.filled import filled
from sporelm.tools.hf.folder_tensors import FolderTensors
from sporelm.tools.hf.general import card_fields, name_of, sampling_fields, size_label
from sporelm.tools.hf.llama_cpp import llama_cpp_notes
from sporelm.tools.hf.reshaped import KEPT, Reshaper
from sporelm.tools.hf.rope import gguf_rope
from sporelm.tools.lazy import Entry, LazyTensor, Model
from sporelm.tools.steps.cast import cast_tensor, with_file_type
from sporelm.tools.steps.permute import permute_qk
from sporelm.weights.config import MOST_VOCAB, ModelConfig
from sporelm.weights.config_files import WINDOWED_LAYERS
from sporelm.weights.dense import sayable
from sporelm.weights.family import Family, value_of
from sporelm.weights.fields import Fields
from sporelm.weights.gguf import GgufFile
from sporelm.weights.json_object import read_object
from sporelm.weights.load import ModelSource, check_shapes, form_of, match_names
from sporelm.weights.names import GGUF, Param, stored_form
from sporelm.weights.pooling import GGUF_POOLINGS
from sporelm.weights.prompts import lost_in_gguf
from sporelm.weights.quantized.folder import QuantizedFolder
from sporelm.weights.quantized.groups import repeated
from sporelm.weights.rope_fields import MOST_CONTEXT
from sporelm.weights.rope_scaling import DynamicNtk, Linear

TYPES = ("auto", "f32", "f16", "bf16", "q8_0")
VERSION = 3
# In names of tensors that are F32 always.
EXACT: tuple[str, ...] = (".ffn_gate_inp", ".ssm_conv1d", ".shortconv.conv.", ".time_mix_lerp", ".time_mix_first")
EXACT += ("_norm.", "position_embd", "token_types", "_coef.")


class Converted(NamedTuple):
    """What is to be written, and what could not be said in it, a line each."""

    model: Model
    notes: tuple[str, ...]


def from_hf(folder: Path, *, type_name: str = "auto", pre: str | None = None, vocab_only: bool = False) -> Converted:
    """A folder as a model to be written; no tensor is read yet.

    type_name     of the matrices: "auto" keeps floats as they are and makes F16 of what is quantized otherwise
    pre           a value for tokenizer.ggml.pre that the user vouches for
    vocab_only    the tokenizer alone

    Raises ModelNotFound, ModelFileError, UnsupportedModel for what cannot be converted, RequestError for a bad option.
    """
    if type_name not in TYPES:
        raise UsageError(f"--type {type_name[:40]!r}: it is one of {', '.join(TYPES)}")
    if not folder.is_dir():
        raise ModelNotFound(f"{folder} is no folder; give a Hugging Face folder, one with a config.json")
    if vocab_only:
        return _vocabulary(folder, pre)
    values = read_object(folder / "config.json")
    source = open_source(folder)
    try:
        family = source.family.written(source.config)
        params = build(source.config).params()
        names = matched(source, params)
        found = fields_of_folder(folder, source.config.vocab, pre)
        metadata = _general(folder, values, params, family)
        positions = _positions(source.config, family, values, folder)
        rope = gguf_rope(source.config, positions, truncates=family.yarn_truncates)
        metadata |= _entries(rope.fields, f"{family.gguf}.") | _architecture(folder, family, source.config)
        metadata |= _entries(found.fields)
        metadata |= _entries(family.said(source.config)) if family.said else {}
        assert not isinstance(source.files, GgufFile)
        stored = FolderTensors(source.files)
        every = [*names.values(), *(name for param in params for name in form_of(source, param.name).tensors(param))]
        held = {name: stored.tensor(name) for name in every if name in source.files.tensors}
        made = Reshaper(family, source.config, "hf", "gguf", names, held).tensors(params)
        metadata |= _entries(
            {tensor.name: ("[f32]", _numbers(tensor)) for tensor in made if tensor.name in family.listed}
        )
        made = [tensor for tensor in made if tensor.name not in family.listed]
        made += [vector(name, values) for name, values in rope.tensors.items()]
        made = filled(made, family.wanted(source.config)) if family.wanted else made
        model = Model(metadata, made, "little", VERSION, tuple(source.files.paths))
        model = permute_qk("")(model) if family.paired_rows else model
        notes = [*source.notes, *_window_note(family, source.config), *rope.notes, *found.notes]
        notes += lost_in_gguf(folder)
        notes += llama_cpp_notes(family.gguf, (tensor.name for tensor in model.tensors), rope.yarn_bounds)
        if source.config.alone:
            notes.append("it comes without the head that scores tokens: the file is for embeddings, not for generation")
        if type_name == "auto" and any(tensor.work for tensor in model.tensors):
            notes.append("quantized weights that GGUF has no type for are written as F16; --type names another")
        if type_name == "auto" and _is_multiplied(family, source.config, params):
            notes.append("its multipliers are put into the weights, which are written as F32; --type names another")
        changed: list[str] = []
        tensors = [_typed(tensor, type_name, changed) for tensor in model.tensors]
        notes += repeated(changed, "tensor")
    finally:
        if not isinstance(source.files, QuantizedFolder):  # whose weights are put together when they are written
            source.close()
    return Converted(with_file_type(replace(model, tensors=tensors)), tuple(notes))


def _vocabulary(folder: Path, pre: str | None) -> Converted:
    """The tokenizer alone, as llama.cpp's vocabulary files have it."""
    path = folder / "config.json"
    values = read_object(path) if path.is_file() else {}
    vocab = Fields(values, str(path)).integer("vocab_size", 1, MOST_VOCAB) if "vocab_size" in values else None
    try:
        architectures = text_values(values, str(path)).get("architectures")
        name = architectures[0] if isinstance(architectures, list) and architectures else ""
        architecture = model_of(str(name)).family.gguf
    except UnsupportedModel:  # a vocabulary says nothing about its model
        architecture = "llama"
    found = fields_of_folder(folder, vocab, pre)
    metadata = {
        "general.architecture": Entry("str", architecture),
        "general.type": Entry("str", "vocab"),
        "general.name": Entry("str", name_of(values, folder)),
        **_entries(found.fields),
    }
    return Converted(Model(metadata, [], "little", VERSION), found.notes)


def _general(folder: Path, values: Mapping[str, Any], params: Sequence[Param], family: Family) -> dict[str, Entry]:
    generation = folder / "generation_config.json"
    return {
        "general.architecture": Entry("str", family.gguf),
        "general.type": Entry("str", "model"),
        "general.name": Entry("str", name_of(values, folder)),
        "general.size_label": Entry("str", size_label(sum(prod(param.shape) for param in params))),
        **_entries(card_fields(folder)),
        **_entries(sampling_fields(read_object(generation) if generation.is_file() else {})),
        "general.quantization_version": Entry("u32", 2),
    }


def _unsaid(family: Family, config: ModelConfig) -> str:
    """What a GGUF file of a family cannot say of a configuration; nothing where it can say all."""
    if config.dense and not (family.dense and sayable(config.dense, config.width)):
        return "its vectors go through Dense modules"
    return family.unsaid(config) if family.unsaid else ""


def _architecture(folder: Path, family: Family, config: ModelConfig) -> dict[str, Entry]:
    reason = _unsaid(family, config)
    some = 0 < len(config.full_layers) < config.layers or family.full_layers(config.layers)
    unusual = config.window is not None and some and config.full_layers != family.full_layers(config.layers)
    if unusual and not family.tells_layers:
        reason = "some of its layers have a window and some have none (layer_types)"
    if reason:
        reason += f", which a GGUF file of {family.gguf!r} cannot say"
        raise UnsupportedModel(f"{folder}: {reason}; run the folder as it is")
    window = None if len(config.full_layers) == config.layers else config.window
    found = {}
    if unusual:
        told = [config.window_of(layer) is not None for layer in range(config.layers)]
        found[f"{family.gguf}.{WINDOWED_LAYERS}"] = Entry("[bool]", told)
    for field in family.fields:
        value = window if field.ours == "window" else value_of(config, field.ours)
        if value is not None and field.gguf:
            found[f"{family.gguf}.{field.gguf}"] = Entry(field.kind, field.held(value))
    if config.pooling:
        found[f"{family.gguf}.pooling_type"] = Entry("u32", GGUF_POOLINGS.index(config.pooling))
    return found


def _window_note(family: Family, config: ModelConfig) -> list[str]:
    """llama.cpp reads no window for this architecture, and sees further back than the model was made to."""
    if not family.windowless or config.window is None:
        return []
    return [f"llama.cpp leaves the sliding window aside: beyond {config.window} positions it computes something else"]


def _is_multiplied(family: Family, config: ModelConfig, params: Sequence[Param]) -> bool:
    """Whether GGUF files have multipliers of this configuration in their matrices; vectors are F32 in any case."""
    table, matrices = family.table(config), (param.name for param in params if len(param.shape) > 1)
    return any(stored_form(name, GGUF, table).is_multiplied(config) for name in matrices)


def _entries(fields: Mapping[str, tuple[str, Any]], prefix: str = "") -> dict[str, Entry]:
    return {f"{prefix}{key}": Entry(kind, value) for key, (kind, value) in fields.items()}


def _positions(config: ModelConfig, family: Family, values: Mapping[str, Any], folder: Path) -> int:
    """What config.json calls the number of positions, or its default."""
    scaling = config.rope_scaling
    usual = scaling.original if isinstance(scaling, Linear | DynamicNtk) else config.context_length
    where = str(folder / "config.json")
    fields = Fields(family.reworded(text_values(dict(values), where)), where)
    return fields.integer(family.positions, 1, MOST_CONTEXT, usual)


def matched(source: ModelSource, params: Sequence[Param]) -> dict[str, str]:
    """What the file calls each parameter. Raises ModelFileError unless it has them all, in their shapes."""
    names = match_names(source, params)
    check_shapes(source, params, names)
    return names


def vector(name: str, values: NDArray[np.float32]) -> LazyTensor:
    """A small F32 tensor that is there already."""
    blocks = np.frombuffer(values.tobytes(), np.uint8).reshape(-1, 4)
    return LazyTensor(name, F32.ggml_id, values.shape, lambda start, stop: blocks[start:stop])


def _numbers(tensor: LazyTensor) -> list[float]:
    """The values of a small tensor."""
    blocks = tensor.read(0, tensor.block_count)
    found: list[float] = dequantize_tensor(tensor.number_format, blocks, (tensor.size,)).tolist()
    return found


def _typed(tensor: LazyTensor, type_name: str, changed: list[str]) -> LazyTensor:
    """The tensor in the type that it has in the file: vectors, norms, biases of experts, routers and taps F32, as
    llama.cpp wants them, matrices as asked for.

    A note goes into `changed` for what nobody asked for.
    """
    exact = any(part in tensor.name for part in EXACT) or not tensor.name.endswith(".weight")
    if len(tensor.shape) < 2 or exact:
        return as_format(tensor, F32)
    if type_name == "auto":
        if tensor.work:  # values of a quantization that GGUF has no type for
            return as_format(tensor, F16)
        if tensor.ggml_type.name in KEPT or tensor.ggml_type.values > 1:
            return tensor
        changed.append(f"{tensor.ggml_type.name} is written as F32; --type names another")
        return as_format(tensor, F32)
    target = FORMATS[type_name.upper()]
    if tensor.shape[-1] % target.values:
        changed.append(f"written as F16, for rows of {tensor.shape[-1]} values are no whole blocks of {target.name}")
        target = F16
    return as_format(tensor, target)


def as_format(tensor: LazyTensor, target: type[QuantFormat]) -> LazyTensor:
    """The tensor in a number format; itself if it has it. Reading it raises RequestError for what it cannot hold."""
    return tensor if tensor.type_id == target.ggml_id else cast_tensor(tensor, target)
