"""Families with layer norms and feed-forward blocks without a gate, or with parts of both."""

from typing import Any

from families.case import ODD, TIED, Case, named

GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 48,
    "n_head": 6,
    "n_layer": 2,
    "n_inner": None,
    "n_positions": 256,
    "vocab_size": 131,
}
STABLELM = named("StableLmForCausalLM", "stablelm", layer_norm_eps=1e-5, use_qkv_bias=True, partial_rotary_factor=0.25)
STARCODER = GPT2 | {"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode"}
STARCODER2 = named("Starcoder2ForCausalLM", "starcoder2", hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5)

CASES = (
    Case("gpt2", GPT2, {"n_embd": 256, "n_head": 4}),
    Case("gpt2-odd", GPT2 | {"n_embd": 42, "n_head": 7, "n_inner": 100} | {"tie_word_embeddings": False}, None),
    Case("stablelm", STABLELM | {"hidden_size": 96}),
    Case(
        "stablelm-odd",
        STABLELM
        | {"hidden_size": 56, "num_attention_heads": 7, "use_qkv_bias": False}
        | {"num_key_value_heads": 7, "partial_rotary_factor": 0.5},
        None,
    ),
    Case("starcoder", STARCODER, {"n_embd": 256, "n_head": 4}),
    Case("starcoder-odd", STARCODER | {"n_embd": 42, "n_head": 7, "n_inner": 100, "activation_function": "gelu"}, None),
    Case("starcoder2", STARCODER2),
    Case("starcoder2-odd-tied-window", STARCODER2 | ODD | TIED | {"sliding_window": 9}, None),
)
