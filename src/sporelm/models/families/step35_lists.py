"""Lists of layers in config.json of Step 3.5, in the words of its makers and of transformers."""

from collections.abc import Mapping
from typing import Any

from sporelm.checkpoints.config_files import BY_LAYER
from sporelm.checkpoints.fields import shown
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.families import layer_types
from sporelm.models.families.layer_types import FULL, LOCAL
from sporelm.models.families.step35_limits import LIMITS
from sporelm.models.families.window_heads import LOCAL_HEADS

OTHER, HEADS, ENUM = "attention_other_setting", "num_attention_heads", "moe_layers_enum"
LISTS = ("layer_types", "mlp_layer_types", "rope_theta", "partial_rotary_factors")
# Words of its makers -> those of transformers.
WORDS = {"num_attention_groups": "num_key_value_heads", "moe_num_experts": "n_routed_experts"}
WORDS |= {"moe_top_k": "num_experts_per_tok", "share_expert_dims": "share_expert_dim"}


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """config.json in the words of transformers, without the layers that predict further ahead."""
    found = {**values, **{new: values[old] for old, new in WORDS.items() if values.get(old) is not None}}
    layers = found.get("num_hidden_layers")
    count = min(layers, MOST_LAYERS) if isinstance(layers, int) else 0
    found |= {key: found[key][:count] for key in LISTS if isinstance(found.get(key), list)}
    if not isinstance(found.get("layer_types"), list):
        found["layer_types"] = [FULL] * count
    if (enum := found.get(ENUM)) is not None and found.get("mlp_layer_types") is None:
        told = enum.split(",") if isinstance(enum, str) else enum
        numbers = {str(each).strip() for each in told} if isinstance(told, list) else set()
        found["mlp_layer_types"] = ["sparse" if str(layer) in numbers else "dense" for layer in range(count)]
    return layer_types.by_type(found | _heads(found), _rotary(found)) | {"rope_theta": None, "rope_scaling": None}


def _heads(values: dict[str, Any]) -> dict[str, Any]:
    """The query heads of layers with a window; nothing else may differ."""
    other, each = values.get(OTHER) or {}, values.get(BY_LAYER)
    same = {"num_attention_groups": values.get("num_key_value_heads"), "head_dim": values.get("head_dim")}
    if not isinstance(other, Mapping) or any(other.get(key, number) != number for key, number in same.items()):
        raise UnsupportedModel(f"config.json: {OTHER} {shown(other)}: only {HEADS} may differ")
    if values.get("query_pre_attn_scalar") not in (None, same["head_dim"]):
        raise UnsupportedModel("config.json: query_pre_attn_scalar is not head_dim, which is not supported")
    heads = values.get("num_sliding_attention_heads") or other.get(HEADS) or values.get(HEADS)
    if isinstance(each, Mapping) and all(record == {HEADS: heads} for record in each.values()):
        each = None  # as transformers writes it, for each layer with a window
    return {LOCAL_HEADS: heads, BY_LAYER: each}


def _rotary(values: dict[str, Any]) -> Any:
    """The rotary parameters of both types of layers; only those of layers without a window are scaled."""
    if given := values.get("rope_parameters"):
        return given
    kinds: dict[str, dict[str, Any]] = {FULL: {"rope_theta": 10000.0}, LOCAL: {}}
    for key, word in (("rope_theta", "rope_theta"), ("partial_rotary_factors", PARTIAL)):
        told, types = values.get(key), values["layer_types"]
        told = told if isinstance(told, list) else [told] * len(types)
        for kind, found in kinds.items():
            own = [number for each, number in zip(types, told, strict=False) if each == kind]
            if any(number != own[0] for number in own):
                raise UnsupportedModel(f"config.json: {key} {shown(told)}: layers of one type must be alike")
            found |= {word: own[0]} if own and own[0] is not None else {}
    scaling = values.get("rope_scaling") or {}
    return {**kinds, FULL: {**kinds[FULL], **scaling}} if isinstance(scaling, Mapping) else scaling


def words(config: ModelConfig) -> dict[str, Any]:
    own, layers = config.own, range(config.layers)
    local = [config.window_of(layer) is not None for layer in layers]
    turned = (config.rotary, own.local_rotary or config.rotary)
    return {
        **layer_types.lists(config),
        "num_sliding_attention_heads": own.local_heads,
        "rope_theta": [config.local_theta if each else config.rope_theta for each in local],
        "partial_rotary_factors": [turned[each] / config.head_dim for each in local],
        "sliding_window": config.window,
        "rope_parameters": None,
        **{hf: list(getattr(own, ours)) for ours, (hf, _) in LIMITS.items()},
    }
