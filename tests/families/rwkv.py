"""RWKV: layers of states and nothing else, which read the row before."""

from typing import Any

from families.case import Case

RWKV7: dict[str, Any] = {"architectures": ["RWKV7ForCausalLM"], "model_type": "rwkv7", "vocab_size": 131}
RWKV7 |= {"hidden_size": 48, "num_hidden_layers": 3, "head_dim": 16, "hidden_ratio": 3.5, "norm_eps": 1e-5}
RWKV7 |= {"decay_low_rank_dim": 8, "a_low_rank_dim": 6, "v_low_rank_dim": 5, "gate_low_rank_dim": 12}
RWKV7 |= {"intermediate_size": 100, "hidden_act": "sqrelu", "attn": None, "tie_word_embeddings": False}
RWKV7_ODD = {"hidden_size": 70, "head_dim": 10, "num_hidden_layers": 2, "intermediate_size": None}
RWKV7_ODD |= {"norm_eps": 1e-3, "tie_word_embeddings": True, "value_dim": [70, 70]}
RWKV7_WIDE = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512}
RANKS = {f"{part}_low_rank_dim": 32 for part in ("decay", "a", "v", "gate")}

RWKV6: dict[str, Any] = {"architectures": ["Rwkv6ForCausalLM"], "model_type": "rwkv6", "vocab_size": 131}
RWKV6 |= {"hidden_size": 48, "num_hidden_layers": 2, "head_size": 16, "head_size_divisor": 8, "rescale_every": 6}
RWKV6 |= {"intermediate_size": 100, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False}
RWKV6_ODD = {"hidden_size": 70, "head_size": 10, "intermediate_size": None, "head_size_divisor": 3}
RWKV6_ODD |= {"attention_hidden_size": 70, "layer_norm_epsilon": 1e-3, "tie_word_embeddings": True}

QRWKV6: dict[str, Any] = {"architectures": ["RWKV6Qwen2ForCausalLM"], "model_type": "rwkv6qwen2", "vocab_size": 131}
QRWKV6 |= {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
QRWKV6 |= {"intermediate_size": 100, "rms_norm_eps": 1e-5, "lora_rank_tokenshift": 8, "lora_rank_decay": 6}
QRWKV6_ODD = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1, "tie_word_embeddings": True}
QRWKV6_ODD |= {"attention_bias": False}
QRWKV6_WIDE = {"hidden_size": 256, "intermediate_size": 512, "lora_rank_tokenshift": 32, "lora_rank_decay": 32}

CASES = (
    Case("qrwkv6", QRWKV6, QRWKV6_WIDE, numpy="rwkv6qwen2"),
    Case("qrwkv6-odd-tied", QRWKV6 | QRWKV6_ODD, None, numpy="rwkv6qwen2"),
    Case("rwkv6", RWKV6, {"hidden_size": 256, "head_size": 64, "intermediate_size": 512}, numpy="rwkv6"),
    Case("rwkv6-odd-tied", RWKV6 | RWKV6_ODD, None, numpy="rwkv6"),
    Case("rwkv7", RWKV7, RWKV7_WIDE | RANKS, numpy="rwkv7"),
    Case("rwkv7-odd-tied", RWKV7 | RWKV7_ODD, None, numpy="rwkv7"),
)
