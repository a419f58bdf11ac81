"""Files of families whose layers with a window have heads and rotary positions of their own: Laguna, Step 3.5."""

from typing import Any

import numpy as np
import pytest

from close import assert_close
from families.case import changed
from families.today import CASES, FULL, LOCAL
from sporelm import ops
from sporelm.checkpoints import config_from_gguf, config_from_hf
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.laguna import LagunaConfig
from sporelm.models.architectures.step35 import Step35Config
from sporelm.models.blocks.clamped_mlp import MIN_LIMIT
from sporelm.models.blocks.head_gated_attention import GATE_COLUMNS, head_tables
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import Llama3Scaling
from sporelm.ops.activation import apply_activation

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
BY_NAME = {case.name: case for case in CASES}


def read(name: str, **change: Any) -> ModelConfig:
    return config_from_hf(changed(BY_NAME[name].config, **change), "config.json")


@pytest.mark.parametrize(
    ("name", "change", "kind", "message"),
    [
        (
            "laguna",
            {"num_attention_heads_per_layer": [6, 4, 6, 6]},
            UnsupportedModel,
            "layers of the same type must have equal values",
        ),
        ("laguna", {"num_attention_heads_per_layer": [6, 5, 5, 6]}, ModelFileError, "5 query heads of 16 dimensions"),
        ("laguna", {"gating": False}, UnsupportedModel, "must be all per-head or all per-element"),
        ("laguna", {"gating_types": ["per_head", "per_element"]}, UnsupportedModel, "gating_types"),
        ("laguna", {"rope_parameters": {"rope_theta": 1e4}}, UnsupportedModel, "those of full_attention and sliding"),
        ("laguna", {"sliding_window": None}, UnsupportedModel, "but sliding_window is missing"),
        ("laguna", {"moe_router_logit_softcapping": 30.0}, UnsupportedModel, "softcapping 30.0 is not supported"),
        ("step35", {"rope_scaling": YARN}, UnsupportedModel, "with scaling Yarn"),
        ("step35", {"rope_theta": [5e6, 1e4, 2e4, 5e6]}, UnsupportedModel, "layers of one type must have equal values"),
        ("step35", {"partial_rotary_factors": [0.2, 1.0, 1.0, 0.2]}, ModelFileError, "3 of a head's 16"),
        ("step35", {"swiglu_limits": [0.1] * 4}, ModelFileError, "a limit must be at least 0.28"),
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
    """A Step folder written by transformers means the same: records of layers, parameters of types."""
    plain = read("step35", rope_scaling=None)
    kinds = {FULL: {"rope_theta": 5e6, "partial_rotary_factor": 0.5}, LOCAL: {"partial_rotary_factor": 1.0}}
    again = {"rope_parameters": kinds, "per_layer_config": {each: {"num_attention_heads": 4} for each in ("01", "02")}}
    text = {key: value for key, value in BY_NAME["step35"].config["text_config"].items() if key != "rope_scaling"}
    text = {key: text[key] for key in text if key not in ("rope_theta", "partial_rotary_factors")} | again
    assert config_from_hf({**BY_NAME["step35"].config, "text_config": text}, "config.json") == plain
    makers = read("step35-odd-makers")
    assert isinstance(makers, Step35Config)
    assert makers.layer_heads == [5, 7, 5]
    assert (makers.rotary, makers.local_rotary, makers.swiglu_limits) == (4, 12, (0.0, 0.0, 0.3))
    assert [makers.experts is not None and makers.experts.at(layer) for layer in range(3)] == [True, False, True]


LAYERS = [FULL if layer % 4 == 0 else LOCAL for layer in range(48)]


def test_the_configuration_of_laguna_xs() -> None:
    """The published configuration of poolside's Laguna XS 2.1, as far as it defines the computation."""
    full = {"rope_theta": 500000.0, "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 8192}
    full |= {"beta_slow": 1.0, "beta_fast": 64.0, "attention_factor": 1.3465735902799727, "partial_rotary_factor": 0.5}
    values: dict[str, Any] = {"architectures": ["LagunaForCausalLM"], "model_type": "laguna", "vocab_size": 100352}
    values |= {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 48}
    values |= {"num_attention_heads_per_layer": [48 if kind == FULL else 64 for kind in LAYERS[:40]]}
    values |= {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6}
    values |= {"layer_types": LAYERS[:40], "sliding_window": 512, "gating": "per-head", "num_experts": 256}
    values |= {"rope_parameters": {FULL: full, LOCAL: {"rope_type": "default", "rope_theta": 10000.0}}}
    values |= {"num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
    values |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [0], "tie_word_embeddings": False}
    values |= {"mlp_layer_types": ["dense", *["sparse"] * 39], "moe_routed_scaling_factor": 2.5}
    config = config_from_hf(values | {"moe_router_logit_softcapping": 0.0, "eos_token_id": [2, 24]}, "config.json")
    assert isinstance(config, LagunaConfig)
    assert (config.rotary, config.local_rotary, config.has_elementwise_gates) == (64, 128, False)
    assert config.layer_heads[:5] == [48, 64, 64, 64, 48]
    assert config.experts is not None
    assert (config.experts.leading, config.experts.scale, config.experts.shared_width) == (1, 2.5, 512)


def test_the_configuration_of_step() -> None:
    """The published configuration of StepFun's Step 3.5 Flash, likewise: its lists also have three MTP layers."""
    local = [kind == LOCAL for kind in LAYERS]
    values: dict[str, Any] = {"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "vocab_size": 128896}
    values |= {"hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45, "num_attention_heads": 64}
    values |= {"num_attention_groups": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5}
    values |= {"use_qk_norm": True, "use_moe": True, "moe_num_experts": 288, "moe_top_k": 8, "share_expert_dim": 1280}
    values |= {"moe_layers_enum": ",".join(map(str, range(3, 45))), "moe_layer_offset": 0, "moe_every_n_layer": 1}
    values |= {"moe_intermediate_size": 1280, "norm_expert_weight": True, "moe_router_activation": "sigmoid"}
    values |= {"moe_router_scaling_factor": 3.0, "use_moe_router_bias": True, "need_fp32_gate": True, "sink": False}
    values |= {"att_impl_type": "GQA", "use_head_wise_attn_gate": True, "sliding_window": 512, "layer_types": LAYERS}
    other = {"attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8}
    values |= {"attention_other_setting": other | {"head_dim": 128, "true_head_dim": 128}, "use_rope_layers": []}
    values |= {"rope_theta": [1e4 if each else 5e6 for each in local], "yarn_only_types": [FULL]}
    values |= {"partial_rotary_factors": [1.0 if each else 0.5 for each in local], "num_nextn_predict_layers": 3}
    scaling = {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 131072}
    values |= {"rope_scaling": scaling | {"low_freq_factor": 1.0, "high_freq_factor": 32.0}, "zero_centered": True}
    limits = {
        "swiglu_limits": [0.0] * 43 + [7.0, 7.0] + [0.0] * 3,
        "swiglu_limits_shared": [0.0] * 44 + [16.0] + [0.0] * 3,
    }
    config = config_from_hf(values | limits, "config.json")
    assert isinstance(config, Step35Config)
    assert (config.rotary, config.local_rotary, config.rope_theta, config.local_theta) == (64, 128, 5e6, 1e4)
    assert config.rope_scaling == Llama3Scaling(factor=2.0, original=131072, low=1.0, high=32.0)
    assert config.layer_heads[:5] == [64, 96, 96, 96, 64]
    assert (config.swiglu_limits[-3:], config.shared_swiglu_limits[-2:]) == ((0.0, 7.0, 7.0), (0.0, 16.0))
    assert config.experts is not None
    assert (config.experts.leading, config.experts.count, config.experts.scale) == (3, 288, 3.0)


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
    assert isinstance(config, Step35Config)
    assert (config.layers, config.layer_heads, config.local_theta) == (4, [4, 8, 8, 4], 1e4)
    assert (config.rotary, config.local_rotary, config.swiglu_limits) == (4, 8, (0.0, 0.0, 0.0, 7.0))
    assert config.experts is not None
    assert [config.experts.at(layer) for layer in range(4)] == [False, False, True, False]
    heads = np.array([4, 8, 4, 4, 8, 8], np.int32)
    with pytest.raises(UnsupportedModel, match="must have equal values"):
        config_from_gguf(metadata(**{"attention.head_count": heads}), {}, "m.gguf")
    none = metadata(**{"attention.sliding_window": np.zeros(0, np.int32), "attention.head_count": 4})
    with pytest.raises(ModelFileError, match="sliding_window is array"):
        config_from_gguf(none, {}, "m.gguf")


def test_each_column_has_its_heads_gate() -> None:
    tables = head_tables(3, {2, 4})
    assert set(tables) == {f"{GATE_COLUMNS}2", f"{GATE_COLUMNS}4"}
    assert tables[f"{GATE_COLUMNS}2"].tolist() == [0, 0, 0, 1, 1, 1]


def test_silu_is_never_below_minus_the_least_limit() -> None:
    """Or clipping on both sides would not be clipping above."""
    assert -MIN_LIMIT < apply_activation(np.linspace(-5, 5, 10001, dtype=np.float32), "silu").min() < -0.278


def test_softplus_is_the_logarithm() -> None:
    x = np.array([[-200.0, -3.0, 0.0, 2.5, 90.0]], np.float32)
    wanted = np.log1p(np.exp(x.astype(np.float64)))
    assert_close(ops.activate.reference(x, kind="softplus"), wanted.astype(np.float32), "f32")
