"""Models that carry a state from token to token: gated delta nets, state-space models."""

from typing import Any

from families.case import TIED, Case, named
from families.case import WIDE as USUAL

# Rows of several key heads, and several heads to each; llama.cpp wants values as wide as keys.
DELTA: dict[str, Any] = {"num_hidden_layers": 4, "head_dim": 16, "partial_rotary_factor": 0.5}
DELTA |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 8}
ODD: dict[str, Any] = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 10}
ODD |= {"linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 7, "linear_value_head_dim": 11}
ODD |= {"linear_conv_kernel_dim": 3, "partial_rotary_factor": 0.4, "layer_types": ["full_attention"] * 2}
ODD["layer_types"] = ["linear_attention", "full_attention"] * 2
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}
WIDE |= {"linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
EXPERTS |= {"shared_expert_intermediate_size": 40}
WIDE_EXPERTS = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 512}
QWEN3NEXT = named("Qwen3NextForCausalLM", "qwen3_next", **DELTA, **EXPERTS, norm_topk_prob=True)
QWEN35 = named("Qwen3_5ForCausalLM", "qwen3_5_text", **DELTA)
QWEN35MOE = named("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", **DELTA, **EXPERTS)
del QWEN35MOE["intermediate_size"]
MAMBA2: dict[str, Any] = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "vocab_size": 131}
MAMBA2 |= {"hidden_size": 48, "num_hidden_layers": 2, "num_heads": 6, "head_dim": 16, "n_groups": 2, "state_size": 24}
MAMBA2 |= {"conv_kernel": 4, "chunk_size": 32, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-5}
MAMBA2_ODD = {"hidden_size": 35, "num_heads": 7, "head_dim": 10, "n_groups": 1, "state_size": 9, "conv_kernel": 3}
MAMBA2_ODD |= {"use_bias": True, "use_conv_bias": False, "time_step_limit": [0.4, 1.2]}
GRANITE = named("GraniteMoeHybridForCausalLM", "granitemoehybrid", embedding_multiplier=3.0, logits_scaling=1.3)
GRANITE |= {"residual_multiplier": 0.7, "attention_multiplier": 0.3, "num_hidden_layers": 3, "pad_token_id": None}
GRANITE |= {"layer_types": ["mamba", "attention", "mamba"], "position_embedding_type": "nope", "mamba_n_heads": 6}
GRANITE |= {"mamba_d_head": 16, "mamba_d_state": 24, "mamba_n_groups": 2, "mamba_chunk_size": 32}
GRANITE |= {"shared_intermediate_size": 56, "num_local_experts": 4, "num_experts_per_tok": 2}
GRANITE_DENSE = {"num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"}
GRANITE_ODD = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1, "mamba_n_heads": 7}
GRANITE_ODD |= {"mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 9, "mamba_proj_bias": True}
GRANITE_WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}
GRANITE_WIDE |= {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64, "shared_intermediate_size": 512}
LFM2 = named("Lfm2ForCausalLM", "lfm2", norm_eps=1e-5, block_auto_adjust_ff_dim=False, num_hidden_layers=3)
LFM2 |= {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
LFM2_ODD = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1, "conv_L_cache": 4}
LFM2_ODD |= {"block_auto_adjust_ff_dim": True, "block_multiple_of": 24, "block_ffn_dim_multiplier": 1.3}
LFM2MOE = named("Lfm2MoeForCausalLM", "lfm2_moe", norm_eps=1e-5, num_hidden_layers=3, num_dense_layers=1)
LFM2MOE |= {"layer_types": ["conv", "full_attention", "conv"], "num_experts": 6, "num_experts_per_tok": 2}
LFM2MOE |= {"moe_intermediate_size": 24, "norm_topk_prob": True, "use_expert_bias": True}
LFM2MOE_ODD = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1, "norm_topk_prob": False}
NEMOTRON: dict[str, Any] = named("NemotronHForCausalLM", "nemotron_h", layer_norm_epsilon=1e-5, mlp_hidden_act="relu2")
NEMOTRON |= {"hybrid_override_pattern": "M-M*-", "head_dim": 12, "mamba_num_heads": 6, "mamba_head_dim": 16}
NEMOTRON |= {"n_groups": 2, "ssm_state_size": 24, "conv_kernel": 4, "chunk_size": 32, "num_hidden_layers": 5}
NEMOTRON_WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "mamba_num_heads": 8}
NEMOTRON_WIDE |= {"mamba_head_dim": 64, "ssm_state_size": 64, "moe_intermediate_size": 256}
NEMOTRON_WIDE |= {"moe_shared_expert_intermediate_size": 512}
NANO = NEMOTRON | {"hybrid_override_pattern": "MEM*E", "n_routed_experts": 8, "num_experts_per_tok": 3}
NANO |= {"moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 2.5}
NANO |= {"n_group": 1, "topk_group": 1, "norm_topk_prob": True}
SUPER = {"moe_latent_size": 32, "n_group": 4, "topk_group": 2, "norm_topk_prob": False}
NEMOTRON_ODD = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 10, "n_groups": 1}
NEMOTRON_ODD |= {"mamba_num_heads": 7, "ssm_state_size": 9, "conv_kernel": 3, "use_bias": True, "use_conv_bias": False}
NEMOTRON_ODD |= {"mlp_bias": True, "layers_block_type": ["mamba", "moe", "attention", "mlp"], "moe_latent_size": 22}
NEMOTRON_ODD |= {"num_hidden_layers": 4, "time_step_limit": [0.0, float("inf")]}
FALCON_H1 = named("FalconH1ForCausalLM", "falcon_h1", mamba_d_ssm=96, mamba_n_heads=6, mamba_d_head=16)
FALCON_H1 |= {"mamba_d_state": 24, "mamba_n_groups": 2, "mamba_chunk_size": 32, "embedding_multiplier": 3.1}
FALCON_H1 |= {"lm_head_multiplier": 0.7, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.9}
FALCON_H1 |= {"key_multiplier": 0.6, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.8, "mamba_rms_norm": False}
FALCON_H1 |= {"ssm_multipliers": [0.8, 0.7, 1.2, 1.4, 0.6], "mlp_multipliers": [0.9, 0.6]}
FALCON_H1_NORM = {"mamba_rms_norm": True, "mamba_norm_before_gate": False}
FALCON_H1_ODD = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1, "mamba_d_ssm": None}
FALCON_H1_ODD |= {"mamba_n_heads": 7, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 9}
FALCON_H1_ODD |= {"mamba_d_conv": 3, "mamba_conv_bias": False, "attention_bias": True, "mlp_bias": True}
FALCON_H1_ODD |= {"mamba_rms_norm": True, "mamba_norm_before_gate": True}
FALCON_H1_WIDE = USUAL | {"mamba_d_ssm": 512, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64}
FALCON_H1_WIDE |= {"lm_head_multiplier": 2.0}

