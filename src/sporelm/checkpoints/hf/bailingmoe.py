"""Hugging Face folders of Ling 1."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.bailingmoe import BAILING_ROUTING
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    LAYER,
    expert_tensors,
    fused_qkv_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import NormalizeRows
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.bailingmoe import BailingMoe, BailingMoeConfig
from sporelm.models.config import ModelConfig

BAILING_ATTENTION: Final = f"{LAYER}attention."
# Of Ling 1 and 2.
BAILING_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    "embedding.weight": "model.word_embeddings.weight",
    **fused_qkv_tensors(f"{BAILING_ATTENTION}query_key_value", parts=("weight",)),
    "layers.{}.attn_o.weight": f"{BAILING_ATTENTION}dense.weight",
    **expert_tensors(),
    **shared_expert_tensors(),
}


def has_normalized_head(config: BailingMoeConfig) -> bool:
    """Return whether the columns of the output are normalized on loading."""
    return config.has_normalized_head


@register
class BailingMoeForCausalLM(HfSchema):
    """Ling 1."""

    model_type = "bailing_moe"
    architecture = BailingMoe
    keys = hf_keys(
        Key("has_normalized_head", "norm_head", "bool", default=False),
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared="num_shared_experts",
            renormalize="norm_topk_prob",
        ),
    )
    class_keys = {"norm_topk_prob": "experts.renormalize"}
    constants = BAILING_ROUTING
    supported = {
        "hidden_act": ("silu",),
        "first_k_dense_replace": (0,),
        "multi_gate": (False,),
        "norm_softmax": (False,),
        "use_bias": (False,),
        "use_qkv_bias": (False,),
    }
    tensors = {
        **BAILING_TENSORS,
        "output.weight": StoredAs("lm_head.weight", NormalizeRows(axis=0, when=has_normalized_head)),
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        assert isinstance(config, BailingMoeConfig)
        if config.has_normalized_head and config.tie_embeddings:
            what = "norm_head is not supported for an output that is tied to the embedding"
            raise UnsupportedModel(f"{values.where}: {what}")
        return config
