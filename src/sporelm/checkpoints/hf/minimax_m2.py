"""Hugging Face folders of MiniMax-M2."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.minimax_m2 import MINIMAX_ROUTING
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    LAYER,
    choice_bias_tensors,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.olmoe import Olmoe
from sporelm.models.config import ModelConfig

BLOCK: Final = f"{LAYER}block_sparse_moe."


def with_rotary_share(values: ConfigValues) -> ConfigValues:
    """Return the values with `rotary_dim` as a share of a head. Raises UnsupportedModel for layers with linear
    attention."""
    kinds = values.get("attn_type_list")
    rotary = values.get("rotary_dim")
    head_dim = values.get("head_dim")
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise UnsupportedModel(
            "attn_type_list has layers with linear attention, which are not supported; 1 for each layer is"
        )
    if rotary is None:
        return values
    if not isinstance(head_dim, int) or type(rotary) is not int or not 0 < rotary <= head_dim:
        what = (
            f"rotary_dim is {format_value(rotary)}; it must be an integer from 1 to head_dim {format_value(head_dim)}"
        )
        raise UnsupportedModel(what)
    return values.with_values({"partial_rotary_factor": rotary / head_dim, **values.values})


@register
class MiniMaxM2ForCausalLM(HfSchema):
    """MiniMax-M2."""

    model_type = "minimax_m2"
    architecture = Olmoe
    keys = hf_keys(*hf_expert_keys(count="num_local_experts", used="num_experts_per_tok", ffn="intermediate_size"))
    defaults = {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 196608,
        "rope_theta": 5000000.0,
    }
    constants = MINIMAX_ROUTING
    supported = {
        "hidden_act": ("silu",),
        "scoring_func": ("sigmoid",),
        "use_qk_norm": (True,),
        "qk_norm_type": ("per_layer",),
        "shared_intermediate_size": (0,),
    }
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(BLOCK, ("w1", "w3", "w2")),
        **choice_bias_tensors(f"{BLOCK}e_score_correction_bias"),
    }
    allows_partial_rotary = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return super().config_from_json(with_rotary_share(values), dtype)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"rotary_dim": config.rotary}
