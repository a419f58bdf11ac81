"""Hugging Face folders of HyperCLOVA X SEED Think."""

from sporelm.checkpoints.config_keys import OPTIONAL, Key, hf_keys, with_keys
from sporelm.checkpoints.gguf.granite import MAX_SCALE, MIN_SCALE
from sporelm.checkpoints.hf.granite import GRANITE_KEYS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.hyperclovax import HyperClovaX


@register
class HyperCLOVAXForCausalLM(HfSchema):
    """HyperCLOVA X. The scale of attention scores may be null; the logits are multiplied by their scale, unlike
    Granite's."""

    model_type = "hyperclovax"
    architecture = HyperClovaX
    keys = hf_keys(
        *with_keys(
            GRANITE_KEYS,
            Key("scales.attention", "attention_multiplier", "f32", MIN_SCALE, MAX_SCALE, OPTIONAL),
            Key("scales.output", "logits_scaling", "f32", MIN_SCALE, MAX_SCALE, 1.0),
            without=("scales.logits",),
        ),
        Key("mlp_bias", "mlp_bias", "bool"),
        Key("has_post_norms", "use_post_norm", "bool", default=True),
    )
    class_keys = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias", "use_post_norm": "has_post_norms"}
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.attn_post_norm.weight": f"{LAYER}post_norm1.weight",
        "layers.{}.ffn_post_norm.weight": f"{LAYER}post_norm2.weight",
    }
