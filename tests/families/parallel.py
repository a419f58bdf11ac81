"""Families whose attention and feed-forward block stand beside each other, and their kin."""

from families.case import ODD, TIED, WIDE, Case, named

COHERE = named("CohereForCausalLM", "cohere", layer_norm_eps=1e-5, logit_scale=0.5) | TIED
COHERE2 = named("Cohere2ForCausalLM", "cohere2", layer_norm_eps=1e-5, logit_scale=0.5, sliding_window=9) | TIED
COHERE2 |= {"num_hidden_layers": 5}
COHERE2MOE = COHERE2 | {"architectures": ["Cohere2MoeForCausalLM"], "model_type": "cohere2_moe", "head_dim": 8}
COHERE2MOE |= {"num_experts": 5, "num_experts_per_tok": 2, "num_shared_experts": 2, "expert_selection_fn": "sigmoid"}
COHERE2MOE |= {"first_k_dense_replace": 1, "prefix_dense_intermediate_size": 72}
COMPASS = named("CohereCompassForCausalLM", "cohere_compass_text", layer_norm_eps=1e-5, logit_scale=0.5) | TIED
COMPASS |= {"sliding_window": 9, "num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
TURNS = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}
COMPASS["rope_parameters"] = {"sliding_attention": TURNS | {"rope_theta": 500.0}, "full_attention": None}
BOTH = {"sliding_attention": TURNS | {"rope_theta": 1e4}, "full_attention": TURNS | {"rope_theta": 5e5}}
FULL = {"full_attention": TURNS | {"rope_theta": 3e4}, "sliding_attention": None}
FALCON = named("FalconForCausalLM", "falcon", ffn_hidden_size=None) | TIED
FALCON_NEW = FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
NEMOTRON = named("NemotronForCausalLM", "nemotron", hidden_act="relu2", norm_eps=1e-5, head_dim=8)
NEOX = named("GPTNeoXForCausalLM", "gpt_neox", hidden_act="gelu", layer_norm_eps=1e-5, rotary_pct=0.25)
GRANITE_SWA = named("GraniteSWAForCausalLM", "granite_swa", embedding_multiplier=3.0, logits_scaling=1.3) | TIED
GRANITE_SWA |= {"residual_multiplier": 0.4, "attention_multiplier": 0.2, "sliding_window": 9, "num_hidden_layers": 5}
JAIS2 = named("Jais2ForCausalLM", "jais2", hidden_act="relu2", layer_norm_eps=1e-5)
OLMO = named("OlmoForCausalLM", "olmo", pad_token_id=None, clip_qkv=0.8)
OLMO3 = named("Olmo3ForCausalLM", "olmo3", pad_token_id=None, sliding_window=9, num_hidden_layers=5, rope_theta=5e5)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.2}
PHI2 = named("PhiForCausalLM", "phi", hidden_act="gelu_new", layer_norm_eps=1e-5, partial_rotary_factor=0.5)
STABLELM = named("StableLmForCausalLM", "stablelm", layer_norm_eps=1e-5, partial_rotary_factor=0.25, hidden_size=96)
STABLELM |= {"use_parallel_residual": True, "qk_layernorm": True}
ALL_HEADS = {"num_key_value_heads": 8}  # of keys, in the wide model
BIASES = {"attention_bias": True}

CASES = (
    Case("cohere", COHERE),
    Case("cohere-odd-norms-biases", COHERE | ODD | BIASES | {"use_qk_norm": True}, None),
    Case("cohere-untied-norms", COHERE | {"use_qk_norm": True, "tie_word_embeddings": False}, None),
    Case("cohere2", COHERE2),
    Case("cohere2-odd", COHERE2 | ODD | {"rope_theta": 5000.0}, None),
    Case("cohere2-pattern", COHERE2 | {"sliding_window_pattern": 2}),
    Case("cohere2moe-sigmoid", COHERE2MOE, WIDE | {"head_dim": 32, "prefix_dense_intermediate_size": 256}),
    Case("cohere2moe-softmax-rms", COHERE2MOE | {"expert_selection_fn": "softmax", "rms_norm_eps": 1e-5}, None),
    Case(
        "cohere2moe-odd",
        COHERE2MOE
        | ODD
        | {"head_dim": 10, "num_shared_experts": 0, "norm_topk_prob": False}
        | {"first_k_dense_replace": 0, "tie_word_embeddings": False},
        None,
    ),
    Case("cohere-compass", COMPASS, None),
    Case("cohere-compass-two-bases", COMPASS | {"rope_parameters": BOTH}, None),
    Case("cohere-compass-odd-biases", COMPASS | ODD | BIASES | {"rope_parameters": FULL, "logit_scale": None}, None),
    Case("falcon", FALCON | {"multi_query": True}),
    Case("falcon-odd-all-heads", FALCON | ODD | {"multi_query": False, "tie_word_embeddings": False}, None),
    Case("falcon-new", FALCON_NEW, WIDE | {"num_kv_heads": 4}),
    Case("falcon-new-one-norm", FALCON_NEW | {"num_ln_in_parallel_attn": 1, "rope_theta": 5000.0}),
    Case("gptneox", NEOX),
    Case(
        "gptneox-odd-in-turn",
        NEOX | ODD | {"use_parallel_residual": False, "rotary_pct": 0.6, "hidden_act": "gelu_fast"},
        None,
    ),
    Case("gptneox-in-turn", NEOX | {"use_parallel_residual": False, "rotary_pct": 0.5, "rotary_emb_base": 500}),
    Case("gptneox-tied-no-biases", NEOX | {"tie_word_embeddings": True, "attention_bias": False}, None),
    Case("granite-swa", GRANITE_SWA, WIDE | {"logits_scaling": 0.9}),
    Case("granite-swa-nope", GRANITE_SWA | {"layer_rope_theta": [0, 500.0, 500.0, 0, 500.0]}),
    Case(
        "granite-swa-odd-biases",
        GRANITE_SWA | ODD | BIASES | {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 2},
        None,
    ),
    Case("jais2", JAIS2),
    Case("jais2-odd-tied", JAIS2 | ODD | TIED, None),
    Case("nemotron", NEMOTRON, WIDE | {"head_dim": 32}),
    Case("nemotron-odd-biases", NEMOTRON | ODD | BIASES | {"mlp_bias": True, "head_dim": 12}, None),
    Case("olmo", OLMO),
    Case("olmo-odd-tied-no-limit", OLMO | ODD | TIED | {"clip_qkv": None}, None),
    Case("olmo3", OLMO3, WIDE | ALL_HEADS),
    Case("olmo3-odd-yarn", OLMO3 | ODD | {"rope_scaling": YARN}, None),
    Case("phi2", PHI2, WIDE | ALL_HEADS),
    Case("phi2-odd", PHI2 | ODD | {"partial_rotary_factor": 0.4, "rope_theta": 5000.0}, None),
    Case("stablelm-parallel", STABLELM),
    Case("stablelm-parallel-odd", STABLELM | ODD | {"partial_rotary_factor": 0.4, "use_qkv_bias": True}, None),
    Case("stablelm-norms", STABLELM | {"use_parallel_residual": False}, None),
)
