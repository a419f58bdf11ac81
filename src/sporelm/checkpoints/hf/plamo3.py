"""Hugging Face folders of PLaMo 3."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.plamo3 import LOCAL_THETA, WINDOW_STEP
from sporelm.checkpoints.hf.plamo2 import MIXER, PLAMO_TENSORS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_windows import every_nth_layer, with_windows
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import AddConstant
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.plamo3 import Plamo3
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import UNSCALED, YarnScaling

STEP_KEY: Final = "sliding_window_pattern"
FACTOR: Final = "rope_scaling_factor"
ORIGINAL_CONTEXT: Final = "initial_context_length"
DEFAULT_WINDOW: Final = 128


def normalize(values: ConfigValues) -> ConfigValues:
    """Return the values with the window and YaRN under Llama's keys. Raises UnsupportedModel for windows of different
    sizes, which older folders list layer by layer."""
    window = values.get("window_size", values.get("sliding_window", DEFAULT_WINDOW))
    if isinstance(window, list):
        sizes = {size for size in map(str, window) if size != "None"}
        if len(sizes) > 1:
            what = "layers have windows of different sizes, which is not supported"
            raise UnsupportedModel(f"{values.where}: {what}")
        window = next((size for size in window if size is not None), None)
    found: dict[str, Any] = {"sliding_window": window, "rope_parameters": None, "rope_scaling": None}
    if values.has("rope_global_theta"):
        found["rope_theta"] = values.get("rope_global_theta")
    if (factor := values.get(FACTOR, 1)) != 1:
        yarn = {"rope_type": "yarn", "factor": factor, "truncate": False}
        found["rope_scaling"] = yarn | {"original_max_position_embeddings": values.get(ORIGINAL_CONTEXT)}
    return values.with_changes(found)


@register
class Plamo3ForCausalLM(HfSchema):
    """PLaMo 3."""

    model_type = "plamo3"
    architecture = Plamo3
    keys = hf_keys(Key("local_theta", "rope_local_theta", "f32", 1.0, MAX_THETA, LOCAL_THETA))
    class_keys = {"window_size": "window"}
    defaults = {"head_dim": 128, "num_key_value_heads": 4, "rope_theta": 150000, "tie_word_embeddings": True}
    supported = {"hidden_activation": ("swiglu",), "attention_bias": (False,), "scale_embedding": (False,)}
    tensors = {
        **PLAMO_TENSORS,
        **{
            f"layers.{{}}.attn_{name}_norm.weight": StoredAs(f"{MIXER}{name}_norm.weight", AddConstant(1.0))
            for name in "qk"
        },
    }
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = normalize(values)
        config = super().config_from_json(values, dtype)
        return with_windows(config, values, WINDOW_STEP, step_key=STEP_KEY, window=DEFAULT_WINDOW)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        layers, scaling = config.layers, config.rope_scaling
        step = min(config.full_layers, default=layers) + 1
        if every_nth_layer(step)(layers) != config.full_layers:
            what = "layers without a window are not at regular intervals, which config.json of PLaMo 3 cannot represent"
            raise UnsupportedModel(what)
        found: dict[str, Any] = {STEP_KEY: step, "rope_scaling": None, FACTOR: 1, ORIGINAL_CONTEXT: None}
        if isinstance(scaling, YarnScaling):
            return found | {FACTOR: scaling.factor, ORIGINAL_CONTEXT: scaling.original}
        if scaling != UNSCALED:
            what = "its rotary scaling is not YaRN, which config.json of PLaMo 3 cannot represent"
            raise UnsupportedModel(what)
        return found


@register
class PLaMo3ForCausalLM(Plamo3ForCausalLM):
    """PLaMo 3 under its first class name."""
