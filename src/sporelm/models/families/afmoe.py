"""Trinity: gated attention, in every fourth layer without positions or window; norms on both sides; a mixture."""

from dataclasses import replace
from math import sqrt
from typing import Any

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_LAYERS, ModelConfig
from sporelm.weights.config_files import full_layers_of, window_of
from sporelm.weights.experts import MLP, V3_CHOICE, choice_bias_name, expert_fields, expert_names, shared_names
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HEAD_NORMS, HF, Kind, Names, changed

LAYER = "model.layers.{}."
STEP = 4
DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "moe_intermediate_size": 1408,
    "num_dense_layers": 1,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "mup_enabled": False,
}
NAMES = changed(
    COMMON,
    *HEAD_NORMS,
    *expert_names(),
    *shared_names(),
    choice_bias_name(f"{MLP}expert_bias"),
    Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{MLP}router.gate.weight"),
    Names("layers.{}.attn_gate.weight", "blk.{}.attn_gate.weight", f"{LAYER}self_attn.gate_proj.weight"),
    *(
        Names(f"layers.{{}}.{ours}_norm.weight", f"blk.{{}}.{gguf}_norm.weight", f"{LAYER}{hf}_layernorm.weight")
        for ours, gguf, hf in (
            ("attn_post", "post_attention", "post_attention"),
            ("ffn", "ffn", "pre_mlp"),
            ("ffn_post", "post_ffw", "post_mlp"),
        )
    ),
)


def _every(layers: int, step: int = STEP) -> frozenset[int]:
    return frozenset(range(step - 1, layers, step))


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """GGUF files mean an embedding that is scaled by the root of its width."""
    scales = replace(config.scales, embedding=sqrt(config.width))
    if kind != HF:
        return replace(config, scales=scales)
    full = _every(config.layers, values.integer("global_attn_every_n_layers", 1, MOST_LAYERS, STEP))
    full = full_layers_of(values, config.layers) if values.has("layer_types") else full
    scales = scales if values.flag("mup_enabled", False) else config.scales
    return replace(config, scales=scales, window=window_of(values, "sliding_window", 1024), full_layers=full)


def _unsaid(config: ModelConfig) -> str:
    if config.full_layers != _every(config.layers):
        return f"its layers without a window are not every {STEP}th"
    return "its embedding is not scaled" if config.scales.embedding == 1 else ""


@architecture(
    Family(
        "afmoe",
        (HfClass("AfmoeForCausalLM", "afmoe", DEFAULTS, (("sliding_window", "window"),)),),
        fields(
            *expert_fields(
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared="num_shared_experts",
                leading="num_dense_layers",
                scale="route_scale",
                renormalize="",
                scores="",
            )
        ),
        NAMES,
        fixed=V3_CHOICE | {"experts.renormalize": True},
        only={"hidden_act": ("silu",), "attention_bias": (False,), "n_group": (1,), "route_norm": (True,)}
        | {"score_func": ("sigmoid",), "topk_group": (1,)},
        finish=_finished,
        words=lambda config: {"mup_enabled": config.scales.embedding != 1, "global_attn_every_n_layers": STEP},
        unsaid=_unsaid,
        full_layers=_every,
    )
)
class Afmoe(Decoder):
    """Llama's layer with those parts (Arcee AI 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        rotates = index not in config.full_layers
        attention = Attention(
            f"layers.{index}", config, config.window_of(index), norm="heads", rotates=rotates, gated=True
        )
        return pre_norm(config, index, attention, behind=True)
