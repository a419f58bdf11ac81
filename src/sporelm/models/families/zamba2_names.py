"""What files call the weights of Zamba2. llama.cpp does not know it: its names in GGUF files are ours."""

from dataclasses import replace

from sporelm.checkpoints.forms import ffn_rows, stacked
from sporelm.checkpoints.tensor_names import COMMON, Names, Stored, Table, changed, form_in, with_bias
from sporelm.models.families.space_fields import space_names

MOST_PLACES = 64  # of shared blocks
LAYER = "model.layers.{}."
BLOCK, OURS, GGUF = f"{LAYER}shared_transformer.", "layers.{}.shared.", "blk.{}.shared."
GATES = tuple((part, stacked(number, ffn_rows, ffn_rows)) for number, part in enumerate(("gate", "up")))


def _inner(names: Names) -> Names:
    """Of a state space behind a shared block."""
    ours = names.ours.replace("layers.{}.", "layers.{}.inner.")
    gguf = form_in(names, "gguf")
    return Names(ours, replace(gguf, name=gguf.name.replace("blk.{}.", "blk.{}.inner.")), names.hf)


def _own(number: int) -> Table:
    """The matrices that a place has of its own; they lie with the block."""
    made = []
    for part in "qkv":
        hf = f"{BLOCK}self_attn.linear_{part}_adapter_list.{number}."
        for end, index in (("a", 0), ("b", 1)):
            name = f"attn_{part}_{end}{number}.weight"
            made.append(Names(f"{OURS}{name}", f"{GGUF}{name}", f"{hf}{index}.weight"))
    hf = f"{BLOCK}feed_forward.gate_up_proj_adapter_list.{number}."
    made.append(Names(f"{OURS}ffn_a{number}.weight", f"{GGUF}ffn_a{number}.weight", f"{hf}0.weight"))
    for part, rows in GATES:
        name = f"ffn_{part}_b{number}.weight"
        made.append(Names(f"{OURS}{name}", f"{GGUF}{name}", Stored(f"{hf}1.weight", rows=rows)))
    return tuple(made)


NAMES = changed(
    COMMON[:3],
    Names("output_norm.weight", "output_norm.weight", "model.final_layernorm.weight"),
    Names("layers.{}.attn_norm.weight", "blk.{}.attn_norm.weight", f"{LAYER}input_layernorm.weight"),
    *space_names(f"{LAYER}mamba."),
    Names(
        "layers.{}.inner.attn_norm.weight",
        "blk.{}.inner.attn_norm.weight",
        f"{LAYER}mamba_decoder.input_layernorm.weight",
    ),
    *map(_inner, space_names(f"{LAYER}mamba_decoder.mamba.")),
    Names("layers.{}.shared_out.weight", "blk.{}.shared_out.weight", f"{LAYER}linear.weight"),
    Names(f"{OURS}attn_norm.weight", f"{GGUF}attn_norm.weight", f"{BLOCK}input_layernorm.weight"),
    Names(f"{OURS}ffn_norm.weight", f"{GGUF}ffn_norm.weight", f"{BLOCK}pre_ff_layernorm.weight"),
    *(
        Names(f"{OURS}attn_{ours}.weight", f"{GGUF}attn_{gguf}.weight", f"{BLOCK}self_attn.{ours}_proj.weight")
        for ours, gguf in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))
    ),
    *(
        Names(
            f"{OURS}ffn_{part}.{kind}",
            f"{GGUF}ffn_{part}.{kind}",
            Stored(f"{BLOCK}feed_forward.gate_up_proj.{kind}", rows=rows),
        )
        for part, rows in GATES
        for kind in ("weight", "bias")
    ),
    *with_bias(f"{OURS}ffn_down", f"{GGUF}ffn_down", f"{BLOCK}feed_forward.down_proj"),
    *(names for number in range(MOST_PLACES) for names in _own(number)),
)
