"""Decoders of yesterday and of few, most of them others with a part changed."""

from typing import Any

from families.case import ODD, SHAPE, TIED, WIDE, Case, named

KEYS = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "hidden_size")


def as_gpt2(name: str, model_type: str, **values: Any) -> dict[str, Any]:
    """The start of a config.json in GPT-2's words."""
    shape = {key: value for key, value in SHAPE.items() if key not in KEYS}
    numbers = {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 256, "layer_norm_epsilon": 1e-5}
    return {"architectures": [name], "model_type": model_type, **shape, **numbers, **values}


ODD_GPT2: dict[str, Any] = {"n_embd": 70, "n_head": 7, "n_inner": 90}
WIDE_GPT2: dict[str, Any] = {"n_embd": 256, "n_head": 8, "n_inner": 512}

VAULT = named("VaultGemmaForCausalLM", "vaultgemma", head_dim=8, num_hidden_layers=3, sliding_window=20)
VAULT |= {"query_pre_attn_scalar": 8, "pad_token_id": None, "tie_word_embeddings": True}
VAULT_ODD: dict[str, Any] = {"head_dim": 10, "query_pre_attn_scalar": 10, "tie_word_embeddings": False}
VAULT_ODD |= {"attn_logit_softcapping": None, "layer_types": ["sliding_attention"] * 3}

FLEX = named("FlexOlmoForCausalLM", "flex_olmo", num_experts=5, num_experts_per_tok=2, pad_token_id=None)
CODEGEN = as_gpt2("CodeGenForCausalLM", "codegen", n_head=4, rotary_dim=4, tie_word_embeddings=False)
NANO = named("NanoChatForCausalLM", "nanochat", pad_token_id=None)
JAPANESE = named("GPTNeoXJapaneseForCausalLM", "gpt_neox_japanese", tie_word_embeddings=True)
JAPANESE |= {"intermediate_multiple_size": 2, "num_key_value_heads": 6}
JAPANESE_ODD = {"hidden_size": 70, "num_attention_heads": 7, "rotary_pct": 0.4, "rotary_emb_base": 5e3}
ETTIN = named("ModernBertDecoderForCausalLM", "modernbert-decoder", num_hidden_layers=4, local_attention=20)
ETTIN |= {"tie_word_embeddings": True, "pad_token_id": 0}
ETTIN_ODD = {"hidden_size": 70, "num_attention_heads": 7, "decoder_bias": False, "tie_word_embeddings": False}
ETTIN_ODD |= {"global_attn_every_n_layers": 2, "local_rope_theta": 5e3}

CODESHELL = as_gpt2("CodeShellForCausalLM", "codeshell", num_query_groups=2, activation_function="gelu_pytorch_tanh")
JAIS = as_gpt2("JAISLMHeadModel", "jais", position_embedding_type="alibi", activation_function="swiglu", n_inner=40)
JAIS |= {"mup_embeddings_scale": 1.7, "mup_output_alpha": 1.3, "mup_width_scale": 0.6, "mup_scale_qk_dot_by_d": True}
JAIS_ODD = {"embeddings_scale": 2.5, "width_scale": 0.4, "scale_qk_dot_by_d": False}
MAIN = named("MaincoderForCausalLM", "maincoder", head_dim=8, intermediate_size_mlp=88, tie_word_embeddings=True)
MAIN_WIDE = {key: value for key, value in WIDE.items() if key != "intermediate_size"}
MAIN_WIDE |= {"head_dim": 32, "intermediate_size_mlp": 512}
MAIN_ODD = {key: value for key, value in MAIN.items() if key != "intermediate_size_mlp"}
MAIN_ODD |= ODD | {"head_dim": 10, "tie_word_embeddings": False}
del MAIN["intermediate_size"]


def block(group: int | None, times: float | None, *, linear: bool = False) -> dict[str, Any]:
    """Return the entry of config.json for a layer of Llama-Nemotron."""
    attention = {"n_heads_in_group": group, "no_op": not group and not linear, "replace_with_linear": linear}
    return {"attention": attention, "ffn": {"ffn_mult": times, "no_op": times is None, "replace_with_linear": False}}


DECI = named("DeciLMForCausalLM", "nemotron-nas", num_hidden_layers=6, num_key_value_heads=None)
DECI |= {"intermediate_size": None}
DECI["block_configs"] = [block(3, 4.0), block(None, 1.5), block(None, 9.0, linear=True), block(None, None)]
DECI["block_configs"] += [block(6, 4.0), block(2, None)]
DECI_WIDE: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 8}  # llama.cpp drops attention without the rest
DECI_WIDE["block_configs"] = [block(2, 2.0), block(None, 1.5), block(None, 1.0, linear=True), block(None, None)]
DECI_WIDE["block_configs"] += [block(8, 4.0), block(4, 0.5)]
DECI_ODD: dict[str, Any] = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 7}
DECI_ODD |= {"num_key_value_heads_per_layer": [7, 1], "num_hidden_layers": 2}

ELM: dict[str, Any] = {"architectures": ["OpenELMForCausalLM"], "model_type": "openelm", "vocab_size": 131}
ELM |= {"model_dim": 48, "num_transformer_layers": 3, "head_dim": 8, "num_query_heads": [4, 6, 6]}
ELM |= {"num_kv_heads": [2, 3, 2], "ffn_multipliers": [0.5, 1.1, 2], "ffn_dim_divisor": 8, "max_context_length": 256}
ELM["rope_freq_constant"] = 1e4
ELM_ODD: dict[str, Any] = {"model_dim": 70, "head_dim": 10, "num_query_heads": [7, 5, 1], "num_kv_heads": [7, 1, 1]}
ELM_WIDE: dict[str, Any] = {"model_dim": 256, "head_dim": 64, "num_query_heads": [8, 12, 12]}
ELM_WIDE |= {"num_kv_heads": [4, 4, 6], "ffn_dim_divisor": 256}

