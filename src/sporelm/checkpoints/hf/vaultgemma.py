"""Hugging Face folders of VaultGemma."""

from typing import Any

from sporelm.checkpoints.hf.gemma import NORMS_LESS_ONE, stored_less_one
from sporelm.checkpoints.hf.gemma2 import Gemma2ForCausalLM, query_scalar_json
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gemma import Gemma
from sporelm.models.config import ModelConfig


@register
class VaultGemmaForCausalLM(Gemma2ForCausalLM):
    """VaultGemma: Gemma 2 without the norms after its blocks. Absent caps mean the defaults, so null is written."""

    model_type = "vaultgemma"
    architecture = Gemma
    tensors = {
        **DECODER_TENSORS,
        **NORMS_LESS_ONE,
        **stored_less_one({"layers.{}.ffn_norm.weight": f"{LAYER}pre_feedforward_layernorm.weight"}),
    }

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        caps = {"attn_logit_softcapping": config.score_cap, "final_logit_softcapping": config.logit_cap}
        return query_scalar_json(config) | caps
