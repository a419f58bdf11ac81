"""Configurations of mixtures of experts: the layers with experts, the routing, and refused values."""

from typing import Any

import pytest

from families import CASES
from sporelm.checkpoints import config_from_gguf, config_from_hf
from sporelm.checkpoints.schema_registry import schemas_for
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.models import build
from sporelm.models.architectures.llama4 import Llama4Config
from sporelm.models.architectures.mimo2 import Mimo2Config
from sporelm.models.blocks import GatedMLP, Mixture, PreWeightedMixture
from sporelm.models.config import Experts, ModelConfig

BY_NAME = {case.name: case for case in CASES}
NUMBERS: dict[str, Any] = {
    "block_count": 3,
    "context_length": 256,
    "embedding_length": 48,
    "feed_forward_length": 88,
    "attention.head_count": 6,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 24,
}


def of_hf(name: str, **more: Any) -> ModelConfig:
    return config_from_hf(BY_NAME[name].config | more, "config.json")


def experts_of_gguf(architecture: str, tensor: str = "", **more: Any) -> Experts:
    metadata = {f"{architecture}.{key}": value for key, value in (NUMBERS | more).items()}
    shapes = {"token_embd.weight": (9, 48), tensor: (8,)}
    config = config_from_gguf({"general.architecture": architecture, **metadata}, shapes, "x")
    assert config.experts is not None
    return config.experts


@pytest.mark.parametrize("name", ["qwen3moe", "qwen3vlmoe"])
def test_folders_that_transformers_5_writes_count_local_experts(name: str) -> None:
    told = BY_NAME[name].config
    inner = dict(told.get("text_config", told))
    inner["num_local_experts"] = inner.pop("num_experts")
    written = told | {"text_config": inner} if "text_config" in told else inner
    assert config_from_hf(written, "config.json") == of_hf(name)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("qwen2moe", {"num_hidden_layers": 5}, [0, 1, 2, 3, 4]),
        ("qwen2moe", {"num_hidden_layers": 5, "decoder_sparse_step": 2}, [1, 3]),
        ("qwen3moe", {"num_hidden_layers": 5, "mlp_only_layers": [0, 3]}, [1, 2, 4]),
        ("qwen3moe", {"num_hidden_layers": 5, "mlp_only_layers": None}, [0, 1, 2, 3, 4]),
        ("deepseek", {"num_hidden_layers": 5, "first_k_dense_replace": 3}, [3, 4]),
        ("ernie-moe", {"num_hidden_layers": 5, "moe_layer_interval": 2}, [1, 3]),
        ("ernie-moe", {"num_hidden_layers": 5, "moe_layer_end_index": 2}, [1, 2]),
        ("glm4moe", {"num_hidden_layers": 3, "first_k_dense_replace": 0}, [0, 1, 2]),
        ("llama4", {"num_hidden_layers": 5, "interleave_moe_layer_step": 2}, [1, 3]),
        ("llama4", {"num_hidden_layers": 5, "moe_layers": [0, 4]}, [0, 4]),
        ("llama4", {"num_hidden_layers": 5, "moe_layers": [], "interleave_moe_layer_step": 0}, []),
    ],
)
def test_which_layers_have_experts(name: str, change: dict[str, Any], expected: list[int]) -> None:
    layers = build(of_hf(name, **change)).layers
    assert [index for index, layer in enumerate(layers) if not isinstance(layer.mlp, GatedMLP)] == expected
    assert all(isinstance(layers[index].mlp, Mixture | PreWeightedMixture) for index in expected)


def test_gguf_files_say_how_experts_are_chosen() -> None:
    silent, told = (
        experts_of_gguf("glm4moe"),
        experts_of_gguf("glm4moe", expert_gating_func=1, expert_weights_norm=True),
    )
    assert (silent.scores, silent.renormalize, silent.scale) == ("sigmoid", False, 1.0)
    assert (told.scores, told.renormalize) == ("softmax", True)
    grouped = experts_of_gguf("deepseek2", **LATENT, expert_group_count=4, expert_group_used_count=2)
    assert (grouped.scores, grouped.groups, grouped.top_groups, grouped.group_score) == ("softmax", 4, 2, "max")
    assert experts_of_gguf("ernie4_5-moe", leading_dense_block_count=1, interleave_moe_layer_step=2).step == 2
    assert experts_of_gguf("dots1", expert_shared_count=3).shared_width == 72


