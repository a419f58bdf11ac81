"""Transforms between tensors as files store them and the parameters of a model.

A row of a tensor table lists the transforms that turn the stored tensor into the parameter, in that order:
`StoredAs("lm_head.weight", Transpose(), AddConstant(1.0))`. Each has `load` (stored to parameter), `save` (back) and
`shape` (the stored shape of a parameter's shape). A transform that only moves values moves whole blocks, so that
quantized tensors stay quantized. One that computes values returns F32.

Numbers that depend on the model are functions of its configuration. They are known once a transform is bound to the
configuration and to the shape that it loads (`bind`). A few transforms depend on the file as well: `for_tensor`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.stacked_experts import StackedExperts, stack_experts
from sporelm.errors import UnsupportedModel
from sporelm.quant import F32, Q8_0, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor

Shape = tuple[int, ...]
RowNumbers = Callable[[Any], NDArray[np.int64]]  # of a configuration

# Reasons why an adapter cannot be added to a stored tensor (`Transform.lora_conflict`).
EXPERTS = "it holds stacked matrices of experts"
STACKED = "it holds several stacked matrices"
HEADS = "it projects latents to keys and values, and its keys are used transposed, head by head"
CHANGED = "its values are transformed when they are loaded"


@dataclass(frozen=True)
class Transform:
    """One step from a stored tensor to a parameter, and back.

    config         the model's configuration, or that of the layer if layers differ
    loaded_shape   the shape that `load` returns

    Both are set by `bind`.
    """

    config: Any = field(default=None, repr=False, compare=False, kw_only=True)
    loaded_shape: Shape = field(default=(), repr=False, compare=False, kw_only=True)

    @property
    def changes_values(self) -> bool:
        """Whether the parameter's values differ from the stored ones."""
        return False

    @property
    def is_dequantizing(self) -> bool:
        """Whether blocks of several values become F32, because they cannot be moved."""
        return False

    @property
    def is_optional(self) -> bool:
        """Whether only some files need the step, and none that we write."""
        return False

    @property
    def lora_conflict(self) -> str:
        """The reason why an adapter cannot be added to the stored tensor; "" if it can."""
        return ""

    def bind(self, config: Any, loaded_shape: Shape) -> Self:
        """Return the transform for a model and for the shape that it loads."""
        return replace(self, config=config, loaded_shape=loaded_shape)

    def for_tensor(self, values_per_block: int, shape: Shape) -> Self | None:
        """Return the transform for a tensor of this shape and block size in a file; None if that tensor does not need
        it.

        values_per_block   of its number format
        """
        return self

    def shape(self, shape: Shape) -> Shape:
        """Return the stored shape of a tensor with this loaded shape."""
        return shape

    def load(self, tensor: StoredTensor) -> StoredTensor:
        """Return the tensor one step closer to the parameter."""
        raise NotImplementedError

    def save(self, tensor: StoredTensor) -> StoredTensor:
        """Return the tensor one step closer to the file. Undoes `load`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Cut(Transform):
    """A transform that takes a part of a stored tensor; other parameters may take the rest of it."""

    def join_shapes(self, shapes: Sequence[Shape]) -> Shape:
        """Return the stored shape that parts with these shapes form."""
        raise NotImplementedError

    def join(self, others: Sequence["Cut"], tensors: Sequence[StoredTensor]) -> StoredTensor:
        """Return the stored tensor of all parts: `others` are the cuts of `tensors`, this one included."""
        raise NotImplementedError

    def shape(self, shape: Shape) -> Shape:
        return self.join_shapes([shape])

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return self.join([self], [tensor])


@dataclass(frozen=True)
class TakeRows(Cut):
    """Load some rows of the stored tensor, in the given order. Each of its rows belongs to one parameter.

    rows   function of the configuration: the numbers of the rows
    axis   of the stored tensor: 0; or 1 for the rows of each expert in a tensor [experts, out, in]
    """

    rows: RowNumbers
    axis: int = 0

    @property
    def index(self) -> NDArray[np.int64]:
        """The numbers of the rows."""
        return np.asarray(self.rows(self.config))

    @property
    def lora_conflict(self) -> str:
        return EXPERTS if self.axis else ""

    def join_shapes(self, shapes: Sequence[Shape]) -> Shape:
        first, axis = shapes[0], self.axis
        return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])

    def load(self, tensor: StoredTensor) -> StoredTensor:
        if self.axis == 0:
            return tensor.take_rows(self.index)
        experts, rows, *rest = tensor.shape
        index = self.index
        each = (np.arange(experts)[:, None] * rows + index).reshape(-1)
        taken = _reshape(tensor, (experts * rows, *rest)).take_rows(each)
        return _reshape(taken, (experts, len(index), *rest))

    def join(self, others: Sequence[Cut], tensors: Sequence[StoredTensor]) -> StoredTensor:
        tensors = _unify_formats(tensors)
        shape = self.join_shapes([tensor.shape for tensor in tensors])
        experts = prod(shape[: self.axis])
        blocks = [tensor.blocks.reshape(experts, tensor.shape[self.axis], -1) for tensor in tensors]
        whole = np.empty((experts, shape[self.axis], blocks[0].shape[-1]), np.uint8)
        for cut, part in zip(others, blocks, strict=True):
            assert isinstance(cut, TakeRows)
            whole[:, cut.index] = part
        return StoredTensor(tensors[0].name, tensors[0].format, shape, whole.reshape(-1))


@dataclass(frozen=True)
class TakePart(Cut):
    """Load one of the equal parts of a stored tensor [count, ...]."""

    index: int
    count: int

    @property
    def lora_conflict(self) -> str:
        return STACKED

    def join_shapes(self, shapes: Sequence[Shape]) -> Shape:
        return (self.count, *shapes[0])

    def load(self, tensor: StoredTensor) -> StoredTensor:
        blocks = tensor.blocks.reshape(self.count, -1)[self.index]
        return StoredTensor(tensor.name, tensor.format, tensor.shape[1:], blocks, tensor.order)

    def join(self, others: Sequence[Cut], tensors: Sequence[StoredTensor]) -> StoredTensor:
        tensors = _unify_formats(tensors)
        first = tensors[0]
        places = [cut.index for cut in others if isinstance(cut, TakePart)]
        whole = np.stack([tensors[places.index(number)].blocks.reshape(-1) for number in range(self.count)])
        return StoredTensor(first.name, first.format, (self.count, *first.shape), whole.reshape(-1))


@dataclass(frozen=True)
class TakeFrame(Cut):
    """Load a matrix [out, channels * height * width] with one frame of a convolution over pictures in time, [out,
    channels, frames, height, width], whose kernels do not overlap.

    index    of the frame
    kernel   function of the configuration: the stored shape of one output's weight
    """

    index: int
    kernel: Callable[[Any], Shape]

    @property
    def lora_conflict(self) -> str:
        return STACKED

    def join_shapes(self, shapes: Sequence[Shape]) -> Shape:
        return (shapes[0][0], *self.kernel(self.config))

    def load(self, tensor: StoredTensor) -> StoredTensor:
        tensor = as_f32(tensor) if tensor.format.values > 1 else tensor
        out, channels, frames = tensor.shape[:3]
        blocks = tensor.blocks.reshape(out, channels, frames, -1)[:, :, self.index]
        return StoredTensor(tensor.name, tensor.format, self.loaded_shape, np.ascontiguousarray(blocks).reshape(-1))

    def join(self, others: Sequence[Cut], tensors: Sequence[StoredTensor]) -> StoredTensor:
        tensors = _unify_formats(tensors)
        shape = self.join_shapes([tensor.shape for tensor in tensors])
        places = [cut.index for cut in others if isinstance(cut, TakeFrame)]
        frames = [tensors[places.index(frame)].blocks.reshape(*shape[:2], -1) for frame in range(shape[2])]
        whole = np.stack(frames, axis=2).reshape(-1)
        return StoredTensor(tensors[0].name, tensors[0].format, shape, whole)


@dataclass(frozen=True)
class PermuteRotary(Transform):
    """Load the rows of each head as two halves that rotate together. Files store them as adjacent pairs.

    This is the order of llama.cpp's converter for queries and keys of Llama and related models: rows 0, h/2, 1, h/2 + 1
    ... of the h rotated ones of a head.
    """

    @property
    def index(self) -> NDArray[np.int64]:
        """The numbers of the stored rows, in the order of halves."""
        head_dim, rotary = self.config.head_dim, self.config.rotary or self.config.head_dim
        pairs = np.arange(0, rotary, 2), np.arange(1, rotary, 2)
        head = np.concatenate([*pairs, np.arange(rotary, head_dim)])
        return (np.arange(0, self.loaded_shape[0], head_dim)[:, None] + head).reshape(-1)

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return tensor.take_rows(self.index)

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return tensor.take_rows(np.argsort(self.index))


@dataclass(frozen=True)
class SkipRows(Transform):
    """Load all rows except the first ones, which no parameter uses. They are saved as zeros."""

    count: int

    @property
    def lora_conflict(self) -> str:
        return CHANGED

    def shape(self, shape: Shape) -> Shape:
        return (shape[0] + self.count, *shape[1:])

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return tensor.take_rows(np.arange(self.count, tensor.shape[0]))

    def save(self, tensor: StoredTensor) -> StoredTensor:
        blocks = np.zeros((self.count + tensor.row_count, tensor.blocks.shape[1]), np.uint8)
        blocks[self.count :] = tensor.blocks
        return StoredTensor(tensor.name, tensor.format, self.shape(tensor.shape), blocks, tensor.order)


@dataclass(frozen=True)
class PermuteColumns(Transform):
    """Load the columns in another order. Blocks of several values stay in place and record their order.

    columns   function of the configuration: the numbers of the stored columns, in the parameter's order
    """

    columns: RowNumbers

    @property
    def index(self) -> NDArray[np.int64]:
        """The numbers of the columns."""
        return np.asarray(self.columns(self.config))

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return self._permute(tensor, self.index)

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return self._permute(tensor, np.argsort(self.index))

    def _permute(self, tensor: StoredTensor, index: NDArray[np.int64]) -> StoredTensor:
        if tensor.format.values == 1 and tensor.order is None:
            blocks = tensor.blocks.reshape(*tensor.shape, tensor.format.nbytes)[..., index, :]
            return StoredTensor(tensor.name, tensor.format, tensor.shape, np.ascontiguousarray(blocks).reshape(-1))
        in_place = np.arange(tensor.shape[-1], dtype=np.int32)
        before = in_place if tensor.order is None else tensor.order
        order = np.argsort(index)[before].astype(np.int32)
        new_order = None if np.array_equal(order, in_place) else order
        return StoredTensor(tensor.name, tensor.format, tensor.shape, tensor.blocks.reshape(-1), new_order)


@dataclass(frozen=True)
class Transpose(Transform):
    """Swap the last two axes: the stored matrix is [in, out].

    quantized     how blocks of several values, which cannot be transposed, are treated: "refuse", "dequantize" to F32,
                  or "keep", since a file that quantizes this tensor stores it as [out, in] (MXFP4 experts)
    unless_last   function of the configuration: the length of the last axis in files that store it as [out, in]
    """

    quantized: Literal["refuse", "dequantize", "keep"] = "refuse"
    unless_last: Callable[[Any], int] | None = None

    @property
    def is_dequantizing(self) -> bool:
        return self.quantized == "dequantize"

    @property
    def lora_conflict(self) -> str:
        return EXPERTS if self.quantized == "keep" else ""

    def for_tensor(self, values_per_block: int, shape: Shape) -> Self | None:
        is_kept = self.quantized == "keep" and values_per_block > 1
        is_stored_plainly = self.unless_last is not None and shape[-1:] == (self.unless_last(self.config),)
        return None if is_kept or is_stored_plainly else self

    def shape(self, shape: Shape) -> Shape:
        return (*shape[:-2], shape[-1], shape[-2])

    def load(self, tensor: StoredTensor) -> StoredTensor:
        has_blocks = tensor.format.values > 1 or tensor.order is not None
        if has_blocks and self.quantized == "dequantize":
            tensor = as_f32(tensor)
        elif tensor.format.values > 1 or len(tensor.shape) < 2:
            raise UnsupportedModel(f"tensor {tensor.name}: cannot transpose blocks of {tensor.format.name}")
        blocks = tensor.blocks.reshape(*tensor.shape, tensor.format.nbytes).swapaxes(-2, -3)
        shape = self.shape(tensor.shape)
        return StoredTensor(tensor.name, tensor.format, shape, np.ascontiguousarray(blocks).reshape(-1))

    save = load


@dataclass(frozen=True)
class SplitHeads(Transform):
    """Load [heads, out, in] from a matrix of the heads' matrices, stacked by rows."""

    @property
    def lora_conflict(self) -> str:
        return HEADS

    def shape(self, shape: Shape) -> Shape:
        return (shape[0] * shape[1], *shape[2:])

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, self.loaded_shape)

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, self.shape(tensor.shape))


