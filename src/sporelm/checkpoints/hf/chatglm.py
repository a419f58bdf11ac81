"""Hugging Face folders of ChatGLM2, ChatGLM3 and GLM-4 9B."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, MLP, fused_gate_up_tensors, fused_qkv_tensors
from sporelm.checkpoints.row_numbers import GATE_UP_ROWS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, with_alternatives
from sporelm.checkpoints.transforms import TakeRows
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

FIRST_LAYER: Final = "transformer.encoder.layers.{}."
GLM_DEFAULTS: Final = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07,
    "max_position_embeddings": 131072,
}
GLM_TENSORS: Final[TensorTable] = DECODER_TENSORS | fused_gate_up_tensors(f"{MLP}gate_up_proj.weight")
# The first folders, with the models' own code.
FIRST_TENSORS: Final[TensorTable] = {
    "embedding.weight": "transformer.embedding.word_embeddings.weight",
    "output_norm.weight": "transformer.encoder.final_layernorm.weight",
    "output.weight": "transformer.output_layer.weight",
    "layers.{}.attn_norm.weight": f"{FIRST_LAYER}input_layernorm.weight",
    "layers.{}.attn_o.weight": f"{FIRST_LAYER}self_attention.dense.weight",
    "layers.{}.ffn_norm.weight": f"{FIRST_LAYER}post_attention_layernorm.weight",
    "layers.{}.ffn_down.weight": f"{FIRST_LAYER}mlp.dense_4h_to_h.weight",
    **{
        f"layers.{{}}.ffn_{name}.weight": StoredAs(f"{FIRST_LAYER}mlp.dense_h_to_4h.weight", TakeRows(rows))
        for name, rows in GATE_UP_ROWS.items()
    },
    **fused_qkv_tensors(f"{FIRST_LAYER}self_attention.query_key_value"),
}
# Keys of the models' own code -> keys of transformers.
FIRST_KEYS: Final = {
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "kv_channels": "head_dim",
    "layernorm_epsilon": "rms_norm_eps",
    "padded_vocab_size": "vocab_size",
    "seq_length": "max_position_embeddings",
    "add_qkv_bias": "attention_bias",
}


@register
class GlmForCausalLM(HfSchema):
    """GLM-4 9B."""

    model_type = "glm"
    architecture = Llama
    keys = hf_keys(Key("attention_bias", "attention_bias", "bool"))
    class_keys = {"attention_bias": "attention_bias"}
    defaults = GLM_DEFAULTS
    constants = {"rope_style": "adjacent"}
    supported = {
        "hidden_act": ("silu",),
        "rmsnorm": (True,),
        "add_bias_linear": (False,),
        "post_layer_norm": (True,),
        "apply_residual_connection_post_layernorm": (False,),
        "position_encoding_2d": (False,),
        "original_rope": (True,),
        "pre_seq_len": (None,),
        "quantization_bit": (0,),
    }
    tensors = with_alternatives(GLM_TENSORS, FIRST_TENSORS)
    ignored_tensors = ("transformer.rotary_pos_emb.inv_freq",)
    allows_partial_rotary = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        found = {new: values.get(old) for old, new in FIRST_KEYS.items() if old in values.values}
        if "multi_query_group_num" in values.values and values.get("multi_query_attention", True):
            found["num_key_value_heads"] = values.get("multi_query_group_num")
        if isinstance(ratio := values.get("rope_ratio"), int | float):
            found["rope_theta"] = 10000 * ratio
        return super().config_from_json(values.with_changes(found), dtype)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"partial_rotary_factor": config.rotary / config.head_dim}


@register
class ChatGLMModel(GlmForCausalLM):
    """ChatGLM2 and 3 with their published code."""

    model_type = "chatglm"
    class_keys = {}
    defaults = {"attention_bias": False, "layernorm_epsilon": 1e-5, "partial_rotary_factor": 0.5}


@register
class ChatGLMForConditionalGeneration(ChatGLMModel):
    """The class under another name."""
