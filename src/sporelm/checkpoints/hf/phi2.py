"""Hugging Face folders of Phi-1, Phi-1.5 and Phi-2."""

from typing import Any

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.gguf.phi2 import PHI2_CONSTANTS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, MLP, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gptj import GPTJ
from sporelm.models.config import ModelConfig

PARTS = ("weight", "bias")


@register
class PhiForCausalLM(HfSchema):
    """Phi-2: by default half of each head is rotated."""

    model_type = "phi"
    architecture = GPTJ
    keys = hf_keys(Key("eps", "layer_norm_eps", "f32"))
    defaults = {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5}
    constants = PHI2_CONSTANTS
    supported = {
        "hidden_act": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
        "qk_layernorm": (False,),
        "tie_word_embeddings": (False,),
    }
    tensors = {
        **DECODER_TENSORS,
        **NORM_BIAS_TENSORS,
        **{f"output_norm.{part}": f"model.final_layernorm.{part}" for part in PARTS},
        **{f"output.{part}": f"lm_head.{part}" for part in PARTS},
        **{f"layers.{{}}.attn_o.{part}": f"{ATTENTION}dense.{part}" for part in PARTS},
        **{f"layers.{{}}.ffn_up.{part}": f"{MLP}fc1.{part}" for part in PARTS},
        **{f"layers.{{}}.ffn_down.{part}": f"{MLP}fc2.{part}" for part in PARTS},
    }
    allows_partial_rotary = True

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"partial_rotary_factor": config.rotary / config.head_dim}
