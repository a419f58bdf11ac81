"""Hybrids of linear attention whose layers keep a matrix of keys and values: delta nets made apart."""

from typing import Any

from families.case import ODD, TIED, WIDE, Case, named

KIMI = named("KimiLinearForCausalLM", "kimi_linear", num_hidden_layers=4, num_key_value_heads=6, pad_token_id=None)
KIMI |= {"kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10, "num_experts": 8}
KIMI |= {"num_experts_per_token": 3, "moe_intermediate_size": 24, "num_shared_experts": 2, "first_k_dense_replace": 1}
KIMI |= {"routed_scaling_factor": 1.5, "num_expert_group": 1, "topk_group": 1, "moe_renormalize": True}
KIMI |= {"rms_norm_eps": 1e-6, "mla_use_nope": True, "model_max_length": 512}
KIMI["linear_attn_config"] = {"head_dim": 16, "num_heads": 6, "short_conv_kernel_size": 4}
KIMI["linear_attn_config"] |= {"kda_layers": [1, 2, 4], "full_attn_layers": [3]}
del KIMI["max_position_embeddings"]
# Seven heads of ten; a latent for queries, groups of experts, as many delta heads as they like.
KIMI_ODD: dict[str, Any] = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 7, "q_lora_rank": 20}
KIMI_ODD |= {"num_expert_group": 4, "topk_group": 2, "moe_renormalize": False, "num_hidden_layers": 3}
KIMI_ODD |= {"linear_head_dim": 10, "linear_num_heads": 3, "linear_conv_kernel_dim": 3}
KIMI_ODD |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "v_head_dim": 15}
KIMI_ODD = {key: value for key, value in (KIMI | KIMI_ODD).items() if key != "linear_attn_config"}
KIMI_WIDE: dict[str, Any] = {"kv_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}
KIMI_WIDE |= {"moe_intermediate_size": 256, "num_key_value_heads": 8}
KIMI_WIDE["linear_attn_config"] = KIMI["linear_attn_config"] | {"head_dim": 128, "num_heads": 8}
OLMO = named("OlmoHybridForCausalLM", "olmo_hybrid", num_hidden_layers=4, pad_token_id=None, rms_norm_eps=1e-6)
OLMO |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32}
OLMO |= {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
OLMO_ODD = {**ODD, "linear_num_key_heads": None, "linear_num_value_heads": None, "linear_key_head_dim": None}
OLMO_ODD |= {"linear_conv_kernel_dim": 3, "linear_allow_neg_eigval": False, "attention_bias": True}
OLMO_ODD |= {"num_hidden_layers": 3, "rope_parameters": {"rope_type": "default", "rope_theta": None}}
MINIMAX = named("MiniMaxForCausalLM", "minimax", num_hidden_layers=3, num_local_experts=5, num_experts_per_tok=2)
MINIMAX |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "block_size": 32, "head_dim": 16}
MINIMAX |= {f"{part}_alpha_factor": 1.7 for part in ("full_attn", "linear_attn", "mlp")}
MINIMAX_ODD = {**ODD, "head_dim": 10, "full_attn_alpha_factor": 0.8, "mlp_alpha_factor": 1}
# In the words of its makers, who rotate a part of each head.
MINIMAX_WIDE = {"architectures": ["MiniMaxM1ForCausalLM"], "model_type": "minimax_m1", "head_dim": 64, "rotary_dim": 32}
MINIMAX_WIDE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_type_list": [0, 1, 0], "postnorm": True}

CASES = (
    Case("kimi-linear", KIMI, WIDE | KIMI_WIDE),
    Case("kimi-linear-odd-groups", KIMI_ODD, None),
    Case("minimax-01", MINIMAX, WIDE | MINIMAX_WIDE),
    Case("minimax-01-odd-tied", MINIMAX | MINIMAX_ODD | TIED, None),
    Case("olmo-hybrid", OLMO, None),
    Case("olmo-hybrid-odd-tied-biases", OLMO | OLMO_ODD | TIED, None),
)
