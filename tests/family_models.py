"""Tiny models of every family: one entry here puts a configuration through all tests of tests/models/test_families.py.

Needs sporelm and numpy alone, so that `make_family_goldens.py` can import it where transformers is.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from safetensors.numpy import save_file

from sporelm.models import Decoder, build, config_from_hf
from sporelm.weights.forms import held_as
from sporelm.weights.names import Param

TOKENS = 70  # more than a page
POSITIONS = (0, 1, 2, 7, 20, 41, 63, 64, 69)  # whose logits the goldens hold


@dataclass(frozen=True)
class Case:
    """A configuration as config.json has it, and how its logits are vouched for.

    wide   what changes for llama.cpp, whose K-quants want rows of whole blocks of 256; None: this case is not compared
    numpy  the reference is tests/models/paper/NAME.py, for what transformers lacks; else transformers' golden file
    """

    name: str
    config: dict[str, Any]
    wide: dict[str, Any] | None = field(default_factory=lambda: WIDE)
    numpy: str = ""

    @cached_property
    def model(self) -> Decoder:
        return build(config_from_hf(self.config, "config.json"))

    @property
    def family(self) -> str:
        """The name of the family's file."""
        return type(self.model).__module__.rpartition(".")[2]

    def ids(self) -> list[int]:
        """The prompt."""
        return _random(self.name).randint(0, self.model.config.vocab, TOKENS).tolist()

    def weights(self) -> dict[str, np.ndarray]:
        """float32 weights by our names: those of matrices uniform, so that every row keeps a variance near one."""
        return {param.name: _values(f"{self.name} {param.name}", param) for param in self.model.params()}

    def tensors(self) -> dict[str, np.ndarray]:
        """The same as a Hugging Face folder holds them."""
        model = self.model
        return held_as(self.weights(), "hf", model.family.names, model.config)

    def widened(self) -> "Case":
        """The model for llama.cpp: with enough tokens for all bytes."""
        assert self.wide is not None
        return Case(f"{self.name}-wide", self.config | self.wide | {"vocab_size": 320})


def _random(name: str) -> np.random.RandomState:
    """numpy's frozen legacy generator, seeded with a name."""
    return np.random.RandomState(crc32(name.encode()))


def _values(name: str, param: Param) -> np.ndarray:
    random, shape = _random(name), param.shape
    if len(shape) == 1:
        centre = 0.0 if param.name.endswith(".bias") else 1.0
        return (centre + 0.4 * (random.random_sample(shape) - 0.5)).astype(np.float32)
    factor = 2.0 if param.name == "embedding.weight" else 1.0
    return ((random.random_sample(shape) * 2 - 1) * factor * np.sqrt(3 / shape[-1])).astype(np.float32)


