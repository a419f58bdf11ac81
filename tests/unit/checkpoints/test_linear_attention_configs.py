"""Configurations of hybrids of linear attention: the words that they may have, and what is refused."""

from typing import Any

import pytest

from families import CASES
from sporelm.checkpoints import config_from_gguf, config_from_hf
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.models.architectures.kimi_linear import KimiLinearConfig
from sporelm.models.architectures.minimax_01 import MiniMax01Config
from sporelm.models.architectures.olmo_hybrid import OlmoHybridConfig

BY_NAME = {case.name: case for case in CASES}
MAKERS: dict[str, Any] = {"architectures": ["MiniMaxM1ForCausalLM"], "layer_types": None}
LINEAR: dict[str, Any] = BY_NAME["kimi-linear"].config["linear_attn_config"]


@pytest.mark.parametrize(
    ("name", "change", "kind", "message"),
    [
        ("kimi-linear", {"mla_use_nope": False}, UnsupportedModel, "mla_use_nope False is not supported; True is"),
        ("kimi-linear", {"moe_router_activation_func": "softmax"}, UnsupportedModel, "func 'softmax' is not supported"),
        ("kimi-linear", {"use_grouped_topk": False}, UnsupportedModel, "use_grouped_topk False is not supported"),
        ("kimi-linear", {"layer_types": ["mamba2"] * 4}, UnsupportedModel, "layer types must be among full_att"),
        (
            "kimi-linear",
            {"linear_attn_config": LINEAR | {"kda_layers": [1, 2], "full_attn_layers": [3]}},
            ModelFileError,
            "3 layer types for 4 layers",
        ),
        (
            "kimi-linear",
            {"linear_attn_config": LINEAR | {"kda_layers": [1, "2", 4, 5]}},
            UnsupportedModel,
            r"got \['linear_attention', None,",
        ),
        (
            "kimi-linear",
            {"linear_attn_config": LINEAR | {"head_dim": 0}},
            ModelFileError,
            "linear_head_dim is 0; it must be an integer",
        ),
        ("kimi-linear", {"num_hidden_layers": 10**400}, ModelFileError, "num_hidden_layers is 1000"),
        (
            "olmo-hybrid",
            {"rope_parameters": None},
            UnsupportedModel,
            "rope_parameters is null, which may mean positions",
        ),
        ("olmo-hybrid", {"linear_num_value_heads": 3}, ModelFileError, "2 heads of keys: these do not divide evenly"),
        ("olmo-hybrid", {"linear_key_head_dim": None, "hidden_size": 10**400}, ModelFileError, "hidden_size is 1000"),
        (
            "olmo-hybrid",
            {"layer_types": ["sliding_attention"] * 4},
            UnsupportedModel,
            "layer types must be among full",
        ),
        (
            "minimax-01",
            {"rotary_dim": 8},
            UnsupportedModel,
            "MiniMaxForCausalLM rotates whole heads, not 8 of 16",
        ),
        ("minimax-01", {"partial_rotary_factor": 0.5}, UnsupportedModel, "whole heads, not 8 of 16 dimensions"),
        (
            "minimax-01",
            MAKERS | {"rotary_dim": 17},
            UnsupportedModel,
            "rotary_dim is 17; it must be an integer from 1 to",
        ),
        ("minimax-01", MAKERS | {"rotary_dim": "8"}, UnsupportedModel, "rotary_dim is '8'; it must be an integer"),
        ("minimax-01", {"mlp_beta_factor": 0.5}, UnsupportedModel, "mlp_beta_factor 0.5 is not supported; 1 is"),
        ("minimax-01", {"layernorm_mlp_beta": 2}, UnsupportedModel, "mlp_beta_factor 2 is not supported; 1 is"),
        ("minimax-01", MAKERS | {"postnorm": False}, UnsupportedModel, "postnorm False is not supported; True is"),
        ("minimax-01", {"sliding_window": 8}, UnsupportedModel, "sliding_window 8 is not supported; None is"),
        ("minimax-01", MAKERS | {"attn_type_list": [0, 2, 0]}, UnsupportedModel, "layer types must be .*, 2, 'lin"),
        ("lfm2", {"layer_types": [True, False, True]}, UnsupportedModel, "layer types must be among full_attention"),
        ("granite-hybrid", {"layer_types": [1, 0, 1]}, UnsupportedModel, "layer types must be among full_attention"),
        ("qwen35", {"layer_types": [True, True, True, False]}, UnsupportedModel, "layer types must be among full_att"),
        ("qwen35", {"output_gate_type": "sigmoid"}, UnsupportedModel, "output_gate_type 'sigmoid' is not supported"),
        (
            "mamba2",
            {"time_step_limit": [1.0, 0.0]},
            ModelFileError,
            r"time_step_limit is \[1, 0\]; the first must not exceed",
        ),
        ("kimi-linear", {"num_experts_per_token": 9}, ModelFileError, "a token uses 9 of 8 experts"),
    ],
)
def test_refused(name: str, change: dict[str, Any], kind: type[ModelError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        config_from_hf(BY_NAME[name].config | change, "config.json")
    assert "\n" not in str(caught.value)


def test_kimi_in_the_words_of_transformers() -> None:
    """`KimiLinearConfig` takes words of DeepSeek's for its own."""
    values = BY_NAME["kimi-linear"].config
    words = {"num_experts": "num_local_experts", "num_experts_per_token": "num_experts_per_tok"}
    words |= {"moe_renormalize": "norm_topk_prob", "model_max_length": "max_position_embeddings"}
    other = {words.get(key, key): value for key, value in values.items() if key != "linear_attn_config"}
    other |= {"linear_head_dim": 16, "linear_num_heads": 6, "linear_conv_kernel_dim": 4}
    other["layer_types"] = ["linear_attention"] * 2 + ["full_attention", "linear_attention"]
    other["mlp_layer_types"] = ["dense"] + ["sparse"] * 3
    assert config_from_hf(other, "config.json") == config_from_hf(values, "config.json")


def test_kimi_in_gguf_files() -> None:
    """As llama.cpp's converter writes them: one head of keys where there is attention, nothing of groups."""
    values: dict[str, Any] = {"block_count": 4, "context_length": 512, "embedding_length": 48}
    values |= {"feed_forward_length": 88, "attention.head_count": 6, "attention.head_count_kv": [0, 0, 1, 0]}
    values |= {"attention.layer_norm_rms_epsilon": 1e-6, "attention.kv_lora_rank": 24, "rope.dimension_count": 8}
    values |= {"attention.key_length": 32, "attention.key_length_mla": 20, "attention.value_length_mla": 10}
    values |= {"ssm.conv_kernel": 4, "kda.head_dim": 16, "expert_count": 8, "expert_used_count": 3}
    values |= {"expert_feed_forward_length": 24, "expert_shared_count": 2, "leading_dense_block_count": 1}
    values |= {"expert_weights_scale": 1.5, "expert_gating_func": 2, "vocab_size": 131}
    metadata = {"general.architecture": "kimi-linear"} | {f"kimi-linear.{key}": each for key, each in values.items()}
    shapes = {"token_embd.weight": (131, 48), "output.weight": (131, 48)}
    found, wanted = config_from_gguf(metadata, shapes, "m.gguf"), BY_NAME["kimi-linear"].model.config
    assert isinstance(found, KimiLinearConfig)
    assert isinstance(wanted, KimiLinearConfig)
    assert (found.latent, found.delta_net) == (wanted.latent, wanted.delta_net)
    assert found.attention_layers == wanted.attention_layers
    assert found.experts is not None
    assert (found.experts.scores, found.experts.renormalize, found.experts.scale) == ("sigmoid", True, 1.5)
    assert (found.rotary, found.head_dim, found.kv_heads) == (0, 20, 6)


def test_olmo_says_what_follows_from_its_shape() -> None:
    """As transformers has it: keys of three quarters of the width, values twice as wide, positions if any."""
    silent = {key: each for key, each in BY_NAME["olmo-hybrid"].config.items() if not key.startswith("linear_")}
    found = config_from_hf(silent | {"num_hidden_layers": 3}, "config.json")
    assert isinstance(found, OlmoHybridConfig)
    shape = found.delta_net
    assert (shape.num_key_heads, shape.num_value_heads, shape.key_head_dim, shape.value_head_dim) == (6, 6, 6, 12)
    assert (found.attention_layers, found.has_negative_eigenvalues, found.rotary) == ({2}, True, 8)
    assert config_from_hf(silent | {"rope_parameters": {"rope_theta": None}}, "config.json").rotary == 0


def test_minimax_in_the_words_of_its_makers() -> None:
    values = {key: each for key, each in BY_NAME["minimax-01"].config.items() if not key.endswith("_alpha_factor")}
    words: dict[str, Any] = MAKERS | {"attn_type_list": [0, 1, 0], "layernorm_mlp_alpha": 2.0, "rotary_dim": 8}
    found = config_from_hf(values | words | {"layernorm_full_attention_alpha": 3.0}, "config.json")
    assert isinstance(found, MiniMax01Config)
    scales = found.attention_residual_scale, found.lightning_residual_scale, found.mlp_residual_scale
    assert (scales, found.attention_layers, found.rotary) == ((3.0, 1.0, 2.0), {1}, 8)


@pytest.mark.parametrize(
    ("change", "attention"),
    [
        ({}, {7}),
        ({"full_attention_interval": 3}, {2, 5, 8}),
        ({"attention.recurrent_layers": [True] * 8 + [False]}, {8}),
    ],
)
def test_minimax_in_gguf_files(change: dict[str, Any], attention: set[int]) -> None:
    values: dict[str, Any] = {"block_count": 9, "context_length": 512, "embedding_length": 48, "residual_scale": 1.5}
    values |= {"feed_forward_length": 88, "attention.head_count": 6, "attention.head_count_kv": 2, "vocab_size": 131}
    values |= {"attention.layer_norm_rms_epsilon": 1e-6, "attention.key_length": 16, "attention.value_length": 16}
    values |= {"rope.dimension_count": 8, "expert_count": 5, "expert_used_count": 2}
    metadata = {"general.architecture": "minimax-01"}
    metadata |= {f"minimax-01.{key}": each for key, each in (values | change).items()}
    found = config_from_gguf(metadata, {"token_embd.weight": (131, 48), "output.weight": (131, 48)}, "m.gguf")
    assert isinstance(found, MiniMax01Config)
    scales = found.attention_residual_scale, found.lightning_residual_scale, found.mlp_residual_scale
    assert (scales, found.attention_layers, found.rotary) == ((1.5, 1.5, 1.5), attention, 8)
