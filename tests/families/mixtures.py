"""Mixtures of experts."""

from families.case import ODD, TIED, WIDE, Case, named

AFMOE = named("AfmoeForCausalLM", "afmoe", num_experts=6, num_experts_per_tok=3, num_shared_experts=2, head_dim=16)
AFMOE |= {"num_hidden_layers": 4, "num_dense_layers": 1, "moe_intermediate_size": 24, "sliding_window": 9}
AFMOE |= {"route_scale": 1.5, "mup_enabled": True}
BAILING = named("BailingMoeForCausalLM", "bailing_moe", num_experts=6, num_experts_per_tok=3, num_shared_experts=2)
BAILING |= {"moe_intermediate_size": 24, "norm_topk_prob": True, "head_dim": 16}
BAILING2 = named("BailingMoeV2ForCausalLM", "bailing_moe", num_experts=8, num_experts_per_tok=3, num_shared_experts=1)
BAILING2 |= {"moe_intermediate_size": 24, "norm_topk_prob": True, "head_dim": 8, "first_k_dense_replace": 1}
BAILING2 |= {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "partial_rotary_factor": 0.5}
DEEPSEEK = named("DeepseekForCausalLM", "deepseek", n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=2)
DEEPSEEK |= {"moe_intermediate_size": 24, "first_k_dense_replace": 1, "norm_topk_prob": False}
DOTS = named("Dots1ForCausalLM", "dots1", n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, head_dim=16)
DOTS |= {"moe_intermediate_size": 24, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
DOTS |= {"num_key_value_heads": 6}
ERNIE = named("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", moe_num_experts=6, moe_k=3, moe_intermediate_size=24)
ERNIE |= {"num_hidden_layers": 3, "pad_token_id": None, "moe_num_shared_experts": 2, "moe_layer_start_index": 1}
EXAONE = named("ExaoneMoeForCausalLM", "exaone_moe", num_experts=8, num_experts_per_tok=3, num_shared_experts=2)
EXAONE |= {"num_hidden_layers": 4, "moe_intermediate_size": 24, "sliding_window": 9, "head_dim": 16}
EXAONE |= {"pad_token_id": None, "eos_token_id": 2}
EXAONE_ODD = {"head_dim": 10, "n_group": 4, "topk_group": 2, "num_hidden_layers": 3, "first_k_dense_replace": 2}
FULL = "full_attention"
FLINT = named("FlintForCausalLM", "flint", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=8)
FLINT |= {"num_hidden_layers": 5, "shared_expert_intermediate_size": 40, "sliding_window": 9, "norm_topk_prob": True}
FLINT_ODD = ODD | TIED | {"head_dim": 10, "num_hidden_layers": 4, "layer_types": ["sliding_attention", FULL] * 2}
FLINT_ODD |= {"mlp_only_layers": [3], "decoder_sparse_step": 2, "norm_topk_prob": False, "attention_bias": True}
EXAONE_ODD |= {"layer_types": [FULL, "sliding_attention", FULL]}
GLM4MOE = named("Glm4MoeForCausalLM", "glm4_moe", n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1)
GLM4MOE |= {"moe_intermediate_size": 24, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "head_dim": 16}
GLM4MOE |= {"num_hidden_layers": 3, "use_qk_norm": True, "pad_token_id": None}
SOLAR = named("SolarOpenForCausalLM", "solar_open", n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1)
SOLAR |= {"moe_intermediate_size": 24, "routed_scaling_factor": 1.5, "head_dim": 16, "pad_token_id": None}
GPT_OSS = named("GptOssForCausalLM", "gpt_oss", num_local_experts=5, num_experts_per_tok=2, head_dim=16)
GPT_OSS |= {"num_hidden_layers": 3, "sliding_window": 9, "rope_theta": 150000.0}
GPT_ODD = {"head_dim": 12, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
GPT_ODD |= {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
GRANITEMOE = named("GraniteMoeForCausalLM", "granitemoe", num_local_experts=5, num_experts_per_tok=2)
GRANITEMOE |= {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.4}
GRANITEMOE |= {"attention_multiplier": 0.2}
SHARED = {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
HUNYUAN = named("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", num_experts=5, moe_topk=[2, 2], head_dim=16)
HUNYUAN |= {"pad_token_id": None}
ALPHA = {"head_dim": 12, "moe_topk": 1, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}
LLAMA4 = named("Llama4ForCausalLM", "llama4_text", num_local_experts=6, num_experts_per_tok=1, head_dim=16)
LLAMA4 |= {"num_hidden_layers": 4, "intermediate_size_mlp": 56, "rms_norm_eps": 1e-5, "attention_chunk_size": 9}
LLAMA4 |= {"floor_scale": 16, "attn_scale": 0.3, "interleave_moe_layer_step": 1, "pad_token_id": None}
LLAMA4_SAID = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}  # as GGUF files have it
SCOUT = {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
SCOUT |= {"original_max_position_embeddings": 64, "rope_theta": 5e5}
MAVERICK = {"use_qk_norm": False, "moe_layers": [1, 2], "attn_temperature_tuning": False, "attention_chunk_size": 33}
MAVERICK |= {"no_rope_layers": [1, 0, 1, 1], "layer_types": ["chunked_attention"] * 3 + ["full_attention"]}
MIMO2 = named("MiMoV2FlashForCausalLM", "mimo_v2_flash", n_routed_experts=6, num_experts_per_tok=3, head_dim=16)
MIMO2 |= {"num_hidden_layers": 4, "moe_intermediate_size": 24, "v_head_dim": 10, "sliding_window": 9}
MIMO2 |= {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
MIMO2 |= {"num_attention_heads": 4, "num_key_value_heads": 1, "attention_value_scale": 0.7, "rms_norm_eps": 1e-5}
TURNS = {"rope_type": "default", "partial_rotary_factor": 0.5}
MIMO2 |= {
    "rope_parameters": {
        "full_attention": {**TURNS, "rope_theta": 5e6},
        "sliding_attention": {**TURNS, "rope_theta": 1e4},
    }
}
MINIMAX = named("MiniMaxM2ForCausalLM", "minimax_m2", num_local_experts=6, num_experts_per_tok=3, head_dim=16)
MINIMAX |= {"rotary_dim": 8}
MIXTRAL = named("MixtralForCausalLM", "mixtral", num_local_experts=5, num_experts_per_tok=2)
OLMOE = named("OlmoeForCausalLM", "olmoe", num_experts=6, num_experts_per_tok=3, num_key_value_heads=6)
PHIMOE = named("PhimoeForCausalLM", "phimoe", num_local_experts=16, num_experts_per_tok=2, router_jitter_noise=0.01)
LONG = {"rope_type": "longrope", "short_mscale": 1.2, "long_mscale": 1.2, "rope_theta": 1e4}
LONG |= {"short_factor": [1.0, 1.1, 1.3, 1.7, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0, 9.0]}
LONG |= {"original_max_position_embeddings": 256}
BIASES = {"attention_bias": True, "lm_head_bias": True}
QWEN2MOE = named("Qwen2MoeForCausalLM", "qwen2_moe", num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24)
QWEN2MOE |= {"shared_expert_intermediate_size": 40, "norm_topk_prob": False}
QWEN3MOE = named("Qwen3MoeForCausalLM", "qwen3_moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)
QWEN3MOE |= {"norm_topk_prob": True, "head_dim": 16}

CASES = (
    Case("flint", FLINT, None),
    Case("flint-odd-tied-biases", FLINT | FLINT_ODD, None),
    Case("afmoe", AFMOE, WIDE | {"moe_intermediate_size": 256, "head_dim": 64, "num_dense_layers": 2}),
    Case("afmoe-odd-tied", AFMOE | ODD | TIED | {"head_dim": 12, "mup_enabled": False, "num_hidden_layers": 3}, None),
    Case("bailing", BAILING, WIDE | {"moe_intermediate_size": 256, "head_dim": 64}, "bailing"),
    Case("bailing-odd-tied", BAILING | ODD | TIED | {"head_dim": 10, "norm_topk_prob": False}, None, "bailing"),
    Case(
        "bailing-unit-head",
        BAILING | {"norm_head": True},
        WIDE | {"moe_intermediate_size": 256, "head_dim": 64},
        "bailing",
    ),
    Case("bailing2", BAILING2, WIDE | {"moe_intermediate_size": 256, "head_dim": 32}, "bailing"),
    Case("bailing2-odd-tied", BAILING2 | ODD | TIED | {"head_dim": 12, "num_shared_experts": 2}, None, "bailing"),
    Case("deepseek", DEEPSEEK, WIDE | {"moe_intermediate_size": 256}, "deepseek"),
    Case("deepseek-odd-tied", DEEPSEEK | ODD | TIED | {"norm_topk_prob": True}, None, "deepseek"),
    Case("dots1", DOTS, WIDE | {"moe_intermediate_size": 256, "num_key_value_heads": 8, "head_dim": 64}),
    Case(
        "dots1-window-groups-biases",
        DOTS
        | {"n_group": 4, "topk_group": 2, "max_window_layers": 1, "sliding_window": 9, "attention_bias": True}
        | {"num_key_value_heads": 2, "norm_topk_prob": False},
        None,
    ),
    Case("ernie-moe", ERNIE, WIDE | {"moe_intermediate_size": 256}),
    Case("ernie-moe-odd-tied", ERNIE | ODD | TIED | {"moe_num_shared_experts": 0, "moe_layer_interval": 2}, None),
    Case("ernie-moe-last-dense", ERNIE | {"moe_layer_end_index": 1}, None),
    Case("exaone-moe", EXAONE, WIDE | {"moe_intermediate_size": 256, "head_dim": 64, "first_k_dense_replace": 2}),
    Case("exaone-moe-odd-tied-groups", EXAONE | ODD | TIED | EXAONE_ODD, None),
    Case("exaone-moe-without-positions", EXAONE | {"num_hidden_layers": 2, "layer_types": [FULL] * 2}, None),
    Case("glm4moe", GLM4MOE, WIDE | {"moe_intermediate_size": 256, "head_dim": 64}),
    Case(
        "glm4moe-groups-biases-tied",
        GLM4MOE | TIED | {"n_group": 4, "topk_group": 2, "attention_bias": True, "use_qk_norm": False},
        WIDE | {"moe_intermediate_size": 256, "head_dim": 64},
    ),
    Case("solar-open", SOLAR, WIDE | {"moe_intermediate_size": 256, "head_dim": 64}),
    Case("gpt-oss", GPT_OSS, WIDE | {"head_dim": 64, "intermediate_size": 256}),
    Case("gpt-oss-odd-layers", GPT_OSS | ODD | GPT_ODD, None),
    Case("granitemoe", GRANITEMOE, WIDE | {"logits_scaling": 1.3}),
    Case(
        "granitemoe-shared-odd-tied-biases",
        GRANITEMOE | SHARED | ODD | TIED | {"attention_bias": True, "shared_intermediate_size": 40},
        None,
    ),
    Case(
        "granitemoe-shared",
        GRANITEMOE | SHARED | {"shared_intermediate_size": 40},
        WIDE | {"logits_scaling": 1.3, "shared_intermediate_size": 256},
    ),
    Case("hunyuan-moe", HUNYUAN, WIDE | {"head_dim": 64}),
    Case("hunyuan-moe-odd-tied-alpha", HUNYUAN | ODD | TIED | ALPHA, None),
    Case("llama4", LLAMA4, WIDE | LLAMA4_SAID | {"head_dim": 64, "intermediate_size_mlp": 512}),
    Case(
        "llama4-odd-tied",
        LLAMA4
        | ODD
        | TIED
        | {"head_dim": 12, "num_hidden_layers": 5}
        | MAVERICK
        | {"no_rope_layers": [1, 0, 1, 1, 1], "layer_types": ["chunked_attention"] * 4 + ["full_attention"]},
        None,
    ),
    Case(
        "llama4-steps-scaled",
        LLAMA4 | LLAMA4_SAID | {"interleave_moe_layer_step": 2, "rope_scaling": SCOUT},
        WIDE | {"head_dim": 64, "intermediate_size_mlp": 512},
    ),
    Case("llama4-dense", LLAMA4 | {"moe_layers": [], "layer_types": ["full_attention"] * 4}, None),
    Case(
        "mimo2",
        MIMO2,
        WIDE | {"moe_intermediate_size": 256, "head_dim": 64, "v_head_dim": 32, "num_key_value_heads": 2},
    ),
    Case(
        "mimo2-odd-tied-biases",
        MIMO2
        | ODD
        | TIED
        | {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 12, "v_head_dim": 12, "attention_bias": True}
        | {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"], "n_group": 2, "topk_group": 1},
        None,
    ),
    Case("mimo2-scaled", MIMO2 | {"routed_scaling_factor": 2.5, "norm_topk_prob": False}, None),
    Case("minimax-m2", MINIMAX, WIDE | {"head_dim": 64, "rotary_dim": 32}),
    Case("minimax-m2-odd-tied", MINIMAX | ODD | TIED | {"head_dim": 12, "rotary_dim": 12}, None),
    Case("mixtral", MIXTRAL),
    Case("mixtral-odd-tied", MIXTRAL | ODD | TIED | {"num_experts_per_tok": 1}, None),
    Case("olmoe", OLMOE, WIDE | {"num_key_value_heads": 8}),
    Case("olmoe-limited", OLMOE | {"clip_qkv": 0.7}, None),
    Case("olmoe-odd-tied", OLMOE | ODD | TIED | {"norm_topk_prob": True}, None),
    Case("phimoe", PHIMOE | BIASES, None),
    Case("phimoe-odd-tied-long", PHIMOE | ODD | TIED | {"rope_scaling": LONG, "max_position_embeddings": 512}, None),
    Case("phimoe-window", PHIMOE | {"sliding_window": 9}, None),
    Case("qwen2moe", QWEN2MOE, WIDE | {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 512}),
    Case("qwen2moe-odd-tied", QWEN2MOE | ODD | TIED | {"norm_topk_prob": True}, None),
    Case("qwen2moe-dense-layers", QWEN2MOE | {"decoder_sparse_step": 2, "num_hidden_layers": 3}, None),
    Case("qwen3moe", QWEN3MOE, WIDE | {"moe_intermediate_size": 256, "head_dim": 64}),
    Case("qwen3moe-odd-tied-biases", QWEN3MOE | ODD | TIED | {"norm_topk_prob": False, "attention_bias": True}, None),
    Case("qwen3moe-dense-layer", QWEN3MOE | {"mlp_only_layers": [0]}, None),
)
