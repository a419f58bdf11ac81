"""Llama and its near kin."""

from families.case import ODD, TIED, WIDE, Case, named

COGVLM = named("CogVLMForCausalLM", "cogvlm", num_attention_heads=6)
COGVLM = {key: value for key, value in COGVLM.items() if key != "num_key_value_heads"}
GRANITE = named("GraniteForCausalLM", "granite", embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.4)
GRANITE |= {"attention_multiplier": 0.2}
INTERNLM2 = named("InternLM2ForCausalLM", "internlm2", bias=False, rope_theta=1e6)
LLAMA = named("LlamaForCausalLM", "llama")
MINICPM = named("MiniCPMForCausalLM", "minicpm", scale_emb=3, scale_depth=1.4, dim_model_base=24)
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 2.0], "long_factor": [1.0, 1.5, 3.0, 8.0]}
OLMO2 = named("Olmo2ForCausalLM", "olmo2", pad_token_id=None)
PHI3 = named("Phi3ForCausalLM", "phi3", pad_token_id=None)
QWEN2 = named("Qwen2ForCausalLM", "qwen2", rope_theta=1e6)
QWEN2_WINDOW = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
QWEN3 = named("Qwen3ForCausalLM", "qwen3", head_dim=16, rope_theta=1e6)
SMOLLM3 = named("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=4, pad_token_id=None, bos_token_id=1, eos_token_id=2)

CASES = (
    Case("cogvlm", COGVLM, {key: value for key, value in WIDE.items() if "key_value" not in key}, "cogvlm"),
    Case(
        "cogvlm2-odd",
        COGVLM | {"hidden_size": 70, "num_attention_heads": 7, "num_multi_query_heads": 1},
        None,
        "cogvlm",
    ),
    Case("granite", GRANITE, WIDE | {"logits_scaling": 1.3}),
    Case("granite-odd-tied-biases", GRANITE | ODD | TIED | {"attention_bias": True, "mlp_bias": True}, None),
    Case("internlm2", INTERNLM2, numpy="internlm2"),
    Case("internlm2-odd-biases", INTERNLM2 | ODD | {"bias": True}, None, "internlm2"),
    Case("llama", LLAMA),
    Case("minicpm", MINICPM, WIDE | {"dim_model_base": 160}, "minicpm"),
    Case("minicpm-odd-tied", MINICPM | ODD | TIED, None, "minicpm"),
    Case("olmo2", OLMO2),
    Case("olmo2-odd", OLMO2 | ODD | {"num_key_value_heads": 7}, None),
    Case("phi3", PHI3),
    Case("phi3-partial-window-tied", PHI3 | ODD | TIED | {"partial_rotary_factor": 0.8, "sliding_window": 9}, None),
    Case("phi3-longrope", PHI3 | {"rope_scaling": LONGROPE, "original_max_position_embeddings": 64}, None),
    Case("qwen2", QWEN2),
    Case("qwen2-odd-tied", QWEN2 | ODD | TIED),
    Case("qwen2-window", QWEN2 | QWEN2_WINDOW, None),
    Case("qwen3", QWEN3, WIDE | {"head_dim": 64}),
    Case("qwen3-odd-tied-biases", QWEN3 | ODD | TIED | {"head_dim": 12, "attention_bias": True}, None),
    Case("smollm3", SMOLLM3),
    Case("smollm3-odd-tied", SMOLLM3 | ODD | TIED | {"no_rope_layers": [1, 0, 1, 0]}, None),
)
