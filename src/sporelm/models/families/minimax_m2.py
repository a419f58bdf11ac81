"""MiniMax-M2: heads rotated in part, norms of whole rows of queries and keys, a mixture with a bias for the choice."""

from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import V3_CHOICE, choice_bias_name, expert_fields, expert_names
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.fields import shown
from sporelm.weights.names import COMMON, HEAD_NORMS, changed

BLOCK = "model.layers.{}.block_sparse_moe."
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 196608,
    "rope_theta": 5000000.0,
}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """How many numbers of a head are rotated, as a part of it; attention of one kind in all layers."""
    kinds, rotary, dim = (values.get(key) for key in ("attn_type_list", "rotary_dim", "head_dim"))
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise UnsupportedModel("attn_type_list has layers of linear attention; 1 for each layer is supported")
    if rotary is None:
        return values
    if not isinstance(dim, int) or type(rotary) is not int or not 0 < rotary <= dim:
        raise UnsupportedModel(f"rotary_dim is {shown(rotary)}; it must be whole, from 1 to head_dim {shown(dim)}")
    return {"partial_rotary_factor": rotary / dim} | values


@architecture(
    Family(
        "minimax-m2",
        (HfClass("MiniMaxM2ForCausalLM", "minimax_m2", DEFAULTS),),
        fields(
            *expert_fields(count="num_local_experts", used="num_experts_per_tok", ffn="intermediate_size", scores="")
        ),
        changed(
            COMMON,
            *HEAD_NORMS,
            *expert_names(BLOCK, ("w1", "w3", "w2")),
            choice_bias_name(f"{BLOCK}e_score_correction_bias"),
        ),
        fixed=V3_CHOICE | {"experts.renormalize": True, "experts.epsilon": 0.0},
        only={
            "hidden_act": ("silu",),
            "scoring_func": ("sigmoid",),
            "use_qk_norm": (True,),
            "qk_norm_type": ("per_layer",),
            "shared_intermediate_size": (0,),
        },
        reworded=_reworded,
        words=lambda config: {"rotary_dim": config.rotary},
        partial_rotary=True,
    )
)
class MiniMaxM2(Decoder):
    """The Llama layer with a mixture in place of its feed-forward block (MiniMax 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="whole"))