@dataclass(frozen=True)
class Unflatten(Transform):
    """Load a matrix from a vector of its values, row by row.

    optional   some files store the matrix itself
    """

    optional: bool = False

    def for_tensor(self, values_per_block: int, shape: Shape) -> Self | None:
        return None if self.optional and len(shape) == 2 else self

    def shape(self, shape: Shape) -> Shape:
        return (prod(shape),)

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, self.loaded_shape)

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, self.shape(tensor.shape))


@dataclass(frozen=True)
class FlattenKernel(Transform):
    """Load a matrix [out, in * ...] from the weight of a convolution whose kernels do not overlap, [out, in, ...].

    inner   function of the configuration: the stored shape of one output's weight
    """

    inner: Callable[[Any], Shape]

    def shape(self, shape: Shape) -> Shape:
        return (shape[0], *self.inner(self.config))

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, self.loaded_shape)

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, self.shape(tensor.shape))


@dataclass(frozen=True)
class Squeeze(Transform):
    """Load without axes of length 1.

    axes       their numbers in the stored shape, ascending
    optional   only some files have them, and none that we write
    to_four    some files have more of them in front, up to four axes (Kimi Linear by llama.cpp's converter)
    """

    axes: tuple[int, ...]
    optional: bool = False
    to_four: bool = False

    @property
    def is_optional(self) -> bool:
        return self.optional

    @property
    def lora_conflict(self) -> str:
        return CHANGED

    def for_tensor(self, values_per_block: int, shape: Shape) -> Self | None:
        if self.optional and len(shape) == len(self.loaded_shape):
            return None
        more = 4 - len(self.shape(self.loaded_shape))
        if not self.to_four or len(shape) < 4 or more <= 0:
            return self
        return replace(self, axes=(*range(more), *(axis + more for axis in self.axes)))

    def shape(self, shape: Shape) -> Shape:
        for axis in self.axes:
            shape = (*shape[:axis], 1, *shape[axis:])
        return shape

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, tuple(np.delete(tensor.shape, self.axes).tolist()))

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, self.shape(tensor.shape))


