"""`sort`: tensors in the order in which they are computed with, layers by number."""

import re
from dataclasses import replace

from sporelm.errors import UsageError
from sporelm.tools.lazy_model import LazyModel, LazyTensor
from sporelm.tools.steps.layer_metadata import split_layer_prefix

FIRST_TENSORS = ("token_embd", "token_embd_norm", "token_types", "position_embd", "rope_freqs", "rope_factors_long",
         "rope_factors_short")  # fmt: skip
LAYER_TENSORS = ("attn_norm", "attn_qkv", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_rot_embd",
            "attn_sinks", "attn_output", "attn_output_norm", "attn_post_norm", "post_attention_norm", "ffn_norm",
            "ffn_gate_inp", "ffn_gate_up", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_up_exps", "ffn_gate_exps",
            "ffn_up_exps", "ffn_down_exps", "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp",
            "layer_output_norm", "post_ffw_norm")  # fmt: skip
LAST_TENSORS = ("output_norm", "output")
PARTS = ("weight", "bias")

NaturalKey = tuple[tuple[int, str], ...]


def sort(argument: str) -> "SortTensors":
    """The step. Raises UsageError if it is given an argument."""
    if argument:
        raise UsageError(f"step 'sort' takes no argument, it was given {argument[:80]!r}")
    return SortTensors()


class SortTensors:
    """Embedding, layers by number, output; unknown names after the known ones, numbers in them as numbers."""

    def __call__(self, model: LazyModel) -> LazyModel:
        return replace(model, tensors=sorted(model.tensors, key=_sort_key))


def _sort_key(tensor: LazyTensor) -> tuple[int, NaturalKey, int, NaturalKey, int, NaturalKey]:
    layer, rest = split_layer_prefix(tensor.name)
    stem, _, part = rest.rpartition(".")
    order = PARTS.index(part) if part in PARTS else len(PARTS)
    if layer:
        place = LAYER_TENSORS.index(stem) if stem in LAYER_TENSORS else len(LAYER_TENSORS)
        return 1, natural_sort_key(layer), place, natural_sort_key(stem), order, natural_sort_key(part)
    if stem in FIRST_TENSORS:
        return 0, (), FIRST_TENSORS.index(stem), (), order, natural_sort_key(part)
    if stem in LAST_TENSORS:
        return 3, (), LAST_TENSORS.index(stem), (), order, natural_sort_key(part)
    return 2, natural_sort_key(stem), 0, (), order, natural_sort_key(part)


def natural_sort_key(text: str) -> NaturalKey:
    """A key by which "blk.2" comes before "blk.10"."""
    pieces = re.split(r"([0-9]{1,18})", text)
    return tuple((int(piece), "") if index % 2 else (-1, piece) for index, piece in enumerate(pieces))