@pytest.mark.parametrize(
    ("tensor", "told", "scores"),
    [
        ("blk.1.exp_probs_b.bias", {}, "sigmoid"),
        ("blk.1.exp_probs_b.bias", {"expert_gating_func": 1}, "softmax"),
        ("blk.1.exp_probs_b.bias", {"expert_gating_func": 2}, "sigmoid"),
        ("", {}, "softmax"),
    ],
)
def test_deepseek2_files_with_a_choice_bias_mean_sigmoids(tensor: str, told: dict[str, int], scores: str) -> None:
    experts = experts_of_gguf("deepseek2", tensor, **LATENT, **told)
    assert (experts.scores, experts.choice_bias) == (scores, bool(tensor))
    assert experts.group_score == ("sum_of_two" if scores == "sigmoid" else "max")


LATENT = {
    "attention.kv_lora_rank": 16,
    "attention.key_length": 24,
    "attention.value_length": 16,
    "attention.key_length_mla": 12,
    "attention.value_length_mla": 8,
    "attention.head_count_kv": 1,
    "rope.dimension_count": 8,
}


@pytest.mark.parametrize(
    ("name", "change", "kind", "message"),
    [
        ("deepseek", {"moe_layer_freq": 2}, UnsupportedModel, "moe_layer_freq 2 is not supported; 1 is"),
        ("deepseek", {"scoring_func": "sigmoid"}, UnsupportedModel, "scoring_func 'sigmoid' is not supported"),
        ("deepseek3", {"scoring_func": "tanh"}, UnsupportedModel, "scoring_func 'tanh' is not supported; softmax, sig"),
        ("glm4moe", {"n_group": 3}, ModelFileError, "3 experts of 1 of 3 groups, into which 8 experts cannot be cut"),
        ("glm4moe", {"n_group": 4, "topk_group": 1}, ModelFileError, "a token uses 3 experts of 1 of 4 groups"),
        ("gpt-oss", {"swiglu_limit": 5.0}, UnsupportedModel, "swiglu_limit 5.0 is not supported; 7.0 is"),
        ("hunyuan-moe", {"moe_topk": [1, 2]}, ModelFileError, "moe_topk is \\[1, 2\\]; it must be an integer"),
        ("llama4", {"num_experts_per_tok": 2}, UnsupportedModel, "num_experts_per_tok 2 is not supported; 1 is"),
        ("llama4", {"attention_chunk_size": None}, ModelFileError, "attention_chunk_size is missing"),
        ("llama4", {"moe_layers": "x"}, UnsupportedModel, "moe_layers is 'x'; it must list layers"),
        ("mimo2", {"swa_head_dim": 8}, UnsupportedModel, "swa_head_dim is 8; only 16 is supported"),
        ("mimo2", {"num_key_value_heads": 4}, UnsupportedModel, "4 heads are not a multiple of 8"),
        ("mimo2", {"mlp_layer_types": ["dense"]}, UnsupportedModel, "must be dense or sparse for each of the 4 layers"),
        ("mellum", {"mlp_layer_types": -1}, UnsupportedModel, "must be dense or sparse for each of the 5 layers"),
        ("olmoe", {"clip_qkv": 0.0}, ModelFileError, "clip_qkv is 0.0; it must be a number"),
        (
            "bailing",
            {"norm_head": True, "tie_word_embeddings": True},
            UnsupportedModel,
            "norm_head is not supported for an out",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(
    name: str, change: dict[str, Any], kind: type[ModelError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        of_hf(name, **{"topk_group": 1} | change if name == "glm4moe" else change)


def test_gguf_files_of_llama_4_mean_chunks_and_norms() -> None:
    def of_gguf(**more: Any) -> ModelConfig:
        numbers = {f"llama4.{key}": value for key, value in (NUMBERS | {"block_count": 5} | more).items()}
        shapes = {"token_embd.weight": (9, 48)}
        return config_from_gguf({"general.architecture": "llama4", **numbers}, shapes, "x")

    scout, maverick = of_gguf(expert_used_count=1), of_gguf(expert_used_count=1, expert_count=128)
    assert (scout.window, scout.full_layers, scout.nope_layers) == (8192, {3}, {3})
    assert isinstance(scout, Llama4Config)
    assert isinstance(maverick, Llama4Config)
    assert (scout.has_qk_norm, maverick.has_qk_norm) == (True, False)
    window = "attention.sliding_window"
    with pytest.raises(ModelFileError, match="sliding_window is 4096; it must be 8192"):
        of_gguf(expert_used_count=1, **{window: 4096})
    small = of_gguf(interleave_moe_layer_step=0, expert_used_count=0, **{window: 0})  # MobileLLM: neither experts
    assert isinstance(small, Llama4Config)
    assert (small.experts, small.window, small.nope_layers, small.temperature_scale) == (None, None, frozenset(), 0.0)


def test_a_folder_of_mimo_v2_as_its_makers_published_it() -> None:
    published = {"layer_types": None, "rope_parameters": None, "hybrid_layer_pattern": [0, 1, 1, 0]}
    published |= {"moe_layer_freq": [0, 1, 0, 1], "sliding_window_size": 8, "sliding_window": 8}
    published |= {"rope_theta": 5000000, "swa_rope_theta": 10000, "partial_rotary_factor": 0.5}
    published |= {"routed_scaling_factor": None, "n_shared_experts": None, "swa_num_key_value_heads": 2}
    published |= {"rms_norm_eps": None, "layernorm_epsilon": 1e-4}
    today = of_hf("mimo2", mlp_layer_types=["dense", "sparse"] * 2, rms_norm_eps=1e-4)
    assert (config := of_hf("mimo2", **published)) == today
    assert (config.window, config.full_layers, config.rotary, config.local_theta) == (9, {0, 3}, 8, 1e4)


def test_gguf_files_of_mimo_v2_count_further_layers_in_their_lists() -> None:
    more = {"attention.head_count_kv": [1, 2, 2, 2], "attention.sliding_window_pattern": [False, True, True, True]}
    more |= {"attention.key_length": 16, "attention.value_length": 10, "attention.sliding_window": 128}
    more |= {"block_count": 4, "nextn_predict_layers": 1}
    metadata = {f"mimo2.{key}": value for key, value in (NUMBERS | more).items()}
    shapes = {"token_embd.weight": (9, 48), "blk.1.ffn_gate_inp.weight": (8, 48)}
    config = config_from_gguf({"general.architecture": "mimo2", **metadata}, shapes, "x")
    assert isinstance(config, Mimo2Config)
    assert (config.layers, config.kv_heads, config.value_head_dim, config.full_layers) == (3, 1, 10, {0})
    assert [config.experts.at(layer) for layer in range(3)] == [False, True, False]
    metadata["mimo2.attention.head_count_kv"] = [1, 2, 3, 2]
    with pytest.raises(UnsupportedModel, match="layers with a window must have twice the heads of the others"):
        config_from_gguf({"general.architecture": "mimo2", **metadata}, shapes, "x")


def test_an_unknown_gating_function_is_refused() -> None:
    with pytest.raises(ModelFileError, match="expert_gating_func is 9; it must be an integer from 0 to 3"):
        experts_of_gguf("glm4moe", expert_gating_func=9)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("deepseek2", {"topk_method": "x"}, "topk_method 'x' is not supported; greedy, group_limited_greedy, noaux_tc"),
        ("minimax-m2", {"rotary_dim": 0}, "rotary_dim is 0; it must be an integer from 1 to head_dim"),
        ("minimax-m2", {"rotary_dim": "x"}, "rotary_dim is 'x'"),
    ],
)
def test_words_and_numbers_that_cannot_be_are_refused(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        of_hf(name, **change)


def test_far_too_many_experts_are_refused_at_once() -> None:
    with pytest.raises(ModelFileError, match="4096 layers of 4096 experts: too many; at most 65536"):
        of_hf("qwen3moe", num_hidden_layers=4096, num_experts=4096)


@pytest.mark.parametrize("groups", [None, 0, 1])
def test_one_group_does_not_allow_a_choice_of_groups(groups: int | None) -> None:
    with pytest.raises(ModelFileError, match="experts are chosen from 2 groups, but there is only one"):
        of_hf("deepseek3", n_group=groups, topk_group=2)


def test_null_means_the_default_number() -> None:
    """A norm's epsilon and a rotary base."""
    null = {"rms_norm_eps": None, "rope_theta": None}
    plain = {key: value for key, value in BY_NAME["mixtral"].config.items() if key not in null}
    silent = config_from_hf(plain, "config.json")
    assert config_from_hf(plain | null, "config.json") == silent
    assert (silent.eps, silent.rope_theta) == (1e-5, 1e6)


def test_folders_of_cohere2_moe_cannot_hold_a_softmax_of_all_experts() -> None:
    values = NUMBERS | {"attention.sliding_window": 16, "logit_scale": 1.0, "expert_gating_func": 1}
    metadata = {"general.architecture": "cohere2moe", **{f"cohere2moe.{key}": each for key, each in values.items()}}
    config = config_from_gguf(metadata, {"token_embd.weight": (9, 48)}, "x")
    message = r"expert_gating_func: .* \(got softmax \(1\); allowed softmax_of_chosen \(3\), sigmoid \(2\)\)"
    with pytest.raises(UnsupportedModel, match=message):
        schemas_for(config)[1].json_from_config(config)
