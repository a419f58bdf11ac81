"""Weights as files hold them, brought into our form, and back: rows of a larger tensor, transposed, less a number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import UnsupportedModel
from sporelm.quant import F32
from sporelm.weights.config import ModelConfig
from sporelm.weights.names import Kind, Names, Param, Stored, Table, stored_form
from sporelm.weights.stored import StoredTensor

Rows = Callable[[ModelConfig], NDArray[np.int64]]


def stacked(part: int, *counts: Callable[[ModelConfig], int]) -> Rows:
    """The rows of part number `part` of a tensor of parts one after the other, of so many rows each."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        start = sum(count(config) for count in counts[:part])
        return np.arange(start, start + counts[part](config))

    return rows


def query_rows(config: ModelConfig) -> int:
    return config.heads * config.head_dim


def key_rows(config: ModelConfig) -> int:
    return config.kv_heads * config.head_dim


def ffn_rows(config: ModelConfig) -> int:
    return config.ffn


def expert_rows(config: ModelConfig) -> int:
    """Of the gate, or of the up part, of each expert."""
    assert config.experts is not None
    return config.experts.ffn or config.ffn


def shared_rows(config: ModelConfig) -> int:
    """Of those of the block that every token goes through."""
    assert config.experts is not None
    return config.experts.shared_width


def every_other(first: int, count: Callable[[ModelConfig], int]) -> Rows:
    """`count` rows of a tensor where two parts take turns, from the one of number `first` on."""
    return lambda config: np.arange(count(config)) * 2 + first


BOTH = ("weight", "bias")
QKV = {part: stacked(number, query_rows, key_rows, key_rows) for number, part in enumerate("qkv")}


def grouped(parts: Sequence[int], groups: Callable[[ModelConfig], int], *counts: Callable[[ModelConfig], int]) -> Rows:
    """The rows of these parts, one after the other, of a tensor that has for each of its groups all parts, of so many
    rows each."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        ends = np.cumsum([0, *(count(config) for count in counts)])
        starts = np.arange(groups(config))[:, None] * ends[-1]
        return np.concatenate([(starts + np.arange(ends[part], ends[part + 1])).reshape(-1) for part in parts])

    return rows


def by_group(part: str) -> Rows:
    """The rows of "q", "k" or "v" of a tensor that has, for each key head, its query heads, its key and its value."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        group, dim = config.heads // config.kv_heads, config.head_dim
        first, count = {"q": (0, group), "k": (group, 1), "v": (group + 1, 1)}[part]
        starts = np.arange(config.kv_heads)[:, None] * ((group + 2) * dim) + first * dim
        return (starts + np.arange(count * dim)).reshape(-1)

    return rows


BY_GROUP = {part: by_group(part) for part in "qkv"}


def qkv_names(
    hf: str = "", rows: Mapping[str, Rows] = QKV, *, gguf: str = "blk.{}.attn_qkv", kinds: Sequence[str] = BOTH
) -> Table:
    """Names of query, key and value where files of either kind hold them in one tensor.

    hf, gguf   the tensor's name in folders and in GGUF files, without the kind; "" where they hold them apart
    rows       those of each part in folders
    kinds      of the tensors that there are
    """
    return tuple(
        Names(
            f"layers.{{}}.attn_{part}.{kind}",
            Stored(f"{gguf}.{kind}", own) if gguf else f"blk.{{}}.attn_{part}.{kind}",
            Stored(f"{hf}.{kind}", rows[part]) if hf else f"model.layers.{{}}.self_attn.{part}_proj.{kind}",
        )
        for part, own in QKV.items()
        for kind in kinds
    )


def gate_up_names(hf: str) -> Table:
    """Names of gate and up part where files of both kinds hold them in one tensor."""
    return tuple(
        Names(f"layers.{{}}.ffn_{part}.weight", Stored("blk.{}.ffn_up.weight", rows), Stored(hf, rows))
        for part, rows in (("gate", stacked(0, ffn_rows, ffn_rows)), ("up", stacked(1, ffn_rows, ffn_rows)))
    )


