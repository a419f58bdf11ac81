"""Families whose attention and feed-forward block stand beside each other, and their kin."""

from families.case import ODD, WIDE, Case, named

NEOX = named("GPTNeoXForCausalLM", "gpt_neox", hidden_act="gelu", layer_norm_eps=1e-5, rotary_pct=0.25)
PHI2 = named("PhiForCausalLM", "phi", hidden_act="gelu_new", layer_norm_eps=1e-5, partial_rotary_factor=0.5)
MHA = {"num_key_value_heads": 8}  # as many key heads as there are in the wide model

CASES = (
    Case("gptneox", NEOX),
    Case(
        "gptneox-odd-in-turn",
        NEOX | ODD | {"use_parallel_residual": False, "rotary_pct": 0.6, "hidden_act": "gelu_fast"},
        None,
    ),
    Case("gptneox-in-turn", NEOX | {"use_parallel_residual": False, "rotary_emb_base": 5000}),
    Case("gptneox-tied-no-biases", NEOX | {"tie_word_embeddings": True, "attention_bias": False}, None),
    Case("phi2", PHI2, WIDE | MHA),
    Case("phi2-odd", PHI2 | ODD | {"partial_rotary_factor": 0.4, "rope_theta": 5000.0}, None),
)
