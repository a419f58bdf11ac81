"""`sort`: tensors in the order in which they are computed with, layers by number."""

import re
from dataclasses import replace

from sporelm.errors import UsageError
from sporelm.tools.lazy import LazyTensor, Model
from sporelm.tools.steps.layers import in_layer

FIRST = ("token_embd", "token_embd_norm", "token_types", "position_embd", "rope_freqs", "rope_factors_long",
         "rope_factors_short")  # fmt: skip
IN_LAYER = ("attn_norm", "attn_qkv", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_rot_embd",
            "attn_sinks", "attn_output", "attn_output_norm", "attn_post_norm", "post_attention_norm", "ffn_norm",
            "ffn_gate_inp", "ffn_gate_up", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_up_exps", "ffn_gate_exps",
            "ffn_up_exps", "ffn_down_exps", "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp",
            "layer_output_norm", "post_ffw_norm")  # fmt: skip
LAST = ("output_norm", "output")
PARTS = ("weight", "bias")

Key = tuple[tuple[int, str], ...]


def sort(argument: str) -> "Sort":
    """The step. Raises UsageError if it is given an argument."""
    if argument:
        raise UsageError(f"step 'sort' takes no argument, it was given {argument[:80]!r}")
    return Sort()


class Sort:
    """Embedding, layers by number, output; unknown names after the known ones, numbers in them as numbers."""

    def __call__(self, model: Model) -> Model:
        return replace(model, tensors=sorted(model.tensors, key=_key))


def _key(tensor: LazyTensor) -> tuple[int, Key, int, Key, int, Key]:
    layer, rest = in_layer(tensor.name)
    stem, _, part = rest.rpartition(".")
    order = PARTS.index(part) if part in PARTS else len(PARTS)
    if layer:
        place = IN_LAYER.index(stem) if stem in IN_LAYER else len(IN_LAYER)
        return 1, natural(layer), place, natural(stem), order, natural(part)
    if stem in FIRST:
        return 0, (), FIRST.index(stem), (), order, natural(part)
    if stem in LAST:
        return 3, (), LAST.index(stem), (), order, natural(part)
    return 2, natural(stem), 0, (), order, natural(part)


def natural(text: str) -> Key:
    """A key by which "blk.2" comes before "blk.10"."""
    pieces = re.split(r"([0-9]{1,18})", text)
    return tuple((int(piece), "") if index % 2 else (-1, piece) for index, piece in enumerate(pieces))
