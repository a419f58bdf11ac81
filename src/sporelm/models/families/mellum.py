"""Mellum 2: Qwen3 with experts, and windows whose layers have a rotary base of their own."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_files import full_layers_of, window_of
from sporelm.checkpoints.experts import dense_layers, expert_fields, expert_names, meaning
from sporelm.checkpoints.family import ATTENTION_BIAS, OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, Kind, changed
from sporelm.checkpoints.windows import every
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.gemma3 import reworded
from sporelm.models.families.layer_types import words
from sporelm.models.registry import architecture

STEP = 4
NUMBERS: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 64}
NUMBERS |= {"num_experts_per_tok": 8, "moe_intermediate_size": 896, "norm_topk_prob": True}
NUMBERS |= {"max_position_embeddings": 131072}
FLAGS = (("attention_bias",) * 2, ("norm_topk_prob", "experts.renormalize"), ("sliding_window", "window"))


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The two names of the number of experts, and the rotary parameters of the two kinds of layers."""
    count = values.get("num_local_experts", values.get("num_experts"))
    bases = {} if values.get("rope_parameters") else {"rope_theta": 5e5, "rope_local_base_freq": 1e4}
    return reworded({**values, "num_experts": count, **bases})


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    experts, layers = config.experts, config.layers
    assert experts is not None
    if kind != HF:
        experts = replace(experts, renormalize=True)
    else:
        experts = replace(experts, dense=dense_layers(values, layers, frozenset()))
        full = full_layers_of(values, layers) if values.has("layer_types") else frozenset(range(layers))
        window = window_of(values, "sliding_window", 1024) if len(full) < layers else None
        config = replace(config, window=window, full_layers=full if window else frozenset())
    # Layers with a window are never scaled, whatever the others are.
    local = (config.local_theta or config.rope_theta) if config.window else 0.0
    return replace(config, experts=experts, local_theta=local)


@architecture(
    Family(
        "mellum",
        (HfClass("MellumForCausalLM", "mellum", NUMBERS, FLAGS),),
        fields(
            *expert_fields(
                ("renormalize",),
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                renormalize="norm_topk_prob",
            ),
            *ATTENTION_BIAS,
            Field("local_theta", "rope.freq_base_swa", "f32", "rope_local_base_freq", 0.0, MOST_THETA, OPTIONAL),
        ),
        changed(COMMON, *HEAD_NORMS, *expert_names()),
        finish=_finished,
        reworded=_reworded,
        words=words,
        unsaid=meaning(renormalize=True),
        full_layers=every(STEP),
        tells_layers=True,
        ignored=("mtp.*",),
    )
)
class Mellum(Decoder):
    """Qwen3's layer with a mixture (JetBrains 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, config.window_of(index), norm="heads"))
