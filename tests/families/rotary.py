"""Families with linear biases in place of positions, and those that rotate in ways of their own."""

from typing import Any

from families.case import Case

MPT: dict[str, Any] = {
    "architectures": ["MptForCausalLM"],
    "model_type": "mpt",
    "d_model": 48,
    "n_heads": 6,
    "n_layers": 2,
    "max_seq_len": 256,
    "attn_config": {"alibi": True},
    "vocab_size": 131,
}
BLOOM: dict[str, Any] = {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "hidden_size": 48,
    "n_head": 6,
    "n_layer": 2,
    "vocab_size": 131,
}

CASES = (
    Case("bloom", BLOOM, {"hidden_size": 256, "n_head": 8}),
    Case("bloom-odd", BLOOM | {"hidden_size": 42, "n_head": 7, "tie_word_embeddings": False}, None),
    Case("bloom-twelve-heads", BLOOM | {"hidden_size": 96, "n_head": 12}, {"hidden_size": 768, "n_head": 12}),
    Case("mpt", MPT, {"d_model": 256, "n_heads": 8, "attn_config": {"alibi_bias_max": 4}}),
    Case("mpt-odd", MPT | {"d_model": 42, "n_heads": 7}, None),
    Case("mpt-twelve-heads", MPT | {"d_model": 96, "n_heads": 12}, {"d_model": 768, "n_heads": 12}),
)
