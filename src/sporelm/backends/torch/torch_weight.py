"""Weights on a torch device: in the activation type, or as int8 blocks that are dequantized where they are used.

On the CPU a matrix is packed in oneDNN's layout at its first product, in place of its rows, if products with it are
faster (`packed_layout.py`).
"""

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import pad

from sporelm.backends.torch.int8_blocks import Int8Blocks
from sporelm.backends.torch.packed_layout import LAYOUTS, PackedLayout, choose_layout, has_packed_layout
from sporelm.backends.torch.step_context import STEP

TILE_VALUES = 1 << 25  # of a packed matrix that are dequantized at a time
INVARIANT_ROWS = 16  # rows of each product where results must not depend on the number of rows


class TorchWeight:
    """A weight matrix [out, in], or experts' matrices [experts, out, in], and the activation numbers of its format."""

    def __init__(self, stored: Tensor | Int8Blocks, dtype: torch.dtype, activation: str) -> None:
        self._stored: Tensor | Int8Blocks | None = stored
        self._packed: Tensor | None = None  # the matrix in `_layout`
        self._layout: PackedLayout | None = None
        self._joined: JoinedWeights | None = None  # that has its numbers
        self._join_index = 0  # of its rows among the joined ones
        self.dtype, self.activation = dtype, activation
        source = stored if isinstance(stored, Tensor) else stored.integers
        self.shape, self.device = source.shape, source.device

    @property
    def can_join(self) -> bool:
        """Return whether `JoinedWeights` may take its numbers over: rows of the activation type, not used yet."""
        return self._joined is None and isinstance(self._stored, Tensor) and self._stored.dtype is self.dtype

    @property
    def values(self) -> Tensor:
        """Return all numbers in the activation type. Dequantizes int8 blocks."""
        stored = self._plain()
        return stored.to(self.dtype) if isinstance(stored, Tensor) else stored.dequantize(self.dtype)

    def select(self, index: Tensor) -> Tensor:
        """Return rows, or experts' matrices, in the activation type."""
        stored = self._plain()
        if isinstance(stored, Tensor):
            return stored.index_select(0, index.flatten()).unflatten(0, index.shape).to(self.dtype)
        return stored.select(index.long()).dequantize(self.dtype)

    def _plain(self) -> Tensor | Int8Blocks:
        """Return what is stored. A matrix that is only packed is stored in rows again."""
        if self._stored is None:
            if self._joined is not None:
                self._stored = self._joined.rows_of(self._join_index)
            else:
                assert self._packed is not None
                self._stored = self._packed.to_dense()
        return self._stored

    def multiply(self, x: Tensor) -> Tensor:
        """Return x @ weight.T for rows x [rows, in] of the activation type."""
        if STEP.is_batch_invariant:
            return self._multiply_in_tiles(x)
        return self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        if self._packed is None:
            stored = self._plain()
            layout = self._choose_layout(stored)
            if layout is None:
                return self._multiply_stored(x, stored)
            assert isinstance(stored, Tensor)
            self._packed, self._layout, self._stored = layout.pack(stored), layout, None
        assert self._layout is not None
        return self._layout.multiply(x, self._packed)

    def _choose_layout(self, stored: Tensor | Int8Blocks) -> PackedLayout | None:
        """Return the layout in which to pack what is stored, or None: plain rows.

        With exact batch invariance it is not measured, so that every process computes the same bits.
        """
        if self.device.type != "cpu" or not isinstance(stored, Tensor) or stored.dtype is not self.dtype:
            return None
        if STEP.is_batch_invariant:
            return LAYOUTS[0] if has_packed_layout(self.dtype) else None
        return choose_layout(self.dtype)

    def _multiply_stored(self, x: Tensor, stored: Tensor | Int8Blocks) -> Tensor:
        """Multiply by rows as they are stored. Int8 blocks are dequantized tile by tile."""
        if isinstance(stored, Tensor):
            return torch_linear(x, stored.to(self.dtype))
        tile = max(1, TILE_VALUES // self.shape[1])
        if self.shape[0] <= tile:
            return torch_linear(x, stored.dequantize(self.dtype))
        tiles = range(0, self.shape[0], tile)
        return torch.cat(
            [torch_linear(x, stored.select(slice(row, row + tile)).dequantize(self.dtype)) for row in tiles], dim=1
        )

    def _multiply_in_tiles(self, x: Tensor) -> Tensor:
        """Multiply tiles of INVARIANT_ROWS rows, the last one filled with zeros: one kernel for any number of rows."""
        rows = x.shape[0]
        filled = pad(x, (0, 0, 0, -rows % INVARIANT_ROWS))
        return torch.cat([self._multiply(tile) for tile in filled.split(INVARIANT_ROWS)])[:rows]


class JoinedWeights:
    """Matrices that one x is multiplied by, as one matrix: the product is faster. Takes their numbers over.

    They refer to it, and it does not refer to them: without a cycle, memory is freed with the last weight.
    """

    def __init__(self, weights: tuple[TorchWeight, ...]) -> None:
        self.sizes = [weight.shape[0] for weight in weights]
        self.whole = TorchWeight(torch.cat([weight.values for weight in weights]), weights[0].dtype, "float")
        for place, weight in enumerate(weights):
            weight._stored, weight._joined, weight._join_index = None, self, place

    def has_joined(self, weights: tuple[TorchWeight, ...]) -> bool:
        """Return whether it consists of exactly these, in this order."""
        places = [weight._join_index if weight._joined is self else -1 for weight in weights]
        return places == list(range(len(self.sizes)))

    def rows_of(self, place: int) -> Tensor:
        """Return the rows of one of the matrices."""
        rows: tuple[Tensor, ...] = self.whole.values.split(self.sizes)
        return rows[place]

    def multiply(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the product with each of the matrices: views of one tensor."""
        return self.whole.multiply(x).split_with_sizes(self.sizes, dim=1)


def multiply_all(x: Tensor, weights: tuple[TorchWeight, ...]) -> tuple[Tensor, ...]:
    """Return the products of x with several matrices [out, in]. They are joined if each is used in no other way yet."""
    joined = weights[0]._joined
    if joined is not None and joined.has_joined(weights):
        return joined.multiply(x)
    if all(weight.can_join and weight.dtype is weights[0].dtype for weight in weights):
        return JoinedWeights(weights).multiply(x)
    return tuple(weight.multiply(x) for weight in weights)


def multiply_joined(x: Tensor, weights: tuple[TorchWeight, ...]) -> Tensor:
    """Return the products of `multiply_all` side by side in one tensor: [tokens, sum of out]."""
    joined = weights[0]._joined
    if joined is None or not joined.has_joined(weights):
        if not all(weight.can_join and weight.dtype is weights[0].dtype for weight in weights):
            return torch.cat([weight.multiply(x) for weight in weights], dim=1)
        joined = JoinedWeights(weights)
    return joined.whole.multiply(x)
