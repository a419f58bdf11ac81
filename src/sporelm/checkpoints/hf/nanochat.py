"""Hugging Face folders of nanochat."""

from typing import Any

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.gguf.gemma2 import LOGIT_CAP_KEY
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, MLP
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.nanochat import NanoChat
from sporelm.models.config import ModelConfig


@register
class NanoChatForCausalLM(HfSchema):
    """nanochat."""

    model_type = "nanochat"
    architecture = NanoChat
    keys = hf_keys(*HF_ATTENTION_BIAS, LOGIT_CAP_KEY)
    class_keys = {"attention_bias": "attention_bias"}
    defaults = {"final_logit_softcapping": 15.0}
    supported = {"hidden_act": ("relu2",)}
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.ffn_up.weight": f"{MLP}fc1.weight",
        "layers.{}.ffn_down.weight": f"{MLP}fc2.weight",
    }

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"final_logit_softcapping": config.logit_cap}  # the default is 15
