"""Configurations of encoders in the words of their authors, of transformers 5, and in GGUF metadata."""

from typing import Any

import numpy as np
import pytest

from close import assert_close
from families import CASES as CASES_OF_DECODERS
from families import ENCODERS
from sporelm.checkpoints import config_from_gguf, config_from_hf
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.rotary import rope_table

CASES = {case.name: case for case in ENCODERS}
AUTHORS = {  # of nomic-embed-text-v1.5
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 30528,
}
TRANSFORMERS = {
    "architectures": ["NomicBertModel"],
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}


def test_nomic_in_two_dialects() -> None:
    ours = config_from_hf(AUTHORS, "config.json")
    assert ours == config_from_hf(TRANSFORMERS, "config.json")
    assert (ours.context_length, ours.rope_theta, ours.token_types) == (2048, 1000.0, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"activation_function": "gelu"},
        {"qkv_proj_bias": True},
        {"prenorm": True},
        {"rotary_emb_fraction": 0.5},
        {"rotary_emb_interleaved": True},
        {"moe_every_n_layers": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_nomics_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match="is not supported"):
        config_from_hf(AUTHORS | change, "config.json")


MIXED = AUTHORS | {  # of nomic-embed-text-v2-moe
    "activation_function": "gelu",
    "expert_choice_router": False,
    "ffn_div": 1,
    "layer_norm_epsilon": 1e-5,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "moe_every_n_layers": 2,
    "moe_normalize_expert_weights": False,
    "moe_top_k": 2,
    "n_positions": 2048,
    "num_experts": 8,
    "num_shared_experts": 0,
    "qkv_proj_bias": True,
    "rotary_emb_base": 10000,
    "type_vocab_size": 1,
    "use_rms_norm": None,
    "vocab_size": 250048,
}


def test_nomics_mixture() -> None:
    config = config_from_hf(MIXED, "config.json")
    assert config.experts is not None
    assert [layer for layer in range(12) if config.experts.at(layer)] == [1, 3, 5, 7, 9, 11]
    assert (config.experts.used, config.experts.plain, config.mlp_bias, config.rope_theta) == (2, "gelu", True, 10000.0)
    assert config_from_hf(AUTHORS | {"num_experts": 8, "moe_top_k": 2}, "config.json").experts is None


@pytest.mark.parametrize(
    "change",
    [
        {"moe_every_n_layers": 3},
        {"moe_normalize_expert_weights": True},
        {"expert_choice_router": True},
        {"num_shared_experts": 1},
        {"activation_function": "swiglu"},
        {"mlp_fc1_bias": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_mixtures_of_nomic_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match="is not supported"):
        config_from_hf(MIXED | change, "config.json")


def test_modern_bert_in_two_dialects() -> None:
    plain = CASES["modern-bert"].config
    old = {"global_rope_theta": 80000.0, "local_rope_theta": 500.0, "global_attn_every_n_layers": 2}
    kinds = ["full_attention", "sliding_attention"] * 2
    bases = {"full_attention": {"rope_theta": 80000.0}, "sliding_attention": {"rope_theta": 500.0}}
    ours = config_from_hf(plain | old, "config.json")
    assert ours == config_from_hf(plain | {"layer_types": kinds, "rope_parameters": bases}, "config.json")
    assert (ours.rope_theta, ours.local_theta, ours.window, ours.full_layers) == (80000.0, 500.0, 12, {0, 2})
    usual = config_from_hf(plain, "config.json")
    assert (usual.rope_theta, usual.local_theta, usual.full_layers) == (160000.0, 10000.0, {0, 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation 'silu'"),
        ({"norm_bias": True}, "norm_bias True"),
        ({"classifier_pooling": "max"}, "classifier_pooling 'max'"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}}, "only unscaled ones"),
    ],
)
def test_other_modern_berts_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        config_from_hf(CASES["modern-bert"].config | change, "config.json")


METADATA: dict[str, Any] = {
    "general.architecture": "bert",
    "bert.block_count": 2,
    "bert.embedding_length": 48,
    "bert.feed_forward_length": 88,
    "bert.attention.head_count": 6,
    "bert.attention.layer_norm_epsilon": 9.999999960041972e-13,
    "bert.context_length": 94,
    "bert.pooling_type": 2,
}
SHAPES = {"token_embd.weight": (131, 48), "token_types.weight": (1, 48), "cls.output.weight": (1, 48)}


