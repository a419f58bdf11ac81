"""`spore gguf to-hf`: a GGUF file as a Hugging Face folder: safetensors, configuration and tokenizer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sporelm.checkpoints import open_model as open_source
from sporelm.checkpoints.config_keys import find_key
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.loader import ModelSource
from sporelm.checkpoints.metadata_tensors import read_metadata_tensors
from sporelm.checkpoints.pooling import modules_json, name_dense_folders
from sporelm.checkpoints.rope_writing import to_shortest_float
from sporelm.checkpoints.schema_registry import find_names, first_hf_schema, hf_schema_for, is_gguf_name
from sporelm.checkpoints.tensor_mapping import TensorMapping
from sporelm.errors import OpError, RequestError, UnsupportedModel, UsageError
from sporelm.models import build
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param
from sporelm.quant import F32, FORMATS, QuantFormat, dequantize_tensor, quantize_tensor
from sporelm.text.tokenizers.conversion.tokenizer_to_hf import TokenizerFiles, convert_tokenizer_to_hf
from sporelm.tools.hf.from_hf import cast_to_format, make_vector, match_params
from sporelm.tools.hf.general_metadata import format_card, sampling_to_json
from sporelm.tools.hf.tensor_layout import SHARED_TYPES, TensorConverter
from sporelm.tools.lazy_model import LazyModel, LazyTensor, open_lazy_model
from sporelm.tools.steps.permute_rows import check_not_half_split

DTYPES = ("auto", "f32", "f16", "bf16")
TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
MAX_PROBED_VALUES = 1 << 22  # values of a vector that are looked at whole


class HfFolder(NamedTuple):
    """A folder to be written: texts by file name, tensors in order, and what could not be said, a line each; and the
    tensors of modules that have folders of their own in it, by their names."""

    texts: dict[str, str]
    tensors: tuple[LazyTensor, ...]
    notes: tuple[str, ...]
    modules: Mapping[str, tuple[LazyTensor, ...]] = {}


def to_hf(path: Path, *, dtype: str = "auto", vocab_only: bool = False) -> HfFolder:
    """A GGUF file as a folder; no tensor is read yet, but for small ones.

    dtype         of the tensors: "auto" loses nothing: floats stay as they are, quantized weights become F32, and F32
                  vectors join matrices of 16 bits where those can hold their values
    vocab_only    the tokenizer alone, as of a file without tensors

    Raises ModelNotFound, ModelFileError, UnsupportedModel for what cannot be converted, RequestError for a bad option.
    """
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype[:40]!r}: not a supported type; use one of {', '.join(DTYPES)}")
    if path.is_dir():
        raise RequestError(f"{path} is a folder; give a .gguf file ('spore gguf from-hf' goes the other way)")
    model = open_lazy_model(path)
    values = {key: entry.value for key, entry in model.metadata.items()}
    tokenizer = _make_tokenizer_files(values, path, vocab_only or not model.tensors)
    texts = dict(tokenizer.files)
    notes = list(tokenizer.notes)
    if (card := format_card(values)) is not None:
        texts["README.md"] = card
    if vocab_only or not model.tensors:
        return HfFolder(texts, (), tuple(notes))
    source = open_source(path)
    try:
        assert isinstance(source.schema, GgufSchema)
        if source.config.labels:
            what = f"a folder of {next(name for name in find_names(source.schema) if not is_gguf_name(name))}"
            raise UnsupportedModel(f"{path} is a reranker: its head has no place in {what}; use the file as it is")
        params = build(source.config).params()
        mapping = _match_and_check(source, params)
    finally:
        source.close()
    schema = hf_schema_for(source.schema, source.config)
    config = name_dense_folders(source.config)
    tensors, modules = _separate_modules(_make_tensors(model, source, mapping, schema, dtype), config)
    main = _find_main_type(tensors)
    texts |= modules_json(config.pooling or "mean", config.dense, config.width) if _has_pooling(config) else {}
    texts["config.json"] = json_text(_make_config(source, schema, values, tokenizer, main))
    texts["generation_config.json"] = json_text(_make_generation_config(values, tokenizer))
    return HfFolder(texts, tuple(tensors), tuple(notes), modules)


def _has_pooling(config: ModelConfig) -> bool:
    """Whether the file says how one vector is made of a text."""
    return bool(config.pooling or config.dense)


def _separate_modules(
    tensors: Sequence[LazyTensor], config: ModelConfig
) -> tuple[list[LazyTensor], dict[str, tuple[LazyTensor, ...]]]:
    """The model's tensors, and those of the modules behind it by their folders."""
    own = {tensor.name: tensor for tensor in tensors}
    modules = {
        layer.folder: tuple(replace(own.pop(name), name=f"linear.{name.rpartition('.')[2]}") for name in layer.weights)
        for layer in config.dense
    }
    return list(own.values()), modules


