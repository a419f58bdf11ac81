"""How Hugging Face folders describe a model: the base class of the schemas in `checkpoints.hf`.

Keys and defaults: the configuration classes of transformers.
"""

from collections.abc import Mapping
from typing import Any

from sporelm.checkpoints.config_keys import HF_SHAPE, SHAPE_ATTRIBUTES, Key, attribute_of, find_key
from sporelm.checkpoints.config_records import (
    MIN_EPS,
    NO_ATTENTION,
    ConfigRecords,
    check_direction,
    read_head_dim,
    read_rotary_width,
)
from sporelm.checkpoints.config_values import MAX_TEXT_LENGTH, ConfigValues, shown
from sporelm.checkpoints.hf_aliases import with_both_names
from sporelm.checkpoints.rope_fields import MAX_CONTEXT, PARTIAL, rope_from_hf
from sporelm.checkpoints.rope_writing import hf_rope, number
from sporelm.checkpoints.tensor_names import HF
from sporelm.checkpoints.tensor_schema import TensorSchema
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architecture_registry import Architecture
from sporelm.models.config import MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, ModelConfig

PER_LAYER_CONFIG = "per_layer_config"  # keys that some layers have in place of the rest, of any class
# Keys that schemas have for those inside the rotary parameters of two kinds of layers, as messages name them.
_LOCAL_THETA_KEYS = ("rope_local_base_freq", "local_rope_theta", "local_theta")
INNER_KEYS: Mapping[str, str] = {
    **{key: f"{key} (rope_theta of sliding_attention)" for key in _LOCAL_THETA_KEYS},
    "local_share": f"{PARTIAL} of sliding_attention",
    "proportion": f"{PARTIAL} of full_attention",
}
EXPERT_GROUPS = ("experts.groups", "experts.top_groups")  # no groups are 1 to transformers, which divides by them
DEFAULT_POSITIONS = 2048


