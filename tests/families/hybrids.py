"""Hybrids: state spaces with attention here and there, and mixtures with windows."""

from families.case import ODD, TIED, WIDE, Case, named

GRANITE_SWA = named("GraniteMoeSWAForCausalLM", "granitemoe_swa", embedding_multiplier=3.0, logits_scaling=1.3)
GRANITE_SWA |= {"residual_multiplier": 0.6, "attention_multiplier": 0.2, "sliding_window": 9, "num_hidden_layers": 3}
GRANITE_SWA |= {"num_local_experts": 6, "num_experts_per_tok": 2, "layer_rope_theta": [0, 500.0, 500.0]}
GRANITE_SWA_ODD = ODD | TIED | {"shared_intermediate_size": 40, "attention_bias": True, "layer_rope_theta": None}

CASES = (
    Case("granitemoe-swa", GRANITE_SWA, WIDE | {"shared_intermediate_size": 256, "logits_scaling": 0.9}),
    Case("granitemoe-swa-odd-tied-shared-biases", GRANITE_SWA | GRANITE_SWA_ODD, None),
)
