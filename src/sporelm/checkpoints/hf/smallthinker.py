"""Hugging Face folders of SmallThinker."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.smallthinker import SMALLTHINKER_ROUTING, WINDOW_STEP
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER, expert_tensors
from sporelm.checkpoints.hf_windows import every_nth_layer, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.smallthinker import SmallThinker
from sporelm.models.config import ModelConfig

BLOCK: Final = f"{LAYER}block_sparse_moe."
FFN_WIDTH: Final = "moe_ffn_hidden_size"
DEFAULT_WINDOW: Final = 4096
APPLY_SOFTMAX: Final = "moe_primary_router_apply_softmax"


def read_zero_layers(values: ConfigValues, key: str, layers: int, default: int) -> frozenset[int]:
    """Return the layers for which a list of zeros and ones has zero. Raises UnsupportedModel for other lists."""
    given = values.get(key)
    layout = [default] * layers if given is None else given
    if not isinstance(layout, Sequence) or len(layout) != layers or any(each not in (0, 1) for each in layout):
        what = f"{key} is {format_value(layout)}"
        raise UnsupportedModel(f"{values.where}: {what}; it must have 0 or 1 for each of the {layers} layers")
    return frozenset(layer for layer, each in enumerate(layout) if not each)


@register
class SmallThinkerForCausalLM(HfSchema):
    """SmallThinker. Lists of zeros and ones select the layers with experts, a window, and rotary positions."""

    model_type = "smallthinker"
    architecture = SmallThinker
    keys = hf_keys(
        Key("ffn", FFN_WIDTH, "u32"),
        *hf_expert_keys(count="moe_num_primary_experts", used="moe_num_active_primary_experts", ffn=FFN_WIDTH),
    )
    defaults = {
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "sliding_window_size": DEFAULT_WINDOW,
    }
    constants = SMALLTHINKER_ROUTING
    supported = {"moe_enable_early_router": (True,), "moe_enable_secondary_experts": (False,)}
    tensors = {
        **DECODER_TENSORS,
        **expert_tensors(BLOCK, ("gate", "up", "down")),
        "layers.{}.ffn_gate_inp.weight": f"{BLOCK}primary_router.weight",
    }

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP, first=0)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        experts, layers = config.experts, config.layers
        assert experts is not None
        if read_zero_layers(values, "moe_layer_layout", layers, 1):
            raise UnsupportedModel(f"{values.where}: layers without experts are not supported")
        window = read_window(values, "sliding_window_size", None)
        full_layers = read_zero_layers(values, "sliding_window_layout", layers, 0)
        if len(full_layers) == layers:
            window = None
        scores = "softmax" if values.flag(APPLY_SOFTMAX, False) else "sigmoid"
        return replace(
            config,
            window=window,
            full_layers=full_layers if window else frozenset(),
            nope_layers=read_zero_layers(values, "rope_layout", layers, 1),
            experts=replace(experts, scores=scores),
        )

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        experts, layers = config.experts, range(config.layers)
        assert experts is not None
        return {
            APPLY_SOFTMAX: experts.scores == "softmax",
            "sliding_window_layout": [int(config.window_of(layer) is not None) for layer in layers],
            "rope_layout": [int(layer not in config.nope_layers) for layer in layers],
            "sliding_window_size": config.window or DEFAULT_WINDOW,
        }
