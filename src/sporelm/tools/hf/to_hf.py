"""`spore gguf to-hf`: a GGUF file as a Hugging Face folder: safetensors, configuration and tokenizer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sporelm.errors import OpError, RequestError, UnsupportedModel, UsageError
from sporelm.models import build
from sporelm.models import open_model as open_source
from sporelm.quant import F32, FORMATS, QuantFormat, dequantize_tensor, quantize_tensor
from sporelm.text.exchange.hf_files import TokenizerFiles, files_of_metadata
from sporelm.tools.hf.from_hf import as_format, matched, vector
from sporelm.tools.hf.general import card_text, sampling_words
from sporelm.tools.hf.reshaped import KEPT, Reshaper
from sporelm.tools.hf.rope import hf_rope, number
from sporelm.tools.lazy import LazyTensor, Model, open_model
from sporelm.tools.steps.permute import unpermute_qk
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, value_of
from sporelm.weights.listed import listed_numbers
from sporelm.weights.load import ModelSource
from sporelm.weights.names import HF, Param
from sporelm.weights.pooling import modules_text, with_places
from sporelm.weights.rope_fields import MOST_CONTEXT

DTYPES = ("auto", "f32", "f16", "bf16")
TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
GROUPS = ("experts.groups", "experts.top_groups")  # no groups are one to transformers, which divides by their number
MOST_PROBED = 1 << 22  # values of a vector that are looked at whole


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
        raise UsageError(f"--dtype {dtype[:40]!r}: it is one of {', '.join(DTYPES)}")
    if path.is_dir():
        raise RequestError(f"{path} is a folder; give a .gguf file ('spore gguf from-hf' goes the other way)")
    model = open_model(path)
    values = {key: entry.value for key, entry in model.metadata.items()}
    tokenizer = _tokenizer(values, path, vocab_only or not model.tensors)
    texts, notes = dict(tokenizer.files), list(tokenizer.notes)
    if (card := card_text(values)) is not None:
        texts["README.md"] = card
    if vocab_only or not model.tensors:
        return HfFolder(texts, (), tuple(notes))
    source = open_source(path)
    try:
        family = source.family
        if source.config.labels:
            what = f"a folder of {family.classes[0].name}"
            raise UnsupportedModel(f"{path} is a reranker: its head has no place in {what}; use the file as it is")
        params = build(source.config).params()
        names = _checked(source, params)
    finally:
        source.close()
    config = with_places(source.config)
    tensors, modules = _parted(_tensors(model, source, params, names, dtype), config)
    main = _main_type(tensors)
    texts |= modules_text(config.pooling or "mean", config.dense, config.width) if _pools(config) else {}
    texts["config.json"] = _json(_configuration(source.config, family, values, tokenizer, main))
    texts["generation_config.json"] = _json(_generation(values, tokenizer))
    return HfFolder(texts, tuple(tensors), tuple(notes), modules)


def _pools(config: ModelConfig) -> bool:
    """Whether the file says how one vector is made of a text."""
    return bool(config.pooling or config.dense)


def _parted(
    tensors: Sequence[LazyTensor], config: ModelConfig
) -> tuple[list[LazyTensor], dict[str, tuple[LazyTensor, ...]]]:
    """The model's tensors, and those of the modules behind it by their folders."""
    own = {tensor.name: tensor for tensor in tensors}
    modules = {
        layer.place: tuple(replace(own.pop(name), name=f"linear.{name.rpartition('.')[2]}") for name in layer.weights)
        for layer in config.dense
    }
    return list(own.values()), modules


def _tokenizer(values: Mapping[str, Any], path: Path, is_needed: bool) -> TokenizerFiles:
    """The tokenizer's files; none for a model without a vocabulary, whose ids alone are good for something."""
    if values.get("tokenizer.ggml.model") in (None, "no_vocab", "none") and not is_needed:
        return TokenizerFiles({}, {}, frozenset(), (f"{path} holds no vocabulary: the folder has no tokenizer",))
    return files_of_metadata(values, str(path))


def _checked(source: ModelSource, params: Sequence[Param]) -> dict[str, str]:
    """What the file calls each weight. Raises UnsupportedModel for biases that config.json has no word for."""
    config = source.config
    names = matched(source, params)
    word, other = (source.family.key(ours, HF) for ours in ("attention_bias", "attention_out_bias"))
    if word and word == other and config.attention_bias != config.attention_out_bias:
        raise UnsupportedModel(
            f"{source.path}: query, key and value have biases and the output has none, or the other way round:"
            " no class of transformers has; use the file as it is"
        )
    return names


