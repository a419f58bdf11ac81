"""Models of selective state spaces: Mamba 1 and hybrids of it."""

from typing import Any

from families.case import TIED, WIDE, Case, named

MAMBA: dict[str, Any] = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "vocab_size": 131}
MAMBA |= {"hidden_size": 48, "num_hidden_layers": 2, "state_size": 8, "conv_kernel": 4, "expand": 2}
MAMBA |= {"time_step_rank": "auto", "tie_word_embeddings": False, "layer_norm_epsilon": 1e-5}
MAMBA_ODD = {
    "hidden_size": 35,
    "state_size": 5,
    "conv_kernel": 3,
    "expand": 16,
    "intermediate_size": 90,
    "time_step_rank": 7,
}
MAMBA_ODD |= {"use_bias": True, "use_conv_bias": False}
MAMBA_WIDE = {"hidden_size": 256, "state_size": 16}
FALCON_MAMBA = MAMBA | {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}

JAMBA = named("JambaForCausalLM", "jamba", num_hidden_layers=4, attn_layer_period=3, attn_layer_offset=1)
JAMBA |= {"expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 6, "num_experts_per_tok": 2}
JAMBA |= {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": "auto"}
JAMBA_ODD = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1, "mamba_d_state": 5}
JAMBA_ODD |= {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_dt_rank": 9, "mamba_d_conv": 3}
JAMBA_DENSE = {"num_experts": 1, "num_experts_per_tok": 1, "attn_layer_period": 8, "attn_layer_offset": 3}

CASES = (
    Case("mamba", MAMBA, MAMBA_WIDE),
    Case("mamba-odd-tied-biases", MAMBA | MAMBA_ODD | TIED, None),
    Case("falcon-mamba", FALCON_MAMBA, MAMBA_WIDE | {"mixer_rms_eps": 1e-5}),
    Case("jamba", JAMBA, WIDE | {"mamba_d_state": 16}),
    Case("jamba-odd-tied-biases", JAMBA | JAMBA_ODD | TIED, None),
    Case("jamba-dense", JAMBA | JAMBA_DENSE, WIDE | {"mamba_d_state": 16}),
    Case("falcon-mamba-odd-tied", FALCON_MAMBA | MAMBA_ODD | TIED | {"mixer_rms_eps": 0.01}, None),
)
