"""Families of latent attention and of its hybrids that came in 2026."""

from families.case import TIED, WIDE, Case, named
from families.latent import EXPERTS, HEADS, ODD, WIDE_HEADS, YARN

LATENT = {**HEADS, "num_key_value_heads": 6, "pad_token_id": None}
YOUTU = named("YoutuForCausalLM", "youtu", **LATENT, tie_word_embeddings=False)
YOUTU_ODD = {**ODD, "rope_interleave": False, "rope_scaling": YARN}
AXK1 = named("AXK1ForCausalLM", "axk1", **HEADS, **EXPERTS, n_group=4, topk_group=2, routed_scaling_factor=2.5)
AXK1_ODD = {**ODD, "q_lora_rank": 20, "norm_topk_prob": False, "rope_scaling": YARN}
AXK1_ODD |= {"mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1}

CASES = (
    Case("axk1", AXK1, None),
    Case("axk1-odd-yarn", AXK1 | AXK1_ODD, None),
    Case("youtu", YOUTU | TIED, WIDE | WIDE_HEADS | {"q_lora_rank": 256}),
    Case("youtu-odd-half", YOUTU | YOUTU_ODD, None),
)
