"""Hugging Face folders of XGLM."""

from sporelm.checkpoints.config_keys import Key, activation_key, hf_keys
from sporelm.checkpoints.gguf.biogpt import BIOGPT_CONSTANTS
from sporelm.checkpoints.hf.biogpt import ScaledEmbeddingHf
from sporelm.checkpoints.hf.opt import opt_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.biogpt import ACTIVATIONS
from sporelm.models.architectures.xglm import XGLM


@register
class XGLMForCausalLM(ScaledEmbeddingHf):
    """XGLM."""

    model_type = "xglm"
    architecture = XGLM
    keys = hf_keys(
        Key("layers", "num_layers", "u32"),
        Key("width", "d_model", "u32"),
        Key("ffn", "ffn_dim", "u32"),
        Key("heads", "attention_heads", "u32"),
        Key("eps", "", "f32"),
        activation_key("activation_function", "gelu", ACTIVATIONS),
        without=("head_dim", "kv_heads"),
    )
    defaults = {"tie_word_embeddings": True}
    constants = BIOGPT_CONSTANTS
    supported = {"add_cross_attention": (False,)}
    tensors = opt_tensors("model.", "layer_norm")
    ignored_tensors = ("model.embed_positions.weights",)
