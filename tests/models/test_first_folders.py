"""Folders and files of a model from before transformers had it mean what those of transformers mean."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from available import opened
from close import assert_close
from families import CASES, write_case
from sporelm.errors import UnsupportedModel
from sporelm.models import config_from_hf
from sporelm.weights.forms import held_as
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
    family, config = glm.model.family, glm.model.config
    first, then = tmp_path / "first", tmp_path / "then"
    first.mkdir()
    tensors = held_as(
        glm.weights(), "hf", family.of_file("hf", ["transformer.output_layer.weight", *_names()]).names, config
    )
    assert "transformer.encoder.layers.1.self_attention.query_key_value.bias" in tensors
    angles = np.ones(2, np.float32)
    save_file({**tensors, "transformer.rotary_pos_emb.inv_freq": angles}, first / "model.safetensors", {"format": "pt"})
    (first / "config.json").write_text(json.dumps(CHATGLM3))
    write_case(then, glm)
    words = json.loads((then / "config.json").read_text()) | {"rope_theta": 500000.0}
    (then / "config.json").write_text(json.dumps(words))
    backend = opened("reference")
    logits = []
    for folder in (first, then):
        runner = load(folder, backend, context=64, eager=True)
        logits.append(runner.step([(0, glm.ids()[:9])])["logits"])
        runner.close()
    backend.close()
    assert_close(logits[0], logits[1], "exact")


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


def test_a_file_of_chatglm3_may_hold_query_key_and_value_in_one(glm: Any) -> None:
    names = glm.model.family.of_file("gguf", ["blk.0.attn_qkv.weight", "blk.0.attn_qkv.bias"]).names
    found = held_as(glm.weights(), "gguf", names, glm.model.config)
    assert found["blk.1.attn_qkv.weight"].shape == (80, 48)
    assert found["blk.1.attn_qkv.bias"].shape == (80,)
