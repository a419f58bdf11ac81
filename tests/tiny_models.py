"""Models made from a seed: configurations as Hugging Face writes them, and weights that are the same everywhere.

Needs numpy alone, so that the script that asks transformers for its numbers can import it in another environment.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 131,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 5}


@dataclass(frozen=True)
class Tiny:
    """One model: its configuration, the seed of its weights, and which logits are compared."""

    name: str
    config: dict[str, Any]
    seed: int
    tokens: int = 70  # more than a page
    positions: tuple[int, ...] | None = None  # None: all
    vocab_step: int = 1

    @property
    def head_dim(self) -> int:
        return self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]

    def ids(self) -> list[int]:
        """The prompt."""
        return np.random.RandomState(self.seed + 1).randint(0, self.config["vocab_size"], self.tokens).tolist()

    def compared_positions(self) -> list[int]:
        """Positions whose logits are compared."""
        return list(range(self.tokens) if self.positions is None else self.positions)

    def weights(self) -> dict[str, np.ndarray]:
        """float32 weights by their Hugging Face names.

        Uniform numbers of numpy's frozen legacy generator, scaled so that every row keeps a variance near one.
        """
        config, random = self.config, np.random.RandomState(self.seed)
        width, ffn, dim = config["hidden_size"], config["intermediate_size"], self.head_dim
        queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim

        def matrix(out: int, into: int) -> np.ndarray:
            return ((random.random_sample((out, into)) * 2 - 1) * np.sqrt(3 / into)).astype(np.float32)

        def vector(size: int, centre: float) -> np.ndarray:
            return (centre + 0.4 * (random.random_sample(size) - 0.5)).astype(np.float32)

        found = {"model.embed_tokens.weight": matrix(config["vocab_size"], width) * np.float32(2)}
        for index in range(config["num_hidden_layers"]):
            at = f"model.layers.{index}."
            found[f"{at}input_layernorm.weight"] = vector(width, 1)
            for name, out, into in (
                ("q", queries, width),
                ("k", keys, width),
                ("v", keys, width),
                ("o", width, queries),
            ):
                found[f"{at}self_attn.{name}_proj.weight"] = matrix(out, into)
                if config.get("attention_bias"):
                    found[f"{at}self_attn.{name}_proj.bias"] = vector(out, 0)
            found[f"{at}post_attention_layernorm.weight"] = vector(width, 1)
            for name, out, into in (("gate", ffn, width), ("up", ffn, width), ("down", width, ffn)):
                found[f"{at}mlp.{name}_proj.weight"] = matrix(out, into)
                if config.get("mlp_bias"):
                    found[f"{at}mlp.{name}_proj.bias"] = vector(out, 0)
        found["model.norm.weight"] = vector(width, 1)
        if not config["tie_word_embeddings"]:
            found["lm_head.weight"] = matrix(config["vocab_size"], width)
        return found


TINY = (
    Tiny("llama", LLAMA, 11),
    Tiny(
        "llama-tied-9-heads",
        LLAMA
        | {
            "hidden_size": 54,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
            "rope_theta": 100000.0,
        },
        12,
    ),
    Tiny("llama-biases", LLAMA | {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6}, 13),
    Tiny("mistral-window-5", MISTRAL, 14),
    Tiny(
        "mistral-tied-7-heads",
        MISTRAL
        | {
            "hidden_size": 33,
            "head_dim": 10,
            "num_attention_heads": 7,
            "num_key_value_heads": 1,
            "sliding_window": 64,
            "vocab_size": 97,
            "tie_word_embeddings": True,
        },
        15,
        tokens=131,
    ),
    Tiny("mistral-no-window", MISTRAL | {"sliding_window": None, "num_key_value_heads": 3}, 16),
)

# One model for each kind of rope scaling, with heads of 16 so that there are eight frequencies. The frequencies of
# "dynamic" follow the length of the context: transformers' are those of the number of tokens given.
SCALED = LLAMA | {"num_attention_heads": 3, "num_key_value_heads": 1}
LONG = {"short_factor": [1.0 + 0.05 * pair for pair in range(8)], "long_factor": [1.0 + pair for pair in range(8)]}
ORIGINAL = {"original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES = tuple(
    Tiny(f"rope-{name}", SCALED | change | {"rope_scaling": scaling}, 31, 192, tuple(range(11, 192, 20)))
    for name, change, scaling in (
        ("linear", {}, {"type": "linear", "factor": 2.5}),
        ("dynamic", {"max_position_embeddings": 64}, {"type": "dynamic", "factor": 4.0}),
        ("yarn", {}, {"rope_type": "yarn", "factor": 4.0} | ORIGINAL),
        (
            "yarn-all-fields",
            {},
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 6, "beta_slow": 0.5, "truncate": False, "mscale": 0.7}
            | {"mscale_all_dim": 1.2}
            | ORIGINAL,
        ),
        ("yarn-attention", {}, {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.8} | ORIGINAL),
        ("llama3", {}, LLAMA3 | ORIGINAL),
        ("longrope", {}, {"rope_type": "longrope"} | LONG | ORIGINAL),
    )
)

# Rows of whole blocks of 32, which quantized formats need.
WIDE = Tiny("llama-of-blocks", LLAMA | {"hidden_size": 96, "intermediate_size": 160}, 21)

# Rows of whole blocks of 256.
SUPER = Tiny(
    "llama-of-super-blocks", LLAMA | {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}, 22
)

# The course project's chat model (Minueza-32M-UltraChat) by its configuration; 1,100 tokens pass its window of 1,024.
COURSE_CHAT = Tiny(
    "course-chat",
    MISTRAL
    | {
        "hidden_size": 312,
        "intermediate_size": 1092,
        "num_hidden_layers": 10,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "sliding_window": 1024,
        "vocab_size": 32002,
    },
    17,
    tokens=1100,
    positions=(*range(0, 1000, 50), *range(1016, 1034, 2), 1023, 1025, 1050, 1075, 1098, 1099),
    vocab_step=67,
)
