"""`permute-qk` and back: the two orders of the rows that rotary embeddings turn in pairs.

Half-split: value i of a head is paired with value i + rotated / 2 (Hugging Face; GGUF files of Qwen, Phi and others).
Adjacent: 2i with 2i + 1 (GGUF files that llama.cpp's converter makes of Llama, Mistral and MiniCPM models). The rows of
the query and key weights are put into the other order, their biases and the norms on each head too; blocks are moved
whole, so that nothing is rounded.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import RequestError, UsageError
from sporelm.files.tensor_messages import quote
from sporelm.tools.lazy_model import Blocks, LazyModel, LazyTensor, MetadataEntry
from sporelm.tools.steps.layer_metadata import read_head_counts, read_whole_number, split_layer_prefix

WEIGHTS = tuple(f"attn_{part}.{kind}" for part in ("q", "k", "qkv") for kind in ("weight", "bias"))
ORDER_KEY = "sporelm.qk_order"  # written where rows were moved, gone again where they were moved back
ADJACENT = "adjacent"
HALF_SPLIT = "half-split"
UNSURE_NOTE = (
    "nothing in the file says in which order the rows of query and key were: if '{}' was not wanted, undo it with '{}'"
)
MAX_HEAD_BYTES = 16 << 20  # bytes; one is in memory at a time
NORMS = ("attn_q_norm.weight", "attn_k_norm.weight", "attn_q_norm.bias", "attn_k_norm.bias")


def permute_qk(argument: str) -> Callable[[LazyModel], LazyModel]:
    """From half-split to adjacent pairs. Raises UsageError if it is given an argument."""
    return _make_step(argument, "permute-qk", _adjacent_order, (HALF_SPLIT, ADJACENT))


def unpermute_qk(argument: str) -> Callable[[LazyModel], LazyModel]:
    """From adjacent pairs to half-split. Raises UsageError if it is given an argument."""
    return _make_step(argument, "permute-qk-rev", _half_split_order, (ADJACENT, HALF_SPLIT))


def check_not_half_split(model: LazyModel) -> None:
    """Raise RequestError if a step has put the rows of a model into halves that its architecture stores as pairs."""
    if model.value(ORDER_KEY) == HALF_SPLIT:
        raise RequestError(
            f"metadata {ORDER_KEY} says that query and key are {HALF_SPLIT}, files of {model.architecture!r} are not:"
            " undo step 'permute-qk-rev' with 'permute-qk'"
        )


def _adjacent_order(width: int) -> NDArray[np.intp]:
    """For each row of a head in the new order, its place in the old one."""
    return np.arange(width).reshape(2, -1).T.reshape(-1)


def _half_split_order(width: int) -> NDArray[np.intp]:
    return np.arange(width).reshape(-1, 2).T.reshape(-1)


def _make_step(
    argument: str, name: str, order: Callable[[int], NDArray[np.intp]], orders: tuple[str, str]
) -> Callable[[LazyModel], LazyModel]:
    """`orders`: that before and that after."""
    if argument:
        raise UsageError(f"step '{name}' takes no argument, it was given {argument[:80]!r}")

    def step(model: LazyModel) -> LazyModel:
        if model.value("{arch}.attention.kv_lora_rank") is not None:
            raise RequestError(f"step '{name}' cannot be done for latent attention (attention.kv_lora_rank)")
        shapes = {tensor.name: tensor.shape for tensor in model.tensors}
        tensors = [_permute_tensor(model, tensor, shapes, order) for tensor in model.tensors]
        if all(new is old for new, old in zip(tensors, model.tensors, strict=True)):
            return model
        return _record_order(replace(model, tensors=tensors), name, orders)

    return step


def _record_order(model: LazyModel, name: str, orders: tuple[str, str]) -> LazyModel:
    """With the new order in the metadata. Raises RequestError if the rows are in that order already."""
    before, after = orders
    known = model.value(ORDER_KEY)
    if known == after:
        raise RequestError(f"metadata {ORDER_KEY} says that query and key are {after} already: step '{name}' is done")
    metadata = {key: entry for key, entry in model.metadata.items() if key != ORDER_KEY}
    back = "permute-qk-rev" if name == "permute-qk" else "permute-qk"
    notes = tuple(note for note in model.notes if note != UNSURE_NOTE.format(back, name))
    if known == before:
        return replace(model, metadata=metadata, notes=notes)
    return replace(
        model,
        metadata=metadata | {ORDER_KEY: MetadataEntry("str", after)},
        notes=(*notes, UNSURE_NOTE.format(name, back)),
    )


def _permute_tensor(
    model: LazyModel, tensor: LazyTensor, shapes: dict[str, tuple[int, ...]], order: Callable[[int], NDArray[np.intp]]
) -> LazyTensor:
    """The tensor with the rows of its heads in another order, or itself if it has none."""
    layer, rest = split_layer_prefix(tensor.name)
    if not layer.startswith("blk.") or rest not in WEIGHTS + NORMS or not tensor.shape:
        return tensor
    heads, kv_heads = read_head_counts(model, layer)
    if rest in NORMS:
        width = _norm_head_width(model, layer, shapes, heads, kv_heads)
        count = tensor.size // width
        unit = 1
        turned = tensor.size // width
        wrong = tensor.size % width or tensor.ggml_type.values != 1
    else:
        rows = tensor.shape[0]
        count = {"attn_q": heads, "attn_k": kv_heads, "attn_qkv": heads + 2 * kv_heads}[rest.partition(".")[0]]
        turned = count - kv_heads if rest.startswith("attn_qkv") else count  # values are not turned
        wrong = rows % count or tensor.block_count % rows
        width = rows // count
        unit = tensor.block_count // rows
    rotated = read_whole_number(model, "{arch}.rope.dimension_count", layer, width)
    if wrong or rotated > width or rotated % 2:
        raise RequestError(
            f"tensor {quote(tensor.name)} of shape {list(tensor.shape)} in {tensor.ggml_type.name} cannot be cut into"
            f" heads: the metadata gives {heads} query heads, {kv_heads} key heads, {rotated} rotated values each"
        )
    if width * unit * tensor.ggml_type.nbytes > MAX_HEAD_BYTES:
        raise RequestError(
            f"tensor {quote(tensor.name)} has heads of {width * unit * tensor.ggml_type.nbytes} bytes by its metadata;"
            f" the limit is {MAX_HEAD_BYTES}"
        )
    moved = np.concatenate([order(rotated), np.arange(rotated, width)])
    return replace(tensor, read=_PermutedHeads(tensor, moved, unit, turned))


def _norm_head_width(
    model: LazyModel, layer: str, shapes: dict[str, tuple[int, ...]], heads: int, kv_heads: int
) -> int:
    """Values of a head, for the norms: from the metadata, else from the query weight of the layer."""
    rows = shapes.get(f"{layer}attn_q.weight", (0,))[0] // heads
    rows = rows or shapes.get(f"{layer}attn_qkv.weight", (0,))[0] // (heads + 2 * kv_heads)
    return read_whole_number(model, "{arch}.attention.key_length", layer, rows or None)


class _PermutedHeads:
    """Reads a tensor with the rows of each of its first `turned` heads in the order `moved`.

    A row is `unit` blocks, a head len(moved) rows.
    """

    def __init__(self, tensor: LazyTensor, moved: NDArray[np.intp], unit: int, turned: int) -> None:
        self.tensor = tensor
        self.moved = moved
        self.unit = unit
        self.head = len(moved) * unit
        self.end = turned * self.head

    def __call__(self, start: int, stop: int) -> Blocks:
        low = start // self.head * self.head
        high = min(-(-stop // self.head) * self.head, self.tensor.block_count)
        blocks = self.tensor.read(low, high)
        turned = max(0, min(high, self.end) - low)
        heads = blocks[:turned].reshape(-1, len(self.moved), self.unit, blocks.shape[1])
        result = np.concatenate([heads[:, self.moved].reshape(turned, blocks.shape[1]), blocks[turned:]])
        return result[start - low : stop - low]
