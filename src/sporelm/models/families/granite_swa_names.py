"""What files call the weights of Granite with windows; llama.cpp's converter leaves gates and up parts together."""

from dataclasses import replace

from sporelm.checkpoints.experts import fused_names
from sporelm.checkpoints.tensor_names import COMMON, Names, Stored, changed

BLOCK, SHARED = "model.layers.{}.block_sparse_moe.", "model.layers.{}.shared_mlp."
SINKS = Names("layers.{}.attn_sinks.weight", "blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.sinks")
EXPERTS = fused_names(
    *(f"{BLOCK}{part}" for part in ("router.weight", "experts.gate_up_proj", "experts.down_proj")),
    *(f"{SHARED}{part}_linear.weight" for part in ("input", "output")),
)
TOGETHER = {"exps": "blk.{}.ffn_gate_up_exps.weight", "shexp": "blk.{}.ffn_up_shexp.weight"}


def _together(names: Names) -> Names:
    """A gate or an up part as half of a tensor of GGUF files, as it is of one of folders."""
    if not isinstance(names.hf, Stored) or names.hf.rows is None:
        return names
    end = names.ours.removesuffix(".weight").rpartition("_")[2]
    return names._replace(gguf=replace(names.hf, name=TOGETHER[end]))


NAMES = changed(COMMON, SINKS, *map(_together, EXPERTS))
# Those that llama.cpp reads in tensors of their own as well.
APART = tuple(names for names in EXPERTS if "_exps." in names.ours)