@dataclass(frozen=True)
class ZerosFirst(Transform):
    """Load a vector as the second of two, [2, n], behind zeros, which are not saved."""

    @property
    def lora_conflict(self) -> str:
        return STACKED

    def shape(self, shape: Shape) -> Shape:
        return shape[1:]

    def load(self, tensor: StoredTensor) -> StoredTensor:
        blocks = tensor.blocks.reshape(1, -1)
        both = np.concatenate([np.zeros_like(blocks), blocks])
        return StoredTensor(tensor.name, tensor.format, (2, *tensor.shape), both.reshape(-1))

    def save(self, tensor: StoredTensor) -> StoredTensor:
        blocks = tensor.blocks.reshape(2, -1)[1]
        return StoredTensor(tensor.name, tensor.format, tensor.shape[1:], np.ascontiguousarray(blocks))


@dataclass(frozen=True)
class LeadingOnes(Transform):
    """Load a tensor that files store with any number of leading axes of length 1. It is written without them.

    stored   the shape in the file, set by `for_tensor`
    """

    stored: Shape = ()

    def for_tensor(self, values_per_block: int, shape: Shape) -> Self:
        is_same = _drop_leading_ones(shape) == _drop_leading_ones(self.loaded_shape)
        return replace(self, stored=shape) if is_same else self

    def shape(self, shape: Shape) -> Shape:
        return self.stored or _drop_leading_ones(shape)

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, self.loaded_shape)

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return _reshape(tensor, _drop_leading_ones(tensor.shape))


