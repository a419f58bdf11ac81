"""Models with a norm in front of each block and one behind it."""

from families.case import ODD, TIED, Case, named

CLOVA = named("HyperCLOVAXForCausalLM", "hyperclovax", embedding_multiplier=3.0, logits_scaling=0.7)
CLOVA |= {"residual_multiplier": 0.8, "attention_multiplier": 0.3, "head_dim": 8}
CLOVA_ODD = ODD | TIED | {"attention_multiplier": None, "attention_bias": True, "mlp_bias": True, "head_dim": 10}

CASES = (
    Case("hyperclovax", CLOVA, None),
    Case("hyperclovax-odd-tied-biases", CLOVA | CLOVA_ODD, None),
    Case("hyperclovax-before-alone", CLOVA | {"use_post_norm": False}, None),
)
