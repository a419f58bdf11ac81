"""`merge-linear` and `split-linear`: weights that multiply the same input as one, and apart again; biases too.

attn_q, attn_k, attn_v <-> attn_qkv; ffn_gate, ffn_up <-> ffn_gate_up; ffn_gate_exps, ffn_up_exps <-> ffn_gate_up_exps,
where each expert has its gate rows and then its up rows. Blocks are moved whole, so that nothing is rounded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from sporelm.errors import RequestError, UsageError
from sporelm.files.tensor_messages import quote
from sporelm.tools.lazy_model import LazyModel, LazyTensor, Segment, assemble_tensor
from sporelm.tools.steps.layer_metadata import read_head_counts, read_whole_number, split_layer_prefix


class LinearGroup(NamedTuple):
    """Tensors that can be one: their names without the layer and ".weight", and along which axis they are joined."""

    argument: str
    merged: str
    parts: tuple[str, ...]
    axis: int


GROUPS = (
    LinearGroup("attn", "attn_qkv", ("attn_q", "attn_k", "attn_v"), 0),
    LinearGroup("ffn", "ffn_gate_up", ("ffn_gate", "ffn_up"), 0),
    LinearGroup("exps", "ffn_gate_up_exps", ("ffn_gate_exps", "ffn_up_exps"), 1),
)
MERGED_NOTE = "merged weights: for engines that ask for them; split-linear undoes it"
KINDS = ("weight", "bias")


def merge_linear(argument: str) -> Callable[[LazyModel], LazyModel]:
    """Join the groups that the argument names ("attn,ffn,exps"; all without one). Raises RequestError."""
    groups = _parse_groups(argument, "merge-linear")

    def step(model: LazyModel) -> LazyModel:
        found = {tensor.name: tensor for tensor in model.tensors}
        places = {(part, kind): group for group in groups for part in group.parts for kind in KINDS}
        merged: dict[str, LazyTensor | None] = {}  # by the names of the parts; None but for the first of them
        for name in found:
            layer, rest = split_layer_prefix(name)
            stem, _, kind = rest.rpartition(".")
            group = places.get((stem, kind))
            if layer and group is not None and name not in merged:
                merged |= _merge_group(found, layer, group, kind)
        tensors = [merged.get(name, tensor) for name, tensor in found.items()]
        notes = (*model.notes, *([MERGED_NOTE] if merged and MERGED_NOTE not in model.notes else []))
        return replace(model, tensors=[tensor for tensor in tensors if tensor is not None], notes=notes)

    return step


def _merge_group(
    found: Mapping[str, LazyTensor], layer: str, group: LinearGroup, kind: str
) -> dict[str, LazyTensor | None]:
    """Merge the tensors of one group: the first one becomes the merged tensor, the others None."""
    names = [f"{layer}{part}.{kind}" for part in group.parts]
    there = [name for name in names if name in found]
    if there == names[1:] and group.argument != "attn":
        return {}  # a network without a gate
    if len(there) < len(names):
        raise RequestError(f"{quote(there[0])} has no {quote(next(name for name in names if name not in there))} beside"
                           " it; leave its group out of merge-linear")  # fmt: skip
    name = f"{layer}{group.merged}.{kind}"
    if name in found:
        raise RequestError(f"{quote(name)} is there already, beside {quote(names[0])}")
    tensors = [found[name] for name in names]
    axis = group.axis
    _check_mergeable(tensors, axis)
    first = tensors[0]
    shape = (*first.shape[:axis], sum(tensor.shape[axis] for tensor in tensors), *first.shape[axis + 1 :])
    counts = [tensor.block_count // prod(tensor.shape[:axis]) for tensor in tensors]
    segments = [Segment(tensor, 0, count, count) for tensor, count in zip(tensors, counts, strict=True)]
    return {**dict.fromkeys(names), names[0]: assemble_tensor(name, shape, segments)}


def _check_mergeable(tensors: Sequence[LazyTensor], axis: int) -> None:
    """Refuse tensors that differ in more than the length of the axis. Raises RequestError."""
    first = tensors[0]
    for tensor in tensors:
        if (tensor.type_id, tensor.byte_order) != (first.type_id, first.byte_order):
            raise RequestError(
                f"{quote(first.name)} is {first.ggml_type.name}, {quote(tensor.name)} is {tensor.ggml_type.name}: they "
                f"cannot be one; put cast:linear:{first.ggml_type.name} before the step, or name the groups to merge"
            )
        others = [shape[:axis] + shape[axis + 1 :] for shape in (first.shape, tensor.shape)]
        if len(tensor.shape) <= axis or others[0] != others[1] or tensor.shape[-1] % tensor.ggml_type.values:
            raise RequestError(
                f"{quote(first.name)} {list(first.shape)} and {quote(tensor.name)} {list(tensor.shape)} cannot be one"
            )
        if len(tensor.shape) == axis + 1 and tensor.shape[axis] % tensor.ggml_type.values:
            raise RequestError(f"{quote(tensor.name)} does not end with a whole block; it cannot be joined")


def split_linear(argument: str) -> Callable[[LazyModel], LazyModel]:
    """Take the groups apart that the argument names ("attn,ffn,exps"; all without one). Raises RequestError."""
    groups = _parse_groups(argument, "split-linear")

    def step(model: LazyModel) -> LazyModel:
        names = {tensor.name for tensor in model.tensors}
        tensors = []
        for tensor in model.tensors:
            parts = _split_tensor(model, tensor, groups)
            taken = [part.name for part in parts if part.name in names and part is not tensor]
            if taken:
                raise RequestError(f"{quote(taken[0])} is there already, beside {quote(tensor.name)}")
            tensors += parts
        notes = tuple(note for note in model.notes if note != MERGED_NOTE)
        return replace(model, tensors=tensors, notes=notes)

    return step


def _split_tensor(model: LazyModel, tensor: LazyTensor, groups: Sequence[LinearGroup]) -> list[LazyTensor]:
    """The parts of a merged tensor; itself if it is none."""
    layer, rest = split_layer_prefix(tensor.name)
    for group in groups:
        for kind in KINDS:
            if layer and rest == f"{group.merged}.{kind}":
                return _make_parts(model, tensor, group, layer, kind)
    return [tensor]


def _make_parts(model: LazyModel, tensor: LazyTensor, group: LinearGroup, layer: str, kind: str) -> list[LazyTensor]:
    axis = group.axis
    if len(tensor.shape) <= axis:
        raise RequestError(f"{quote(tensor.name)} of shape {list(tensor.shape)} cannot be split")
    lengths = _part_lengths(model, tensor.shape[axis], group, layer)
    outer = prod(tensor.shape[:axis])
    per_outer = tensor.block_count // outer
    parts = []
    start = 0
    for name, length in zip(group.parts, lengths, strict=True):
        shape = (*tensor.shape[:axis], length, *tensor.shape[axis + 1 :])
        if per_outer * length % tensor.shape[axis] or start * per_outer % tensor.shape[axis]:
            raise RequestError(f"{quote(tensor.name)} in {tensor.ggml_type.name} cannot be split inside a block")
        first = start * per_outer // tensor.shape[axis]
        count = per_outer * length // tensor.shape[axis]
        parts.append(assemble_tensor(f"{layer}{name}.{kind}", shape, [Segment(tensor, first, count, per_outer)]))
        start += length
    return parts


def _part_lengths(model: LazyModel, total: int, group: LinearGroup, layer: str) -> list[int]:
    """How many rows each part has. Raises RequestError if the metadata does not fit."""
    if group.argument != "attn":
        if total % 2:
            raise RequestError(f"{quote(layer + group.merged)} has {total} rows, which cannot be halved")
        return [total // 2, total // 2]
    if not layer.startswith("blk.") and total % 3 == 0:  # a tower for images or sound: as many heads of each
        return [total // 3] * 3
    heads, kv_heads = read_head_counts(model, layer)
    default = total // (heads + 2 * kv_heads)
    key = read_whole_number(model, "{arch}.attention.key_length", layer, default or None)
    value = read_whole_number(model, "{arch}.attention.value_length", layer, key)
    lengths = [heads * key, kv_heads * key, kv_heads * value]
    if sum(lengths) != total:
        raise RequestError(
            f"{quote(layer + group.merged)} has {total} rows; {heads} query and {kv_heads} key heads of {key} values, "
            f"and {value} of each value head, make {sum(lengths)}"
        )
    return lengths


def _parse_groups(argument: str, step: str) -> list[LinearGroup]:
    words = argument.split(",") if argument else [group.argument for group in GROUPS]
    known = {group.argument: group for group in GROUPS}
    for word in words:
        if word not in known:
            raise UsageError(f"step '{step}' knows the groups {', '.join(known)}, not {word[:80]!r}")
    return [known[word] for word in words]
