"""Laguna: heads opened by a softplus, more of them where there is a window, and DeepSeek V3's mixture."""

from typing import Any

import numpy as np

from sporelm.checkpoints.experts import MLP, V3_CHOICE, choice_bias_name, expert_fields, expert_names, shared_names
from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, Names, changed
from sporelm.models.blocks import HeadGatedAttention, Layer, pre_norm
from sporelm.models.config import MOST_HEAD_DIM, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families import window_heads
from sporelm.models.families.laguna_words import EACH, LagunaParts, finished, noticed, reworded, usual, words
from sporelm.models.families.window_heads import heads_of, of_kind, regrouped
from sporelm.models.registry import architecture

NUMBERS: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8}
NUMBERS |= {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "first_k_dense_replace": 1}
NUMBERS |= {"max_position_embeddings": 131072}
GATE = Names("layers.{}.attn_gate.weight", "blk.{}.attn_gate.weight", "model.layers.{}.self_attn.g_proj.weight")


@architecture(
    Family(
        "laguna",
        (HfClass("LagunaForCausalLM", "laguna", NUMBERS),),
        fields(
            *expert_fields(
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared_ffn="shared_expert_intermediate_size",
                leading="first_k_dense_replace",
                scale="moe_routed_scaling_factor",
                renormalize="",
                scores="",
            ),
            Field("local_theta", "rope.freq_base_swa", "f32", "", 0.0, MOST_THETA, 0.0),
            Field("own.local_rotary", "rope.dimension_count_swa", "u32", "", 2, MOST_HEAD_DIM, OPTIONAL),
            Field("own.each", "", "bool", EACH),
        ),
        changed(
            COMMON,
            GATE,
            *HEAD_NORMS,
            *expert_names(),
            *shared_names(f"{MLP}shared_expert."),
            choice_bias_name(f"{MLP}experts.e_score_correction_bias"),
        ),
        fixed=V3_CHOICE | {"experts.shared": 1, "experts.renormalize": True},
        only={"hidden_act": ("silu",), "attention_bias": (False,), "moe_router_logit_softcapping": (0.0,)}
        | {"moe_apply_router_weight_on_input": (False,)},
        finish=finished,
        noticed=noticed,
        said=lambda config: {"laguna.attention.head_count": ("[u32]", heads_of(config))},
        words=words,
        reworded=reworded,
        regrouped=regrouped(usual),
        full_layers=usual,
        partial_rotary=True,
        tells_layers=True,
        own=LagunaParts,
        modules=((".shared_expert.", ".shared_experts."),),
    )
)
class Laguna(Decoder):
    """The Llama layer with gated heads and a mixture (poolside 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, window, own = f"layers.{index}", config.window_of(index), config.own
        attention = HeadGatedAttention(name, of_kind(config, index), window, "softplus", each=own.each)
        return pre_norm(config, index, attention)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return window_heads.tables(self.config, context)
