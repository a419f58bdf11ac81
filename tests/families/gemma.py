"""Gemma 1 to 3."""

from families.case import ODD, TIED, WIDE, Case, named

GELU = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 16}
GEMMA = named("GemmaForCausalLM", "gemma", hidden_act="gelu_pytorch_tanh", head_dim=16) | TIED
GEMMA2 = named("Gemma2ForCausalLM", "gemma2", sliding_window=9, query_pre_attn_scalar=16) | TIED | GELU
GEMMA2 |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}
GEMMA3 = named("Gemma3ForCausalLM", "gemma3_text", sliding_window=9, query_pre_attn_scalar=16) | TIED | GELU
GEMMA3 |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "num_hidden_layers": 6, "sliding_window_pattern": 6}
GEMMA3N = named("Gemma3nForCausalLM", "gemma3n_text", sliding_window=9, num_hidden_layers=7) | TIED | GELU
GEMMA3N |= {"layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2 + ["sliding_attention"]}
GEMMA3N |= {"num_kv_shared_layers": 3, "laurel_rank": 12, "hidden_size_per_layer_input": 12, "altup_num_inputs": 4}
GEMMA3N |= {"vocab_size_per_layer_input": 131, "rope_local_base_freq": 5e3, "rope_theta": 1e5, "pad_token_id": 0}
GEMMA3N |= {"activation_sparsity_pattern": [0.95, 0.6, 0.0, 0.3, 0.0, 0.95, 0.0]}
GEMMA3N_ODD = {"num_kv_shared_layers": 0, "activation_sparsity_pattern": None, "layer_types": None, "laurel_rank": 7}
GEMMA4 = (
    named("Gemma4ForCausalLM", "gemma4_text", sliding_window=9, global_head_dim=32, num_hidden_layers=7) | TIED | GELU
)
GEMMA4 |= {"layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2 + ["full_attention"]}
GEMMA4 |= {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 131, "num_kv_shared_layers": 4}
GEMMA4 |= {"use_double_wide_mlp": True, "attention_k_eq_v": False, "num_global_key_value_heads": None}
GEMMA4_TIED = GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}
GEMMA4_TIED |= {"num_kv_shared_layers": 0, "use_double_wide_mlp": False, "final_logit_softcapping": 8.0}
GEMMA4_MIX = GEMMA4_TIED | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 24}

CASES = (
    Case("gemma", GEMMA, WIDE | {"head_dim": 64}),
    Case("gemma-odd", GEMMA | ODD | {"head_dim": 12}, None),
    Case("gemma2", GEMMA2, WIDE | {"head_dim": 64, "query_pre_attn_scalar": 64}),
    Case(
        "gemma2-odd", GEMMA2 | {"num_attention_heads": 3, "num_key_value_heads": 1, "query_pre_attn_scalar": 24}, None
    ),
    Case("gemma3", GEMMA3, WIDE | {"head_dim": 64, "query_pre_attn_scalar": 64}),
    Case(
        "gemma3-scaled", GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "num_hidden_layers": 7}, None
    ),
    Case(
        "gemma3n",
        GEMMA3N,
        WIDE
        | {"hidden_size_per_layer_input": 256, "laurel_rank": 64, "vocab_size_per_layer_input": 320}
        # llama.cpp knows layers by their numbers, and divides by one less where it looks for what to leave out.
        | {"num_hidden_layers": 5, "num_kv_shared_layers": 0, "activation_sparsity_pattern": 0.95, "head_dim": 32}
        | {"layer_types": None, "intermediate_size": 2048},
    ),
    Case(
        "gemma3n-odd",
        GEMMA3N | ODD | GEMMA3N_ODD | {"head_dim": 10, "final_logit_softcapping": 8.0},
        None,
    ),
    Case(
        "gemma4",
        GEMMA4,
        WIDE
        | {"head_dim": 64, "global_head_dim": 128, "hidden_size_per_layer_input": 256}
        | {"vocab_size_per_layer_input": 320},
    ),
    Case(
        "gemma4-experts",
        GEMMA4_MIX,
        WIDE
        | {"head_dim": 64, "global_head_dim": 128, "num_global_key_value_heads": 2, "moe_intermediate_size": 256}
        # Scores are not scaled: through more layers a rounding makes a router choose otherwise.
        | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    Case("gemma4-tied-values", GEMMA4_TIED | ODD | {"head_dim": 12, "num_key_value_heads": 7}, None),
)
