"""Families of latent attention and of its hybrids that came in 2026."""

from families.case import TIED, WIDE, Case, named
from families.latent import EXPERTS, HEADS, ODD, WIDE_HEADS, YARN
from families.sparse import INDEX

LATENT = {**HEADS, "num_key_value_heads": 6, "pad_token_id": None}
YOUTU = named("YoutuForCausalLM", "youtu", **LATENT, tie_word_embeddings=False)
YOUTU_ODD = {**ODD, "rope_interleave": False, "rope_scaling": YARN}
AXK1 = named("AXK1ForCausalLM", "axk1", **HEADS, **EXPERTS, n_group=4, topk_group=2, routed_scaling_factor=2.5)
AXK1_ODD = {**ODD, "q_lora_rank": 20, "norm_topk_prob": False, "rope_scaling": YARN}
AXK1_ODD |= {"mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1}
AXK2 = named("AXK2ForCausalLM", "axk2", **HEADS, **EXPERTS, **INDEX, gated_norm_rank=4)
AXK2_ODD = {**ODD, "q_lora_rank": 21, "index_topk": 5, "index_head_dim": 8, "index_n_heads": 7, "norm_topk_prob": False}
LING3 = named("BailingHybridForCausalLM", "bailing_hybrid", num_hidden_layers=4, num_key_value_heads=6, head_dim=16)
LING3 |= {name: value for name, value in HEADS.items() if name != "q_lora_rank"} | {"pad_token_id": None}
LING3 |= {"num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 2, "moe_intermediate_size": 24}
LING3 |= {"n_group": 4, "topk_group": 2, "layer_group_size": 2, "first_k_dense_replace": 1}
# Seven heads of ten, decays without a bound, layers after the last group.
LING3_ODD = {**ODD, "head_dim": 10, "kda_safe_gate": False, "num_hidden_layers": 3, "short_conv_kernel_size": 3}
LING3_ODD |= {"norm_topk_prob": False, "n_group": 1, "topk_group": 1}
del LING3_ODD["q_lora_rank"]
# In the words of its makers, who make queries out of a latent too, and have attention after the last group.
LING3_WIDE = {**WIDE_HEADS, "architectures": ["BailingMoeV3ForCausalLM"], "q_lora_rank": 256, "head_dim": 128}
LING3_WIDE |= {"n_group": 1, "topk_group": 1, "num_experts": 6, "layer_group_size": 3, "rotary_dim": 16}
LING3_WIDE["moe_shared_expert_intermediate_size"] = 512
LING3_WIDE |= {"partial_rotary_factor": 0.5, "share_expert_swiglu_limit_list": [None, 0, 0.6]}
LING3_WIDE["expert_swiglu_limit_list"] = [0, 0, 0.5, 0.4]
LONGCAT = named("LongcatFlashForCausalLM", "longcat_flash", **LATENT, num_layers=2, ffn_hidden_size=80, head_dim=8)
LONGCAT |= {"n_routed_experts": 6, "zero_expert_num": 4, "moe_topk": 3, "expert_ffn_hidden_size": 24}
LONGCAT |= {"routed_scaling_factor": 1.5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}
LONGCAT = {name: value for name, value in LONGCAT.items() if name not in ("num_hidden_layers", "intermediate_size")}
LONGCAT_ODD = {**ODD, "q_lora_rank": 20, "zero_expert_num": 0}

CASES = (
    Case("axk1", AXK1, None),
    Case("axk1-odd-yarn", AXK1 | AXK1_ODD, None),
    Case("axk2", AXK2, None),
    Case("axk2-odd-tied", AXK2 | AXK2_ODD | TIED, None),
    Case("ling3", LING3, WIDE | LING3_WIDE),
    Case("ling3-odd-unbounded", LING3 | LING3_ODD, None),
    Case("longcat-flash", LONGCAT, None),
    Case("longcat-flash-odd", LONGCAT | LONGCAT_ODD, None),
    Case("youtu", YOUTU | TIED, WIDE | WIDE_HEADS | {"q_lora_rank": 256}),
    Case("youtu-odd-half", YOUTU | YOUTU_ODD, None),
)
