"""Hugging Face folders of InternLM2 and 2.5."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER, fused_qkv_tensors
from sporelm.checkpoints.row_numbers import QKV_ROWS_BY_KV_HEAD
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class InternLM2ForCausalLM(HfSchema):
    """InternLM2. Query, key and value are fused into one tensor, group by group."""

    model_type = "internlm2"
    architecture = Llama
    keys = hf_keys(Key("attention_bias", "bias", "bool"), Key("attention_out_bias", "bias", "bool"))
    class_keys = {"bias": "attention_bias"}
    defaults = {"bias": True}
    tensors = {
        **DECODER_TENSORS,
        "embedding.weight": "model.tok_embeddings.weight",
        "output.weight": "output.weight",
        "layers.{}.attn_norm.weight": f"{LAYER}attention_norm.weight",
        "layers.{}.ffn_norm.weight": f"{LAYER}ffn_norm.weight",
        **fused_qkv_tensors(f"{LAYER}attention.wqkv", QKV_ROWS_BY_KV_HEAD),
        **{f"layers.{{}}.attn_o.{part}": f"{LAYER}attention.wo.{part}" for part in ("weight", "bias")},
        "layers.{}.ffn_gate.weight": f"{LAYER}feed_forward.w1.weight",
        "layers.{}.ffn_down.weight": f"{LAYER}feed_forward.w2.weight",
        "layers.{}.ffn_up.weight": f"{LAYER}feed_forward.w3.weight",
    }
