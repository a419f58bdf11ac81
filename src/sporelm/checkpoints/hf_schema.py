"""The base class of the schemas of Hugging Face folders in `checkpoints.hf`.

Keys and defaults: the configuration classes of transformers.
"""

from collections.abc import Mapping
from typing import Any

from sporelm.checkpoints.config_keys import HF_SHAPE, SHAPE_ATTRIBUTES, Key, find_key, get_attribute
from sporelm.checkpoints.config_records import (
    MIN_EPS,
    NO_ATTENTION,
    ConfigRecords,
    check_direction,
    read_head_dim,
    read_rotary_width,
)
from sporelm.checkpoints.config_values import MAX_TEXT_LENGTH, ConfigValues, format_value
from sporelm.checkpoints.hf_aliases import with_both_names
from sporelm.checkpoints.rope_fields import MAX_CONTEXT, PARTIAL, rope_from_hf
from sporelm.checkpoints.rope_writing import rope_to_hf, to_shortest_float
from sporelm.checkpoints.tensor_names import HF
from sporelm.checkpoints.tensor_schema import TensorSchema
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architecture_registry import Architecture
from sporelm.models.config import MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, ModelConfig

PER_LAYER_CONFIG = "per_layer_config"  # overrides of single layers, in configurations of any class
# Our keys for values inside the rotary parameters of two types of layers -> their names in messages.
_LOCAL_THETA_KEYS = ("rope_local_base_freq", "local_rope_theta", "local_theta")
INNER_KEYS: Mapping[str, str] = {
    **{key: f"{key} (rope_theta of sliding_attention)" for key in _LOCAL_THETA_KEYS},
    "local_share": f"{PARTIAL} of sliding_attention",
    "proportion": f"{PARTIAL} of full_attention",
}
EXPERT_GROUPS = (
    "experts.groups",
    "experts.top_groups",
)  # transformers writes 1 for no groups, since it divides by the number
DEFAULT_POSITIONS = 2048


class HfSchema(TensorSchema):
    """Folders of one class of transformers, after which the schema is named.

    model_type                in config.json
    keys                      of config.json, in the order in which they are written; keys of type bool are only read
    class_keys                more keys that are written -> attribute
    defaults                  the class's values for keys that config.json lacks, where they differ from ours
    constants                 attributes that all models share; for one with a key, the default of the key
    supported                 keys that would change the result -> supported values; the first is written
    key_names                 names of keys in messages, where config.json has other names than the schema
    inner_key                 the key of the text model's values in folders that we write
    positions_key             of the number of positions
    ffn_widths                default width of the feed-forward block in widths of the model; 0: the key is required
    has_attention             its layers have attention heads and feed-forward blocks
    allows_partial_rotary     config.json may rotate only the first dimensions of a head
    counts_scaled_positions   max_position_embeddings includes the positions that linear scaling adds
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
        """Return the schema of the class as which a configuration from a GGUF file is written."""
        return self

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        """Return the layers without a window that a config.json implies when it has no `layer_types`."""
        return frozenset()

    def complete_values(self, json: Mapping[str, Any], where: str) -> ConfigValues:
        """Return a config.json with the defaults of the class, under all names that transformers accepts."""
        required = {find_key(self.keys, "eps"), "rope_theta"} & self.defaults.keys()  # null means the default
        given = {key: value for key, value in json.items() if value is not None or key not in required}
        defaults, given = (with_both_names(each, self.model_type) for each in (self.defaults, given))
        return ConfigValues({**defaults, **given}, where, {**INNER_KEYS, **self.key_names})

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        """Return the configuration of a config.json.

        values   as `complete_values` returns them
        dtype    the number format of most weights

        Raises ModelFileError for a missing or impossible value, UnsupportedModel for an unsupported option that
        would change the result.
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
        """Return the config.json of a configuration, as far as it describes the computation.

        original_context   positions before rotary scaling, if the source file has them
        """
        found: dict[str, Any] = {"_name_or_path": config.name}
        for key in self.keys:
            value = get_attribute(config, key.attribute)
            if key.key and key.type != "bool" and value is not None:
                is_group = value == 0 and key.attribute in EXPERT_GROUPS
                found[key.key] = to_shortest_float(value) if key.type == "f32" else 1 if is_group else value
        for name, attribute in self.class_keys.items():
            if config.experts is not None or not attribute.startswith("experts."):
                found[name] = get_attribute(config, attribute)
        if config.rotary:
            original = original_context if original_context and original_context <= MAX_CONTEXT else None
            found |= rope_to_hf(config, original, counts_scaled_positions=self.counts_scaled_positions)
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
            found.pop("rope_scaling", None)  # some classes ignore rope_parameters beside it, even if it is null
        return found | {key: values[0] for key, values in self.supported.items()} | {"use_cache": True}

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        """Return values of config.json that no key covers."""
        return {}

    def extra_rope_json(self, config: ModelConfig) -> dict[str, Any]:
        """Return rotary parameters that no key covers."""
        return {}

    def _read_heads(self, values: ConfigValues, attributes: Mapping[str, str], width: int) -> dict[str, int]:
        heads = values.integer(attributes["heads"], 1, MAX_HEADS)
        kv_key = attributes["kv_heads"]
        kv_heads = values.integer(kv_key, 1, MAX_HEADS, heads) if kv_key else heads
        other_keys = values.display_name(attributes["width"]), values.display_name(attributes["heads"])
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
            allows_partial=self.allows_partial_rotary,
            counts_scaled_positions=self.counts_scaled_positions,
        )
        read_rotary_width(rope.rotary, head_dim, values.where)
        found = {"rope_theta": rope.theta, "rope_scaling": rope.scaling, "rotary": rope.rotary}
        return {**declared, **found, "context_length": rope.context_length}

    def _check_supported(self, values: ConfigValues) -> None:
        for key, supported in self.supported.items():
            given = values.get(key)
            if given is None and key in values.values and all(isinstance(each, bool) for each in supported):
                given = False  # transformers treats null as false
            if given is not None and given not in supported:
                known = ", ".join(str(value) for value in supported)
                raise UnsupportedModel(
                    f"{values.where}: {values.display_name(key)} {format_value(given)} is not supported; {known} is"
                )
        if per_layer := values.get(PER_LAYER_CONFIG):
            what = f"{PER_LAYER_CONFIG} {format_value(per_layer)}"
            raise UnsupportedModel(f"{values.where}: {what} is not supported for {self.model_type!r}")

    def _check_experts(self, values: ConfigValues, config: ModelConfig) -> None:
        """Raise ModelFileError for a 0 that GGUF files use for a missing value.

        These are the number of expert groups that a token selects, unless experts are not grouped, and the scale of the
        experts' weights.
        """
        experts = config.experts
        if experts is None:
            return
        groups, top_groups, scale = (
            find_key(self.keys, f"experts.{name}") for name in ("groups", "top_groups", "scale")
        )
        is_grouped = groups not in values.values or bool(experts.groups)  # absent: the class's default, at least one
        for key, value in ((top_groups, experts.top_groups or not is_grouped), (scale, experts.scale)):
            if key and values.has(key) and not value:
                raise ModelFileError(f"{values.where}: {values.display_name(key)} is 0; it must be positive")