class HfSchema(TensorSchema):
    """Folders of one class of transformers, whose name a schema has. A schema overrides what its folders say otherwise.

    model_type                in config.json
    keys                      of config.json, in the order in which they are written; those of bool are read alone
    class_keys                more keys that are written -> attribute
    defaults                  what the class takes for keys that config.json lacks, where that is not what we would take
    constants                 attributes that all models share; for an attribute that is a key too, its value in a file
                              that lacks the key
    supported                 keys that would change the result -> values that are supported; the first is written
    key_names                 keys that messages call by another name, because config.json does
    inner_key                 the key under which the text model's values lie in folders that we write
    positions_key             of the number of positions
    ffn_widths                the feed-forward block's width in widths, if config.json lacks it; 0: it must have it
    has_attention             its layers have attention heads and feed-forward blocks
    allows_partial_rotary     config.json may say that only the first numbers of a head are rotated
    counts_scaled_positions   max_position_embeddings counts the positions that linear scaling adds
    """

    kind = HF
    model_type: str
    architecture: type[Architecture]
    keys: tuple[Key, ...] = HF_SHAPE
    class_keys: Mapping[str, str] = {}
    defaults: Mapping[str, Any] = {}
    constants: Mapping[str, Any] = {}
    supported: Mapping[str, tuple[Any, ...]] = {"hidden_act": ("silu",)}
    key_names: Mapping[str, str] = {}
    inner_key: str = ""
    positions_key: str = "max_position_embeddings"
    ffn_widths: int = 0
    has_attention: bool = True
    allows_partial_rotary: bool = False
    counts_scaled_positions: bool = False
    has_window_pattern: bool = False

    @property
    def class_name(self) -> str:
        """The class of transformers."""
        return type(self).__name__

    def class_for(self, config: ModelConfig) -> "HfSchema":
        """Return the class of transformers that a configuration out of a GGUF file is written as."""
        return self

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        """Return the layers without a window that `layer_types` need not list in a folder that we write."""
        return frozenset()

    def values_of(self, json: Mapping[str, Any], where: str) -> ConfigValues:
        """Return a config.json with the defaults of the class, under all names that transformers accepts."""
        required = {find_key(self.keys, "eps"), "rope_theta"} & self.defaults.keys()  # null stands for the default
        given = {key: value for key, value in json.items() if value is not None or key not in required}
        defaults, given = (with_both_names(each, self.model_type) for each in (self.defaults, given))
        return ConfigValues({**defaults, **given}, where, {**INNER_KEYS, **self.key_names})

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        """Return the configuration of a config.json.

        values   as `values_of` returns them
        dtype    the number format of most weights

        Raises ModelFileError for a missing or impossible value, UnsupportedModel for an option that is not supported
        and would change the result.
        """
        self._check_supported(values)
        check_direction(self.architecture, values, "is_causal", self.model_type)
        attributes = {attribute: find_key(self.keys, attribute) for attribute in SHAPE_ATTRIBUTES}
        width = values.integer(attributes["width"], 1, MAX_WIDTH)
        heads = self._read_heads(values, attributes, width) if self.has_attention else dict(NO_ATTENTION)
        records = ConfigRecords(self.constants)
        for key in self.keys:
            records.read(key, values, is_gguf=False)
        config = records.build(
            self.architecture.config_class,
            name=values.name("_name_or_path", self.class_name[:MAX_TEXT_LENGTH]),
            architecture=self.class_name,
            model=self.architecture.name,
            layers=values.integer(attributes["layers"], 1, MAX_LAYERS),
            width=width,
            vocab=values.integer(attributes["vocab"], 1, MAX_VOCAB),
            eps=values.number(attributes["eps"], MIN_EPS, 1.0, 1e-6),
            tie_embeddings=values.flag("tie_word_embeddings", False),
            dtype=dtype,
            **{**heads, **self._read_rotary(values, heads["head_dim"])},
        )
        self._check_experts(values, config)
        return config

    def json_from_config(self, config: ModelConfig, original_context: int | None = None) -> dict[str, Any]:
        """Return what config.json says of the arithmetic of a configuration.

        original_context   positions before rotary scaling, if the source file says it
        """
        found: dict[str, Any] = {"_name_or_path": config.name}
        for key in self.keys:
            value = attribute_of(config, key.attribute)
            if key.key and key.type != "bool" and value is not None:
                is_group = value == 0 and key.attribute in EXPERT_GROUPS
                found[key.key] = number(value) if key.type == "f32" else 1 if is_group else value
        for name, attribute in self.class_keys.items():
            if config.experts is not None or not attribute.startswith("experts."):
                found[name] = attribute_of(config, attribute)
        if config.rotary:
            original = original_context if original_context and original_context <= MAX_CONTEXT else None
            found |= hf_rope(config, original, gained=self.counts_scaled_positions)
        else:
            found[self.positions_key] = config.context_length
        is_unusual = config.window and config.full_layers != self.full_attention_layers(config.layers)
        if self.has_window_pattern and is_unusual and "sliding_window" in found:
            windows = [config.window_of(layer) is not None for layer in range(config.layers)]
            found["layer_types"] = ["sliding_attention" if each else "full_attention" for each in windows]
        if extra := self.extra_rope_json(config):
            found["rope_scaling"] = (found["rope_scaling"] or {"rope_type": "default"}) | extra
        found |= self.extra_json(config)
        if found.get("rope_parameters"):
            found.pop("rope_scaling", None)  # some classes read no other, even if it is null
        return found | {key: values[0] for key, values in self.supported.items()} | {"use_cache": True}

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        """Return what no key covers of config.json."""
        return {}

    def extra_rope_json(self, config: ModelConfig) -> dict[str, Any]:
        """Return what no key covers of the rotary parameters."""
        return {}

    def _read_heads(self, values: ConfigValues, attributes: Mapping[str, str], width: int) -> dict[str, int]:
        heads = values.integer(attributes["heads"], 1, MAX_HEADS)
        kv_key = attributes["kv_heads"]
        kv_heads = values.integer(kv_key, 1, MAX_HEADS, heads) if kv_key else heads
        other_keys = values.name_of(attributes["width"]), values.name_of(attributes["heads"])
        head_dim = read_head_dim(values, attributes["head_dim"], width, heads, other_keys)
        ffn = values.integer(attributes["ffn"], 1, MAX_WIDTH, self.ffn_widths * width or None)
        return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "ffn": ffn}

    def _read_rotary(self, values: ConfigValues, head_dim: int) -> dict[str, Any]:
        positions = values.integer(self.positions_key, 1, MAX_CONTEXT, DEFAULT_POSITIONS)
        declared = {"declared_positions": positions if values.has(self.positions_key) else 0}
        if self.constants.get("rotary") == 0:
            return {**declared, "rope_theta": 0.0, "context_length": positions}
        rope = rope_from_hf(
            values,
            head_dim,
            positions,
            partial=self.allows_partial_rotary,
            gained=self.counts_scaled_positions,
        )
        read_rotary_width(rope.rotary, head_dim, values.where)
        found = {"rope_theta": rope.theta, "rope_scaling": rope.scaling, "rotary": rope.rotary}
        return {**declared, **found, "context_length": rope.context_length}

    def _check_supported(self, values: ConfigValues) -> None:
        for key, supported in self.supported.items():
            given = values.get(key)
            if given is None and key in values.values and all(isinstance(each, bool) for each in supported):
                given = False  # as transformers takes a null
            if given is not None and given not in supported:
                known = ", ".join(str(value) for value in supported)
                raise UnsupportedModel(
                    f"{values.where}: {values.name_of(key)} {shown(given)} is not supported; {known} is"
                )
        if per_layer := values.get(PER_LAYER_CONFIG):
            what = f"{PER_LAYER_CONFIG} {shown(per_layer)}"
            raise UnsupportedModel(f"{values.where}: {what} is not supported for {self.model_type!r}")

    def _check_experts(self, values: ConfigValues, config: ModelConfig) -> None:
        """Raise ModelFileError for a 0 that GGUF files use for a missing value: the number of expert groups that a
        token selects, unless experts are not grouped, and the scale of the experts' weights."""
        experts = config.experts
        if experts is None:
            return
        groups, top_groups, scale = (
            find_key(self.keys, f"experts.{name}") for name in ("groups", "top_groups", "scale")
        )
        is_grouped = groups not in values.values or bool(experts.groups)  # absent: the class's, one or more
        for key, value in ((top_groups, experts.top_groups or not is_grouped), (scale, experts.scale)):
            if key and values.has(key) and not value:
                raise ModelFileError(f"{values.where}: {values.name_of(key)} is 0; it must be positive")
