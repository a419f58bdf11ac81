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

# The tower that sees has no weights here.
TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 1.0}


def step(**values: Any) -> dict[str, Any]:
    """A config.json of Step 3.7, the text model's part in it."""
    inner = named("", "step3p5", n_routed_experts=6, num_experts_per_tok=3, head_dim=16, num_hidden_layers=4)
    inner |= {
        "moe_intermediate_size": 24,
        "share_expert_dim": 40,
        "sliding_window": 9,
        "num_sliding_attention_heads": 4,
    }
    inner |= {"layer_types": [FULL, LOCAL, LOCAL, FULL], "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}
    inner |= {"moe_router_scaling_factor": 3.0, "rope_theta": [5e6, 1e4, 1e4, 5e6], **values}
    inner |= {"partial_rotary_factors": values.get("partial_rotary_factors", [0.5, 1.0, 1.0, 0.5])}
    outer = {key: inner.pop(key) for key in ("architectures", "tie_word_embeddings")}
    outer["architectures"] = ["Step3p7ForConditionalGeneration"]
    said = {key: value for key, value in inner.items() if value is not None}
    return {**outer, "model_type": "step3p7", "text_config": said, "vision_config": TOWER}


LLAMA3 = {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0}
LIMITS = {"swiglu_limits": [0.0, 0.0, 0.4, 0.3], "swiglu_limits_shared": [0.5, 0.0, None, 0.35]}
# In the words of its makers, with a layer that predicts further ahead in the lists.
MAKERS: dict[str, Any] = {"num_sliding_attention_heads": None, "num_key_value_heads": None, "num_attention_groups": 1}
MAKERS |= {"attention_other_setting": {"num_attention_heads": 5, "num_attention_groups": 1, "head_dim": 12}}
MAKERS |= {"n_routed_experts": None, "num_experts_per_tok": None, "moe_num_experts": 5, "moe_top_k": 2}
MAKERS |= {"mlp_layer_types": None, "moe_layers_enum": "0,2", "num_nextn_predict_layers": 1}
MAKERS |= {"layer_types": [LOCAL, FULL, LOCAL, LOCAL], "rope_theta": [1e4, 5e5, 1e4, 1e4], "num_hidden_layers": 3}
MAKERS |= {"partial_rotary_factors": [1.0, 0.34, 1.0, 1.0], "swiglu_limits": [0.0, 0.0, 0.3, 0.0]}
KOLIBRI = named("Kolibri1ForCausalLM", "kolibri1", num_experts=6, num_experts_per_tok=3, head_dim=16)
KOLIBRI |= {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "sliding_window": 9}
KOLIBRI |= {"layer_types": [LOCAL, FULL, LOCAL], "num_hidden_layers": 3}

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
    Case(
        "step35",
        step(rope_scaling=LLAMA3, **LIMITS),
        WIDE | WIDE_EXPERTS | {"share_expert_dim": 256, "num_sliding_attention_heads": 12},
    ),
    Case("kolibri", KOLIBRI, None),
    Case("kolibri-odd-tied", KOLIBRI | ODD | TIED | {"norm_topk_prob": True, "head_dim": 12}, None),
    Case("kolibri-without-positions", KOLIBRI | {"layer_types": [FULL] * 2, "num_hidden_layers": 2}, None),
    Case("step35-odd-makers", step(**ODD | {"head_dim": 12} | MAKERS), None),
)
