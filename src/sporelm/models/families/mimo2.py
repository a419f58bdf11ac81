"""MiMo-V2-Flash: a window with sinks in most layers, values narrower than keys, and DeepSeek V3's choice of experts."""

from typing import Any

import numpy as np

from sporelm.checkpoints.config_files import WINDOWED_LAYERS
from sporelm.checkpoints.experts import V3_CHOICE, choice_bias_name, expert_fields, expert_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.rope_fields import MOST_FACTOR, MOST_THETA
from sporelm.checkpoints.tensor_names import COMMON, Names, changed
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.blocks.attention import value_tables
from sporelm.models.config import MOST_HEAD_DIM, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_kinds import with_routers
from sporelm.models.families.mimo2_words import KV, VALUES, Mimo2Parts, finished, of_gguf, of_hf, of_kind, usual_full
from sporelm.models.families.mimo2_words import words as told
from sporelm.models.registry import architecture

DEFAULTS: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "sliding_window": 129}
DEFAULTS |= {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "attention_value_scale": 0.707}
DEFAULTS |= {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "norm_topk_prob": True}
FLAGS = (("attention_bias",) * 2, ("sliding_window", "window"), ("norm_topk_prob", "experts.renormalize"))
SINKS = Names(
    "layers.{}.attn_sinks.weight", "blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.attention_sink_bias"
)


def _unsaid(config: ModelConfig) -> str:
    experts = config.experts
    if experts and not experts.renormalize:
        return "the weights of its experts are not renormalized"
    return "the weights of its experts are scaled" if experts and experts.scale != 1 else ""


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    layers = range(config.layers)
    return {
        f"mimo2.{KV}": ("[u32]", [of_kind(config, layer).kv_heads for layer in layers]),
        f"mimo2.{VALUES}": ("u32", config.own.value),
        f"mimo2.{WINDOWED_LAYERS}": ("[bool]", [config.window_of(layer) is not None for layer in layers]),
    }


@architecture(
    Family(
        "mimo2",
        (HfClass("MiMoV2FlashForCausalLM", "mimo_v2_flash", DEFAULTS, FLAGS),),
        fields(
            Field("attention_bias", "", "bool", "attention_bias"),
            Field("own.value", "", "u32", "v_head_dim", 1, MOST_HEAD_DIM),
            Field("own.value_scale", "attention.value_scale", "f32", "attention_value_scale", 0, MOST_FACTOR, 1.0),
            Field("local_theta", "rope.freq_base_swa", "f32", "local_theta", 1.0, MOST_THETA, 10000.0),
            *expert_fields(
                ("renormalize", "scale"),
                count="n_routed_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                scale="routed_scaling_factor",
                renormalize="norm_topk_prob",
                groups="n_group",
                top_groups="topk_group",
            ),
        ),
        changed(COMMON, SINKS, *expert_names(), choice_bias_name()),
        fixed=V3_CHOICE | {"experts.renormalize": True},
        only={
            "hidden_act": ("silu",),
            "n_shared_experts": (None,),
            "topk_method": ("noaux_tc",),
            "scoring_func": ("sigmoid",),
        }
        | {"add_full_attention_sink_bias": (False,), "add_swa_attention_sink_bias": (True,)},
        finish=finished,
        noticed=with_routers,
        said=_said,
        words=told,
        unsaid=_unsaid,
        full_layers=usual_full,
        reworded=of_hf,
        regrouped=of_gguf,
        ignored=("model.mtp.*",),
        partial_rotary=True,
        tells_layers=True,
        further_layers=True,
        own=Mimo2Parts,
    )
)
class Mimo2(Decoder):
    """The Llama layer with a mixture; layers with a window have twice the key heads (Xiaomi 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        window, own = config.window_of(index), config.own
        options: dict[str, Any] = {"sinks": window is not None, "values": own.value, "value_scale": own.value_scale}
        return pre_norm(config, index, Attention(f"layers.{index}", of_kind(config, index), window, **options))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        config, value = self.config, self.config.own.value
        found = super().tables(context)
        return (
            found
            if value == config.head_dim
            else found | value_tables(config, value, (config.kv_heads, 2 * config.kv_heads))
        )
