"""Hugging Face folders of GPT-2."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.row_numbers import QKV_ROWS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import TakeRows, Transpose
from sporelm.models.architectures.gpt2 import GPT2

LAYER: Final = "transformer.h.{}."
GPT2_DEFAULTS: Final = {
    "tie_word_embeddings": True,
    "n_positions": 1024,
    "vocab_size": 50257,
    "layer_norm_epsilon": 1e-5,
}
GPT2_KEYS: Final = (
    Key("layers", "n_layer", "u32"),
    Key("width", "n_embd", "u32"),
    Key("ffn", "n_inner", "u32"),
    Key("heads", "n_head", "u32"),
    Key("eps", "layer_norm_epsilon", "f32"),
)
MASK_TENSORS: Final = (f"{LAYER}attn.bias", f"{LAYER}attn.masked_bias")


def gpt2_tensors(*, is_transposed: bool) -> TensorTable:
    """Return the tensors of GPT-2 and its relatives.

    is_transposed   the weights of products are stored as [in, out] (Conv1D), as in GPT-2
    """
    turns = {"weight": (Transpose(),) if is_transposed else (), "bias": ()}
    found: TensorTable = {
        **DECODER_TENSORS,
        "embedding.weight": "transformer.wte.weight",
        "positions.weight": "transformer.wpe.weight",
    }
    for part in ("weight", "bias"):
        found[f"output_norm.{part}"] = f"transformer.ln_f.{part}"
        found[f"layers.{{}}.attn_norm.{part}"] = f"{LAYER}ln_1.{part}"
        found[f"layers.{{}}.ffn_norm.{part}"] = f"{LAYER}ln_2.{part}"
        for name, rows in QKV_ROWS.items():
            stored = StoredAs(f"{LAYER}attn.c_attn.{part}", *turns[part], TakeRows(rows))
            found[f"layers.{{}}.attn_{name}.{part}"] = stored
        for name, stored_name in (("attn_o", "attn.c_proj"), ("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")):
            found[f"layers.{{}}.{name}.{part}"] = StoredAs(f"{LAYER}{stored_name}.{part}", *turns[part])
    return found


@register
class GPT2LMHeadModel(HfSchema):
    """GPT-2."""

    model_type = "gpt2"
    architecture = GPT2
    keys = hf_keys(*GPT2_KEYS, without=("head_dim", "kv_heads"))
    defaults = GPT2_DEFAULTS
    constants = {"rotary": 0, **ALL_BIASES}
    supported = {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
    positions_key = "n_positions"
    ffn_widths = 4
    tensors = gpt2_tensors(is_transposed=True)
    ignored_tensors = (*MASK_TENSORS, "h.{}.attn.bias", "h.{}.attn.masked_bias")
    name_prefix = "transformer."
