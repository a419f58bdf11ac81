"""SmallThinker: experts with ReLU that are chosen before attention; of four layers one sees all, without positions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_files import window_of
from sporelm.checkpoints.experts import expert_fields, expert_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import COMMON, HF, Kind, Names, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, RMSNorm
from sporelm.models.blocks.pre_routed_mixture import PreRoutedLayer, PreRoutedMixture
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

STEP, WIDTH = 4, "moe_ffn_hidden_size"
MLP = "model.layers.{}.block_sparse_moe."
NUMBERS: dict[str, Any] = {"rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "sliding_window_size": 4096}


def _every(layers: int) -> frozenset[int]:
    return frozenset(range(0, layers, STEP))


def _layers_of(values: Fields, key: str, layers: int, usual: int) -> frozenset[int]:
    """The layers for which a list of zeros and ones in config.json has zero."""
    told = values.values.get(key)
    told = [usual] * layers if told is None else told
    if not isinstance(told, Sequence) or len(told) != layers or any(each not in (0, 1) for each in told):
        what = f"{key} is {shown(told)}"
        raise UnsupportedModel(f"{values.where}: {what}; it must have 0 or 1 for each of the {layers} layers")
    return frozenset(layer for layer, each in enumerate(told) if not each)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    experts, layers = config.experts, config.layers
    assert experts is not None
    if kind != HF:
        return replace(config, nope_layers=_every(layers) if config.window else frozenset())
    if _layers_of(values, "moe_layer_layout", layers, 1):
        raise UnsupportedModel(f"{values.where}: layers without experts are not supported")
    window, full = (
        window_of(values, "sliding_window_size", None),
        _layers_of(values, "sliding_window_layout", layers, 0),
    )
    window = None if len(full) == layers else window
    scores = "softmax" if values.flag("moe_primary_router_apply_softmax", False) else "sigmoid"
    config = replace(config, window=window, full_layers=full if window else frozenset())
    nope = _layers_of(values, "rope_layout", layers, 1)
    return replace(config, nope_layers=nope, experts=replace(experts, scores=scores))


def _words(config: ModelConfig) -> dict[str, Any]:
    experts, layers = config.experts, range(config.layers)
    assert experts is not None
    found: dict[str, Any] = {"moe_primary_router_apply_softmax": experts.scores == "softmax"}
    found["sliding_window_layout"] = [int(config.window_of(layer) is not None) for layer in layers]
    found["rope_layout"] = [int(layer not in config.nope_layers) for layer in layers]
    return found | {"sliding_window_size": config.window or NUMBERS["sliding_window_size"]}


def _unsaid(config: ModelConfig) -> str:
    usual = _every(config.layers) if config.window else frozenset()
    return "" if config.nope_layers == usual else "its layers without positions are not those without a window"


@architecture(
    Family(
        "smallthinker",
        (HfClass("SmallThinkerForCausalLM", "smallthinker", NUMBERS),),
        fields(
            Field("ffn", "feed_forward_length", "u32", WIDTH),
            *expert_fields(
                count="moe_num_primary_experts", used="moe_num_active_primary_experts", ffn=WIDTH, scores=""
            ),
        ),
        changed(
            COMMON,
            *expert_names(MLP, ("gate", "up", "down")),
            Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{MLP}primary_router.weight"),
        ),
        fixed={"experts.renormalize": True},
        only={"moe_enable_early_router": (True,), "moe_enable_secondary_experts": (False,)},
        finish=_finished,
        words=_words,
        unsaid=_unsaid,
        full_layers=_every,
    )
)
class SmallThinker(Decoder):
    """Attention and experts (Song et al. 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        norms = [RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        rotates = index not in config.nope_layers
        attention = Attention(name, config, config.window_of(index), rotates=rotates)
        return PreRoutedLayer(norms[0], attention, norms[1], PreRoutedMixture(name, config))