def test_what_a_gguf_file_tells_by_its_tensors_and_its_tokenizer() -> None:
    config = config_from_gguf(METADATA | {"tokenizer.ggml.model": "t5"}, SHAPES, "m.gguf")
    assert (config.token_types, config.head_labels, config.has_head_dense, config.model_type) == (
        1,
        1,
        False,
        "xlm-roberta",
    )
    assert (config.pooling, config.context_length, config.rotary) == ("cls", 94, 0)
    pooled = [config_from_gguf(METADATA | {"bert.pooling_type": n}, SHAPES, "m.gguf").pooling for n in range(5)]
    assert pooled == ["", "mean", "cls", "last", ""]
    with pytest.raises(ModelFileError, match="pooling_type is 5"):
        config_from_gguf(METADATA | {"bert.pooling_type": 5}, SHAPES, "m.gguf")


def test_t5_has_exactly_32_buckets_for_distances() -> None:
    metadata = {key.replace("bert.", "t5encoder."): value for key, value in METADATA.items()}
    metadata |= {"general.architecture": "t5encoder", "t5encoder.attention.layer_norm_rms_epsilon": 1e-6}
    for count in (16, [32], np.zeros(0, np.int32)):
        with pytest.raises(UnsupportedModel, match=r"relative_buckets_count .* is not supported; 32 is"):
            config_from_gguf(metadata | {"t5encoder.attention.relative_buckets_count": count}, SHAPES, "m.gguf")


def test_what_silence_means_is_of_the_class() -> None:
    """mT5 and XLM-RoBERTa-XL have other numbers than T5 and Megatron-BERT."""
    config = config_from_hf({"architectures": ["MT5EncoderModel"], "vocab_size": 96}, "config.json")
    assert (config.layers, config.heads, config.ffn, config.activation) == (8, 6, 1024, "gated-gelu")
    values = {key: value for key, value in CASES["xlm-roberta-xl"].config.items() if key != "max_position_embeddings"}
    assert config_from_hf(values, "config.json").context_length == 512


def test_encoders_that_see_one_way_are_refused() -> None:
    assert config_from_gguf(METADATA | {"bert.attention.causal": False}, SHAPES, "m.gguf")
    with pytest.raises(UnsupportedModel, match=r"attention.causal is true, which is not supported for 'bert'"):
        config_from_gguf(METADATA | {"bert.attention.causal": True}, SHAPES, "m.gguf")


def test_decoders_that_see_both_ways_are_refused() -> None:
    case = next(case for case in CASES_OF_DECODERS if case.name == "qwen2")
    with pytest.raises(UnsupportedModel, match="is_causal is false, which is not supported for 'qwen2'"):
        config_from_hf(case.config | {"is_causal": False}, "config.json")
    metadata = {key.replace("bert.", "qwen2."): value for key, value in METADATA.items()}
    metadata |= {"general.architecture": "qwen2", "qwen2.attention.layer_norm_rms_epsilon": 1e-6}
    with pytest.raises(UnsupportedModel, match=r"attention\.causal is false"):
        config_from_gguf(metadata | {"qwen2.attention.causal": False}, SHAPES, "m.gguf")


def test_a_modern_bert_of_another_activation_is_refused() -> None:
    metadata = {key.replace("bert", "modern-bert"): value for key, value in METADATA.items()}
    metadata |= {"general.architecture": "modern-bert", "modern-bert.hidden_activation": "silu"}
    with pytest.raises(UnsupportedModel, match="hidden_activation 'silu' is not supported"):
        config_from_gguf(metadata, SHAPES, "m.gguf")


GTE = {  # of gte-multilingual-base
    "architectures": ["NewModel", "NewForTokenClassification"],
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "max_position_embeddings": 8192,
    "model_type": "new",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "type_vocab_size": 1,
    "vocab_size": 250048,
}


def test_gtes_scaling_of_frequencies() -> None:
    """The authors' NTK: a base eight times as large, frequencies divided by 8 ** (2 / 64)."""
    config = config_from_hf(GTE, "config.json")
    assert (config.context_length, config.token_types) == (8192, 1)
    found = rope_table(3, config.rotary, config.rope_theta, config.rope_scaling)[1, : config.rotary]
    angles = (8 * 20000.0) ** (-np.arange(32) / 32) / 8 ** (2 / 64)
    assert_close(np.sort(found), np.sort(np.concatenate([np.cos(angles), np.sin(angles)])), "f32")
    assert config_from_hf(GTE | {"rope_scaling": None}, "config.json").rope_theta == 20000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"factor": 8.0, "type": "ntk", "mixed_b": 0.6}}, "rope_scaling .* is not supported"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm' is not supported"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type 'absolute' is not supported"),
        ({"logn_attention_scale": True}, "logn_attention_scale True is not supported"),
    ],
)
def test_other_gtes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        config_from_hf(GTE | change, "config.json")
