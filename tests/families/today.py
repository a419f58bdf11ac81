"""Families of 2026 whose layers are of two types, each with heads and rotary positions of its own."""

from typing import Any

from families.case import ODD, TIED, WIDE, Case, named

FULL, LOCAL = "full_attention", "sliding_attention"
LAGUNA = named("LagunaForCausalLM", "laguna", num_experts=6, num_experts_per_tok=3, head_dim=16)
LAGUNA |= {"num_hidden_layers": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
LAGUNA |= {"layer_types": [FULL, LOCAL, LOCAL, FULL], "num_attention_heads_per_layer": [6, 4, 4, 6]}
LAGUNA |= {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "sliding_window": 9}
LAGUNA |= {"moe_routed_scaling_factor": 2.5}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 500000.0}
YARN |= {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0, "partial_rotary_factor": 0.5}
PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
LAGUNA |= {"rope_parameters": {FULL: YARN, LOCAL: PLAIN}}
HALF = {FULL: {**PLAIN, "partial_rotary_factor": 0.5}, LOCAL: {**PLAIN, "rope_theta": 500.0}}
WIDE_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 256, "head_dim": 64}
WIDE_LAGUNA = WIDE | WIDE_EXPERTS | {"shared_expert_intermediate_size": 256}

CASES = (
    Case("laguna", LAGUNA, WIDE_LAGUNA | {"num_attention_heads_per_layer": [4, 8, 8, 4]}),
    Case(
        "laguna-odd-tied-elements",
        LAGUNA
        | ODD
        | TIED
        | {"gating": "per-element", "rope_parameters": HALF, "head_dim": 12, "num_hidden_layers": 3}
        | {"layer_types": [LOCAL, LOCAL, FULL], "num_attention_heads_per_layer": [5, 5, 7]}
        | {"mlp_layer_types": ["dense", "dense", "sparse"]},
        None,
    ),
    Case(
        "laguna-no-window",
        LAGUNA
        | {"gating": "per-element", "num_attention_heads_per_layer": None, "num_hidden_layers": 2}
        | {"layer_types": [FULL] * 2, "mlp_layer_types": ["dense", "sparse"], "rope_parameters": {FULL: YARN}},
        WIDE_LAGUNA,
    ),
)