BITNET = named("BitNetForCausalLM", "bitnet", hidden_act="silu", tie_word_embeddings=True)
BITNET_ODD: dict[str, Any] = ODD | {"hidden_act": "relu2", "tie_word_embeddings": False, "attention_bias": True}

BIO = named("BioGptForCausalLM", "biogpt", tie_word_embeddings=True, pad_token_id=1)
BIO_ODD: dict[str, Any] = {"hidden_size": 70, "num_attention_heads": 7, "scale_embedding": False}
BIO_ODD |= {"hidden_act": "relu", "tie_word_embeddings": False}
XGLM: dict[str, Any] = {"architectures": ["XGLMForCausalLM"], "model_type": "xglm", "vocab_size": 131, "d_model": 48}
XGLM |= {"ffn_dim": 88, "num_layers": 2, "attention_heads": 6, "max_position_embeddings": 256, "pad_token_id": 1}
XGLM_ODD = {"d_model": 70, "attention_heads": 7, "scale_embedding": False, "tie_word_embeddings": False}

GPT1 = as_gpt2("OpenAIGPTLMHeadModel", "openai-gpt")
GPT1_ODD: dict[str, Any] = {"n_embd": 70, "n_head": 7, "afn": "silu", "tie_word_embeddings": False}

ARCTIC = named("ArcticForCausalLM", "arctic", num_local_experts=5, num_experts_per_tok=2, moe_layer_frequency=1)
ARCTIC["parallel_attn_mlp_res"] = True

REFACT = as_gpt2("GPTRefactForCausalLM", "gpt_refact", multi_query=True)

PERSIMMON = named("PersimmonForCausalLM", "persimmon", partial_rotary_factor=0.5, num_key_value_heads=6)
PERSIMMON_ODD: dict[str, Any] = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 7}
PERSIMMON_ODD |= {"partial_rotary_factor": 0.4, "tie_word_embeddings": True}

CASES = (
    Case("persimmon", PERSIMMON, None),
    Case("persimmon-odd-tied", PERSIMMON | PERSIMMON_ODD, None),
    Case("persimmon-bare-heads", PERSIMMON | {"qk_layernorm": False}, None),
    Case("refact", REFACT, None, "refact"),
    Case("refact-odd-tied", REFACT | {"n_embd": 70, "n_head": 7, "n_inner": 700} | TIED, None, "refact"),
    Case("arctic", ARCTIC, WIDE | {"num_local_experts": 4}, "arctic"),
    Case("arctic-odd-tied", ARCTIC | ODD | TIED | {"num_experts_per_tok": 3}, None, "arctic"),
    Case("biogpt", BIO, None),
    Case("biogpt-odd", BIO | BIO_ODD, None),
    Case("xglm", XGLM | TIED, None),
    Case("xglm-odd", XGLM | XGLM_ODD, None),
    Case("openai-gpt", GPT1 | TIED, None),
    Case("openai-gpt-odd", GPT1 | GPT1_ODD, None),
    Case("openai-gpt-relu", GPT1 | TIED | {"afn": "relu", "layer_norm_epsilon": 1e-3}, None),
    Case("bitnet", BITNET),
    Case("bitnet-odd-biases", BITNET | BITNET_ODD, None),
    Case("vaultgemma", VAULT, None),
    Case("vaultgemma-odd", VAULT | ODD | VAULT_ODD, None),
    Case("flex-olmo", FLEX, None),
    Case("flex-olmo-odd-tied-biases", FLEX | ODD | TIED | {"norm_topk_prob": True, "attention_bias": True}, None),
    Case("codegen", CODEGEN, None),
    Case("codegen-odd", CODEGEN | {"n_embd": 80, "n_head": 8, "n_inner": 90, "rotary_dim": 6}, None),
    Case("nanochat", NANO, None),
    Case(
        "nanochat-odd-tied-biases", NANO | ODD | TIED | {"attention_bias": True, "final_logit_softcapping": None}, None
    ),
    Case("gpt-neox-japanese", JAPANESE, None),
    Case("gpt-neox-japanese-odd", JAPANESE | JAPANESE_ODD, None),
    Case("modern-bert-decoder", ETTIN, None),
    Case("modern-bert-decoder-odd", ETTIN | ETTIN_ODD, None),
    Case("codeshell", CODESHELL | {"tie_word_embeddings": False}, WIDE_GPT2 | {"num_query_groups": 4}, "gpt2_like"),
    Case("codeshell-odd-tied", CODESHELL | ODD_GPT2 | TIED | {"num_query_groups": 1}, None, "gpt2_like"),
    Case("jais", JAIS | {"tie_word_embeddings": False}, WIDE_GPT2 | {"mup_width_scale": 1.1}, "gpt2_like"),
    Case("jais-odd-tied", JAIS | ODD_GPT2 | TIED | JAIS_ODD, None, "gpt2_like"),
    Case("deci", DECI, DECI_WIDE, "by_layer"),
    Case("deci-odd-tied", named("DeciLMForCausalLM", "deci") | DECI_ODD | TIED, None, "by_layer"),
    Case("openelm", ELM, ELM_WIDE, "openelm"),
    Case("openelm-odd", ELM | ELM_ODD, None, "openelm"),
    Case("maincoder", MAIN, MAIN_WIDE, "maincoder"),
    Case("maincoder-odd", MAIN_ODD, None, "maincoder"),
)
