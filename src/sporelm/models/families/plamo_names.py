"""What files call the weights that PLaMo 2 and PLaMo 3 share.

Folders hold the weights of norms less what they began with, GGUF files hold them whole (llama.cpp's converter); there
those behind a block have names without an end.
"""

from sporelm.weights.forms import gate_up_names, qkv_names
from sporelm.weights.names import COMMON, Names, Stored, changed

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
