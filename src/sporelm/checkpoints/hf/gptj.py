"""Hugging Face folders of GPT-J."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gptj import GPTJ_CONSTANTS
from sporelm.checkpoints.hf.gpt2 import GPT2_KEYS, LAYER, MASK_TENSORS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.errors import ModelFileError
from sporelm.models.architectures.gptj import GPTJ
from sporelm.models.config import MAX_HEAD_DIM, ModelConfig

GPTJ_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    "embedding.weight": "transformer.wte.weight",
    **{f"output_norm.{part}": f"transformer.ln_f.{part}" for part in ("weight", "bias")},
    **{f"output.{part}": f"lm_head.{part}" for part in ("weight", "bias")},
    **{f"layers.{{}}.attn_norm.{part}": f"{LAYER}ln_1.{part}" for part in ("weight", "bias")},
    **{f"layers.{{}}.attn_{name}.weight": f"{LAYER}attn.{name}_proj.weight" for name in "qkv"},
    "layers.{}.attn_o.weight": f"{LAYER}attn.out_proj.weight",
    **{f"layers.{{}}.ffn_up.{part}": f"{LAYER}mlp.fc_in.{part}" for part in ("weight", "bias")},
    **{f"layers.{{}}.ffn_down.{part}": f"{LAYER}mlp.fc_out.{part}" for part in ("weight", "bias")},
}


@register
class GPTJForCausalLM(HfSchema):
    """GPT-J."""

    model_type = "gptj"
    architecture = GPTJ
    keys = hf_keys(*GPT2_KEYS, without=("head_dim", "kv_heads"))
    defaults = {"n_positions": 2048, "layer_norm_epsilon": 1e-5, "rotary_dim": 64}
    constants = GPTJ_CONSTANTS
    supported = {"activation_function": ("gelu_new", "gelu_pytorch_tanh"), "tie_word_embeddings": (False,)}
    positions_key = "n_positions"
    ffn_widths = 4
    tensors = GPTJ_TENSORS
    ignored_tensors: tuple[str, ...] = MASK_TENSORS
    name_prefix = "transformer."
    allows_partial_rotary = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        rotary = values.integer("rotary_dim", 2, min(config.head_dim, MAX_HEAD_DIM))
        if rotary % 2:
            raise ModelFileError(f"{values.where}: rotary_dim is {rotary}; it must be even")
        return replace(config, rotary=rotary)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"rotary_dim": config.rotary}
