"""Flint: Qwen3 with experts chosen by a sigmoid, a sink for each head, and rotary positions where there is a window."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_files import WINDOWED_LAYERS, full_layers_of, window_of
from sporelm.checkpoints.experts import MLP, expert_fields, expert_names, shared_names
from sporelm.checkpoints.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, Kind, Names, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_kinds import with_routers
from sporelm.models.families.qwen2moe import mlp_only
from sporelm.models.families.qwen3moe import counted
from sporelm.models.registry import architecture

NUMBERS: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 262144}
NUMBERS |= {"num_experts": 256, "num_experts_per_tok": 6, "moe_intermediate_size": 512, "norm_topk_prob": True}
NUMBERS |= {"shared_expert_intermediate_size": 1024}
FLAGS = (("attention_bias",) * 2, ("sliding_window", "window"), ("norm_topk_prob", "experts.renormalize"))
SINKS = Names("layers.{}.attn_sinks.weight", "blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.softmax_offset")
KINDS = ("full_attention", "sliding_attention")
LEADING = (0, 1)  # layers without experts, where files do not say


def _usual_full(layers: int) -> frozenset[int]:
    return frozenset({0, 1, *range(1, layers, 4), layers - 1}) & frozenset(range(layers))


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Which layers have a window, without which none is rotated; and which have experts."""
    if kind != HF:
        return config
    layers, experts = config.layers, config.experts
    assert experts is not None
    full = full_layers_of(values, layers) if values.has("layer_types") else _usual_full(layers)
    if (window := window_of(values, "sliding_window", 513)) is None:
        raise UnsupportedModel(f"{values.where}: sliding_window is null, and layers without one are not rotated")
    step = values.integer("decoder_sparse_step", 1, MOST_LAYERS, 1)
    dense = mlp_only(values, LEADING) | {layer for layer in range(layers) if (layer + 1) % step}
    return replace(config, window=window, full_layers=full, experts=replace(experts, dense=dense & {*range(layers)}))


def _words(config: ModelConfig) -> dict[str, Any]:
    layers, experts = range(config.layers), config.experts
    dense = [layer for layer in layers if not (experts and experts.at(layer))]
    kinds = [KINDS[config.window_of(layer) is not None] for layer in layers]
    return {"layer_types": kinds, "mlp_only_layers": dense, "decoder_sparse_step": 1}


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    windows = [config.window_of(layer) is not None for layer in range(config.layers)]
    return {f"flint.{WINDOWED_LAYERS}": ("[bool]", windows)}


@architecture(
    Family(
        "flint",
        (HfClass("FlintForCausalLM", "flint", NUMBERS, FLAGS),),
        fields(
            *expert_fields(
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared_ffn="shared_expert_intermediate_size",
                renormalize="norm_topk_prob",
            ),
            *ATTENTION_BIAS,
        ),
        changed(COMMON, *HEAD_NORMS, SINKS, *expert_names(), *shared_names(f"{MLP}shared_expert.")),
        fixed={"experts.scores": "sigmoid"},
        finish=_finished,
        noticed=with_routers,
        said=_said,
        words=_words,
        reworded=counted,
        full_layers=_usual_full,
        tells_layers=True,
        resaved=((".self_attn.softmax_offset", ".self_attn.sinks"),),
    )
)
class Flint(Decoder):
    """Qwen3's layer with a mixture (Recursive 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, window = f"layers.{index}", config.window_of(index)
        attention = Attention(name, config, window, norm="heads", rotates=window is not None, sinks=True)
        return pre_norm(config, index, attention)
