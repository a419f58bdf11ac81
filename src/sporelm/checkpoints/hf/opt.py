"""Hugging Face folders of OPT and Galactica."""

from typing import Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, activation_key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.opt import OPT_BIASES, with_fixed_values
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import SkipRows
from sporelm.models.architectures.opt import ACTIVATIONS, Opt
from sporelm.models.config import MAX_WIDTH, ModelConfig

PREFIX: Final = "model.decoder."
UNUSED_POSITIONS: Final = 2  # rows at the start of the position table
# Parameters of a layer -> stored names, both without ".weight" and ".bias".
NORMS_AND_PRODUCTS: Final = {
    "attn_norm": "self_attn_layer_norm",
    "ffn_norm": "final_layer_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_o": "self_attn.out_proj",
    "ffn_up": "fc1",
    "ffn_down": "fc2",
}


def opt_tensors(prefix: str, last_norm: str) -> TensorTable:
    """Return the tensors of OPT and its relatives.

    prefix      of their names
    last_norm   name of the last norm
    """
    names = {f"layers.{{}}.{name}": f"{prefix}layers.{{}}.{stored}" for name, stored in NORMS_AND_PRODUCTS.items()}
    names["output_norm"] = f"{prefix}{last_norm}"
    return {
        **DECODER_TENSORS,
        "embedding.weight": f"{prefix}embed_tokens.weight",
        "positions.weight": StoredAs(f"{prefix}embed_positions.weight", SkipRows(UNUSED_POSITIONS)),
        **{f"{name}.{part}": f"{stored}.{part}" for name, stored in names.items() for part in ("weight", "bias")},
    }


@register
class OPTForCausalLM(HfSchema):
    """OPT."""

    model_type = "opt"
    architecture = Opt
    keys = hf_keys(
        Key("ffn", "ffn_dim", "u32"),
        Key("eps", "", "f32"),
        activation_key("activation_function", "relu", ACTIVATIONS),
        Key("embedding_width", "word_embed_proj_dim", "u32", 1, MAX_WIDTH, OPTIONAL),
        Key("is_pre_norm", "do_layer_norm_before", "bool", default=True),
        Key("skips_last_norm", "_remove_final_layer_norm", "bool", default=False),
        Key("has_norm_weights", "layer_norm_elementwise_affine", "bool", default=True),
        *(Key(part, "enable_bias", "bool", default=True) for part in OPT_BIASES),
        without=("head_dim", "kv_heads"),
    )
    class_keys = {
        "do_layer_norm_before": "is_pre_norm",
        "_remove_final_layer_norm": "skips_last_norm",
        "layer_norm_elementwise_affine": "has_norm_weights",
        "enable_bias": "mlp_bias",
    }
    defaults = {"tie_word_embeddings": True}
    constants = {"rotary": 0}
    supported = {}
    tensors = {
        **opt_tensors(PREFIX, "final_layer_norm"),
        "embedding_in.weight": f"{PREFIX}project_in.weight",
        "embedding_out.weight": f"{PREFIX}project_out.weight",
    }
    name_prefix = "model."

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return with_fixed_values(super().config_from_json(values, dtype))
