"""GGUF files of CogVLM: its text model. llama.cpp reads those of the first CogVLM, not of CogVLM2."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.row_numbers import QKV_ROWS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import StackTwo, TakeRows, ZerosFirst
from sporelm.models.architectures.cogvlm import CogVLM

ATTENTION: Final = StackTwo("attn", "vis_attn")
MLP: Final = StackTwo("ffn", "vis")


@register
class CogVLMGguf(GgufSchema):
    """`cogvlm`. The matrices of the visual expert have names of their own."""

    names = ("cogvlm",)
    architecture = CogVLM
    keys = gguf_keys(Key("visual_bias", "", "bool", tensor="layers.{}.attn_q_exps.bias"))
    tensors = {
        **{name: row for name, row in DECODER_TENSORS.items() if "attn_norm" in name or "ffn_norm" in name},
        "embedding.weight": "token_embd.weight",
        "output_norm.weight": "output_norm.weight",
        "output.weight": "output.weight",
        **{
            f"layers.{{}}.attn_{name}_exps.weight": StoredAs("blk.{}.attn_qkv.weight", TakeRows(rows), ATTENTION)
            for name, rows in QKV_ROWS.items()
        },
        **{
            f"layers.{{}}.attn_{name}_exps.bias": StoredAs("blk.{}.vis_attn_qkv.bias", TakeRows(rows), ZerosFirst())
            for name, rows in QKV_ROWS.items()
        },
        "layers.{}.attn_o_exps.weight": StoredAs("blk.{}.attn_output.weight", ATTENTION),
        **{
            f"layers.{{}}.ffn_{name}_exps.weight": StoredAs(f"blk.{{}}.ffn_{name}.weight", MLP)
            for name in ("gate", "up", "down")
        },
    }