CASES = (
    Case("falcon-h1", FALCON_H1, FALCON_H1_WIDE),
    Case("falcon-h1-norm", FALCON_H1 | FALCON_H1_NORM, FALCON_H1_WIDE),
    Case("falcon-h1-odd-tied-biases", FALCON_H1 | FALCON_H1_ODD | TIED, None),
    Case("nemotron-h", NEMOTRON, NEMOTRON_WIDE),
    Case("nemotron-3-nano", NANO, NEMOTRON_WIDE),
    Case("nemotron-3-super", NANO | SUPER, NEMOTRON_WIDE | {"moe_latent_size": 256, "num_experts_per_tok": 4}),
    Case("nemotron-h-odd-biases", NANO | NEMOTRON_ODD, None),
    Case("lfm2moe", LFM2MOE, USUAL | {"moe_intermediate_size": 256}),
    Case("lfm2moe-odd-tied", LFM2MOE | LFM2MOE_ODD | TIED | {"use_expert_bias": False}, None),
    Case("lfm2", LFM2),
    Case("lfm2-odd-tied", LFM2 | LFM2_ODD | TIED, None),
    Case("granite-hybrid", GRANITE, GRANITE_WIDE),
    Case("granite-hybrid-dense", GRANITE | GRANITE_DENSE, GRANITE_WIDE),
    Case("granite-hybrid-odd-tied-biases", GRANITE | GRANITE_DENSE | GRANITE_ODD | TIED, None),
    Case("mamba2", MAMBA2, {"hidden_size": 256, "num_heads": 8, "head_dim": 64, "state_size": 64}),
    Case("mamba2-odd-tied-biases", MAMBA2 | MAMBA2_ODD | TIED, None),
    Case("qwen35", QWEN35, WIDE),
    Case("qwen35-odd-tied", QWEN35 | ODD | TIED, None),
    Case("qwen35moe", QWEN35MOE, WIDE | WIDE_EXPERTS),
    Case("qwen35moe-odd-tied", QWEN35MOE | ODD | TIED, None),
    Case("qwen3next", QWEN3NEXT, WIDE | WIDE_EXPERTS),
    Case("qwen3next-odd-tied", QWEN3NEXT | ODD | TIED | {"norm_topk_prob": False}, None),
)