def _make_tokenizer_files(values: Mapping[str, Any], path: Path, is_needed: bool) -> TokenizerFiles:
    """The tokenizer's files; none for a model without a vocabulary, whose ids alone are good for something."""
    if values.get("tokenizer.ggml.model") in (None, "no_vocab", "none") and not is_needed:
        return TokenizerFiles({}, {}, frozenset(), (f"{path} holds no vocabulary: the folder has no tokenizer",))
    return convert_tokenizer_to_hf(values, str(path))


def _match_and_check(source: ModelSource, params: Sequence[Param]) -> TensorMapping:
    """Return the stored tensors of the parameters. Raises UnsupportedModel for biases that config.json cannot hold."""
    config = source.config
    mapping = match_params(source, params)
    assert isinstance(source.schema, GgufSchema)
    keys = first_hf_schema(source.schema).keys
    key, out_key = (find_key(keys, attribute) for attribute in ("attention_bias", "attention_out_bias"))
    if key and key == out_key and config.attention_bias != config.attention_out_bias:
        raise UnsupportedModel(
            f"{source.path}: query, key and value have biases and the output has none, or the other way round:"
            " no class of transformers has; use the file as it is"
        )
    return mapping


def _make_tensors(
    model: LazyModel, source: ModelSource, mapping: TensorMapping, schema: HfSchema, dtype: str
) -> list[LazyTensor]:
    """Return all tensors under their names and in the type that they will have."""
    if mapping.has_permuted_rows:
        check_not_half_split(model)
    stored = {tensor.name: tensor for tensor in model.tensors}
    metadata = {key: entry.value for key, entry in model.metadata.items()}
    numbers = read_metadata_tensors(source.schema, metadata, source.config.layers, str(source.path))
    stored |= {name: make_vector(name, values) for name, values in numbers.items()}
    target = schema.resolve([each.param for each in mapping.tensors], source.config)
    return choose_dtypes(TensorConverter(mapping, target, stored).tensors(), dtype)


def choose_dtypes(found: Sequence[LazyTensor], dtype: str) -> list[LazyTensor]:
    """Return tensors in the type that they have in a folder; `dtype` as for `to_hf`."""
    if dtype != "auto":
        return [cast_to_format(tensor, FORMATS[dtype.upper()]) for tensor in found]
    if any(tensor.ggml_type.name not in SHARED_TYPES for tensor in found):
        return [cast_to_format(tensor, F32) for tensor in found]
    main = FORMATS[_find_main_type(found)]
    return [_cast_if_exact(tensor, main) for tensor in found]


def _find_main_type(tensors: Sequence[LazyTensor]) -> str:
    """The type with most bytes."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.ggml_type.name] = sizes.get(tensor.ggml_type.name, 0) + tensor.nbytes
    return max(sizes, key=lambda name: sizes[name])


def _cast_if_exact(tensor: LazyTensor, main: type[QuantFormat]) -> LazyTensor:
    """A vector in the type of the matrices, if that can hold each of its values; everything else as it is."""
    if len(tensor.shape) > 1 or tensor.type_id != F32.ggml_id or main is F32 or tensor.size > MAX_PROBED_VALUES:
        return tensor
    values = np.ascontiguousarray(tensor.read(0, tensor.block_count)).view("<f4").reshape(-1)
    try:
        back = dequantize_tensor(main, quantize_tensor(main, values), values.shape)
    except OpError:
        return tensor
    return cast_to_format(tensor, main) if np.array_equal(back, values) else tensor


def _make_config(
    source: ModelSource, schema: HfSchema, values: Mapping[str, Any], tokenizer: TokenizerFiles, main: str
) -> dict[str, Any]:
    """Return config.json."""
    config = source.config
    outer: dict[str, Any] = {"architectures": [schema.class_name], "model_type": schema.model_type}
    outer |= {"tie_word_embeddings": config.tie_embeddings, "torch_dtype": TORCH_NAMES[main], **_token_ids(tokenizer)}
    original = values.get(f"{config.architecture}.rope.scaling.original_context_length")
    inner = schema.json_from_config(config, original if type(original) is int and original > 0 else None)
    if schema.inner_key:
        return outer | {schema.inner_key: inner | {"model_type": f"{schema.model_type}_text"}}
    return outer | inner | outer


def _token_ids(tokenizer: TokenizerFiles) -> dict[str, Any]:
    return {f"{name}_id": tokenizer.ids.get(name) for name in ("bos_token", "eos_token", "pad_token")}


def _make_generation_config(values: Mapping[str, Any], tokenizer: TokenizerFiles) -> dict[str, Any]:
    """generation_config.json: where to stop, and how the model's makers sample."""
    found = _token_ids(tokenizer)
    first = found["eos_token_id"]
    others = sorted(tokenizer.stop_ids - {first})
    if others:
        found["eos_token_id"] = others if first is None else [first, *others]
    sampling = sampling_to_json(values)
    numbers = {
        word: to_shortest_float(value) if isinstance(value, float) else value for word, value in sampling.items()
    }
    return found | ({"do_sample": True} | numbers if numbers else {})


def json_text(value: Any) -> str:
    """Return the text of a JSON file."""
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
