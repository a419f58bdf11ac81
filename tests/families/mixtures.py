"""Mixtures of experts."""

from families.case import ODD, TIED, WIDE, Case, named

MIXTRAL = named("MixtralForCausalLM", "mixtral", num_local_experts=5, num_experts_per_tok=2)
QWEN2MOE = named("Qwen2MoeForCausalLM", "qwen2_moe", num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24)
QWEN2MOE |= {"shared_expert_intermediate_size": 40, "norm_topk_prob": False}
QWEN3MOE = named("Qwen3MoeForCausalLM", "qwen3_moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)
QWEN3MOE |= {"norm_topk_prob": True, "head_dim": 16}

CASES = (
    Case("mixtral", MIXTRAL),
    Case("mixtral-odd-tied", MIXTRAL | ODD | TIED | {"num_experts_per_tok": 1}, None),
    Case("qwen2moe", QWEN2MOE, WIDE | {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 512}),
    Case("qwen2moe-odd-tied", QWEN2MOE | ODD | TIED | {"norm_topk_prob": True}, None),
    Case("qwen3moe", QWEN3MOE, WIDE | {"moe_intermediate_size": 256, "head_dim": 64}),
    Case("qwen3moe-odd-tied-biases", QWEN3MOE | ODD | TIED | {"norm_topk_prob": False, "attention_bias": True}, None),
)
