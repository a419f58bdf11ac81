"""GGUF files of Megatron-BERT and XLM-RoBERTa-XL. Only this engine writes them."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf.bert import BERT_CONSTANTS, BERT_GGUF_KEYS, BERT_TENSORS, tokenizer_model_type
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.megatron_bert import MegatronBert
from sporelm.models.encoder_config import EncoderConfig

MEGATRON_BERT: Final = "megatron-bert"  # model types
XLM_ROBERTA_XL: Final = "xlm-roberta-xl"


@register
class MegatronBertGguf(EncoderGgufSchema):
    """`megatron-bert`."""

    names = ("megatron-bert",)
    architecture = MegatronBert
    keys = BERT_GGUF_KEYS
    constants = BERT_CONSTANTS
    tensors = {
        **BERT_TENSORS,
        **{f"output_norm.{part}": f"output_norm.{part}" for part in PARTS},
        **{
            f"layers.{{}}.{name}_norm.{part}": f"blk.{{}}.{name}_norm.{part}"
            for name in ("attn", "ffn")
            for part in PARTS
        },
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> EncoderConfig:
        config = super().config_from_metadata(gguf, values)
        return replace(config, model_type=MEGATRON_BERT if tokenizer_model_type(gguf) == "bert" else XLM_ROBERTA_XL)
