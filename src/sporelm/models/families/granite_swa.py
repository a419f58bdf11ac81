"""Granite with a window in three of four layers, a sink for each head, layers without rotary positions, and experts."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_files import WINDOWED_LAYERS, full_layers_of, window_of
from sporelm.checkpoints.experts import expert_fields
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import GGUF, HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.granite import NUMBERS, scored
from sporelm.models.families.granite_swa_names import APART, NAMES
from sporelm.models.families.granitemoe import DEFAULTS
from sporelm.models.families.layer_kinds import ROTATED, rotation_marks
from sporelm.models.registry import architecture

STEP, MIXTURE = 4, "GraniteMoeSWAForCausalLM"
NUMBERS_OF_DENSE: dict[str, Any] = {
    "tie_word_embeddings": True,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
NUMBERS_OF_DENSE |= {"rms_norm_eps": 1e-5}
BASES = "layer_rope_theta"  # of each layer in config.json, 0 for one without rotary positions
FLAGS = (("attention_bias", "attention_bias"), ("sliding_window", "window"))


def _fourth(layers: int) -> frozenset[int]:
    return frozenset(range(0, layers, STEP))


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The one base that layers have in place of the model's."""
    bases, rope = values.get(BASES), values.get("rope_parameters")
    found = [base for base in bases if base] if isinstance(bases, list) else []
    if not found:
        return values
    inner = {"rope_parameters": {**rope, "rope_theta": found[0]}} if isinstance(rope, dict) and rope else {}
    return {**values, "rope_theta": found[0], **inner}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config = scored(config, values, kind)
    marks = rotation_marks(values, BASES if kind == HF else ROTATED, config.layers)
    if kind == HF:
        if len({base for base in marks if base}) > 1:
            raise UnsupportedModel(f"{values.where}: {BASES} has more than one base, which is not supported")
        full = full_layers_of(values, config.layers) if values.has("layer_types") else _fourth(config.layers)
        config = replace(config, window=window_of(values, "sliding_window", 128), full_layers=full)
    return replace(config, nope_layers=frozenset(layer for layer, mark in enumerate(marks) if not mark))


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    """llama.cpp wants the first; the second means all layers where there is none."""
    layers = range(config.layers)
    found = {WINDOWED_LAYERS: ("[bool]", [config.window_of(layer) is not None for layer in layers])}
    if config.nope_layers:
        found[ROTATED] = "[bool]", [layer not in config.nope_layers for layer in layers]
    return {f"granite_swa.{key}": value for key, value in found.items()}


def _words(config: ModelConfig) -> dict[str, Any]:
    layers = range(config.layers)
    kinds = ["full_attention" if layer in config.full_layers else "sliding_attention" for layer in layers]
    return {"layer_types": kinds, BASES: [0 if layer in config.nope_layers else config.rope_theta for layer in layers]}


@architecture(
    Family(
        "granite_swa",
        (
            HfClass("GraniteSWAForCausalLM", "granite_swa", NUMBERS_OF_DENSE, (*FLAGS, ("mlp_bias", "mlp_bias"))),
            HfClass(MIXTURE, "granitemoe_swa", DEFAULTS, FLAGS),
        ),
        fields(
            *NUMBERS,
            Field("mlp_bias", "", "bool", "mlp_bias"),
            *expert_fields(
                optional=True,
                count="num_local_experts",
                used="num_experts_per_tok",
                shared_ffn="shared_intermediate_size",
            ),
        ),
        NAMES,
        others={GGUF: APART},
        fixed={"experts.scores": "softmax_of_chosen"},
        finish=_finished,
        choose=lambda config: MIXTURE if config.experts else "GraniteSWAForCausalLM",
        full_layers=_fourth,
        reworded=_reworded,
        said=_said,
        tells_layers=True,
        words=_words,
        paired_rows=True,
    )
)
class GraniteSWA(Decoder):
    """Granite's layer; a head's sink takes what no position is worth (IBM 2026; Xiao et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        rotates, window = index not in config.nope_layers, config.window_of(index)
        return pre_norm(config, index, Attention(f"layers.{index}", config, window, rotates=rotates, sinks=True))
