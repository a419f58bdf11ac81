"""What files call the weights that PLaMo 2 and PLaMo 3 share.

Folders hold the weights of norms less what they began with, GGUF files hold them whole (llama.cpp's converter); there
those behind a block have names without an end.
"""

from sporelm.checkpoints.forms import gate_up_names, grouped, qkv_names, stacked
from sporelm.checkpoints.tensor_names import COMMON, Names, Stored, Table, changed

LAYER, MIXER = "model.layers.layers.{}.", "model.layers.layers.{}.mixer."
_NORMS = (
    ("attn_norm", "attn_norm.weight", "pre_mixer_norm", 1.0),
    ("attn_post_norm", "post_attention_norm", "post_mixer_norm", 1 / 5),
    ("ffn_norm", "ffn_norm.weight", "pre_mlp_norm", 1.0),
    ("ffn_post_norm", "post_ffw_norm", "post_mlp_norm", 5**-1.5),
)
NAMES = changed(
    COMMON,
    Names("output_norm.weight", "output_norm.weight", Stored("model.norm.weight", plus=1.0)),
    *(
        Names(f"layers.{{}}.{ours}.weight", f"blk.{{}}.{gguf}", Stored(f"{LAYER}{hf}.weight", plus=less))
        for ours, gguf, hf, less in _NORMS
    ),
    *qkv_names(f"{MIXER}qkv_proj", kinds=("weight",)),
    Names("layers.{}.attn_o.weight", "blk.{}.attn_output.weight", f"{MIXER}o_proj.weight"),
    *gate_up_names(f"{LAYER}mlp.gate_up_proj.weight"),
    Names("layers.{}.ffn_down.weight", "blk.{}.ffn_down.weight", f"{LAYER}mlp.down_proj.weight"),
)


def space_names() -> Table:
    """Of the state spaces of PLaMo 2. What multiplies a row lies head by head: the gate, then what is convolved."""
    heads, dims = (lambda c: c.own.heads), (lambda c: c.own.head_dim,) * 2
    sizes = (lambda c: c.own.size, lambda c: c.own.size, lambda c: c.own.rank)
    inside = (
        ("z", "ssm_in", "in_proj", grouped((0,), heads, *dims)),
        ("x", "ssm_in", "in_proj", grouped((1,), heads, *dims)),
    )
    made = (("write", "ssm_b_norm", "B"), ("read", "ssm_c_norm", "C"), ("rank", "ssm_dt_norm", "dt"))
    made_of = ((ours, "ssm_x", "bcdt_proj", stacked(number, *sizes)) for number, (ours, *_) in enumerate(made))
    return (
        *(
            Names(
                f"layers.{{}}.ssm_{ours}.weight",
                Stored(f"blk.{{}}.{gguf}.weight", rows=rows),
                Stored(f"{MIXER}{hf}.weight", rows=rows),
            )
            for ours, gguf, hf, rows in (*inside, *made_of)
        ),
        *(
            Names(f"layers.{{}}.ssm_{ours}_norm.weight", f"blk.{{}}.{gguf}", f"{MIXER}{hf}_norm_weight")
            for ours, gguf, hf in made
        ),
        Names("layers.{}.ssm_dt.weight", "blk.{}.ssm_dt.weight", f"{MIXER}dt_proj.weight"),
        Names("layers.{}.ssm_dt.bias", "blk.{}.ssm_dt.bias", f"{MIXER}dt_bias"),
        Names("layers.{}.ssm_o.weight", "blk.{}.ssm_out.weight", f"{MIXER}out_proj.weight"),
        Names(
            "layers.{}.ssm_conv.weight",
            Stored("blk.{}.ssm_conv1d.weight", transposed=True),
            Stored(f"{MIXER}conv1d.weight", transposed=True, between=True),
        ),
        Names("layers.{}.ssm.decay", "blk.{}.ssm_a", Stored(f"{MIXER}A_log", log=True)),
        Names("layers.{}.ssm.skip", "blk.{}.ssm_d", f"{MIXER}D"),
    )