def brought(stored: StoredTensor, form: Stored, config: ModelConfig, shape: tuple[int, ...]) -> StoredTensor:
    """The weight, of this shape, out of the tensor that holds it. Raises UnsupportedModel for blocks that cannot be
    transposed."""
    form = form.of_tensor(stored.format.values, stored.shape, config)
    if form.inner:
        return _of_experts(stored, form, config)
    if form.heads:
        return _of_heads(stored, form, config, shape)
    if form.parts:
        held = shape[::-1] if form.transposed else shape
        rows = np.arange(held[0]) + form.part * held[0]
        stored = _seen_as(stored, (form.parts * held[0], *held[1:])).take_rows(rows)
    elif form.above:
        stored = _seen_as(stored, stored.shape[form.above :])
    if form.between:
        stored = _seen_as(stored, (stored.shape[0], *stored.shape[2:]))
    if form.transposed:
        stored = _transposed(stored)
    if form.flat:
        stored = _seen_as(stored, shape)
    if form.columns is not None:
        stored = _columns_taken(stored, form.columns(config))
    if form.rows is not None:
        stored = stored.take_rows(form.rows(config))
    if form.skip:
        stored = stored.take_rows(np.arange(form.skip, stored.shape[0]))
    if form.plus or form.log:
        values = stored.dequantize() + np.float32(form.plus)
        with np.errstate(over="ignore"):  # a state that nothing is left of
            values = _decay_of_log(values) if form.log else values
        stored = StoredTensor(stored.name, F32, stored.shape, values.reshape(-1).view(np.uint8))
    if form.times is not None and form.is_multiplied(config):
        values = (stored.dequantize() / form.times(config)).astype(np.float32)
        stored = StoredTensor(stored.name, F32, stored.shape, values.reshape(-1).view(np.uint8))
    if form.unit is not None and form.unit(config):
        values = stored.dequantize()
        values /= np.maximum(np.linalg.norm(values, axis=form.unit_axis, keepdims=True), np.float32(1e-12))
        stored = StoredTensor(stored.name, F32, stored.shape, values.reshape(-1).view(np.uint8))
    return stored


