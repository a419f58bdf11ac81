"""What files call the weights and the numbers of Nomic BERT, and of its mixture of experts."""

from typing import Any

from sporelm.checkpoints.fields import shown
from sporelm.checkpoints.forms import qkv_names
from sporelm.checkpoints.tensor_names import Names, Stored, Table, with_bias
from sporelm.errors import UnsupportedModel

LAYER = "encoder.layers.{}."
PLAIN = "_plain"  # ends our names of blocks without a gate
EXPERTS = f"{LAYER}mlp.experts.mlp."
ADDED, KEPT = "layers.{}.ffn_mixture.bias", "moe_experts_bias"  # false in folders made of files that lack it
NAMES: Table = (
    Names("embedding.weight", "token_embd.weight", "embeddings.word_embeddings.weight"),
    Names("types.weight", "token_types.weight", "embeddings.token_type_embeddings.weight"),
    *with_bias("embedding_norm", "token_embd_norm", "emb_ln"),
    *qkv_names(f"{LAYER}attn.Wqkv"),
    *(
        names
        for ours, gguf, hf in (
            ("attn_o", "attn_output", "attn.out_proj"),
            ("attn_norm", "attn_output_norm", "norm1"),
            ("ffn_up", "ffn_up", "mlp.fc11"),
            ("ffn_gate", "ffn_gate", "mlp.fc12"),
            ("ffn_down", "ffn_down", "mlp.fc2"),
            (f"ffn_up{PLAIN}", "ffn_up", "mlp.fc1"),
            (f"ffn_down{PLAIN}", "ffn_down", "mlp.fc2"),
            ("ffn_gate_inp", "ffn_gate_inp", "mlp.router.layer"),
            ("ffn_norm", "layer_output_norm", "norm2"),
        )
        for names in with_bias(f"layers.{{}}.{ours}", f"blk.{{}}.{gguf}", f"{LAYER}{hf}")
    ),
    # llama.cpp's converter leaves it out, and llama.cpp knows no such tensor.
    Names(ADDED, "blk.{}.ffn_mixture.bias", f"{LAYER}mlp.experts.bias"),
    # The experts' matrices stand one below the other; both are [ffn, width].
    Names("layers.{}.ffn_up_exps.weight", "blk.{}.ffn_up_exps.weight", Stored(f"{EXPERTS}w1", heads=True)),
    Names(
        "layers.{}.ffn_down_exps.weight",
        "blk.{}.ffn_down_exps.weight",
        Stored(f"{EXPERTS}w2", heads=True, transposed=True),
    ),
)
# What the authors' own configuration calls it -> transformers' words.
WORDS = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """A config.json in transformers' words. Raises UnsupportedModel for biases, or an activation function, that are not
    those of its kind: a mixture has biases and GELU, others SiLU and no biases."""
    found = dict(values)
    if "n_embd" in values:
        found |= {new: values[old] for old, new in WORDS.items() if old in values}
        # It has more positions than it was trained with: beyond those its authors scale the rotary base by the text.
        trained = values.get("max_trained_positions")
        found["max_position_embeddings"] = values.get("n_positions", 2048) if trained is None else trained
        activation = values.get("activation_function")
        found["hidden_act"] = {"swiglu": "silu"}.get(str(activation), activation)
    mixed = bool(values.get("moe_every_n_layers"))
    told = {key: values.get(key, mixed) for key in BIASES} | {"hidden_act": found.get("hidden_act", "silu")}
    for key, value in told.items():
        wanted = ("gelu" if mixed else "silu") if key == "hidden_act" else mixed
        if value != wanted:
            which = "with experts" if mixed else "without experts"
            raise UnsupportedModel(f"config.json: {key} {shown(value)} is not supported {which}; {wanted} is")
    return found
