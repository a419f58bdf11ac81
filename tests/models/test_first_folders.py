"""Folders and files of a model from before transformers had it mean what those of transformers mean."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from available import open_available
from close import assert_close
from families import CASES, write_case
from sporelm.checkpoints import config_from_hf
from sporelm.errors import UnsupportedModel
from sporelm.files.gguf import GgufWriter
from sporelm.quant import F32
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tools.hf.to_hf import to_hf
from stepping import Stepper

CHATGLM3 = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "ffn_hidden_size": 88,
    "hidden_size": 48,
    "kv_channels": 8,
    "layernorm_epsilon": 1e-5,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 6,
    "num_layers": 2,
    "original_rope": True,
    "padded_vocab_size": 131,
    "post_layer_norm": True,
    "rmsnorm": True,
    "rope_ratio": 50,
    "seq_length": 256,
}


@pytest.fixture
def glm() -> Any:
    return next(case for case in CASES if case.name == "glm")


def test_a_folder_of_chatglm3_is_one_of_glm(glm: Any, load: Callable[..., Stepper], tmp_path: Path) -> None:
    """The same weights under both names, query, key and value in one tensor."""
    first, then = tmp_path / "first", tmp_path / "then"
    first.mkdir()
    tensors = glm.stored(glm.schema, "transformer.output_layer.weight", *_names())
    assert "transformer.encoder.layers.1.self_attention.query_key_value.bias" in tensors
    angles = np.ones(2, np.float32)
    save_file({**tensors, "transformer.rotary_pos_emb.inv_freq": angles}, first / "model.safetensors", {"format": "pt"})
    (first / "config.json").write_text(json.dumps(CHATGLM3))
    write_case(then, glm)
    words = json.loads((then / "config.json").read_text()) | {"rope_theta": 500000.0}
    (then / "config.json").write_text(json.dumps(words))
    assert_close(*logits_of([first, then], glm, load), "exact")


def _names() -> list[str]:
    layer = "transformer.encoder.layers.0."
    return [
        "transformer.embedding.word_embeddings.weight",
        "transformer.encoder.final_layernorm.weight",
        *(f"{layer}{part}.weight" for part in ("input_layernorm", "post_attention_layernorm", "self_attention.dense")),
        *(f"{layer}self_attention.query_key_value.{kind}" for kind in ("weight", "bias")),
        *(f"{layer}mlp.{part}.weight" for part in ("dense_h_to_4h", "dense_4h_to_h")),
    ]


def test_chatglm_6b_is_refused_by_its_positions() -> None:
    values = CHATGLM3 | {"position_encoding_2d": True}
    with pytest.raises(UnsupportedModel, match="position_encoding_2d True is not supported"):
        config_from_hf(values, "config.json")


def write_file(path: Path, tensors: dict[str, np.ndarray], keys: dict[str, Any]) -> Path:
    """A GGUF file of these tensors and this metadata."""
    writer = GgufWriter(path)
    for key, value in keys.items():
        writer.add(key, value, "f32" if isinstance(value, float) else None)
    for name, values in tensors.items():
        blocks = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        writer.add_tensor(name, StoredTensor(name, F32, values.shape, blocks))
    writer.write()
    return path


def keys_of(architecture: str, case: Any, **more: Any) -> dict[str, Any]:
    config = case.model.config
    found = {"context_length": 256, "embedding_length": config.width, "feed_forward_length": config.ffn}
    found |= {"block_count": config.layers, "attention.head_count": config.heads}
    found |= {"attention.head_count_kv": config.kv_heads, "attention.layer_norm_rms_epsilon": config.eps}
    found |= {"rope.dimension_count": config.rotary, "rope.freq_base": config.rope_theta, **more}
    return {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in found.items()}}


def logits_of(paths: list[Path], case: Any, load: Callable[..., Stepper]) -> list[np.ndarray]:
    backend, logits = open_available("reference"), []
    for path in paths:
        runner = load(path, backend, context=64, eager=True)
        logits.append(runner.step([(0, case.ids()[:9])])["logits"])
        runner.close()
    backend.close()
    return logits


def test_a_file_of_chatglm3_may_hold_query_key_and_value_in_one(
    glm: Any, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    """As llama.cpp's converter writes it, biases among them."""
    tensors = glm.stored(glm.gguf_schema, "blk.0.attn_qkv.weight", "blk.0.attn_qkv.bias")
    file = write_file(tmp_path / "m.gguf", tensors, keys_of("chatglm", glm))
    folder = write_case(tmp_path / "folder", glm)
    assert_close(*logits_of([file, folder], glm, load), "f32")


def test_a_file_of_glm_4_1v_has_rows_in_halves(load: Callable[..., Stepper], tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "glm4")
    config, weights = case.model.config, case.weights()
    order = np.arange(config.head_dim)
    order[: config.rotary] = np.concatenate([order[: config.rotary : 2], order[1 : config.rotary : 2]])
    for name in [name for name in weights if ".attn_q." in name or ".attn_k." in name]:
        heads = weights[name].reshape(-1, config.head_dim, *weights[name].shape[1:])
        weights[name] = np.ascontiguousarray(heads[:, order]).reshape(weights[name].shape)
    tensors = case.gguf_schema.resolve(case.model.params(), config).save(weights)
    keys = keys_of("glm4", case, **{"rope.dimension_sections": [1, 1, 0, 0]})
    file = write_file(tmp_path / "m.gguf", tensors, keys)
    folder = write_case(tmp_path / "folder", case)
    assert_close(*logits_of([file, folder], case, load), "f32")
    with pytest.raises(UnsupportedModel, match="no transformers class has heads in the order of halves"):
        to_hf(file)
