"""Opens a model's files with the schema of their architecture."""

from collections.abc import Container, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from sporelm.checkpoints.config_keys import find_key
from sporelm.checkpoints.config_values import format_value
from sporelm.checkpoints.dense import join_dense_tensors
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import CHOICE_BIAS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.loader import ModelSource
from sporelm.checkpoints.metadata_tensors import read_metadata_tensors
from sporelm.checkpoints.multimodal_text import (
    LLM_CONFIG,
    find_multimodal_class,
    select_text_model,
    with_multimodal_names,
)
from sporelm.checkpoints.pooling import read_folder_pooling
from sporelm.checkpoints.quantized import QuantizedFolder, with_quantized
from sporelm.checkpoints.rope_fields import FACTOR_TENSORS
from sporelm.checkpoints.row_cuts import recut_rows
from sporelm.checkpoints.schema_registry import find_gguf_schema, find_hf_schema, known_names
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.gguf import GgufFile, open_gguf
from sporelm.files.json_object import read_object
from sporelm.files.safetensors import SafetensorsFiles, open_safetensors
from sporelm.models.config import MAX_HEAD_DIM, ModelConfig, checked
from sporelm.models.encoder import Encoder


def open_model(path: str | Path) -> ModelSource:
    """Open a .gguf file (or the first of a split model) or a Hugging Face folder.

    Raises ModelNotFound, ModelFileError for damaged files, UnsupportedModel for an unsupported architecture or an
    unsupported option that would change the result.
    """
    location = Path(path)
    return _open_folder(location) if location.is_dir() else _open_file(location)


def _open_folder(folder: Path) -> ModelSource:
    where = str(folder / "config.json")
    values, is_headless = with_head_class(read_object(folder / "config.json"))
    files = with_quantized(open_safetensors(folder), values)
    schema, config = _read_json(values, where, _find_main_format(files))
    pooled = read_folder_pooling(folder, config.width)
    config = replace(config, pooling=pooled.pooling, dense=pooled.dense)
    if pooled.dense:
        files.close()
        files = with_quantized(join_dense_tensors(open_safetensors(folder), folder, pooled.dense), values)
    if isinstance(files, SafetensorsFiles) and (cuts := schema.row_cuts(config)):
        files = recut_rows(files, cuts)
    multimodal_class = find_multimodal_class(values)
    schema = (with_multimodal_names(schema, multimodal_class) if multimodal_class else schema).for_file(files.tensors)
    config = _with_choice_bias(config, schema, files.tensors)
    # Without the key, the class ties them unless the folder has both; for a multimodal class the folder decides.
    if (config.tie_embeddings or multimodal_class) and not _has_tie_key(values):
        config = replace(config, tie_embeddings=not _has_output(schema, config, files.tensors))
    if not issubclass(schema.architecture, Encoder):
        config, schema = _without_head(config, schema, files.tensors, is_headless=is_headless)
    return ModelSource("hf", folder, files, _check_output_bias(config, folder), schema)


def _with_choice_bias(config: ModelConfig, schema: HfSchema, tensors: Container[str]) -> ModelConfig:
    """Return the configuration with a bias of the router's scores if the folder has one and config.json has no key for
    it.

    transformers adds one to A.X K1's routers; the published folders have none.
    """
    experts = config.experts
    if experts is None or experts.choice_bias or CHOICE_BIAS not in schema.tensor_table(config):
        return config
    names = (schema.stored_name(CHOICE_BIAS.replace("{}", str(layer)), config) for layer in range(config.layers))
    has_bias = any(name in tensors for name in names)
    return replace(config, experts=replace(experts, choice_bias=True)) if has_bias else config


def _has_output(schema: HfSchema, config: ModelConfig, tensors: Container[str]) -> bool:
    return schema.stored_name("output.weight", config, tensors) in tensors


def _open_file(path: Path) -> ModelSource:
    gguf = open_gguf(path)
    shapes = {name: info.shape for name, info in gguf.tensors.items()}
    model = GgufModel(gguf.metadata, shapes, str(path), _read_rope_factors(gguf, path), _find_main_format(gguf))
    schema, config = _read_metadata(model)
    for name, numbers in read_metadata_tensors(schema, gguf.metadata, config.layers, str(path)).items():
        gguf.add_tensor(name, numbers)
    return ModelSource("gguf", path, gguf, _check_output_bias(config, path), schema.for_file(gguf.tensors))


