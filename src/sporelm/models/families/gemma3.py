"""Gemma 3, its text model: five layers with a window to one without, each kind with a rotary base of its own."""

from typing import Any

from sporelm.checkpoints.beside_vision import OTHERS, text_names, text_part
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, Kind, changed
from sporelm.checkpoints.windows import every, windowed
from sporelm.models.blocks import Attention, GatedMLP, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.gemma import DEFAULTS, NORMS, USUAL, embedded, less_one
from sporelm.models.families.gemma2 import AROUND, CAPS, scalar, scaled, unscaled
from sporelm.models.registry import architecture

LARGEST = 62  # layers of the 27B
STEP = 6
SEEING = "Gemma3ForConditionalGeneration"
LOCAL_THETA = 10000.0
NUMBERS = {**DEFAULTS, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208, "rope_theta": 1e6}
NUMBERS |= {"max_position_embeddings": 131072}
NAMES = changed(COMMON, *NORMS, *AROUND, *less_one(*HEAD_NORMS))


def gemma3_config(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config = scaled(embedded(config, values, kind), values, kind, LARGEST)
    return windowed(config, values, STEP, key="sliding_window_pattern") if kind == HF else config


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 has rotary parameters for each kind of layer; before, there were two bases."""
    values = text_part(values)
    if values.get("architectures") == [SEEING]:  # whose logits transformers does not cap
        values = {**values, "final_logit_softcapping": None}
    kinds = values.get("rope_parameters")
    if not isinstance(kinds, dict) or not isinstance(local := kinds.get("sliding_attention"), dict):
        return values
    local = {"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {}
    return {**values, **local, "rope_parameters": kinds.get("full_attention")}


@architecture(
    Family(
        "gemma3",
        (
            HfClass("Gemma3ForCausalLM", "gemma3_text", NUMBERS, (("sliding_window", "window"),)),
            HfClass(SEEING, "gemma3", NUMBERS, (("sliding_window", "window"),)),
        ),
        fields(
            CAPS[1],  # of logits: transformers reads no cap of scores here, though its configuration has the key
            Field("local_theta", "rope.freq_base_swa", "f32", "rope_local_base_freq", 1.0, MOST_THETA, LOCAL_THETA),
        ),
        NAMES,
        others={HF: text_names(NAMES)},
        ignored=OTHERS,
        only={"hidden_activation": ("gelu_pytorch_tanh",), **USUAL},
        finish=gemma3_config,
        reworded=reworded,
        full_layers=every(STEP),
        tells_layers=True,
        counts_gained=True,
        words=scalar,
        unsaid=lambda config: unscaled(config, LARGEST),
    )
)
class Gemma3(Decoder):
    """Gemma 2's layer with norms of query and key heads in place of capped scores (Gemma team 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, config, config.window_of(index), norm="heads")
        return pre_norm(config, index, attention, GatedMLP(name, config, "gelu_tanh"), behind=True)
