"""What the folders of OPT and of its kin call their weights: the state dict of OPTForCausalLM.

Its GGUF files are ours alone; their names are those of GPT-2.
"""

from sporelm.weights.names import COMMON, Names, Stored, Table, changed, with_bias

SKIPPED = 2  # rows of the table of positions that no position has


def opt_names(model: str, last: str) -> Table:
    """The names of all weights where those of the model have `model` in front; its norm behind is `last`."""
    layer = f"{model}layers.{{}}."
    return changed(
        COMMON,
        Names("embedding.weight", "token_embd.weight", f"{model}embed_tokens.weight"),
        Names("positions.weight", "position_embd.weight", Stored(f"{model}embed_positions.weight", skip=SKIPPED)),
        *with_bias("output_norm", "output_norm", f"{model}{last}"),
        *with_bias("layers.{}.attn_norm", "blk.{}.attn_norm", f"{layer}self_attn_layer_norm"),
        *with_bias("layers.{}.ffn_norm", "blk.{}.ffn_norm", f"{layer}final_layer_norm"),
        *(
            names
            for part in "qkv"
            for names in with_bias(f"layers.{{}}.attn_{part}", f"blk.{{}}.attn_{part}", f"{layer}self_attn.{part}_proj")
        ),
        *with_bias("layers.{}.attn_o", "blk.{}.attn_output", f"{layer}self_attn.out_proj"),
        *with_bias("layers.{}.ffn_up", "blk.{}.ffn_up", f"{layer}fc1"),
        *with_bias("layers.{}.ffn_down", "blk.{}.ffn_down", f"{layer}fc2"),
    )


MODEL = "model.decoder."
NAMES = changed(
    opt_names(MODEL, "final_layer_norm"),
    Names("embedding_in.weight", "embedding_in.weight", f"{MODEL}project_in.weight"),
    Names("embedding_out.weight", "embedding_out.weight", f"{MODEL}project_out.weight"),
)
# Keys of config.json that are bools -> what they say of a configuration.
FLAGS = (
    ("do_layer_norm_before", "own.before"),
    ("_remove_final_layer_norm", "own.unnormed"),
    ("layer_norm_elementwise_affine", "own.learned"),
    ("enable_bias", "mlp_bias"),
)
