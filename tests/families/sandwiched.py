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

CASES = (
    Case("hyperclovax", CLOVA, None),
    Case("hyperclovax-odd-tied-biases", CLOVA | CLOVA_ODD, None),
    Case("hyperclovax-before-alone", CLOVA | {"use_post_norm": False}, None),
    Case("gemma4-unified", UNIFIED | {"num_kv_shared_layers": 2}, WIDE | {"head_dim": 64, "global_head_dim": 128}),
    Case("gemma4-unified-odd-tied-values", UNIFIED | UNIFIED_ODD, None),
)