class Computation(Transform):
    """A transform that changes values, in float32."""

    @property
    def lora_conflict(self) -> str:
        return CHANGED

    @property
    def changes_values(self) -> bool:
        return True

    def compute(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the loaded values of stored ones."""
        raise NotImplementedError

    def restore(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the stored values of loaded ones."""
        raise NotImplementedError

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return tensor_of_values(tensor.name, self.compute(tensor.dequantize()))

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return tensor_of_values(tensor.name, self.restore(tensor.dequantize()))


@dataclass(frozen=True)
class AddConstant(Computation):
    """Load the stored values plus a number: Gemma's norms are stored less one."""

    constant: float

    def compute(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values + np.float32(self.constant)

    def restore(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values - np.float32(self.constant)


@dataclass(frozen=True)
class NegativeExp(Computation):
    """Load -exp(x): the stored values are logarithms of a decay's magnitude.

    Both directions are rounded once, from float64: float32 exponentials differ in their last bit between CPUs. A decay
    that came from a float32 logarithm survives `save` and `load` bit for bit.
    """

    def compute(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):  # the state of such a channel decays at once
            return (-np.exp(values.astype(np.float64))).astype(np.float32)

    def restore(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.log(-values.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class Divide(Computation):
    """Load the stored values divided by a factor: the file's weights contain a multiplier of the configuration.

    factor   function of the configuration: a number, or an array that broadcasts against the parameter
    """

    factor: Callable[[Any], Any]

    @property
    def lora_conflict(self) -> str:
        return ""

    @property
    def changes_values(self) -> bool:
        return bool((np.asarray(self.factor(self.config)) != 1).any())

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return super().load(tensor) if self.changes_values else tensor

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return super().save(tensor) if self.changes_values else tensor

    def compute(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(values / self.factor(self.config), np.float32)

    def restore(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(values * self.factor(self.config), np.float32)


@dataclass(frozen=True)
class NormalizeRows(Computation):
    """Load each row divided by its Euclidean norm, or each column with `axis` 0. `save` returns its argument, since the
    norms are lost.

    when   function of the configuration: whether the model normalizes them
    """

    axis: int = -1
    when: Callable[[Any], bool] = lambda config: True

    @property
    def changes_values(self) -> bool:
        return self.when(self.config)

    def load(self, tensor: StoredTensor) -> StoredTensor:
        return super().load(tensor) if self.changes_values else tensor

    def save(self, tensor: StoredTensor) -> StoredTensor:
        return tensor

    def compute(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values / np.maximum(np.linalg.norm(values, axis=self.axis, keepdims=True), np.float32(1e-12))


@dataclass(frozen=True)
class Stack:
    """Load the tensors of all experts as one parameter [experts, ...]. The stored name has "{e}" for the expert's
    number.

    It is the last transform of its row; the transforms before it apply to each tensor.
    """

    is_dequantizing: ClassVar[bool] = False

    def load(self, tensors: Sequence[StoredTensor]) -> StackedExperts:
        """Return the tensors as one weight, which copies nothing until all of it is needed."""
        return stack_experts(tensors)

    def save(self, tensor: StoredTensor) -> list[StoredTensor]:
        """Return the tensor of each expert."""
        parts = tensor.blocks.reshape(tensor.shape[0], -1)
        return [StoredTensor(tensor.name, tensor.format, tensor.shape[1:], part, tensor.order) for part in parts]

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of each stored tensor."""
        return shape[1:]

    def source_names(self, name: str, count: int) -> tuple[str, ...]:
        """Return the names of the stored tensors of `count` experts, from that of the table's row."""
        return tuple(name.replace("{e}", str(expert)) for expert in range(count))


@dataclass(frozen=True)
class StackTwo(Stack):
    """Load two tensors as one parameter [2, ...]. The name of the second one has `new` in place of `old`.

    Files may quantize the two differently, since llama.cpp's quantizer chooses types by names. Both are Q8_0 then.
    """

    old: str
    new: str

    def load(self, tensors: Sequence[StoredTensor]) -> StackedExperts:
        if len({tensor.format for tensor in tensors}) == 1:
            return super().load(tensors)
        has_blocks = any(tensor.format.values > 1 for tensor in tensors)
        common = Q8_0 if has_blocks and tensors[0].shape[-1] % Q8_0.values == 0 else F32
        return super().load([_requantize(tensor, common) for tensor in tensors])

    def source_names(self, name: str, count: int) -> tuple[str, ...]:
        assert count == 2
        return name, name.replace(self.old, self.new, 1)


def as_f32(tensor: StoredTensor) -> StoredTensor:
    """Return the tensor as F32 with its columns in place; an F32 tensor itself."""
    if tensor.format is F32 and tensor.order is None:
        return tensor
    return tensor_of_values(tensor.name, tensor.dequantize())


def tensor_of_values(name: str, values: NDArray[np.float32]) -> StoredTensor:
    """Return an F32 tensor of these values."""
    values = np.asarray(values, np.float32, order="C")
    return StoredTensor(name, F32, values.shape, values.reshape(-1).view(np.uint8))


def _drop_leading_ones(shape: Shape) -> Shape:
    """Return a shape without leading axes of length 1, but with one axis at least."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _requantize(tensor: StoredTensor, number_format: type[QuantFormat]) -> StoredTensor:
    """Return a tensor in another number format."""
    blocks = quantize_tensor(number_format, tensor.dequantize())
    return StoredTensor(tensor.name, number_format, tensor.shape, blocks.reshape(-1))


def _reshape(tensor: StoredTensor, shape: Shape) -> StoredTensor:
    return StoredTensor(tensor.name, tensor.format, shape, tensor.blocks.reshape(-1), tensor.order)


def _unify_formats(tensors: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
    """Return the tensors in the number format that they share, else in F32."""
    formats = {tensor.format for tensor in tensors}
    is_shared = len(formats) == 1 and all(tensor.order is None for tensor in tensors)
    return tensors if is_shared else [as_f32(tensor) for tensor in tensors]
