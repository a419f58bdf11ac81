"""Configurations of tiny models, one for each kind of block, as in a config.json."""

from typing import Any

CONTEXT = 1 << 18  # positions; the page tables of the largest bucket have as many

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "vocab_size": 131,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16}
LATENT |= {"n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4}


def named(name: str, model_type: str, **values: Any) -> dict[str, Any]:
    """Return the shape with a model's name and its own values."""
    return {"architectures": [name], "model_type": model_type, **SHAPE, **values}


CONFIGS: dict[str, dict[str, Any]] = {
    "attention": named("LlamaForCausalLM", "llama"),
    "window and softcap": named(
        "Gemma2ForCausalLM",
        "gemma2",
        tie_word_embeddings=True,
        sliding_window=9,
        query_pre_attn_scalar=16,
        head_dim=16,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=8.0,
        hidden_activation="gelu_pytorch_tanh",
    ),
    "sinks": named("GptOssForCausalLM", "gpt_oss", num_local_experts=5, head_dim=16, sliding_window=9, **EXPERTS),
    "linear biases": {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "hidden_size": 64,
        "n_head": 4,
        "n_layer": 2,
        "seq_length": CONTEXT,
        "vocab_size": 131,
    },
    "experts": named("Qwen3MoeForCausalLM", "qwen3_moe", num_experts=6, norm_topk_prob=True, head_dim=16, **EXPERTS),
    "latent attention": named("DeepseekV2ForCausalLM", "deepseek_v2", topk_method="greedy", **EXPERTS, **LATENT),
    "sparse latent attention": named(
        "DeepseekV32ForCausalLM",
        "deepseek_v32",
        index_topk=8,
        index_head_dim=16,
        index_n_heads=4,
        n_group=4,
        topk_group=2,
        **EXPERTS,
        **LATENT,
    ),
    "state space": {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "vocab_size": 131,
        "conv_kernel": 4,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 24,
        "chunk_size": 32,
        "tie_word_embeddings": False,
        "layer_norm_epsilon": 1e-05,
    },
    "gated delta rule": named(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        num_hidden_layers=4,
        head_dim=16,
        partial_rotary_factor=0.5,
        num_experts=6,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=8,
        shared_expert_intermediate_size=32,
        norm_topk_prob=True,
        **EXPERTS,
    ),
    "gated linear recurrence": named(
        "RecurrentGemmaForCausalLM",
        "recurrent_gemma",
        num_hidden_layers=3,
        tie_word_embeddings=True,
        attention_window_size=9,
        conv1d_width=4,
        logits_soft_cap=9.0,
        block_types=["recurrent", "attention", "recurrent"],
        pad_token_id=None,
        hidden_activation="gelu_pytorch_tanh",
    ),
    "WKV recurrence": {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "vocab_size": 131,
        "attn": None,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "head_dim": 16,
        "hidden_ratio": 3.5,
        "norm_eps": 1e-05,
        "decay_low_rank_dim": 8,
        "a_low_rank_dim": 6,
        "v_low_rank_dim": 5,
        "gate_low_rank_dim": 12,
        "intermediate_size": 96,
        "hidden_act": "sqrelu",
        "tie_word_embeddings": False,
    },
    "encoder": {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "vocab_size": 131,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
    },
}
