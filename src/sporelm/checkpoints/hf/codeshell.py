"""Hugging Face folders of CodeShell."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.hf.gpt2 import GPT2_KEYS, LAYER, MASK_TENSORS, gpt2_tensors
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.starcoder2 import StarCoder2


@register
class CodeShellForCausalLM(HfSchema):
    """CodeShell."""

    model_type = "codeshell"
    architecture = StarCoder2
    keys = hf_keys(*GPT2_KEYS, Key("kv_heads", "num_query_groups", "u32"), without=("head_dim",))
    defaults = {
        "num_query_groups": 8,
        "n_positions": 8192,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    constants = ALL_BIASES
    supported = {
        "activation_function": ("gelu_pytorch_tanh", "gelu_new"),
        "position_embedding_type": ("rope",),
        "group_query_attention": (True,),
        "scale_attn_weights": (True,),
        "add_cross_attention": (False,),
    }
    positions_key = "n_positions"
    ffn_widths = 4
    tensors = gpt2_tensors(is_transposed=False)
    ignored_tensors = (*MASK_TENSORS, f"{LAYER}attn.rotary_emb.inv_freq")
    name_prefix = "transformer."
