"""How files describe MiMo-V2-Flash: its two kinds of layers, their rotary bases and heads, and its narrow values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.config_files import WINDOWED_LAYERS, full_layers_of, window_of
from sporelm.checkpoints.experts import dense_layers
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig

FULL, LOCAL = "full_attention", "sliding_attention"
STEP = 6  # layers from one without a window to the next, the first of all aside
KV, VALUES = "attention.head_count_kv", "attention.value_length"
SHARE = 0.334  # of each head that is rotated, where config.json does not say it
LISTS = (  # of the folder that its makers published
    ("hybrid_layer_pattern", "layer_types", (FULL, LOCAL)),
    ("moe_layer_freq", "mlp_layer_types", ("dense", "sparse")),
)


@dataclass(frozen=True)
class Mimo2Parts:
    """What it alone has. `value` numbers of a head are its values, which are multiplied by `value_scale`."""

    value: int = 128
    value_scale: float = 1.0


def of_kind(config: ModelConfig, layer: int) -> ModelConfig:
    """The configuration with the key heads of one layer: twice as many where there is a window."""
    return config if config.window_of(layer) is None else replace(config, kv_heads=2 * config.kv_heads)


def usual_full(layers: int) -> frozenset[int]:
    return frozenset({0, *range(STEP - 1, layers, STEP)})


def of_hf(values: dict[str, Any]) -> dict[str, Any]:
    """config.json in the words of transformers 5, the rotary base of layers with a window under a key of its own."""
    found = dict(values)
    for old, today, words in LISTS:
        marks = found.get(old)
        if isinstance(marks, list) and found.get(today) is None and all(mark in (0, 1) for mark in marks):
            found[today] = [words[int(mark)] for mark in marks]
    for key, unit in (("routed_scaling_factor", 1.0), ("attention_value_scale", 1.0)):
        found[key] = unit if found.get(key, 0) is None else found.get(key)
    if isinstance(size := found.get("sliding_window_size"), int):
        found["sliding_window"] = size + 1  # those before the row's own, as transformers reads it
    if (eps := found.get("layernorm_epsilon")) is not None:
        found["rms_norm_eps"] = eps
    usual = {"partial_rotary_factor": SHARE, "rope_theta": 5e6, "swa_rope_theta": 1e4}
    told, full, local = (usual[key] if found.get(key) is None else found[key] for key in usual)
    bases = {FULL: full, LOCAL: local}
    both = {kind: {"rope_theta": base, "partial_rotary_factor": told} for kind, base in bases.items()}
    kinds = found.get("rope_parameters") or both
    full, local = (kinds.get(kind) if isinstance(kinds, Mapping) else None for kind in (FULL, LOCAL))
    if not isinstance(full, Mapping) or not isinstance(local, Mapping):
        return found
    share, other = (part.get("partial_rotary_factor", SHARE) for part in (full, local))
    if share != other or local.get("rope_type", "default") != "default":
        what = f"rope_parameters {shown(dict(kinds))}"
        raise UnsupportedModel(f"config.json: {what}: kinds of layers may differ in theta alone")
    found |= {"rope_theta": None, "rope_scaling": None, "partial_rotary_factor": None}
    found["local_theta"] = local.get("rope_theta")
    return found | {"rope_parameters": {**full, "partial_rotary_factor": share}}


def of_gguf(values: dict[str, Any]) -> dict[str, Any]:
    """Metadata with the key heads of layers without a window; the width of values where it is no fault."""
    found = {**values, VALUES: values.get("attention.key_length"), "value": values.get(VALUES)}
    told: list[Any] = [values.get(KV), values.get(WINDOWED_LAYERS)]
    lists = [each.tolist() if hasattr(each, "tolist") else each for each in told]
    if not all(isinstance(each, list) and all(isinstance(number, int) for number in each) for each in lists):
        return found
    further = values.get("nextn_predict_layers")
    layers = len(lists[1]) - (further if isinstance(further, int) else 0)
    heads, marks = (each[:layers] for each in lists)
    counts = [
        {count for count, mark in zip(heads, marks, strict=False) if bool(mark) is wanted} for wanted in (False, True)
    ]
    full, local = (next(iter(each)) if len(each) == 1 else None for each in counts)
    if not isinstance(full, int) or local != 2 * full:
        raise UnsupportedModel(f"{KV} is {shown(heads)}; layers with a window must have twice the heads of the others")
    return {**found, KV: full, WINDOWED_LAYERS: marks}


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        value = values.integer("value", 1, config.head_dim, config.head_dim)
        return replace(config, own=replace(config.own, value=value))
    wanted = {"head_dim": config.head_dim, "v_head_dim": config.own.value, "num_attention_heads": config.heads}
    for key, number in (wanted | {"num_key_value_heads": 2 * config.kv_heads}).items():
        if (given := values.values.get(f"swa_{key}")) not in (None, number):
            raise UnsupportedModel(f"{values.where}: swa_{key} is {shown(given)}; only {number} is supported")
    if config.heads % (2 * config.kv_heads):
        what = f"{config.heads} heads are not a multiple of {2 * config.kv_heads}"
        keys = values.among("num_attention_heads", "num_key_value_heads", "swa_num_key_value_heads")
        raise UnsupportedModel(f"{values.where}: {what}{keys}")
    full = full_layers_of(values, config.layers) if values.has("layer_types") else usual_full(config.layers)
    config = replace(config, window=window_of(values, "sliding_window", 129), full_layers=full)
    assert config.experts is not None
    dense = dense_layers(values, config.layers, frozenset({0}))
    return replace(config, experts=replace(config.experts, dense=dense))


def words(config: ModelConfig) -> dict[str, Any]:
    layers, experts = range(config.layers), config.experts
    bases = ((FULL, config.rope_theta), (LOCAL, config.local_theta))
    both = {"rope_type": "default", "partial_rotary_factor": config.rotary / config.head_dim}
    return {
        "layer_types": [FULL if config.window_of(layer) is None else LOCAL for layer in layers],
        "mlp_layer_types": ["sparse" if experts and experts.at(layer) else "dense" for layer in layers],
        "rope_parameters": {kind: {**both, "rope_theta": base} for kind, base in bases},
        "rope_scaling": None,
    }