def _tensors(
    model: Model, source: ModelSource, params: Sequence[Param], names: Mapping[str, str], dtype: str
) -> list[LazyTensor]:
    """All tensors under their names, in the order of halves, and in the type they will have."""
    if source.family.paired_rows:
        model = unpermute_qk("")(model)
    held = {tensor.name: tensor for tensor in model.tensors}
    metadata = {key: entry.value for key, entry in model.metadata.items()}
    numbers = listed_numbers(source.family, metadata, source.config.layers, str(source.path))
    held |= {name: vector(name, values) for name, values in numbers.items()}
    found = Reshaper(source.family, source.config, "gguf", "hf", names, held).tensors(params)
    if dtype != "auto":
        return [as_format(tensor, FORMATS[dtype.upper()]) for tensor in found]
    if any(tensor.ggml_type.name not in KEPT for tensor in found):
        return [as_format(tensor, F32) for tensor in found]
    main = FORMATS[_main_type(found)]
    return [_joined(tensor, main) for tensor in found]


def _main_type(tensors: Sequence[LazyTensor]) -> str:
    """The type with most bytes."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.ggml_type.name] = sizes.get(tensor.ggml_type.name, 0) + tensor.nbytes
    return max(sizes, key=lambda name: sizes[name])


def _joined(tensor: LazyTensor, main: type[QuantFormat]) -> LazyTensor:
    """A vector in the type of the matrices, if that can hold each of its values; everything else as it is."""
    if len(tensor.shape) > 1 or tensor.type_id != F32.ggml_id or main is F32 or tensor.size > MOST_PROBED:
        return tensor
    values = np.ascontiguousarray(tensor.read(0, tensor.block_count)).view("<f4").reshape(-1)
    try:
        back = dequantize_tensor(main, quantize_tensor(main, values), values.shape)
    except OpError:
        return tensor
    return as_format(tensor, main) if np.array_equal(back, values) else tensor


def _configuration(
    config: ModelConfig, family: Family, values: Mapping[str, Any], tokenizer: TokenizerFiles, main: str
) -> dict[str, Any]:
    """config.json."""
    kind = family.class_of(config)
    outer: dict[str, Any] = {"architectures": [kind.name], "model_type": kind.model_type}
    outer |= {"tie_word_embeddings": config.tie_embeddings, "torch_dtype": TORCH_NAMES[main], **_token_ids(tokenizer)}
    inner = _text_configuration(config, family, values)
    if kind.inner:
        return outer | {kind.inner: inner | {"model_type": f"{kind.model_type}_text"}}
    return outer | inner | outer


def _text_configuration(config: ModelConfig, family: Family, values: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of the text model's arithmetic."""
    kind = family.class_of(config)
    found: dict[str, Any] = {"_name_or_path": config.name}
    for field in family.fields:
        value = value_of(config, field.ours)
        if field.hf and field.kind != "bool" and value is not None:
            found[field.hf] = (
                number(value) if field.kind == "f32" else 1 if value == 0 and field.ours in GROUPS else value
            )
    there = config.experts is not None  # of experts that there are not nothing is said
    found |= {key: value_of(config, ours) for key, ours in kind.fields if there or not ours.startswith("experts.")}
    original = values.get(f"{family.gguf}.rope.scaling.original_context_length")
    if config.rotary:
        original = original if type(original) is int and 0 < original <= MOST_CONTEXT else None
        found |= hf_rope(config, original, gained=family.counts_gained)
    else:
        found[family.positions] = config.context_length
    unusual = config.window and config.full_layers != family.full_layers(config.layers)
    if family.tells_layers and unusual and "sliding_window" in found:
        windows = [config.window_of(layer) is not None for layer in range(config.layers)]
        found["layer_types"] = ["sliding_attention" if each else "full_attention" for each in windows]
    if family.rotary_words:
        found["rope_scaling"] = (found["rope_scaling"] or {"rope_type": "default"}) | family.rotary_words(config)
    if family.words:
        found |= family.words(config)
    if found.get("rope_parameters"):
        found.pop("rope_scaling", None)  # where it stands, and be it null, some classes of transformers read no other
    return found | {key: values[0] for key, values in family.only.items()} | {"use_cache": True}


def _token_ids(tokenizer: TokenizerFiles) -> dict[str, Any]:
    return {f"{name}_id": tokenizer.ids.get(name) for name in ("bos_token", "eos_token", "pad_token")}


def _generation(values: Mapping[str, Any], tokenizer: TokenizerFiles) -> dict[str, Any]:
    """generation_config.json: where to stop, and how the model's makers sample."""
    found = _token_ids(tokenizer)
    first = found["eos_token_id"]
    others = sorted(tokenizer.stop_ids - {first})
    if others:
        found["eos_token_id"] = others if first is None else [first, *others]
    sampling = sampling_words(values)
    numbers = {word: number(value) if isinstance(value, float) else value for word, value in sampling.items()}
    return found | ({"do_sample": True} | numbers if numbers else {})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
