"""Hy3: Qwen3's attention with DeepSeek V3's choice of experts."""

from dataclasses import replace
from typing import Any

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_kinds import with_routers
from sporelm.models.registry import architecture
from sporelm.ops.routing import MOST_EXPERTS
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import (
    CHOICE_BIAS,
    MLP,
    V3_CHOICE,
    expert_fields,
    expert_names,
    shared_names,
    with_leading,
)
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HEAD_NORMS, Kind, Names, changed

NUMBERS: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "num_experts": 192, "num_experts_per_tok": 8}
NUMBERS |= {"num_shared_experts": 1, "moe_intermediate_size": 1536, "router_scaling_factor": 2.826}
NUMBERS |= {"first_k_dense_replace": 1, "rms_norm_eps": 1e-5, "rope_theta": 11158840.0}
NUMBERS |= {"max_position_embeddings": 131072}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """How wide the block that every token goes through is: GGUF files say that, folders how many experts it is."""
    experts = config.experts
    assert experts is not None
    if kind == "hf":
        shared = values.integer("num_shared_experts", 1, MOST_EXPERTS)
        width = shared * experts.ffn
    else:
        width = experts.shared_ffn or experts.ffn
    return replace(config, experts=replace(experts, shared_ffn=width, shared=max(1, width // experts.ffn)))


def _words(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    kinds = ["sparse" if experts and experts.at(layer) else "dense" for layer in range(config.layers)]
    return {"mlp_layer_types": kinds, "num_nextn_predict_layers": 0}


@architecture(
    Family(
        "hy_v3",
        (HfClass("HYV3ForCausalLM", "hy_v3", NUMBERS),),
        fields(
            *expert_fields(
                ("shared",),
                count="num_experts",
                used="num_experts_per_tok",
                ffn="moe_intermediate_size",
                shared="num_shared_experts",
                shared_ffn="",
                leading="first_k_dense_replace",
                scale="router_scaling_factor",
                renormalize="",
                scores="",
            ),
        ),
        changed(
            COMMON,
            *HEAD_NORMS,
            *expert_names(),
            *shared_names(f"{MLP}shared_mlp."),
            Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{MLP}router.gate.weight"),
            Names(CHOICE_BIAS, "blk.{}.exp_probs_b", f"{MLP}expert_bias"),
        ),
        fixed=V3_CHOICE | {"experts.renormalize": True},
        only={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)}
        | {"route_norm": (True,), "qk_norm": (True,)},
        finish=_finished,
        noticed=with_routers,
        words=_words,
        reworded=with_leading,
        further_layers=True,
        modules=((".shared_mlp.", ".shared_experts."),),
    )
)
class HyV3(Decoder):
    """The Llama layer; queries and keys are normed head by head, a mixture follows (Tencent 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="heads"))
