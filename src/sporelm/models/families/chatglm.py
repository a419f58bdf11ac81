"""ChatGLM2, ChatGLM3 and GLM-4 9B: biases on query, key and value; half of each head is rotated, by neighbours."""

from typing import Any

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.forms import QKV, ffn_rows, gate_up_names, qkv_names, stacked
from sporelm.weights.names import COMMON, Names, Stored, changed

LAYER, FIRST = "model.layers.{}.", "transformer.encoder.layers.{}."
NAMES = changed(COMMON, *gate_up_names(f"{LAYER}mlp.gate_up_proj.weight"))
# Files made of the first folders, which held query, key and value in one tensor.
FUSED = qkv_names()
# Those folders, of the code that came with the models.
OTHERS: dict[str, str | Stored] = {
    "embedding.weight": "transformer.embedding.word_embeddings.weight",
    "output_norm.weight": "transformer.encoder.final_layernorm.weight",
    "output.weight": "transformer.output_layer.weight",
    "layers.{}.attn_norm.weight": f"{FIRST}input_layernorm.weight",
    "layers.{}.attn_o.weight": f"{FIRST}self_attention.dense.weight",
    "layers.{}.ffn_norm.weight": f"{FIRST}post_attention_layernorm.weight",
    "layers.{}.ffn_down.weight": f"{FIRST}mlp.dense_4h_to_h.weight",
    "layers.{}.ffn_gate.weight": Stored(f"{FIRST}mlp.dense_h_to_4h.weight", stacked(0, ffn_rows, ffn_rows)),
    "layers.{}.ffn_up.weight": Stored(f"{FIRST}mlp.dense_h_to_4h.weight", stacked(1, ffn_rows, ffn_rows)),
    **{
        f"layers.{{}}.attn_{part}.{kind}": Stored(f"{FIRST}self_attention.query_key_value.{kind}", rows)
        for part, rows in QKV.items()
        for kind in ("weight", "bias")
    },
}
WORDS = {
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "kv_channels": "head_dim",
    "layernorm_epsilon": "rms_norm_eps",
    "padded_vocab_size": "vocab_size",
    "seq_length": "max_position_embeddings",
    "add_qkv_bias": "attention_bias",
}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """What the models' own code calls the same numbers; its rotary base is a ratio."""
    found = {**values, **{new: values[old] for old, new in WORDS.items() if old in values}}
    if "multi_query_group_num" in values and values.get("multi_query_attention", True):
        found["num_key_value_heads"] = values["multi_query_group_num"]
    if isinstance(ratio := values.get("rope_ratio"), int | float):
        found["rope_theta"] = 10000 * ratio
    return found


def neighbours(name: str, model_type: str) -> HfClass:
    """A class that rotates half of each head."""
    defaults = {"num_key_value_heads": 2, "head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5}
    defaults |= {"rms_norm_eps": 1.5625e-07, "max_position_embeddings": 131072}
    return HfClass(name, model_type, defaults, (("attention_bias", "attention_bias"),))


OF_FIRST = {"attention_bias": False, "layernorm_epsilon": 1e-5, "partial_rotary_factor": 0.5}


@architecture(
    Family(
        "chatglm",
        (
            neighbours("GlmForCausalLM", "glm"),
            *(HfClass(f"ChatGLM{kind}", "chatglm", OF_FIRST) for kind in ("Model", "ForConditionalGeneration")),
        ),
        fields(Field("attention_bias", "", "bool", "attention_bias"), without=("window",)),
        NAMES,
        {
            "gguf": FUSED,
            "hf": tuple(Names(names.ours, names.gguf, OTHERS[names.ours]) for names in NAMES if names.ours in OTHERS),
        },
        fixed={"rope_style": "adjacent"},
        only={
            "hidden_act": ("silu",),
            "rmsnorm": (True,),
            "add_bias_linear": (False,),
            "post_layer_norm": (True,),
            "apply_residual_connection_post_layernorm": (False,),
            "position_encoding_2d": (False,),
            "original_rope": (True,),
            "pre_seq_len": (None,),
            "quantization_bit": (0,),
        },
        words=lambda config: {"partial_rotary_factor": config.rotary / config.head_dim},
        reworded=_reworded,
        ignored=("transformer.rotary_pos_emb.inv_freq",),
        partial_rotary=True,
    )
)
class ChatGLM(Decoder):
    """The Llama layer (GLM team 2024)."""
