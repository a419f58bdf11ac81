"""Families of latent attention over the positions that an indexer chooses: a few of the prompt's 70."""

from typing import Any

from families.case import WIDE, Case, named
from families.latent import EXPERTS, HEADS, ODD, WIDE_HEADS
from families.latent import YARN as OTHER

INDEX: dict[str, Any] = {"index_topk": 8, "index_head_dim": 12, "index_n_heads": 6}
V32 = named("DeepseekV32ForCausalLM", "deepseek_v32", **HEADS, **EXPERTS, **INDEX, n_group=4, topk_group=2)
GLM = named("GlmMoeDsaForCausalLM", "glm_moe_dsa", **HEADS, **EXPERTS, **INDEX, n_group=1, topk_group=1)
FIVE = {"num_hidden_layers": 5, "indexer_types": ["full", "shared", "full", "shared", "shared"]}
SHARED = {"num_hidden_layers": 2, "indexer_types": ["full", "shared"], "first_k_dense_replace": 1}
# Seven heads, an indexer whose heads are rotated whole, no layer without experts.
ODD32 = ODD | {"q_lora_rank": 21, "index_topk": 5, "index_head_dim": 8, "index_n_heads": 7, "first_k_dense_replace": 0}
# Of 8 positions llama.cpp, which rounds what it multiplies, now and then chooses another, that counts for an eighth.
WIDE32 = WIDE | WIDE_HEADS | {"q_lora_rank": 256, "index_n_heads": 8, "index_head_dim": 128, "index_topk": 40}
# Of this family llama.cpp computes no other mscale; the model has this one.
YARN = OTHER | {"mscale": 1.0, "mscale_all_dim": 1.0}

CASES = (
    Case("deepseek32", V32 | {"rope_scaling": YARN}, WIDE32),
    Case("deepseek32-odd", V32 | ODD32 | {"norm_topk_prob": False, "tie_word_embeddings": True}, None),
    Case("glm-dsa", GLM, WIDE32),
    Case("glm-dsa-odd-shared", GLM | ODD32 | FIVE, WIDE32 | SHARED),
)
