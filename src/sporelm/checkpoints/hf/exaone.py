"""Hugging Face folders of EXAONE 3 and 3.5."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

GPT2_LAYER: Final = "transformer.h.{}."
# A decoder like Llama under GPT-2's names: the embedding, norms, and the down projection.
GPT2_NAMED_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    "embedding.weight": "transformer.wte.weight",
    "output_norm.weight": "transformer.ln_f.weight",
    "layers.{}.attn_norm.weight": f"{GPT2_LAYER}ln_1.weight",
    "layers.{}.ffn_norm.weight": f"{GPT2_LAYER}ln_2.weight",
    "layers.{}.ffn_down.weight": f"{GPT2_LAYER}mlp.c_proj.weight",
}


@register
class ExaoneForCausalLM(HfSchema):
    """EXAONE 3: Llama under GPT-2's names."""

    model_type = "exaone"
    architecture = Llama
    keys = hf_keys(Key("layers", "num_layers", "u32"), Key("eps", "layer_norm_epsilon", "f32"))
    defaults = {"layer_norm_epsilon": 1e-5, "num_layers": 32}
    supported = {"activation_function": ("silu",)}
    tensors = {
        **GPT2_NAMED_TENSORS,
        **{f"layers.{{}}.attn_{name}.weight": f"{GPT2_LAYER}attn.attention.{name}_proj.weight" for name in "qkv"},
        "layers.{}.attn_o.weight": f"{GPT2_LAYER}attn.attention.out_proj.weight",
        "layers.{}.ffn_gate.weight": f"{GPT2_LAYER}mlp.c_fc_0.weight",
        "layers.{}.ffn_up.weight": f"{GPT2_LAYER}mlp.c_fc_1.weight",
    }
    ignored_tensors = (f"{GPT2_LAYER}attn.attention.rotary.inv_freq",)
    name_prefix = "transformer."

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        if "num_layers" not in values.values:
            values = values.with_changes({"num_layers": values.get("num_hidden_layers")})
        return super().config_from_json(values, dtype)
