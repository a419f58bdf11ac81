"""Tiny models as files: Hugging Face folders and GGUF files, with tensors changed or left out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from sporelm.checkpoints import gguf_tensors, hf_tensors
from sporelm.checkpoints.tensor_names import split_layer_number
from sporelm.files.gguf import GgufWriter
from sporelm.quant import F32, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from tiny_models import Tiny

PARAMETERS = {stored: parameter for parameter, stored in hf_tensors.DECODER_TENSORS.items()}  # by name in folders


def gguf_name(name: str) -> str:
    """The name that GGUF files have for a tensor of a folder."""
    template, layer = split_layer_number(name)
    return str(gguf_tensors.DECODER_TENSORS[PARAMETERS[template]]).replace("{}", layer)


def has_paired_rows(name: str) -> bool:
    """Whether llama.cpp's converter stores the rows of a folder's tensor as adjacent pairs."""
    return PARAMETERS[split_layer_number(name)[0]].startswith(("layers.{}.attn_q.", "layers.{}.attn_k."))


def gguf_weights(tiny: Tiny) -> dict[str, np.ndarray]:
    """The weights under GGUF names, the rows of query and key in the order of adjacent pairs, as llama.cpp converts."""
    found = {}
    for name, array in tiny.weights().items():
        if has_paired_rows(name):
            halves = array.reshape(-1, 2, tiny.head_dim // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        found[gguf_name(name)] = np.ascontiguousarray(array)
    return found


def write_gguf(
    path: Path,
    tiny: Tiny,
    change: Mapping[str, Any] | None = None,
    matrices: type[QuantFormat] = F32,
    more: Mapping[str, Any] | None = None,
    others: Mapping[str, type[QuantFormat]] | None = None,
    **options: Any,
) -> Path:
    """A GGUF file of a tiny model; `change` replaces tensors by name, None removes one; `more` metadata is added.

    Matrices are in the format `matrices`; `others` names exceptions with their formats.
    """
    config, writer = tiny.config, GgufWriter(path, **options)
    writer.add("general.architecture", "llama")
    for key, name in (
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
    ):
        writer.add(f"llama.{key}", config[name], "u32")
    writer.add("llama.attention.layer_norm_rms_epsilon", config["rms_norm_eps"], "f64")
    writer.add("llama.rope.freq_base", config["rope_theta"], "f32")
    for key, value in (more or {}).items():
        writer.add(key, value, "f32" if isinstance(value, float) else None)
    for name, values in {**gguf_weights(tiny), **(change or {})}.items():
        if values is not None:
            number_format = (others or {}).get(name, matrices) if values.ndim == 2 else F32
            blocks = quantize_tensor(number_format, values)
            writer.add_tensor(name, StoredTensor(name, number_format, values.shape, blocks.reshape(-1)))
    writer.write()
    return path


def write_folder(folder: Path, tiny: Tiny, change: Mapping[str, Any] | None = None, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny.config | config))
    weights = {**tiny.weights(), **(change or {})}
    save_file({name: array for name, array in weights.items() if array is not None}, folder / "model.safetensors")
    return folder
