"""Files of families whose layers with a window have heads and rotary positions of their own: Laguna, Step 3.5."""

from typing import Any

import numpy as np
import pytest

from close import assert_close
from families.case import changed
from families.today import CASES, FULL, LOCAL
from sporelm import ops
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models import config_from_gguf, config_from_hf
from sporelm.models.blocks.gated_heads import OPENED, head_tables
from sporelm.models.blocks.limited_mlp import LEAST_LIMIT
from sporelm.models.families.window_heads import heads_of
from sporelm.ops.activation import activated
from sporelm.weights.config import ModelConfig

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
BY_NAME = {case.name: case for case in CASES}


def read(name: str, **change: Any) -> ModelConfig:
    return config_from_hf(changed(BY_NAME[name].config, **change), "config.json")


@pytest.mark.parametrize(
    ("name", "change", "kind", "message"),
    [
        ("laguna", {"num_attention_heads_per_layer": [6, 4, 6, 6]}, UnsupportedModel, "those with one"),
        ("laguna", {"num_attention_heads_per_layer": [6, 5, 5, 6]}, ModelFileError, "5 query heads of 16 numbers"),
        ("laguna", {"gating": False}, UnsupportedModel, "all per-head or all per-element"),
        ("laguna", {"gating_types": ["per_head", "per_element"]}, UnsupportedModel, "gating_types"),
        ("laguna", {"rope_parameters": {"rope_theta": 1e4}}, UnsupportedModel, "those of full_attention and sliding"),
        ("laguna", {"sliding_window": 0}, UnsupportedModel, "sliding_window is not given"),
        ("laguna", {"moe_router_logit_softcapping": 30.0}, UnsupportedModel, "softcapping 30.0 is not supported"),
        ("step35", {"rope_scaling": YARN}, UnsupportedModel, "scaled by Yarn"),
        ("step35", {"rope_theta": [5e6, 1e4, 2e4, 5e6]}, UnsupportedModel, "layers of one type must be alike"),
        ("step35", {"partial_rotary_factors": [0.2, 1.0, 1.0, 0.2]}, ModelFileError, "3 of a head's 16"),
        ("step35", {"swiglu_limits": [0.1] * 4}, ModelFileError, "limits are 0.28 or more"),
        ("step35", {"swiglu_limits": [1.0]}, ModelFileError, "swiglu_limits is 1 values"),
        ("step35", {"query_pre_attn_scalar": 24}, UnsupportedModel, "query_pre_attn_scalar is not head_dim"),
        ("step35", {"per_layer_config": {"1": {"head_dim": 8}}}, UnsupportedModel, "per_layer_config"),
        ("step35", {"sink": True}, UnsupportedModel, "sink True is not supported"),
        (
            "step35-odd-makers",
            {"attention_other_setting": {"head_dim": 8}},
            UnsupportedModel,
            "only num_attention_heads",
        ),
    ],
)
def test_what_is_refused(name: str, change: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        read(name, **change)


def test_words_of_its_makers_and_those_of_transformers() -> None:
    """What transformers writes of a Step folder means the same: records of layers, parameters of types."""
    plain = read("step35", rope_scaling=None)
    kinds = {FULL: {"rope_theta": 5e6, "partial_rotary_factor": 0.5}, LOCAL: {"partial_rotary_factor": 1.0}}
    again = {"rope_parameters": kinds, "per_layer_config": {each: {"num_attention_heads": 4} for each in ("01", "02")}}
    text = {key: value for key, value in BY_NAME["step35"].config["text_config"].items() if key != "rope_scaling"}
    text = {key: text[key] for key in text if key not in ("rope_theta", "partial_rotary_factors")} | again
    assert config_from_hf({**BY_NAME["step35"].config, "text_config": text}, "config.json") == plain
    makers = read("step35-odd-makers")
    assert heads_of(makers) == [5, 7, 5]
    assert (makers.rotary, makers.own.local_rotary, makers.own.limits) == (4, 12, (0.0, 0.0, 0.3))
    assert [makers.experts is not None and makers.experts.at(layer) for layer in range(3)] == [True, False, True]


def metadata(**more: Any) -> dict[str, Any]:
    """Of a GGUF file of Step 3.5 with two layers that predict further ahead."""
    found = {"block_count": 6, "nextn_predict_layers": 2, "context_length": 64, "embedding_length": 32}
    found |= {"feed_forward_length": 48, "attention.head_count": np.array([4, 8, 8, 4, 8, 8], np.int32)}
    found |= {"attention.head_count_kv": np.array([2] * 6, np.int32), "attention.key_length": 8, "vocab_size": 40}
    found |= {"attention.value_length": 8, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5e6}
    found |= {"rope.freq_base_swa": 1e4, "attention.sliding_window": 16, "expert_count": 4, "expert_used_count": 2}
    found["attention.sliding_window_pattern"] = np.array([0, 1, 1, 0, 1, 1], bool)
    found |= {"expert_feed_forward_length": 16, "expert_shared_feed_forward_length": 16}
    found["swiglu_clamp_exp"] = np.array([0, 0, 0, 7, 0, 0], np.float32)
    return {"general.architecture": "step35", **{f"step35.{key}": value for key, value in (found | more).items()}}


def test_lists_of_a_gguf_file() -> None:
    """Without rope.dimension_count, as llama.cpp's converter writes it; its last layers are none of ours."""
    config = config_from_gguf(metadata(), {"blk.2.ffn_gate_inp.weight": (4, 32)}, "m.gguf")
    assert (config.layers, heads_of(config), config.local_theta) == (4, [4, 8, 8, 4], 1e4)
    assert (config.rotary, config.own.local_rotary, config.own.limits) == (4, 8, (0.0, 0.0, 0.0, 7.0))
    assert config.experts is not None
    assert [config.experts.at(layer) for layer in range(4)] == [False, False, True, False]
    heads = np.array([4, 8, 4, 4, 8, 8], np.int32)
    with pytest.raises(UnsupportedModel, match="must be alike"):
        config_from_gguf(metadata(**{"attention.head_count": heads}), {}, "m.gguf")


def test_each_column_has_its_heads_gate() -> None:
    tables = head_tables(3, {2, 4})
    assert set(tables) == {f"{OPENED}2", f"{OPENED}4"}
    assert tables[f"{OPENED}2"].tolist() == [0, 0, 0, 1, 1, 1]


def test_silu_is_never_below_minus_the_least_limit() -> None:
    """Or clipping on both sides would not be clipping above."""
    assert -LEAST_LIMIT < activated(np.linspace(-5, 5, 10001, dtype=np.float32), "silu").min() < -0.278


def test_softplus_is_the_logarithm() -> None:
    x = np.array([[-200.0, -3.0, 0.0, 2.5, 90.0]], np.float32)
    wanted = np.log1p(np.exp(x.astype(np.float64)))
    assert_close(ops.activate.meaning(x, kind="softplus"), wanted.astype(np.float32), "f32")
