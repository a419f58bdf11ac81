"""How files describe Gemma 4: its two kinds of layers, and the rotary positions of each, in one configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.beside_vision import text_part
from sporelm.checkpoints.config_files import BY_LAYER, full_layers_of, window_of
from sporelm.checkpoints.fields import Fields, shown
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.families.gemma import USUAL
from sporelm.models.families.proportion import FULL, LOCAL, SHARE, kinds_words, of_kinds, turning

DIM = 256  # of a head, where folders do not say it
STEP = 6  # layers from one without a window to the next, where files do not say
KV_HEADS = "num_global_key_value_heads"  # of layers without a window
ROTARY: dict[str, Any] = {"rope_parameters": {"rope_theta": 1e6}, SHARE: 0.25}  # where folders do not say it
ONLY: dict[str, tuple[Any, ...]] = {**USUAL, "hidden_activation": ("gelu_pytorch_tanh",)}
ONLY["use_bidirectional_attention"] = (None, "vision", False)  # rows of images see each other


@dataclass(frozen=True)
class Gemma4Parts:
    """What it alone has. Heads of layers without a window are those of the configuration."""

    local_dim: int  # head_dim of layers with a window
    inputs: int  # width of the rows that tokens have for each layer; 0: they have none
    borrowing: int = 0  # layers at the end that read the keys and values of the last one of their kind before them
    local_heads: int = 0  # kv_heads of layers with a window
    tied: bool = False  # values are keys where there is no window
    wide: bool = False  # feed-forward blocks of borrowing layers are twice as wide


def of_kind(config: ModelConfig, layer: int) -> ModelConfig:
    """The configuration with the heads and the feed-forward width of one layer."""
    own = config.own
    borrows = layer >= config.layers - own.borrowing
    ffn = config.ffn * (2 if own.wide and borrows else 1)
    if config.window_of(layer) is None:
        return replace(config, ffn=ffn)
    return replace(config, ffn=ffn, head_dim=own.local_dim, kv_heads=own.local_heads, rotary=own.local_dim)


def of_hf(values: dict[str, Any]) -> dict[str, Any]:
    """config.json with numbers for each kind of layer under keys of their own."""
    found = dict(text_part(values))
    if not found.get("enable_moe_block"):
        found |= dict.fromkeys(("num_experts", "top_k_experts", "moe_intermediate_size"))
    if found.get("layer_types") is None and isinstance(layers := found.get("num_hidden_layers"), int):
        found["layer_types"] = [LOCAL if (index + 1) % STEP else FULL for index in range(min(layers, 4096))]
    if isinstance(kinds := found.get("layer_types"), list) and kinds:
        found["layer_types"] = kinds = [*kinds[:-1], FULL]  # as transformers has it
    if not found.get("attention_k_eq_v"):
        found[KV_HEADS] = None
    if found.get(BY_LAYER) == {}:  # transformers writes records of what differs: all layers have the same heads
        found |= {BY_LAYER: None, "global_head_dim": found.get("head_dim", DIM), KV_HEADS: None}
    found |= _by_layer(found.get(BY_LAYER), kinds if isinstance(kinds, list) else [])
    if found.get(KV_HEADS) is None:
        found[KV_HEADS] = found.get("num_key_value_heads")
    return found | (ROTARY if found.get("rope_parameters") is None else of_kinds(found["rope_parameters"]))


def _by_layer(each: Any, kinds: list[Any]) -> dict[str, Any]:
    """The heads of layers without a window, of which transformers writes a record for each layer, its number padded
    with zeros; nothing where the records say more, or differ: they are then refused as they stand."""
    full = sorted(str(index) for index, kind in enumerate(kinds) if kind == FULL)
    if not isinstance(each, Mapping) or not each or sorted(str(key).lstrip("0") or "0" for key in each) != full:
        return {}
    first, *rest = each.values()
    known = isinstance(first, Mapping) and {"head_dim"} <= first.keys() <= {"head_dim", "num_key_value_heads"}
    if not known or any(one != first for one in rest):
        return {}
    return {BY_LAYER: None, "global_head_dim": first["head_dim"], KV_HEADS: first.get("num_key_value_heads")}


def with_hf(config: ModelConfig, values: Fields) -> ModelConfig:
    """The configuration with its windows and its rotary frequencies. Raises UnsupportedModel for a vocabulary of the
    layers' rows that is not the model's."""
    table = values.values.get("vocab_size_per_layer_input")
    if config.own.inputs and table not in (None, config.vocab):
        what = f"vocab_size_per_layer_input {shown(table)} differs from vocab_size {config.vocab}"
        raise UnsupportedModel(f"{values.where}: {what}: not supported")
    return replace(
        config,
        full_layers=full_layers_of(values, config.layers),
        window=window_of(values, "sliding_window", 512),
        rope_scaling=turning(config, values),
    )


def class_of(config: ModelConfig) -> str:
    """transformers' first class wants rows for each layer where layers borrow keys and values; the other has none."""
    unified = config.own.borrowing and not config.own.inputs and config.experts is None
    return f"Gemma4{'Unified' if unified else ''}ForCausalLM"


def words(config: ModelConfig) -> dict[str, Any]:
    """What config.json says of each kind of layer."""
    kinds = [FULL if config.window_of(layer) is None else LOCAL for layer in range(config.layers)]
    return {
        "enable_moe_block": config.experts is not None,
        "layer_types": kinds,
        **kinds_words(config),
        "vocab_size_per_layer_input": config.vocab,
    }
