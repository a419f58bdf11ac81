"""Models of selective state spaces: Mamba 1 and hybrids of it."""

from typing import Any

from families.case import TIED, Case

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

CASES = (
    Case("mamba", MAMBA, MAMBA_WIDE),
    Case("mamba-odd-tied-biases", MAMBA | MAMBA_ODD | TIED, None),
    Case("falcon-mamba", FALCON_MAMBA, MAMBA_WIDE | {"mixer_rms_eps": 1e-5}),
    Case("falcon-mamba-odd-tied", FALCON_MAMBA | MAMBA_ODD | TIED | {"mixer_rms_eps": 0.01}, None),
)
