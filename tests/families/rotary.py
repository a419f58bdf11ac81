"""Families with linear biases (ALiBi) in place of positions, and families with unusual rotary positions."""

from typing import Any

from families.case import ODD, TIED, WIDE, Case, named

MPT: dict[str, Any] = {
    "architectures": ["MptForCausalLM"],
    "model_type": "mpt",
    "d_model": 48,
    "n_heads": 6,
    "n_layers": 2,
    "max_seq_len": 256,
    "attn_config": {"alibi": True},
    "vocab_size": 131,
}
BLOOM: dict[str, Any] = {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "hidden_size": 48,
    "n_head": 6,
    "n_layer": 2,
    "vocab_size": 131,
}
ARCEE = named("ArceeForCausalLM", "arcee", hidden_act="relu2")
ERNIE = named("Ernie4_5ForCausalLM", "ernie4_5", head_dim=8, pad_token_id=None)
FALCON_RW = named("FalconForCausalLM", "falcon", ffn_hidden_size=None, alibi=True, bias=True) | TIED
FALCON_RW |= {"multi_query": False, "parallel_attn": False, "num_attention_heads": 8}
GLM = named("GlmForCausalLM", "glm", head_dim=8, pad_token_id=None, eos_token_id=1)
GLM4 = named("Glm4ForCausalLM", "glm4", head_dim=8, pad_token_id=None, eos_token_id=1)
EXAONE4 = named("Exaone4ForCausalLM", "exaone4", sliding_window=None, sliding_window_pattern=None)
HUNYUAN = named("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", head_dim=16)
INTERNLM3 = named("InternLM3ForCausalLM", "internlm3", head_dim=8)
MINISTRAL = named("MinistralForCausalLM", "ministral", sliding_window=9, head_dim=8)
MINISTRAL3 = named("Ministral3ForCausalLM", "ministral3", head_dim=16, sliding_window=None, pad_token_id=None)
del MINISTRAL3["rope_theta"]
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
YARN |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
SEED = named("SeedOssForCausalLM", "seed_oss", head_dim=16, pad_token_id=None)
BAICHUAN = named("BaichuanForCausalLM", "baichuan", num_key_value_heads=None)
SEVEN, THIRTEEN = (WIDE | {"num_hidden_layers": layers, "num_key_value_heads": None} for layers in (32, 40))
BAICHUAN_13B = {key: value for key, value in BAICHUAN.items() if key != "max_position_embeddings"}
BIASES = {"attention_bias": True, "mlp_bias": True}

STEEP = {"llama_4_scaling_beta": 0.5, "mscale_all_dim": 0.0, "original_max_position_embeddings": 9}
LIMITED = {"attn_config": {"clip_qkv": 0.9}}

CASES = (
    Case("arcee", ARCEE),
    Case("arcee-odd-tied-biases", ARCEE | ODD | TIED | BIASES, None),
    Case("baichuan", BAICHUAN, SEVEN, "baichuan"),
    Case("baichuan-13b", BAICHUAN_13B, THIRTEEN, "baichuan"),
    Case("baichuan2", BAICHUAN | {"z_loss_weight": 0}, SEVEN, "baichuan"),
    Case("baichuan2-13b", BAICHUAN_13B | {"z_loss_weight": 0, "model_max_length": 256}, None, "baichuan"),
    Case("bloom", BLOOM, {"hidden_size": 256, "n_head": 8}),
    Case("bloom-odd", BLOOM | {"hidden_size": 42, "n_head": 7, "tie_word_embeddings": False}, None),
    Case("bloom-twelve-heads", BLOOM | {"hidden_size": 96, "n_head": 12}, {"hidden_size": 768, "n_head": 12}),
    Case("ernie", ERNIE, WIDE | {"head_dim": 64}),
    Case("ernie-odd-tied-biases", ERNIE | ODD | TIED | {"head_dim": 10, "use_bias": True}, None),
    Case("exaone4", EXAONE4 | {"layer_types": ["full_attention"] * 2}),
    Case(
        "exaone4-windows-tied",
        EXAONE4 | TIED | {"num_hidden_layers": 4, "sliding_window": 9, "sliding_window_pattern": 4},
        WIDE | {"hidden_size": 256, "num_hidden_layers": 64},
    ),
    Case("falcon-rw", FALCON_RW, None),
    Case("falcon-rw-rotated", FALCON_RW | {"alibi": False, "hidden_size": 42, "num_attention_heads": 7}, None),
    Case("glm", GLM, WIDE | {"head_dim": 32}),
    Case("glm-odd-tied", GLM | ODD | TIED | {"head_dim": 12, "attention_bias": False}, None),
    Case("glm4", GLM4, WIDE | {"head_dim": 64}),
    Case("glm4-odd-tied", GLM4 | ODD | TIED | {"head_dim": 20, "partial_rotary_factor": 0.3}, None),
    Case("hunyuan", HUNYUAN, WIDE | {"head_dim": 64}),
    Case(
        "hunyuan-odd-tied-alpha-biases",
        HUNYUAN
        | ODD
        | TIED
        | {"head_dim": 12, "attention_bias": True, "rope_scaling": {"type": "dynamic", "alpha": 9.0, "factor": 1.0}},
        None,
    ),
    Case("internlm3", INTERNLM3, WIDE | {"head_dim": 64}),
    Case("internlm3-odd-tied-biases", INTERNLM3 | ODD | TIED | {"head_dim": 10, "qkv_bias": True, "bias": True}, None),
    Case("ministral", MINISTRAL, None),
    Case("ministral-windows-tied", MINISTRAL | TIED | {"layer_types": ["full_attention", "sliding_attention"]}, None),
    Case("ministral3", MINISTRAL3 | {"rope_parameters": YARN}, WIDE | {"head_dim": 64}),
    Case("ministral3-odd-tied", MINISTRAL3 | ODD | TIED | {"head_dim": 10, "rope_parameters": YARN | STEEP}, None),
    Case("mpt", MPT, {"d_model": 256, "n_heads": 8, "attn_config": {"alibi_bias_max": 4}}),
    Case("mpt-odd", MPT | {"d_model": 42, "n_heads": 7}, None),
    Case("mpt-limited", MPT | LIMITED | {"d_model": 96, "n_heads": 12}, {"d_model": 768, "n_heads": 12}),
    Case("seed-oss", SEED, WIDE | {"head_dim": 64}),
    Case(
        "seed-oss-odd-tied-biases",
        SEED | ODD | TIED | {"head_dim": 12, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
        None,
    ),
)
