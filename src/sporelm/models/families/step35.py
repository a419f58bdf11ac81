"""Step 3.5 and 3.7 Flash: gated heads, more of them where there is a window, and experts kept within limits."""

from typing import Any

import numpy as np

from sporelm.checkpoints.experts import V3_CHOICE, choice_bias_name, expert_fields, shared_names
from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, Names, changed
from sporelm.models.blocks import ClampedMixture, ClampedMLP, HeadGatedAttention, Layer, pre_norm
from sporelm.models.config import MOST_HEAD_DIM, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families import window_heads
from sporelm.models.families.gemma import NORMS, less_one
from sporelm.models.families.layer_kinds import with_routers
from sporelm.models.families.step35_limits import Step35Parts, finished, said, unsaid, wanted
from sporelm.models.families.step35_lists import reworded, words
from sporelm.models.families.window_heads import of_kind, regrouped
from sporelm.models.registry import architecture

LAYER = "model.layers.{}."
NUMBERS: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 288, "num_experts_per_tok": 8}
NUMBERS |= {"moe_intermediate_size": 1280, "share_expert_dim": 1280, "rms_norm_eps": 1e-5}
NUMBERS |= {"max_position_embeddings": 128000}
NAMES = changed(
    COMMON,
    *NORMS,
    *less_one(*HEAD_NORMS),
    *shared_names(f"{LAYER}share_expert."),
    choice_bias_name(f"{LAYER}moe.router_bias"),
    Names("layers.{}.attn_gate.weight", "blk.{}.attn_gate.weight", f"{LAYER}self_attn.g_proj.weight"),
    Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{LAYER}moe.gate.weight"),
    *(
        Names(
            f"layers.{{}}.ffn_{part}_exps.weight", f"blk.{{}}.ffn_{part}_exps.weight", f"{LAYER}moe.{part}_proj.weight"
        )
        for part in ("gate", "up", "down")
    ),
)
# What its makers' words must say.
ONLY: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu", "swigluoai"), "moe_router_activation": ("sigmoid",)}
ONLY |= dict.fromkeys(
    ("use_head_wise_attn_gate", "zero_centered", "use_moe_router_bias", "norm_expert_weight"), (True,)
)
ONLY |= dict.fromkeys(("sink", "attention_bias", "mlp_bias", "use_bidirectional_attention"), (False,))
ONLY |= {"moe_every_n_layer": (1,), "yarn_only_types": (["full_attention"],), "use_rope_layers": ([],)}
ONLY |= {"att_impl_type": ("GQA",), "use_qk_norm": (True,)}


@architecture(
    Family(
        "step35",
        (HfClass("Step3p5ForCausalLM", "step3p5", NUMBERS),),
        fields(
            *expert_fields(
                count="n_routed_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared_ffn="share_expert_dim",
                leading="",
                scale="moe_router_scaling_factor",
                renormalize="",
                scores="",
            ),
            Field("local_theta", "rope.freq_base_swa", "f32", "", 0.0, MOST_THETA, 0.0),
            Field("own.local_rotary", "rope.dimension_count", "u32", "", 2, MOST_HEAD_DIM, OPTIONAL),
            without=("rotary",),
        ),
        NAMES,
        fixed=V3_CHOICE | {"experts.renormalize": True},
        only=ONLY,
        finish=finished,
        noticed=with_routers,
        said=said,
        words=words,
        wanted=wanted,
        unsaid=unsaid,
        reworded=reworded,
        regrouped=regrouped(lambda layers: frozenset()),
        partial_rotary=True,
        tells_layers=True,
        further_layers=True,
        own=Step35Parts,
        modules=((".share_expert.", ".mlp.shared_experts."),),
    )
)
class Step35(Decoder):
    """The Llama layer with gated heads and a mixture (StepFun 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, own = f"layers.{index}", config.own
        attention = HeadGatedAttention(name, of_kind(config, index), config.window_of(index), "sigmoid")
        limit, shared = own.limits[index], own.shared_limits[index]
        if config.experts and config.experts.at(index):
            return pre_norm(config, index, attention, ClampedMixture(name, config, limit, shared))
        return pre_norm(config, index, attention, ClampedMLP(name, config, shared))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return window_heads.tables(self.config, context)
