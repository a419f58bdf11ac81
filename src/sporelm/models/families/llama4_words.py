"""What files say of Llama 4: which layers have chunks, which experts, and how queries grow."""

from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.beside_vision import text_part
from sporelm.checkpoints.config_files import full_layers_of
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.rope_fields import MOST_CONTEXT
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.checkpoints.windows import every
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.families.smollm3 import unrotated

STEP, CHUNK, UNNORMED = 4, 8192, 128  # what GGUF files mean: layers, positions, and experts of models without norms
CHUNKS = {"chunked_attention": "sliding_attention"}  # words of config.json -> those of other families


@dataclass(frozen=True)
class Llama4Parts:
    """Rotated queries and keys may be `normed`; queries that are not rotated are multiplied by 1 + growth * log(1 + how
    many runs of `floor` positions end with their own or before)."""

    normed: bool = True
    floor: int = CHUNK
    growth: float = 0.1


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in text_part(values).items() if (key, value) != ("no_rope_layers", [])}
    kinds = values.get("layer_types")
    if isinstance(kinds, list):
        values["layer_types"] = [CHUNKS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    dense = {"num_local_experts": 0, "interleave_moe_layer_step": 1} if values.get("moe_layers") == [] else {}
    still = {} if values.get("attn_temperature_tuning", True) else {"attn_scale": 0.0}
    return values | dense | still


def regrouped(values: dict[str, Any]) -> dict[str, Any]:
    """GGUF metadata in which no experts is none, where it says one of 0 layers (llama.cpp's llama4.cpp)."""
    step = values.get("interleave_moe_layer_step")
    none = type(step) is int and step == 0
    return {**values, "interleave_moe_layer_step": 1, "expert_count": 0} if none else values


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    experts, layers = config.experts, config.layers
    if experts and experts.used != 1:
        what = f"a token uses {experts.used} experts; only one is supported (num_experts_per_tok)"
        raise UnsupportedModel(f"{values.where}: {what}")
    if kind != HF:
        own = Llama4Parts(normed=experts is None or experts.count != UNNORMED)
        if values.integer("attention.sliding_window", 0, CHUNK, CHUNK) == 0:  # all is seen, and rotated: MobileLLM
            return replace(config, own=replace(own, growth=0.0))
        values.integer("attention.sliding_window", CHUNK, CHUNK, CHUNK)
        return replace(config, window=CHUNK, nope_layers=every(STEP)(layers), own=own)
    config = unrotated(config, values, kind)
    full = full_layers_of(values, layers) if values.has("layer_types") else config.nope_layers
    told = values.values.get("moe_layers")
    if experts and told is not None:
        if not isinstance(told, list) or any(type(each) is not int for each in told):
            raise UnsupportedModel(f"{values.where}: moe_layers is {shown(told)}; it must list layers")
        if told != [layer for layer in range(layers) if experts.at(layer)]:
            experts = replace(experts, step=1, dense=frozenset(range(layers)) - {*told})
    window = None if len(full) == layers else values.integer("attention_chunk_size", 1, MOST_CONTEXT)
    return replace(config, window=window, full_layers=full, experts=experts)


def unsaid(config: ModelConfig) -> str:
    own, experts, fourth = config.own, config.experts, every(STEP)(config.layers)
    if experts is None or experts.dense:
        return "its layers with experts are not every so many"
    if config.window != CHUNK or {config.full_layers, config.nope_layers} != {fourth}:
        return f"its layers are not three with chunks of {CHUNK} positions, then one without, and without rotary ones"
    if own != Llama4Parts(normed=experts.count != UNNORMED):
        return "its queries and keys are normed otherwise, or grow otherwise"
    return ""


def words(config: ModelConfig) -> dict[str, Any]:
    layers, experts, full = range(config.layers), config.experts, config.full_layers
    return {
        "moe_layers": [layer for layer in layers if experts and experts.at(layer)],
        "no_rope_layers": [int(layer not in config.nope_layers) for layer in layers],
        "layer_types": ["full_attention" if layer in full else "chunked_attention" for layer in layers],
    }
