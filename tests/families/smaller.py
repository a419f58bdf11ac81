"""Families that are others with a part changed."""

from typing import Any

from families.case import ODD, TIED, WIDE, Case, named

LLAMA3: dict[str, Any] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 32
EXAONE = named("ExaoneForCausalLM", "exaone", activation_function="silu", layer_norm_epsilon=1e-5)
EXAONE["num_layers"] = EXAONE.pop("num_hidden_layers")
DBRX: dict[str, Any] = {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "vocab_size": 131, "d_model": 48}
DBRX |= {"n_heads": 6, "n_layers": 2, "max_seq_len": 256, "tie_word_embeddings": False}
DBRX["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5}
DBRX["attn_config"] = {"kv_n_heads": 2, "clip_qkv": 1.1, "rope_theta": 5e5}
DBRX["ffn_config"] = {"ffn_hidden_size": 40, "moe_num_experts": 6, "moe_top_k": 2, "moe_normalize_expert_weights": 1.0}
DBRX_ODD: dict[str, Any] = {
    "d_model": 70,
    "n_heads": 7,
    "attn_config": {"kv_n_heads": 1, "rope_theta": 1e4, "clip_qkv": 2.5},
}
DBRX_ODD["ffn_config"] = DBRX["ffn_config"] | {"moe_normalize_expert_weights": None, "ffn_act_fn": {"name": "silu"}}
DBRX_ODD["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4}
DBRX_WIDE: dict[str, Any] = {"d_model": 256, "n_heads": 8, "attn_config": DBRX["attn_config"] | {"kv_n_heads": 4}}
DBRX_WIDE["ffn_config"] = DBRX["ffn_config"] | {"ffn_hidden_size": 512}

OPT = named("OPTForCausalLM", "opt", ffn_dim=88, do_layer_norm_before=True, activation_function="relu")
del OPT["intermediate_size"], OPT["num_key_value_heads"]
# As the model of 350M, and as Galactica.
OPT_POST = {"word_embed_proj_dim": 24, "do_layer_norm_before": False, "enable_bias": False, "tie_word_embeddings": True}
OPT_ODD = {"hidden_size": 70, "num_attention_heads": 7, "activation_function": "gelu", "tie_word_embeddings": False}
OPT_ODD |= {"layer_norm_elementwise_affine": False}
OPT_BARE = {"_remove_final_layer_norm": True, "enable_bias": False}

HY3 = named("HYV3ForCausalLM", "hy_v3", head_dim=8, num_hidden_layers=3, num_experts=6, num_experts_per_tok=2)
HY3 |= {"moe_intermediate_size": 24, "num_shared_experts": 1, "router_scaling_factor": 1.7}
HY3_ODD: dict[str, Any] = ODD | {"head_dim": 10, "num_shared_experts": 2, "mlp_layer_types": ["dense"] * 2 + ["sparse"]}
HY3_WIDE = WIDE | {"head_dim": 32, "moe_intermediate_size": 256}

MISTRAL4 = named("Mistral4ForCausalLM", "mistral4", kv_lora_rank=24, q_lora_rank=32, qk_rope_head_dim=8)
MISTRAL4["num_key_value_heads"] = 6
MISTRAL4 |= {"qk_nope_head_dim": 16, "v_head_dim": 12, "n_routed_experts": 6, "num_experts_per_tok": 2}
MISTRAL4 |= {
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "max_position_embeddings": 256,
}
MISTRAL4["rope_parameters"] = {"type": "yarn", "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 1.0}
MISTRAL4["rope_parameters"] |= {
    "mscale_all_dim": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "max_position_embeddings": 256,
}
MISTRAL4["rope_parameters"] |= {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.3}
MISTRAL4_ODD: dict[str, Any] = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 7, "n_group": 2}
MISTRAL4_ODD |= {"q_lora_rank": None, "topk_group": 1, "norm_topk_prob": False, "first_k_dense_replace": 1}
MISTRAL4_ODD |= {
    "rope_parameters": MISTRAL4["rope_parameters"] | {"llama_4_scaling_beta": 0.0},
    "rope_interleave": False,
}
MISTRAL4_WIDE = WIDE | {"kv_lora_rank": 64, "q_lora_rank": 256, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32}
MISTRAL4_WIDE |= {"num_key_value_heads": 8, "v_head_dim": 32, "moe_intermediate_size": 256}

ORION = named("OrionForCausalLM", "orion")
PANGU = named("PanguEmbeddedForCausalLM", "PanguEmbedded", bias=True)
INTERNLM = named("InternLMForCausalLM", "internlm", bias=True)
CWM = named("CwmForCausalLM", "cwm", head_dim=8, num_hidden_layers=5, sliding_window=20)
CWM["rope_parameters"] = LLAMA3 | {"rope_theta": 1e5}
CWM_ODD: dict[str, Any] = ODD | TIED | {"head_dim": 10, "num_hidden_layers": 2, "rope_parameters": None}
CWM_ODD["layer_types"] = ["sliding_attention"] * 2
HELIUM = named("HeliumForCausalLM", "helium", head_dim=8)
HELIUM_ODD: dict[str, Any] = ODD | TIED | {"head_dim": 10, "attention_bias": True, "mlp_bias": True}
XVERSE = named("XverseForCausalLM", "xverse")
QWEN = named("QWenLMHeadModel", "qwen", layer_norm_epsilon=1e-5, rotary_emb_base=5e3, seq_length=256, no_bias=True)
QWEN |= {"use_logn_attn": True, "use_dynamic_ntk": True}
del QWEN["num_key_value_heads"]
QWEN_ODD = {"hidden_size": 70, "num_attention_heads": 7}

SMALL = named("SmallThinkerForCausalLM", "smallthinker", head_dim=8, num_hidden_layers=5, moe_ffn_hidden_size=40)
SMALL |= {"moe_num_primary_experts": 6, "moe_num_active_primary_experts": 2, "sliding_window_size": 20}
SMALL |= {"rope_layout": [0, 1, 1, 1, 0], "sliding_window_layout": [0, 1, 1, 1, 0]}
SMALL["moe_primary_router_apply_softmax"] = True
del SMALL["intermediate_size"]
SMALL_ODD: dict[str, Any] = {"num_hidden_layers": 2, "rope_layout": [1, 1], "sliding_window_layout": [0, 0]}
SMALL_ODD |= ODD | TIED | {"head_dim": 10, "moe_primary_router_apply_softmax": False}
SMALL_WIDE = WIDE | {
    "head_dim": 32,
    "moe_ffn_hidden_size": 256,
    "sliding_window_size": 4096,
    "moe_num_primary_experts": 5,
}
del SMALL_WIDE["intermediate_size"]

NANBEIGE = named("NanbeigeForCausalLM", "nanbeige", num_loops=3, skip_loop_final_norm=False)
NANBEIGE_ODD = ODD | TIED | {"num_loops": 2, "skip_loop_final_norm": True}
NEO = named("GPTNeoForCausalLM", "gpt_neo", num_layers=3, num_heads=6, window_size=20, layer_norm_epsilon=1e-5)
NEO |= {"attention_types": [[["global", "local"], 1], [["local"], 1]], "tie_word_embeddings": True}
for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"):
    del NEO[key]
NEO_ODD = {"hidden_size": 70, "num_heads": 7, "intermediate_size": 90, "tie_word_embeddings": False}
NEO_ODD |= {"num_layers": 2, "attention_types": [[["global"], 2]]}
GPTJ: dict[str, Any] = {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "vocab_size": 131, "n_embd": 48}
GPTJ |= {"n_layer": 2, "n_head": 6, "n_positions": 256, "rotary_dim": 4, "tie_word_embeddings": False}
GPTJ_ODD = {"n_embd": 70, "n_head": 7, "n_inner": 90, "rotary_dim": 10}

MELLUM = named("MellumForCausalLM", "mellum", head_dim=8, num_hidden_layers=5, sliding_window=20)
MELLUM |= {"num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
MELLUM["layer_types"] = ["sliding_attention", "full_attention", *["sliding_attention"] * 3]
YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 32}
MELLUM["rope_parameters"] = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
MELLUM_ODD: dict[str, Any] = ODD | TIED | {"head_dim": 10, "num_hidden_layers": 2, "norm_topk_prob": False}
MELLUM_ODD |= {"mlp_layer_types": ["dense", "sparse"], "attention_bias": True, "rope_parameters": None}
MELLUM_ODD["layer_types"] = ["sliding_attention", "full_attention"]
MELLUM_WIDE: dict[str, Any] = WIDE | {"head_dim": 32, "moe_intermediate_size": 256, "num_local_experts": 4}
MELLUM_WIDE["rope_parameters"] = {
    "full_attention": YARN,
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
}

CASES = (
    Case("exaone", EXAONE, WIDE | {"rope_scaling": LLAMA3}, numpy="exaone"),
    Case("exaone-odd-tied", EXAONE | ODD | TIED, None, numpy="exaone"),
    Case("dbrx", DBRX, DBRX_WIDE),
    Case("hy-v3", HY3, HY3_WIDE),
    Case("hy-v3-odd-tied", HY3 | HY3_ODD | TIED, None),
    Case("mistral4", MISTRAL4, MISTRAL4_WIDE),
    Case("mistral4-odd-tied", MISTRAL4 | MISTRAL4_ODD | TIED, None),
    Case("pangu", PANGU, numpy="llama_like"),
    Case("pangu-odd-tied", PANGU | ODD | TIED | {"bias": False}, None, numpy="llama_like"),
    Case("internlm", INTERNLM, numpy="llama_like"),
    Case("cwm", CWM, None),
    Case("cwm-odd-tied", CWM | CWM_ODD, None),
    Case("helium", HELIUM, None),
    Case("helium-odd-tied-biases", HELIUM | HELIUM_ODD, None),
    Case("orion", ORION, numpy="llama_like"),
    Case("orion-odd-tied", ORION | ODD | TIED, None, numpy="llama_like"),
    Case("xverse", XVERSE, numpy="llama_like"),
    Case("xverse-odd-tied", XVERSE | ODD | TIED, None, numpy="llama_like"),
    Case("qwen", QWEN, {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8}, numpy="qwen"),
    Case("qwen-odd-tied", QWEN | QWEN_ODD | TIED, None, numpy="qwen"),
    Case("smallthinker", SMALL, SMALL_WIDE, numpy="smallthinker"),
    Case("smallthinker-odd-tied", SMALL | SMALL_ODD, None, numpy="smallthinker"),
    Case("nanbeige", NANBEIGE, numpy="nanbeige"),
    Case("nanbeige-odd-tied", NANBEIGE | NANBEIGE_ODD, None, numpy="nanbeige"),
    Case("gpt-neo", NEO, None),
    Case("gpt-neo-odd", NEO | NEO_ODD, None),
    Case("gptj", GPTJ, None),
    Case("gptj-odd", GPTJ | GPTJ_ODD, None),
    Case("mellum", MELLUM, MELLUM_WIDE),
    Case("mellum-odd-tied-biases", MELLUM | MELLUM_ODD, None),
    Case("opt", OPT | {"tie_word_embeddings": True}, None),
    Case("opt-post-norms", OPT | OPT_POST, None),
    Case("opt-odd", OPT | OPT_ODD, None),
    Case("opt-no-last-norm", OPT | OPT_BARE, None),
    Case("dbrx-odd", DBRX | DBRX_ODD, None),
)
