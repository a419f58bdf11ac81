"""Families of latent attention and of its hybrids that came in 2026."""

from families.case import TIED, WIDE, Case, named
from families.latent import HEADS, ODD, WIDE_HEADS, YARN

LATENT = {**HEADS, "num_key_value_heads": 6, "pad_token_id": None}
YOUTU = named("YoutuForCausalLM", "youtu", **LATENT, tie_word_embeddings=False)
YOUTU_ODD = {**ODD, "rope_interleave": False, "rope_scaling": YARN}

CASES = (
    Case("youtu", YOUTU | TIED, WIDE | WIDE_HEADS | {"q_lora_rank": 256}),
    Case("youtu-odd-half", YOUTU | YOUTU_ODD, None),
)
