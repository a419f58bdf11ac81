"""What files of RWKV's families say in words of their own.

GGUF keys: llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of flash-linear-attention.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HF, Kind, Names, Table
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MOST_WIDTH, ModelConfig

POSITIONS = 1 << 20  # a state has no end; llama.cpp's converter writes this
HEADS_EPS = 64e-5  # of the norm of heads, where a GGUF file does not say: RWKV's own code and llama.cpp

_NORMED = (
    ("embedding_norm", "token_embd_norm", "model.layers.0.pre_norm"),
    ("output_norm", "output_norm", "model.norm"),
    ("layers.{}.attn_norm", "blk.{}.attn_norm", "model.layers.{}.attn_norm"),
    ("layers.{}.ffn_norm", "blk.{}.attn_norm_2", "model.layers.{}.ffn_norm"),
)
NORMS: Table = (
    Names("embedding.weight", "token_embd.weight", "model.embeddings.weight"),
    Names("output.weight", "output.weight", "lm_head.weight"),
    *(Names(*(f"{name}.{kind}" for name in names)) for names in _NORMED for kind in ("weight", "bias")),
)


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """config.json with the number of heads, the width of the feed-forward block as it is, and no end of positions."""
    width, dim, ffn = (values.get(key) for key in ("hidden_size", "head_dim", "intermediate_size"))
    heads, ratio = values.get("num_heads"), values.get("hidden_ratio")
    if type(width) is int and type(dim) is int and dim > 0:
        heads = width // dim
    if ffn is None and type(width) is int and isinstance(ratio, int | float):
        known = width <= MOST_WIDTH and 0 < ratio < 1e3
        ffn = -(-int(width * ratio) // 32) * 32 if known else None
    found = {"num_attention_heads": heads, "intermediate_size": ffn, "max_position_embeddings": POSITIONS}
    return {**values, **found}


def regrouped(values: dict[str, Any]) -> dict[str, Any]:
    """GGUF metadata with the number of heads, which it gives as 0."""
    width, dim = values.get("embedding_length"), values.get("wkv.head_size")
    heads = width // dim if type(width) is int and type(dim) is int and dim > 0 else None
    shape = {"attention.head_count": heads, "attention.key_length": dim, "attention.value_length": dim}
    return {key: value for key, value in {**values, **shape}.items() if value is not None}


def whole_heads(config: ModelConfig, values: Fields, key: str) -> None:
    """Raise ModelFileError for a width that is no whole heads, UnsupportedModel for values of another width: `key` of
    config.json says it, for all layers or each."""
    if config.heads * config.head_dim != config.width:
        raise ModelFileError(f"{values.where}: width {config.width} is no whole heads of {config.head_dim}")
    told = values.values.get(key)
    if told is not None and told not in (config.width, [config.width] * config.layers):
        raise UnsupportedModel(f"{values.where}: {key} {shown(told)} is not supported; {config.width} is")


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """The epsilon of the norm of heads, once the configuration is checked by `whole_heads`."""
    whole_heads(config, values, "value_dim")
    eps = config.head_dim * config.eps if kind == HF else config.own.eps or HEADS_EPS
    return replace(config, own=replace(config.own, eps=eps))


def said(gguf: str) -> Callable[[ModelConfig], dict[str, tuple[str, Any]]]:
    """More of the metadata of GGUF files of an architecture: llama.cpp wants a number of heads, and none."""
    return lambda config: {f"{gguf}.attention.head_count": ("u32", 0)}


def words(config: ModelConfig) -> dict[str, Any]:
    """More of config.json."""
    return {"num_heads": config.heads, "hidden_act": "sqrelu", "value_dim": [config.width] * config.layers}


def head_choice(name: str) -> Callable[[ModelConfig], str]:
    """The class for a configuration. Raises UnsupportedModel for a norm of heads that it computes otherwise."""

    def choose(config: ModelConfig) -> str:
        usual = config.head_dim * config.eps
        if abs(config.own.eps - usual) > 1e-3 * usual:
            what = f"its norm of heads has the epsilon {config.own.eps:.3g}, folders of {name} {usual:.3g}"
            raise UnsupportedModel(f"{config.name}: {what}; run the GGUF file as it is")
        return name

    return choose


def wanted(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """What llama.cpp wants of the first layer and does not read: by what values would be shared."""
    width, rank = config.width, config.own.rate
    shapes = ((width,), (rank, width), (width, rank))
    return {f"blk.0.time_mix_v{number}.weight": shape for number, shape in enumerate(shapes)}
