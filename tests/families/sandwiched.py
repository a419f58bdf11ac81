"""Models with a norm in front of each block and one behind it."""

from families.case import ODD, TIED, WIDE, Case, named

CLOVA = named("HyperCLOVAXForCausalLM", "hyperclovax", embedding_multiplier=3.0, logits_scaling=0.7)
CLOVA |= {"residual_multiplier": 0.8, "attention_multiplier": 0.3, "head_dim": 8}
CLOVA_ODD = ODD | TIED | {"attention_multiplier": None, "attention_bias": True, "mlp_bias": True, "head_dim": 10}
UNIFIED = named("Gemma4UnifiedForCausalLM", "gemma4_unified_text", sliding_window=9, global_head_dim=32) | TIED
UNIFIED |= {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 16, "num_hidden_layers": 4}
UNIFIED |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "use_bidirectional_attention": "vision"}
UNIFIED_ODD = ODD | {"head_dim": 12, "num_key_value_heads": 7, "num_global_key_value_heads": 1}
UNIFIED_ODD |= {"attention_k_eq_v": True, "final_logit_softcapping": 8.0}
LFM3 = named("Lfm3ForCausalLM", "lfm3", norm_eps=1e-5, head_dim=8, num_hidden_layers=5, sliding_window=20) | TIED
LFM3 |= {"pad_token_id": None}
LFM3["rope_parameters"] = {"sliding_attention": {"rope_type": "default", "rope_theta": 5e3}}
LFM3["rope_parameters"]["full_attention"] = {"rope_type": "proportional", "rope_theta": 1e5}
LFM3["rope_parameters"]["full_attention"] |= {"partial_rotary_factor": 0.5}
LFM3_ODD = ODD | {"head_dim": 10, "num_hidden_layers": 3, "conv_L_cache": 4, "attention_bias": True}
LFM3_ODD |= {"layer_types": ["conv", "sliding_attention", "full_attention"], "rope_parameters": None}
LFM3_ODD |= {"tie_word_embeddings": False}
LFM3_PLAIN = {"use_attention_gate": False, "use_sandwich_norm": False, "num_hidden_layers": 3}

CASES = (
    Case("hyperclovax", CLOVA, None),
    Case("hyperclovax-odd-tied-biases", CLOVA | CLOVA_ODD, None),
    Case("hyperclovax-before-alone", CLOVA | {"use_post_norm": False}, None),
    Case("gemma4-unified", UNIFIED | {"num_kv_shared_layers": 2}, WIDE | {"head_dim": 64, "global_head_dim": 128}),
    Case("gemma4-unified-odd-tied-values", UNIFIED | UNIFIED_ODD, None),
    Case("lfm3", LFM3, None),
    Case("lfm3-odd-biases", LFM3 | LFM3_ODD, None),
    Case("lfm3-plain", LFM3 | LFM3_PLAIN, None),
)