def with_head_class(values: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a config.json with the class that has a head in place of a headless one ("Qwen3Model", as embedding models
    have), and whether it was replaced."""
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    head_class, known = f"{name.removesuffix('Model')}ForCausalLM", known_names()
    if not name.endswith("Model") or name in known or head_class not in known:
        return values, False
    return {**values, "architectures": [head_class]}, True


def _without_head(
    config: ModelConfig, schema: HfSchema, tensors: Container[str], *, is_headless: bool
) -> tuple[ModelConfig, HfSchema]:
    """Return a decoder's configuration and schema if its folder may lack the head.

    That is so if its class has none (`is_headless`), or for an embedding model without the tensor. The names of its
    tensors may lack "model." then.
    """
    if not is_headless and not config.pooling:
        return config, schema
    schema = schema.with_attributes(name_prefix=schema.name_prefix or "model.")
    alone = is_headless or (not config.tie_embeddings and not _has_output(schema, config, tensors))
    biased, tied = config.output_bias and not alone, config.tie_embeddings or alone
    return replace(config, is_headless=alone, tie_embeddings=tied, output_bias=biased), schema


def _check_output_bias(config: ModelConfig, path: Path) -> ModelConfig:
    """Return the configuration. Raises UnsupportedModel for an output with a bias that is tied to the embedding."""
    if config.output_bias and config.tie_embeddings and not config.is_headless:
        what = "an output layer tied to the embedding cannot have a bias (tie_word_embeddings)"
        raise UnsupportedModel(f"{path}: {what}")
    return config


def _has_tie_key(values: Mapping[str, Any]) -> bool:
    """Return whether a config.json, or its text model's part, has `tie_word_embeddings`."""
    parts = (values, values.get("text_config"), values.get(LLM_CONFIG))
    return any("tie_word_embeddings" in part for part in parts if isinstance(part, Mapping))


def config_from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
    dtype: str = "F32",
    rope_factors: Mapping[str, tuple[float, ...]] | None = None,
) -> ModelConfig:
    """Return the configuration in a GGUF file's metadata; see `GgufSchema.config_from_metadata`."""
    return _read_metadata(GgufModel(metadata, shapes, where, rope_factors or {}, dtype))[1]


def config_from_hf(values: Mapping[str, Any], where: str, dtype: str = "F32") -> ModelConfig:
    """Return the configuration in a config.json, or of the text model in it; see `HfSchema.config_from_json`."""
    return _read_json(values, where, dtype)[1]


def _read_metadata(model: GgufModel) -> tuple[GgufSchema, ModelConfig]:
    schema = find_gguf_schema(model.architecture, model.where)
    config = schema.config_from_metadata(model)
    return schema, checked(config, model.where, lambda attribute: find_key(schema.keys, attribute))


def _read_json(values: Mapping[str, Any], where: str, dtype: str) -> tuple[HfSchema, ModelConfig]:
    text = select_text_model(dict(values), where)
    schema = find_hf_schema(_read_class(text, where), where)
    known = schema.complete_values(text, where)
    config = schema.config_from_json(known, dtype)
    return schema, checked(config, where, lambda attribute: known.display_name(find_key(schema.keys, attribute)))


def _read_class(values: Mapping[str, Any], where: str) -> str:
    """Return the class in a config.json. Raises ModelFileError without one."""
    names = values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelFileError(f"{where}: architectures must name the model's class; it is {format_value(names)}")
    return names[0]


def _read_rope_factors(gguf: GgufFile, path: Path) -> dict[str, tuple[float, ...]]:
    """Return the values of the tensors that divide rotary frequencies, by name."""
    found = {}
    for name in FACTOR_TENSORS:
        if (info := gguf.tensors.get(name)) is not None:
            if len(info.shape) != 1 or info.shape[0] > MAX_HEAD_DIM:
                what = f"{name} is {list(info.shape)}"
                raise ModelFileError(f"{path}: {what}; it must have one value for each rotary frequency")
            found[name] = tuple(gguf.tensor(name).dequantize().tolist())
    return found


def _find_main_format(files: GgufFile | SafetensorsFiles | QuantizedFolder) -> str:
    """Return the number format of most values in matrices."""
    counts: dict[str, int] = {}
    for info in files.tensors.values():
        if len(info.shape) > 1:
            counts[info.type_name] = counts.get(info.type_name, 0) + prod(info.shape)
    return max(counts, key=lambda name: counts[name], default="F32")