def _decay_of_log(logs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return -exp(logs), rounded once: float32 exponentials differ in their last bit between CPUs."""
    return (-np.exp(logs.astype(np.float64))).astype(np.float32)


def _log_of_decay(decay: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log(-decay), rounded once. Equal after `_decay_of_log` if `decay` came from a float32 log."""
    return np.log(-decay.astype(np.float64)).astype(np.float32)


def _seen_as(stored: StoredTensor, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(stored.name, stored.format, shape, stored.blocks.reshape(-1), stored.order)


def _columns_taken(stored: StoredTensor, index: NDArray[np.int64]) -> StoredTensor:
    """The columns of these numbers, in this order; blocks of numbers stay where they are, and say their order."""
    if stored.format.values == 1 and stored.order is None:
        blocks = stored.blocks.reshape(*stored.shape, stored.format.nbytes)[..., index, :]
        return StoredTensor(stored.name, stored.format, stored.shape, np.ascontiguousarray(blocks).reshape(-1))
    before = np.arange(stored.shape[-1]) if stored.order is None else stored.order
    order = np.argsort(index)[before].astype(np.int32)
    return StoredTensor(stored.name, stored.format, stored.shape, stored.blocks.reshape(-1), order)


def _of_experts(stored: StoredTensor, form: Stored, config: ModelConfig) -> StoredTensor:
    """Those parts of each expert that the form names, of a tensor [experts, out, in], or [experts, out] of biases."""
    experts, name, each = stored.shape[0], stored.name, stored.shape[1:]
    if form.transposed:
        blocks = stored.blocks.reshape(*stored.shape, stored.format.nbytes).swapaxes(1, 2)
        each = each[::-1]
        stored = StoredTensor(name, stored.format, (experts, *each), np.ascontiguousarray(blocks).reshape(-1))
    if form.rows is None:
        return stored
    index = form.rows(config)
    joined = StoredTensor(name, stored.format, (experts * each[0], *each[1:]), stored.blocks.reshape(-1))
    taken = joined.take_rows((np.arange(experts)[:, None] * each[0] + index).reshape(-1))
    return StoredTensor(name, stored.format, (experts, len(index), *each[1:]), taken.blocks.reshape(-1))


def _of_heads(stored: StoredTensor, form: Stored, config: ModelConfig, shape: tuple[int, ...]) -> StoredTensor:
    """The matrices of heads, whose rows stand one head after another. Blocks that are to be transposed become F32."""
    taken = stored if form.rows is None else stored.take_rows(form.rows(config))
    if not form.transposed:
        return _seen_as(taken, shape)
    heads, out, width = shape
    if taken.format.values > 1 or taken.order is not None:
        values = taken.dequantize().reshape(-1).view(np.uint8)
        taken = StoredTensor(stored.name, F32, taken.shape, values)
    blocks = taken.blocks.reshape(heads, width, out, taken.format.nbytes).swapaxes(1, 2)
    return StoredTensor(stored.name, taken.format, shape, np.ascontiguousarray(blocks).reshape(-1))


def rows_of_heads(form: Stored, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a weight [heads, out, in] as the rows of its heads."""
    heads, out, width = shape
    return (heads * width, out) if form.transposed else (heads * out, width)


def _transposed(stored: StoredTensor) -> StoredTensor:
    if stored.format.values != 1 or len(stored.shape) != 2:
        raise UnsupportedModel(f"tensor {stored.name} is transposed and in blocks of {stored.format.name}")
    nbytes = stored.format.nbytes
    blocks = stored.blocks.reshape(*stored.shape, nbytes).swapaxes(0, 1)
    return StoredTensor(stored.name, stored.format, stored.shape[::-1], np.ascontiguousarray(blocks).reshape(-1))


def stored_shapes(
    params: Sequence[Param], names: Mapping[str, str], form_of: Callable[[str], Stored]
) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that hold these weights, by the names of tensors that `names` gives for weights."""
    found: dict[str, tuple[int, ...]] = {}
    for param in params:
        name, shape, form = names[param.name], param.shape, form_of(param.name)
        if form.each:
            found |= dict.fromkeys(form.tensors(param), shape[1:])
            continue
        if form.parts:
            found[name] = (form.parts, *[1] * form.above, *shape)
            continue
        shape = (prod(shape),) if form.flat else (shape[0] + form.skip, *shape[1:]) if form.skip else shape
        shape = rows_of_heads(form, shape) if form.heads else shape
        if name in found:  # one more part of its rows
            axis = int(form.inner)
            shape = (*shape[:axis], shape[axis] + found[name][axis], *shape[axis + 1 :])
        found[name] = shape
    for name, form in {names[param.name]: form_of(param.name) for param in params}.items():
        if form.transposed and not form.heads:
            found[name] = (*found[name][:-2], *found[name][:-3:-1])
        if form.between:
            found[name] = (found[name][0], 1, *found[name][1:])
        if form.above and not form.parts:
            found[name] = (*[1] * form.above, *found[name])
    return found


def held_as(
    weights: Mapping[str, NDArray[np.float32]], kind: Kind, table: Table, config: ModelConfig
) -> dict[str, NDArray[np.float32]]:
    """Tensors as files of a kind hold them, by their names there, of float32 weights by ours: `brought` undone."""
    parts: dict[str, list[tuple[Stored, NDArray[np.float32]]]] = {}
    for ours, values in weights.items():
        form = stored_form(ours, kind, table)
        if form.each:
            for number, matrix in enumerate(values):
                parts[form.name.replace("{e}", str(number))] = [(Stored(form.name), np.asarray(matrix))]
        else:
            values = _log_of_decay(values) if form.log else values
            if form.times is not None:
                values = (values * form.times(config)).astype(np.float32)
            if form.heads:
                rows = values.swapaxes(1, 2) if form.transposed else values
                form, values = replace(form, transposed=False), rows.reshape(rows_of_heads(form, values.shape))
            parts.setdefault(form.name, []).append((form, values - np.float32(form.plus)))
    return {name: _joined(found, config) for name, found in parts.items()}


def _joined(parts: list[tuple[Stored, NDArray[np.float32]]], config: ModelConfig) -> NDArray[np.float32]:
    form, values = parts[0]
    if form.parts:
        whole = np.stack([part for _, part in sorted(parts, key=lambda each: each[0].part)])
        whole = np.ascontiguousarray(whole.swapaxes(-1, -2)) if form.transposed else whole
        return whole.reshape(len(whole), *[1] * form.above, *whole.shape[1:])
    if form.rows is not None:
        axis = int(form.inner)
        count = sum(part.shape[axis] for _, part in parts)
        whole = np.empty((*values.shape[:axis], count, *values.shape[axis + 1 :]), np.float32)
        for each, part in parts:
            assert each.rows is not None
            np.moveaxis(whole, axis, 0)[each.rows(config)] = np.moveaxis(part, axis, 0)
        values = whole
    if form.skip:
        values = np.concatenate([np.zeros((form.skip, *values.shape[1:]), np.float32), values])
    if form.columns is not None:
        whole = np.empty_like(values)
        whole[..., form.columns(config)] = values
        values = whole
    if form.flat:
        return values.reshape(-1)
    values = np.ascontiguousarray(values.swapaxes(-1, -2)) if form.transposed else values
    values = values.reshape(len(values), 1, *values.shape[1:]) if form.between else values
    return values.reshape((*[1] * form.above, *values.shape))
