"""Keys of mixtures of experts that schemas share, and the choice of layers with experts in config.json.

GGUF keys: llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of transformers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from sporelm.checkpoints.config_keys import Key
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_tensors import CHOICE_BIAS
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MAX_LAYERS, MAX_WIDTH, ModelConfig
from sporelm.ops.expert_routing import MAX_EXPERTS

# llama.cpp's numbers of gating functions; 0: not given.
SCORE_FUNCTIONS: Final = ("", "softmax", "sigmoid", "softmax_of_chosen")
MAX_SCALE: Final = 1e6
Config = TypeVar("Config", bound=ModelConfig)

_KEYS: Final = {
    "count": Key("experts.count", "expert_count", "u32", 1, MAX_EXPERTS),
    "used": Key("experts.used", "expert_used_count", "u32", 1, MAX_EXPERTS),
    "ffn": Key("experts.ffn", "expert_feed_forward_length", "u32", 1, MAX_WIDTH),
    "shared": Key("experts.shared", "expert_shared_count", "u32", 0, MAX_EXPERTS, 0),
    "shared_ffn": Key("experts.shared_ffn", "expert_shared_feed_forward_length", "u32", 0, MAX_WIDTH, 0),
    "leading": Key("experts.leading", "leading_dense_block_count", "u32", 0, MAX_LAYERS, 0),
    "step": Key("experts.step", "interleave_moe_layer_step", "u32", 1, MAX_LAYERS, 1),
    "groups": Key("experts.groups", "expert_group_count", "u32", 0, MAX_EXPERTS, 0),
    "top_groups": Key("experts.top_groups", "expert_group_used_count", "u32", 0, MAX_EXPERTS, 0),
    "scale": Key("experts.scale", "expert_weights_scale", "f32", 0.0, MAX_SCALE, 1.0),
    "renormalize": Key("experts.renormalize", "expert_weights_norm", "bool", default=False),
    "scores": Key("experts.scores", "expert_gating_func", "u32", default="softmax", choices=SCORE_FUNCTIONS),
}
# True if a GGUF file has the tensor of the bias that is added to select experts.
GGUF_CHOICE_BIAS_KEY: Final = Key("experts.choice_bias", "", "bool", tensor=CHOICE_BIAS)


def gguf_expert_keys(*names: str, optional: bool = False) -> tuple[Key, ...]:
    """Return the keys of GGUF metadata for these attributes of `Experts`, in this order.

    optional   some models of the architecture have no experts
    """
    keys = [_KEYS[name] for name in names]
    return with_optional_experts(keys) if optional else tuple(keys)


def hf_expert_keys(*, optional: bool = False, **keys: str) -> tuple[Key, ...]:
    """Return the keys of config.json for attributes of `Experts`: count="num_experts", used="num_experts_per_tok"."""
    found = [_KEYS[name]._replace(key=key) for name, key in keys.items()]
    return with_optional_experts(found) if optional else tuple(found)


def with_optional_experts(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Return keys of experts for an architecture with dense models too."""
    return tuple(each._replace(low=0, default=0) if each.default is None else each for each in keys)


# DeepSeek V3's mixture, which other models share: its keys, and constants that files do not contain.
V3_ATTRIBUTES: Final = (
    *("count", "used", "ffn", "shared", "leading", "scale", "renormalize", "groups"),
    "top_groups",
)
V3_GGUF_KEYS: Final = gguf_expert_keys(*V3_ATTRIBUTES)
V3_HF_KEYS: Final = hf_expert_keys(
    count="n_routed_experts",
    used="num_experts_per_tok",
    ffn="moe_intermediate_size",
    shared="n_shared_experts",
    leading="first_k_dense_replace",
    scale="routed_scaling_factor",
    renormalize="norm_topk_prob",
    groups="n_group",
    top_groups="topk_group",
)
V3_ROUTING: Final[Mapping[str, Any]] = {
    "experts.scores": "sigmoid",
    "experts.choice_bias": True,
    "experts.group_score": "sum_of_two",
    "experts.epsilon": 1e-20,
}


def with_leading_dense_layers(values: ConfigValues) -> ConfigValues:
    """Return a config.json with `mlp_layer_types` as `first_k_dense_replace`. Raises UnsupportedModel unless dense
    layers come first."""
    kinds = values.get("mlp_layer_types")
    if kinds is None:
        return values
    if not isinstance(kinds, list) or kinds != sorted(kinds, key=str) or not {*map(str, kinds)} <= {"dense", "sparse"}:
        raise UnsupportedModel("mlp_layer_types must list dense layers first, then sparse ones")
    return values.with_changes({"first_k_dense_replace": kinds.count("dense")})


def with_experts_where_routers_are(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Config:
    """Return the configuration of a GGUF file with experts in exactly the layers that have a router."""
    dense = frozenset(layer for layer in range(config.layers) if f"blk.{layer}.ffn_gate_inp.weight" not in shapes)
    if config.experts is None or len(dense) == config.layers:
        return replace(config, experts=None)
    leading = len(dense) if dense == {*range(len(dense))} else 0
    return replace(config, experts=replace(config.experts, dense=frozenset() if leading else dense, leading=leading))


def read_dense_layers(values: ConfigValues, layers: int, default: frozenset[int]) -> frozenset[int]:
    """Return the layers that `mlp_layer_types` of a config.json calls dense; the default if it is absent."""
    kinds = values.get("mlp_layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in ("dense", "sparse") for kind in kinds):
        what = f"mlp_layer_types is {format_value(kinds)}"
        raise UnsupportedModel(f"{values.where}: {what}; it must be dense or sparse for each of the {layers} layers")
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "dense")


def find_unsupported_routing(config: ModelConfig, *, renormalize: bool, has_dense_layers: bool = False) -> str:
    """Return the property of a mixture of experts that a GGUF file cannot hold, as a clause; "" if it can hold all.

    renormalize        whether the file implies renormalized expert weights
    has_dense_layers   the file can list layers without experts
    """
    experts = config.experts
    assert experts is not None
    if not has_dense_layers and not all(experts.at(layer) for layer in range(config.layers)):
        return "some of its layers have no experts"
    if experts.renormalize != renormalize:
        return f"the weights of its experts are {'not ' if renormalize else ''}renormalized"
    return ""
