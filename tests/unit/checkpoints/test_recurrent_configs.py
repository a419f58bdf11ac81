"""Configurations of models that carry a state: what is refused, and which layers are attention."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from families import CASES
from sporelm.checkpoints import config_from_gguf, config_from_hf
from sporelm.checkpoints.schema_registry import find_hf_schema
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.models.architectures.jamba import JambaConfig
from sporelm.models.architectures.mamba import MambaConfig
from sporelm.models.architectures.nemotron_h import NemotronHConfig
from sporelm.models.architectures.qwen3next import Qwen3NextConfig
from sporelm.models.config import ModelConfig

BY_NAME = {case.name: case for case in CASES}
GGUF: dict[str, Any] = {"block_count": 4, "embedding_length": 48, "feed_forward_length": 88, "context_length": 256}
GGUF |= {"attention.head_count": 6, "attention.head_count_kv": 2, "attention.key_length": 16}
GGUF |= {"attention.value_length": 16, "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 8}
GGUF |= {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 4}
GGUF |= {"ssm.inner_size": 32}


@pytest.mark.parametrize(
    ("name", "change", "kind", "message"),
    [
        ("qwen3next", {"linear_num_value_heads": 3}, ModelFileError, "3 heads of 24 values, 2 heads of keys"),
        ("qwen35", {"layer_types": ["sliding_attention"] * 4}, UnsupportedModel, "layer types must be among full_"),
        ("qwen35", {"layer_types": ["full_attention"] * 3}, ModelFileError, "3 layer types for 4 layers"),
        ("qwen35", {"layer_types": "full_attention"}, UnsupportedModel, "got 'full_attention'"),
        ("qwen35", {"attn_output_gate": False}, UnsupportedModel, "attn_output_gate False is not supported; True is"),
        ("qwen35moe", {"linear_conv_kernel_dim": 1}, ModelFileError, "linear_conv_kernel_dim is 1"),
        ("mamba2", {"num_heads": 7}, ModelFileError, "inner size 96, 7 heads, 2 groups"),
        ("mamba2", {"time_step_limit": [0.0, {"__float__": "NaN"}]}, ModelFileError, "value 1 of time_step_.* is nan"),
        ("mamba2", {"time_step_limit": [0.0, {"__float__": []}]}, ModelFileError, "value 1 .* is .'__float__'"),
        ("mamba2", {"time_step_limit": [0.0]}, ModelFileError, "time_step_limit is 1 values"),
        ("granite-hybrid", {"mamba_n_heads": 5}, ModelFileError, "these do not divide evenly"),
        (
            "jamba",
            {"attn_layer_offset": 3},
            ModelFileError,
            "attn_layer_offset is 3; it must be an integer from 0 to 2",
        ),
        ("mamba", {"hidden_act": "gelu"}, UnsupportedModel, "hidden_act 'gelu' is not supported; silu is"),
        (
            "nemotron-h",
            {"hybrid_override_pattern": "M-X"},
            UnsupportedModel,
            "each of the 3 layers must be linear_.*'X'",
        ),
        (
            "nemotron-h",
            {"layers_block_type": 4},
            ModelFileError,
            "layers_block_type is 4; it must be a list of layer types",
        ),
        ("nemotron-h", {"time_step_limit": [0.1, 1.0]}, UnsupportedModel, "time steps have limits, which is not supp"),
        (
            "nemotron-h",
            {"mlp_hidden_act": "silu"},
            UnsupportedModel,
            "mlp_hidden_act 'silu' is not supported; relu2 is",
        ),
        ("nemotron-h", {"tie_word_embeddings": True}, UnsupportedModel, "tie_word_embeddings True is not supported"),
        (
            "nemotron-3-nano",
            {"n_routed_experts": 0},
            ModelFileError,
            "layer 1 has experts, but the number",
        ),
        ("nemotron-3-nano", {"num_experts_per_tok": 9}, ModelFileError, "a token uses 9 of 8 experts"),
        ("falcon-h1", {"mamba_proj_bias": True}, UnsupportedModel, "mamba_proj_bias True is not supported; False is"),
        ("falcon-h1", {"mamba_d_ssm": 90}, ModelFileError, "mamba_d_ssm is 90; it must be 6 heads of 16"),
        (
            "falcon-h1",
            {"mamba_d_ssm": None, "mamba_expand": 3},
            ModelFileError,
            "mamba_d_ssm is 144; it must be 6 h",
        ),
        ("falcon-h1", {"ssm_multipliers": [1.0] * 4}, ModelFileError, "ssm_multipliers is 4 values; it must be a list"),
        ("falcon-h1", {"key_multiplier": 0.0}, ModelFileError, "key_multiplier is 0.0; it must be a number from 1e-06"),
        ("lfm2", {"conv_bias": True}, UnsupportedModel, "conv_bias True is not supported; False is"),
        (
            "lfm3",
            {"sliding_window": None},
            UnsupportedModel,
            "layers are 'sliding_attention', but sliding_window is nul",
        ),
        ("lfm3", {"layer_types": ["conv", "mamba2"]}, UnsupportedModel, "layer types must be among full_attention, "),
        ("lfm3", {"layer_types": 3}, UnsupportedModel, "layer types must be among full_attention, .*got 3"),
        ("lfm3", {"layer_types": ["conv"] * 4}, ModelFileError, "4 layer types for 5 layers"),
        (
            "lfm3",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {}}},
            UnsupportedModel,
            "rope parameter",
        ),
    ],
)
def test_refused(name: str, change: dict[str, Any], kind: type[ModelError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        config_from_hf(BY_NAME[name].config | change, "config.json")
    assert "\n" not in str(caught.value)


def test_infinity_as_transformers_writes_it() -> None:
    given = BY_NAME["mamba2"].config
    found = config_from_hf(given | {"time_step_limit": [0.0, {"__float__": "Infinity"}]}, "config.json")
    assert found == config_from_hf(given | {"time_step_limit": None}, "config.json")


@pytest.mark.parametrize(
    ("change", "attention"),
    [
        ({}, {3}),
        ({"full_attention_interval": 2}, {1, 3}),
        ({"attention.recurrent_layers": np.array([True, False, True, True])}, {1}),
        ({"block_count": 5, "nextn_predict_layers": 1}, {3}),
        (
            {
                "block_count": 5,
                "nextn_predict_layers": 1,
                "attention.recurrent_layers": [True, True, False, True, False],
            },
            {2},
        ),
    ],
)
def test_layers_of_attention_in_gguf_files(change: dict[str, Any], attention: set[int]) -> None:
    values = {f"qwen35.{key}": value for key, value in (GGUF | change).items()}
    config = config_from_gguf({"general.architecture": "qwen35", **values}, {"token_embd.weight": (131, 48)}, "m.gguf")
    assert isinstance(config, Qwen3NextConfig)
    assert (config.layers, config.attention_layers, config.delta_net.value_head_dim) == (4, attention, 8)


@pytest.mark.parametrize(
    ("change", "architecture", "kinds"),
    [
        ({}, "nemotron_h", ("linear_attention", "mlp", "full_attention", "linear_attention")),
        ({"expert_count": 4, "expert_used_count": 2}, "nemotron_h_moe", ("linear_attention", "moe")),
        ({"block_count": 5, "nextn_predict_layers": 1}, "nemotron_h", ("linear_attention", "mlp")),
    ],
)
def test_a_layer_is_what_its_lengths_say(change: dict[str, Any], architecture: str, kinds: tuple[str, ...]) -> None:
    lengths: dict[str, Any] = {"attention.head_count_kv": [0, 0, 2, 0, 2], "feed_forward_length": [0, 88, 0, 0, 88]}
    lengths |= {"expert_feed_forward_length": 88, "expert_shared_feed_forward_length": 88}
    values = {f"{architecture}.{key}": value for key, value in (GGUF | lengths | change).items()}
    values = {"general.architecture": architecture, **values}
    config = config_from_gguf(values, {"token_embd.weight": (131, 48)}, "m.gguf")
    assert (config.layers, config.kv_heads, config.ffn) == (4, 2, 88)
    assert isinstance(config, NemotronHConfig)
    assert config.layer_types[: len(kinds)] == kinds
    assert bool(config.experts) == (architecture == "nemotron_h_moe")
    used = {f"{architecture}.expert_used_count": [0, 2, 0, 0, 3], f"{architecture}.expert_count": 4}
    with pytest.raises(ModelFileError, match=r"expert_used_count is .0, 2, 0, 0, 3\]; it must be an integer"):
        config_from_gguf(values | used, {"token_embd.weight": (131, 48)}, "m.gguf")


@pytest.mark.parametrize("counts", [["a"] * 4, [2.0] * 4, [None] * 4, np.array([np.nan] * 4), np.array([[2] * 4])])
def test_heads_of_each_layer_are_whole_numbers(counts: Any) -> None:
    values = {f"lfm2.{key}": value for key, value in GGUF.items()} | {"lfm2.attention.head_count_kv": counts}
    with pytest.raises(ModelError, match="head_count_kv"):
        config_from_gguf({"general.architecture": "lfm2", **values}, {"token_embd.weight": (131, 48)}, "m.gguf")


def test_gemma4_has_a_number_of_layers() -> None:
    values = {f"gemma4.{key}": value for key, value in GGUF.items()} | {"gemma4.block_count": np.array([])}
    with pytest.raises(ModelError):
        config_from_gguf({"general.architecture": "gemma4", **values}, {"token_embd.weight": (131, 48)}, "m.gguf")


@pytest.mark.parametrize("change", [{"num_experts": 1}, {"num_experts": None, "num_local_experts": 1}])
def test_one_expert_is_none(change: dict[str, Any]) -> None:
    config = config_from_hf({**BY_NAME["jamba"].config, **change}, "config.json")
    assert isinstance(config, JambaConfig)
    assert (config.experts, config.attention_layers) == (None, {1})


def test_jamba_has_attention_at_regular_intervals() -> None:
    schema = find_hf_schema("JambaForCausalLM")
    config = config_from_hf(BY_NAME["jamba"].config, "config.json")
    assert isinstance(config, JambaConfig)
    assert schema.extra_json(config)["attn_layer_offset"] == 1
    other = replace(config, attention_layers=frozenset({0, 1, 3}))
    with pytest.raises(UnsupportedModel, match=r"attn_layers \[0, 1, 3\] of 4 are not at regular intervals"):
        schema.extra_json(other)


def norm_eps_of(config: ModelConfig) -> float | None:
    assert isinstance(config, MambaConfig)
    return config.mamba.norm_eps


def test_falcon_mamba_keeps_the_epsilon_of_its_norms() -> None:
    given = BY_NAME["falcon-mamba"].config
    assert norm_eps_of(config_from_hf(given | {"mixer_rms_eps": 0.25}, "config.json")) == 0.25
    assert norm_eps_of(config_from_hf(given, "config.json")) == 1e-6
    metadata = {"general.architecture": "mamba", "mamba.block_count": 2, "mamba.embedding_length": 48}
    metadata |= {"mamba.context_length": 64, "mamba.attention.layer_norm_rms_epsilon": 0.5, "mamba.vocab_size": 131}
    metadata |= {"mamba.ssm.conv_kernel": 4, "mamba.ssm.state_size": 8, "mamba.ssm.time_step_rank": 3}
    metadata |= {"mamba.ssm.inner_size": 96, "mamba.ssm.dt_b_c_rms": True}
    assert norm_eps_of(config_from_gguf(metadata, {}, "a.gguf")) == 0.5
