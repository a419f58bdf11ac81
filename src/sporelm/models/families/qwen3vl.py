"""Qwen3-VL, its text model: Qwen3 whose rotary positions are three, by turns, which in a text are one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.beside_vision import OTHERS, inner_names, text_names
from sporelm.checkpoints.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, Kind, changed
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.families.qwen2vl import TURNS, Seeing, reworded, rotary_words, sectioned, told
from sporelm.models.families.qwen3 import Qwen3
from sporelm.models.registry import architecture

DEEPSTACK = Field("own.deepstack", "n_deepstack_layers", "u32", "", 0, MOST_LAYERS, 0)
FED = "deepstack_visual_indexes"  # of the vision tower's layers, in config.json
USUALLY_FED = 3
NUMBERS = {"max_position_embeddings": 128000, "rope_theta": 5e5}
NAMES = changed(COMMON, *HEAD_NORMS)
SEEING: dict[str, Any] = {"ignored": OTHERS, "reworded": reworded, "windowless": True, "own": Seeing}
SEEING |= {"only": {"hidden_act": ("silu",), TURNS: (True,)}}
SEEING |= {"rotary_words": lambda config: rotary_words(config) | {TURNS: True}}


def fed(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """The configuration with its sections, and the number of layers that get more of images."""
    config = sectioned(config, values, kind, (24, 20, 20))
    if kind != HF:
        return config
    vision = values.values.get("vision_config")
    told = vision.get(FED) if isinstance(vision, Mapping) else None
    return replace(config, own=replace(config.own, deepstack=len(told) if isinstance(told, list) else USUALLY_FED))


@architecture(
    Family(
        "qwen3vl",
        (
            HfClass(
                "Qwen3VLForConditionalGeneration",
                "qwen3_vl",
                {"num_key_value_heads": 32, "head_dim": 128, **NUMBERS},
                (("attention_bias", "attention_bias"),),
                inner="text_config",
            ),
        ),
        fields(*ATTENTION_BIAS, DEEPSTACK),
        inner_names(NAMES),
        others={HF: text_names(NAMES)},
        finish=fed,
        said=told("qwen3vl"),
        **SEEING,
    )
)
class Qwen3VL(Qwen3):
    """Qwen3's layer (Qwen team 2025)."""
