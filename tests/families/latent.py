"""Families of multi-head latent attention."""

from typing import Any

from families.case import WIDE, Case, named

EXPERTS: dict[str, Any] = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
EXPERTS |= {"n_shared_experts": 2, "first_k_dense_replace": 1, "num_key_value_heads": 6, "pad_token_id": None}
HEADS = {"kv_lora_rank": 24, "q_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10}
WIDE_HEADS = {"kv_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}
WIDE_HEADS |= {"num_key_value_heads": 8, "moe_intermediate_size": 256}
# Seven heads, no latent for queries, values wider than keys.
ODD = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 7, "q_lora_rank": None, "v_head_dim": 15}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
YARN |= {"mscale": 0.707, "mscale_all_dim": 0.707}
V2 = named("DeepseekV2ForCausalLM", "deepseek_v2", **HEADS, **EXPERTS, topk_method="greedy", routed_scaling_factor=1.5)
V3 = named("DeepseekV3ForCausalLM", "deepseek_v3", **HEADS, **EXPERTS, n_group=4, topk_group=2, norm_topk_prob=True)
GLM = named("Glm4MoeLiteForCausalLM", "glm4_moe_lite", **HEADS, **EXPERTS, n_group=1, topk_group=1)
GLM |= {"mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 1.8}
del GLM["first_k_dense_replace"]
MINICPM3 = named("MiniCPM3ForCausalLM", "minicpm3", **HEADS, num_key_value_heads=6, pad_token_id=None)
MINICPM3 |= {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 2.0], "long_factor": [1.0, 1.5, 3.0, 8.0]}
LONGROPE |= {"original_max_position_embeddings": 64}

CASES = (
    Case("deepseek2", V2 | {"rope_scaling": YARN}, WIDE | WIDE_HEADS | {"q_lora_rank": 256}),
    Case(
        "deepseek2-odd-groups", V2 | ODD | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}, None
    ),
    Case("deepseek2-lite", V2 | ODD, WIDE | WIDE_HEADS),
    Case("deepseek3", V3 | {"rope_scaling": YARN}, WIDE | WIDE_HEADS | {"q_lora_rank": 256}),
    Case("deepseek3-odd-half", V3 | ODD | {"rope_interleave": False, "norm_topk_prob": False}, None),
    Case("minicpm3", MINICPM3, WIDE | WIDE_HEADS | {"q_lora_rank": 256, "dim_model_base": 256, "v_head_dim": 32}),
    Case("minicpm3-odd-longrope", MINICPM3 | ODD | {"rope_scaling": LONGROPE, "tie_word_embeddings": True}, None),
    Case("glm4-moe-lite", GLM, WIDE | WIDE_HEADS | {"q_lora_rank": 256}),
)