def write_case(folder: Path, case: Case) -> Path:
    """A Hugging Face folder of the model, without a tokenizer."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config))
    save_file(case.tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


SHAPE: dict[str, Any] = {
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
}
ODD: dict[str, Any] = {"hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1}  # heads of 10
WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
TIED: dict[str, Any] = {"tie_word_embeddings": True}


def named(name: str, model_type: str, **values: Any) -> dict[str, Any]:
    """The start of a config.json."""
    return {"architectures": [name], "model_type": model_type, **SHAPE, **values}


GELU = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 16}
GEMMA = named("GemmaForCausalLM", "gemma", hidden_act="gelu_pytorch_tanh", head_dim=16) | TIED
GEMMA2 = named("Gemma2ForCausalLM", "gemma2", sliding_window=9, query_pre_attn_scalar=16) | TIED | GELU
GEMMA2 |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}
GEMMA3 = named("Gemma3ForCausalLM", "gemma3_text", sliding_window=9, query_pre_attn_scalar=16) | TIED | GELU
GEMMA3 |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "num_hidden_layers": 6, "sliding_window_pattern": 6}
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
GRANITE = named("GraniteForCausalLM", "granite", embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.4)
GRANITE |= {"attention_multiplier": 0.2}
INTERNLM2 = named("InternLM2ForCausalLM", "internlm2", bias=False, rope_theta=1e6)
LLAMA = named("LlamaForCausalLM", "llama")
MINICPM = named("MiniCPMForCausalLM", "minicpm", scale_emb=3, scale_depth=1.4, dim_model_base=24)
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 2.0], "long_factor": [1.0, 1.5, 3.0, 8.0]}
MIXTRAL = named("MixtralForCausalLM", "mixtral", num_local_experts=5, num_experts_per_tok=2)
OLMO2 = named("Olmo2ForCausalLM", "olmo2", pad_token_id=None)
PHI3 = named("Phi3ForCausalLM", "phi3", pad_token_id=None)
QWEN2 = named("Qwen2ForCausalLM", "qwen2", rope_theta=1e6)
QWEN2_WINDOW = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
QWEN2MOE = named("Qwen2MoeForCausalLM", "qwen2_moe", num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24)
QWEN2MOE |= {"shared_expert_intermediate_size": 40, "norm_topk_prob": False}
QWEN3MOE = named("Qwen3MoeForCausalLM", "qwen3_moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)
QWEN3MOE |= {"norm_topk_prob": True, "head_dim": 16}
QWEN3 = named("Qwen3ForCausalLM", "qwen3", head_dim=16, rope_theta=1e6)
SMOLLM3 = named("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=4, pad_token_id=None, bos_token_id=1, eos_token_id=2)
STABLELM = named("StableLmForCausalLM", "stablelm", layer_norm_eps=1e-5, use_qkv_bias=True, partial_rotary_factor=0.25)
STARCODER2 = named("Starcoder2ForCausalLM", "starcoder2", hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5)

CASES = (
    Case("gemma", GEMMA, WIDE | {"head_dim": 64}),
    Case("gemma-odd", GEMMA | ODD | {"head_dim": 12}, None),
    Case("gemma2", GEMMA2, WIDE | {"head_dim": 64, "query_pre_attn_scalar": 64}),
    Case(
        "gemma2-odd", GEMMA2 | {"num_attention_heads": 3, "num_key_value_heads": 1, "query_pre_attn_scalar": 24}, None
    ),
    Case("gemma3", GEMMA3, WIDE | {"head_dim": 64, "query_pre_attn_scalar": 64}),
    Case(
        "gemma3-scaled", GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "num_hidden_layers": 7}, None
    ),
    Case("gpt2", GPT2, {"n_embd": 256, "n_head": 4}),
    Case("gpt2-odd", GPT2 | {"n_embd": 42, "n_head": 7, "n_inner": 100} | {"tie_word_embeddings": False}, None),
    Case("granite", GRANITE, WIDE | {"logits_scaling": 1.3}),
    Case("granite-odd-tied-biases", GRANITE | ODD | TIED | {"attention_bias": True, "mlp_bias": True}, None),
    Case("internlm2", INTERNLM2, numpy="internlm2"),
    Case("internlm2-odd-biases", INTERNLM2 | ODD | {"bias": True}, None, "internlm2"),
    Case("llama", LLAMA),
    Case("minicpm", MINICPM, WIDE | {"dim_model_base": 160}, "minicpm"),
    Case("minicpm-odd-tied", MINICPM | ODD | TIED, None, "minicpm"),
    Case("mixtral", MIXTRAL),
    Case("mixtral-odd-tied", MIXTRAL | ODD | TIED | {"num_experts_per_tok": 1}, None),
    Case("olmo2", OLMO2),
    Case("olmo2-odd", OLMO2 | ODD | {"num_key_value_heads": 7}, None),
    Case("phi3", PHI3),
    Case("phi3-partial-window-tied", PHI3 | ODD | TIED | {"partial_rotary_factor": 0.8, "sliding_window": 9}, None),
    Case("phi3-longrope", PHI3 | {"rope_scaling": LONGROPE, "original_max_position_embeddings": 64}, None),
    Case("qwen2", QWEN2),
    Case("qwen2-odd-tied", QWEN2 | ODD | TIED),
    Case("qwen2-window", QWEN2 | QWEN2_WINDOW, None),
    Case("qwen2moe", QWEN2MOE, WIDE | {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 512}),
    Case("qwen2moe-odd-tied", QWEN2MOE | ODD | TIED | {"norm_topk_prob": True}, None),
    Case("qwen3moe", QWEN3MOE, WIDE | {"moe_intermediate_size": 256, "head_dim": 64}),
    Case("qwen3moe-odd-tied-biases", QWEN3MOE | ODD | TIED | {"norm_topk_prob": False, "attention_bias": True}, None),
    Case("qwen3", QWEN3, WIDE | {"head_dim": 64}),
    Case("qwen3-odd-tied-biases", QWEN3 | ODD | TIED | {"head_dim": 12, "attention_bias": True}, None),
    Case("smollm3", SMOLLM3),
    Case("smollm3-odd-tied", SMOLLM3 | ODD | TIED | {"no_rope_layers": [1, 0, 1, 0]}, None),
    Case("stablelm", STABLELM | {"hidden_size": 96}),
    Case(
        "stablelm-odd",
        STABLELM
        | {"hidden_size": 56, "num_attention_heads": 7, "use_qkv_bias": False}
        | {"num_key_value_heads": 7, "partial_rotary_factor": 0.5},
        None,
    ),
    Case("starcoder2", STARCODER2),
    Case("starcoder2-odd-tied-window", STARCODER2 | ODD | TIED | {"sliding_window": 9}, None),
)
