"""Dense models with an activation function that is learned."""

from families.case import ODD, TIED, WIDE, Case, named

APERTUS = named("ApertusForCausalLM", "apertus", hidden_act="xielu", head_dim=16, dtype="float32")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64, "rope_theta": 1e4}
UNSCALED = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}

CASES = (
    Case("apertus", APERTUS, WIDE | {"head_dim": 64}),
    Case("apertus-odd-tied", APERTUS | ODD | TIED | {"head_dim": 12, "attention_bias": True} | UNSCALED, None),
    Case("apertus-scaled", APERTUS | {"rope_scaling": LLAMA3}, WIDE | {"head_dim": 64}),
)
