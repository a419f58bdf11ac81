"""Hugging Face folders of Jina Embeddings v2."""

from typing import Final

from sporelm.checkpoints.encoder_schema import EncoderHfSchema
from sporelm.checkpoints.gguf.jina_bert_v2 import JINA_BERT_CONSTANTS
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.bert import BERT_DEFAULTS, BERT_HF_KEYS
from sporelm.checkpoints.hf_tensors import fused_gate_up_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gte import Gte

LAYER: Final = "encoder.layer.{}."
_NAMES: Final = {
    "embedding_norm": "embeddings.LayerNorm",
    "layers.{}.attn_q": f"{LAYER}attention.self.query",
    "layers.{}.attn_k": f"{LAYER}attention.self.key",
    "layers.{}.attn_v": f"{LAYER}attention.self.value",
    "layers.{}.attn_o": f"{LAYER}attention.output.dense",
    "layers.{}.attn_norm": f"{LAYER}attention.output.LayerNorm",
    "layers.{}.ffn_down": f"{LAYER}mlp.wo",
    "layers.{}.ffn_norm": f"{LAYER}mlp.layernorm",
}


@register
class JinaBertModel(EncoderHfSchema):
    """Jina Embeddings v2."""

    model_type = "bert"
    architecture = Gte
    keys = BERT_HF_KEYS
    defaults = {**BERT_DEFAULTS, "position_embedding_type": "absolute", "feed_forward_type": "original"}
    constants = JINA_BERT_CONSTANTS
    supported = {
        "position_embedding_type": ("alibi",),
        "feed_forward_type": ("geglu",),
        "hidden_act": ("gelu",),
        "is_decoder": (False,),
    }
    tensors = {
        "embedding.weight": "embeddings.word_embeddings.weight",
        "types.weight": "embeddings.token_type_embeddings.weight",
        **{f"{name}.{part}": f"{stored}.{part}" for name, stored in _NAMES.items() for part in PARTS},
        **fused_gate_up_tensors(f"{LAYER}mlp.gated_layers.weight"),
    }
    ignored_tensors = ("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids")


@register
class JinaBertForMaskedLM(JinaBertModel):
    """The same model: folders name this class, but contain no head."""
