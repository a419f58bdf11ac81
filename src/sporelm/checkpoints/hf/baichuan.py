"""Hugging Face folders of Baichuan 1 and 2."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.baichuan import ALIBI_LAYERS, ALIBI_OCTAVES
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, fused_qkv_tensors
from sporelm.checkpoints.rope_fields import MAX_CONTEXT
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import NormalizeRows
from sporelm.models.architectures.baichuan import Baichuan, BaichuanConfig
from sporelm.models.config import ModelConfig

BAICHUAN2_VOCAB: Final = 125696


def has_normalized_head(config: BaichuanConfig) -> bool:
    """Return whether the rows of the output are normalized on loading."""
    return config.has_normalized_head


@register
class BaichuanForCausalLM(HfSchema):
    """Baichuan. Only folders of the 7B have `max_position_embeddings`; Baichuan 2 has a larger vocabulary or
    `z_loss_weight`."""

    model_type = "baichuan"
    architecture = Baichuan
    tensors = {
        **DECODER_TENSORS,
        **fused_qkv_tensors(f"{ATTENTION}W_pack", parts=("weight",)),
        "output.weight": StoredAs("lm_head.weight", NormalizeRows(when=has_normalized_head)),
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        assert isinstance(config, BaichuanConfig)
        is_baichuan2 = config.vocab == BAICHUAN2_VOCAB or values.has("z_loss_weight")
        config = replace(config, has_normalized_head=is_baichuan2)
        if config.layers != ALIBI_LAYERS and values.has("max_position_embeddings"):
            return config
        length = values.integer("model_max_length", 1, MAX_CONTEXT, config.context_length)
        return replace(config, alibi=ALIBI_OCTAVES, context_length=length)


@register
class BaiChuanForCausalLM(BaichuanForCausalLM):
    """The class name in the first folders."""
