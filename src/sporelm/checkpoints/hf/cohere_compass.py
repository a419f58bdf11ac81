"""Hugging Face folders of Cohere Compass: the text model alone, and the multimodal model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf.cohere_compass import COMPASS_CONSTANTS
from sporelm.checkpoints.hf.cohere import COHERE_DEFAULTS, COHERE_KEYS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hf_windows import LAYER_TYPES, list_attention_types, read_full_layers, read_window
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES
from sporelm.checkpoints.text_config import IMAGE_ROPE_KEYS, MULTIMODAL_TENSORS, select_text_config
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.cohere2 import Cohere2
from sporelm.models.config import ModelConfig

# Known rotary parameters; those of images do not affect the positions of text.
KNOWN_ROPE_KEYS: Final = {"rope_type", "rope_theta", *IMAGE_ROPE_KEYS}
DEFAULT_THETA: Final = 1e4
COMPASS_DEFAULTS: Final = {**COHERE_DEFAULTS, "logit_scale": 1.0}


def read_rope_bases(values: ConfigValues) -> dict[str, Any]:
    """Return the rotary base of each layer type in `rope_parameters`, 0 for one without rotary positions. Raises
    UnsupportedModel for other parameters."""
    by_type = values.get("rope_parameters")
    bases: dict[str, Any] = {}
    for layer_type in LAYER_TYPES:
        if not isinstance(by_type, Mapping) or layer_type not in by_type:
            continue
        rope = by_type[layer_type]
        if rope is None:
            bases[layer_type] = 0
            continue
        is_known = isinstance(rope, Mapping) and rope.keys() <= KNOWN_ROPE_KEYS
        if not is_known or rope.get("rope_type", "default") != "default":
            what = f"rope_parameters of {layer_type} are {format_value(rope)}"
            raise UnsupportedModel(f"config.json: {what}, which is not supported")
        bases[layer_type] = rope.get("rope_theta", values.get("rope_theta", DEFAULT_THETA))
    return bases


@register
class CohereCompassForCausalLM(HfSchema):
    """North-Micro, the text model."""

    model_type = "cohere_compass_text"
    architecture = Cohere2
    keys = hf_keys(*COHERE_KEYS, without=("head_dim",))
    class_keys = {"attention_bias": "attention_bias", "sliding_window": "window"}
    defaults = COMPASS_DEFAULTS
    constants = COMPASS_CONSTANTS
    tensors = DECODER_TENSORS
    prefix_variants = TEXT_MODEL_PREFIXES
    ignored_tensors = MULTIMODAL_TENSORS
    has_window_pattern = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = values.with_values(select_text_config(dict(values.values)))
        bases = read_rope_bases(values)
        theta = next(filter(None, bases.values()), DEFAULT_THETA)
        values = values.with_changes({"rope_parameters": None, "rope_theta": theta})
        config = super().config_from_json(values, dtype)
        layers = range(config.layers)
        full_layers = read_full_layers(values, config.layers) if values.has("layer_types") else frozenset(layers)
        window = read_window(values, "sliding_window", 4096) if len(full_layers) < config.layers else None
        layer_types = [LAYER_TYPES[layer not in full_layers] for layer in layers]
        if missing := [each for each in LAYER_TYPES if each in layer_types and each not in bases]:
            what = f"rope_parameters lack {missing[0]}"
            raise UnsupportedModel(f"{values.where}: {what}, which is not supported")
        sliding = LAYER_TYPES[1]
        if window is None and sliding in layer_types:
            what = f"layers are {sliding}, but sliding_window is null"
            raise UnsupportedModel(f"{values.where}: {what}, which is not supported")
        local_theta = ConfigValues(bases, values.where).number(sliding, 0, MAX_THETA, 0.0)
        return replace(
            config,
            window=window,
            full_layers=full_layers if window else frozenset(),
            nope_layers=frozenset(layer for layer in layers if not bases[layer_types[layer]]),
            local_theta=local_theta if window and local_theta != config.rope_theta else 0.0,
        )

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        layer_types = list_attention_types(config)
        thetas = zip(LAYER_TYPES, (config.rope_theta, config.local_theta or config.rope_theta), strict=True)
        bases = {layer_type: {"rope_type": "default", "rope_theta": theta} for layer_type, theta in thetas}
        unrotated = {layer_types[layer] for layer in range(config.layers) if layer in config.nope_layers}
        rope = {each: None if each in unrotated else bases[each] for each in LAYER_TYPES if each in layer_types}
        return {"layer_types": layer_types, "rope_parameters": rope}


@register
class CohereCompassForConditionalGeneration(CohereCompassForCausalLM):
    """The model with vision."""

    model_type = "cohere_compass"
    defaults = {**COMPASS_DEFAULTS, "tie_word_embeddings": False}
