"""Hybrids: state spaces with attention here and there, and mixtures with windows."""

from families.case import ODD, TIED, WIDE, Case, named

GRANITE_SWA = named("GraniteMoeSWAForCausalLM", "granitemoe_swa", embedding_multiplier=3.0, logits_scaling=1.3)
GRANITE_SWA |= {"residual_multiplier": 0.6, "attention_multiplier": 0.2, "sliding_window": 9, "num_hidden_layers": 3}
GRANITE_SWA |= {"num_local_experts": 6, "num_experts_per_tok": 2, "layer_rope_theta": [0, 500.0, 500.0]}
GRANITE_SWA_ODD = ODD | TIED | {"shared_intermediate_size": 40, "attention_bias": True, "layer_rope_theta": None}
BAMBA = named("BambaForCausalLM", "bamba", num_hidden_layers=3, attn_layer_indices=[1], mamba_n_heads=6)
BAMBA |= {"mamba_d_head": 16, "mamba_d_state": 24, "mamba_n_groups": 2, "mamba_chunk_size": 32, "pad_token_id": None}
BAMBA_ODD = {"hidden_size": 84, "num_attention_heads": 7, "num_key_value_heads": 1, "mamba_n_heads": 7}
BAMBA_ODD |= {"mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 9, "mamba_proj_bias": True}
BAMBA_ODD |= {"mamba_conv_bias": False, "attention_bias": True, "mlp_bias": True, "rope_theta": 500.0}
BAMBA_WIDE = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64}
PLAMO3 = named("Plamo3ForCausalLM", "plamo3", head_dim=12, window_size=9, sliding_window_pattern=2, rope_theta=5e5)
PLAMO3 |= {"rope_local_theta": 5000, "num_hidden_layers": 3}
PLAMO2 = named("Plamo2ForCausalLM", "plamo2", hidden_size_per_head=12, num_hidden_layers=4, rms_norm_eps=1e-6)
PLAMO2 |= {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_num_heads": 6, "mamba_step": 2, "rope_theta": 10000}
PLAMO2 |= {"attention_window_size": 9, "full_attention_idx": [3]}
PLAMO2_ODD = {"hidden_size_per_head": 10, "mamba_num_heads": 7, "mamba_step": 8, "mamba_d_conv": 3, "mamba_d_state": 5}
PLAMO2_WIDE = {"hidden_size_per_head": 32, "mamba_num_heads": 16, "mamba_d_state": 64, "attention_window_size": 2048}
ZAMBA2 = named("Zamba2ForCausalLM", "zamba2", rms_norm_eps=1e-5, hidden_act="gelu", num_hidden_layers=5) | TIED
ZAMBA2 |= {
    "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"],
    "n_mamba_heads": 6,
    "mamba_d_state": 24,
}
ZAMBA2 |= {"mamba_ngroups": 2, "num_mem_blocks": 2, "adapter_rank": 5, "use_mem_rope": True, "chunk_size": 32}
ZAMBA2 |= {"pad_token_id": None, "use_long_context": False}
ZAMBA2_ODD = {"hidden_size": 35, "num_attention_heads": 7, "n_mamba_heads": 7, "mamba_ngroups": 1, "mamba_d_state": 9}
ZAMBA2_ODD |= {
    "num_key_value_heads": 7,
    "use_shared_attention_adapter": True,
    "use_mem_rope": False,
    "num_mem_blocks": 1,
}
ZAMBA2_ODD |= {"add_bias_linear": True}
RGEMMA = named("RecurrentGemmaForCausalLM", "recurrent_gemma", num_hidden_layers=4, attention_window_size=9) | TIED
RGEMMA |= {"conv1d_width": 4, "logits_soft_cap": 9.0, "block_types": ["recurrent", "attention", "recurrent"]}
RGEMMA |= {"hidden_activation": "gelu_pytorch_tanh", "pad_token_id": None}
RGEMMA_ODD = {"hidden_size": 84, "num_attention_heads": 7, "num_key_value_heads": 1, "lru_width": 70, "conv1d_width": 3}
RGEMMA_ODD |= {"attention_bias": True, "tie_word_embeddings": False}
JETMOE = named("JetMoeForCausalLM", "jetmoe", kv_channels=12, num_key_value_heads=3, num_local_experts=6) | TIED
JETMOE |= {"num_experts_per_tok": 2, "rms_norm_eps": 1e-6, "num_attention_heads": 6, "activation_function": "silu"}
JETMOE_ODD = {"hidden_size": 70, "num_key_value_heads": 1, "num_experts_per_tok": 3, "num_attention_heads": 3}
JETMOE_ODD |= {"kv_channels": 10, "tie_word_embeddings": False, "rms_norm_eps": 0.1}
PLAMO = named("PlamoForCausalLM", "plamo", n_shared_head=2, rope_theta=10000.0)

CASES = (
    Case("bamba", BAMBA, WIDE | BAMBA_WIDE),
    Case("bamba-odd-tied-biases", BAMBA | BAMBA_ODD | TIED, None),
    Case("granitemoe-swa", GRANITE_SWA, WIDE | {"shared_intermediate_size": 256, "logits_scaling": 0.9}),
    Case("granitemoe-swa-odd-tied-shared-biases", GRANITE_SWA | GRANITE_SWA_ODD, None),
    Case("plamo", PLAMO, WIDE, numpy="plamo"),
    Case("plamo-odd", PLAMO | ODD | {"n_shared_head": 7}, None, numpy="plamo"),
    Case("plamo2", PLAMO2, WIDE | PLAMO2_WIDE, numpy="plamo2"),
    Case("plamo2-odd-tied", PLAMO2 | ODD | TIED | PLAMO2_ODD, None, numpy="plamo2"),
    Case("plamo3", PLAMO3, WIDE | {"head_dim": 32}, numpy="plamo3"),
    Case("plamo3-odd-tied", PLAMO3 | ODD | TIED | {"head_dim": 10, "sliding_window_pattern": 8}, None, numpy="plamo3"),
    Case("zamba2", ZAMBA2, None),
    Case("zamba2-odd-biases", ZAMBA2 | ZAMBA2_ODD, None),
    Case("recurrent-gemma", RGEMMA, None),
    Case("recurrent-gemma-odd-untied-biases", RGEMMA | RGEMMA_ODD, None),
    Case("jetmoe", JETMOE, None),
    Case("jetmoe-odd-untied", JETMOE | JETMOE_ODD, None),
)
