"""The models of `tests/data/written`: session files and recordings that an earlier version wrote.

Everything here is spelled out: names, shapes and numbers must not change, or the files no longer match the models.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from hf_folders import stored, tokenizer_json, write_safetensors, write_tokenizer
from lora_files import write_peft
from sporelm.quant import F32

WRITTEN = Path(__file__).parent / "data" / "written"
TEMPLATE = "{% for message in messages %}{{ message['content'] + '.' }}{% endfor %}"
TURNS = ("Once upon a time there was a dog. It is so. " * 2, "no")
VOCAB = 300

COMMON: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ATTENTION = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
}
RECURRENT = COMMON | {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_hidden_layers": 3,
    "norm_eps": 1e-5,
    "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 3,
}


def numbers(name: str, *shape: int) -> np.ndarray:
    """Return numbers that are the same everywhere, by a tensor's name; those of norms lie near 1."""
    random = np.random.RandomState(crc32(name.encode())).random_sample(shape) * 2 - 1
    return (1 + 0.2 * random if len(shape) == 1 else random * np.sqrt(3 / shape[-1])).astype(np.float32)


def attention_shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, 16)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        found |= {f"{at}input_layernorm.weight": (16,), f"{at}post_attention_layernorm.weight": (16,)}
        found |= {
            f"{at}self_attn.{name}_proj.weight": (out, 16) for name, out in zip("qkvo", (16, 8, 8, 16), strict=True)
        }
        found |= {f"{at}mlp.{name}_proj.weight": (24, 16) for name in ("gate", "up")}
        found[f"{at}mlp.down_proj.weight"] = (16, 24)
    return found | {"model.norm.weight": (16,), "lm_head.weight": (VOCAB, 16)}


def recurrent_shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, 16)}
    for layer in range(3):
        at = f"model.layers.{layer}."
        found |= {f"{at}operator_norm.weight": (16,), f"{at}ffn_norm.weight": (16,)}
        found |= {f"{at}feed_forward.{name}.weight": (24, 16) for name in ("w1", "w3")}
        found[f"{at}feed_forward.w2.weight"] = (16, 24)
        if layer == 1:
            shapes = zip(("q_proj", "k_proj", "v_proj", "out_proj"), (16, 8, 8, 16), strict=True)
            found |= {f"{at}self_attn.{name}.weight": (out, 16) for name, out in shapes}
            found |= {f"{at}self_attn.{name}_layernorm.weight": (4,) for name in "qk"}
        else:
            found |= {f"{at}conv.in_proj.weight": (48, 16), f"{at}conv.out_proj.weight": (16, 16)}
            found[f"{at}conv.conv.weight"] = (16, 1, 3)
    return found | {"model.embedding_norm.weight": (16,), "lm_head.weight": (VOCAB, 16)}


def write(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """A Hugging Face folder with a tokenizer and a chat template."""
    write_tokenizer(folder, tokenizer_json(VOCAB), chat_template=TEMPLATE)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    arrays = {name: numbers(name, *shape) for name, shape in shapes.items()}
    tensors = {name: ("F32", array.shape, stored(array, F32)) for name, array in arrays.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_attention(folder: Path) -> Path:
    return write(folder, ATTENTION, attention_shapes())


def write_recurrent(folder: Path) -> Path:
    return write(folder, RECURRENT, recurrent_shapes())


def write_adapter(folder: Path) -> Path:
    """An adapter of the attention model."""
    pairs = {}
    for name, shape in attention_shapes().items():
        if name.endswith(("q_proj.weight", "v_proj.weight", "up_proj.weight")):
            pairs[name] = numbers(f"{name} a", 2, shape[1]), numbers(f"{name} b", shape[0], 2)
    return write_peft(folder, pairs, alpha=4.0)
