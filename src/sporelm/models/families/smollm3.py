"""SmolLM3: Llama without rotary positions in every fourth layer."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.checkpoints.windows import every
from sporelm.errors import ModelFileError
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

STEP = 4  # what GGUF files mean


def unrotated(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """`no_rope_layers` of config.json has 1 for each layer that rotates; without it, an interval."""
    found = every(STEP)(config.layers)
    if kind == HF:
        marks = values.values.get("no_rope_layers")
        found = every(values.integer("no_rope_layer_interval", 1, MOST_LAYERS, STEP))(config.layers)
        if marks is not None:
            if not isinstance(marks, list) or len(marks) != config.layers or any(mark not in (0, 1) for mark in marks):
                raise ModelFileError(
                    f"{values.where}: no_rope_layers must be 0 or 1 for each of {config.layers} layers"
                )
            found = frozenset(index for index, mark in enumerate(marks) if not mark)
    return replace(config, nope_layers=found)


def _unsaid(config: ModelConfig) -> str:
    usual = config.nope_layers == every(STEP)(config.layers)
    return "" if usual else f"its layers without rotary positions are not every {STEP}th"


def _words(config: ModelConfig) -> dict[str, Any]:
    return {"no_rope_layers": [int(index not in config.nope_layers) for index in range(config.layers)]}


@architecture(
    Family(
        "smollm3",
        (
            HfClass(
                "SmolLM3ForCausalLM",
                "smollm3",
                {"tie_word_embeddings": True, "num_key_value_heads": 4, "max_position_embeddings": 32768}
                | {"rope_theta": 2e6},
                (("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias")),
            ),
        ),
        fields(*ATTENTION_BIAS, Field("mlp_bias", "", "bool", "mlp_bias"), without=("window",)),
        only={"hidden_act": ("silu",), "use_sliding_window": (False,)},
        finish=unrotated,
        words=_words,
        unsaid=_unsaid,
        paired_rows=True,
    )
)
class SmolLM3(Decoder):
    """The Llama layer, some without rotary positions (NoPE, Yang et al. 2025)."""
