"""A decoder layer with packed weights as one program: its norms, products, rotation, pages and attention in one call.

Attention's keys and values lie in pages of our layout, in torch's memory (`KeyValuePages`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.ops import Graph, Spec, Symbol, trace
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import F32, I32

FIRST_PAGES = 4  # of a sequence; their number doubles when they are full
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class LayerShape:
    """The sizes and options of a decoder layer. `kind` is the activation of its gated MLP; "": it ends before the MLP.

    eps of the norms of rows, head_eps of the norms of queries and keys
    """

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    kind: str
    format: str
    scale: float
    eps: float
    second_eps: float
    head_eps: float = 0.0

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the shape of each packed matrix by its name."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {"q": (q, self.width), "k": (kv, self.width), "v": (kv, self.width), "o": (self.width, q)}
        if self.kind:
            wide = (self.inner, self.width)
            shapes |= {"gate": wide, "up": wide, "down": wide[::-1]}
        return shapes


@dataclass
class PackedLayer:
    """A decoder layer's weights: packed matrices by name, and vectors (norms, biases) as the kernels read them."""

    shape: LayerShape
    matrices: dict[str, Tensor]
    vectors: dict[str, Tensor]

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key of its programs: a program is compiled for fixed weight addresses."""
        return ("layer", *(each.data_ptr() for each in self.matrices.values()), *self.vectors, self.shape)


class KeyValuePages:
    """The keys and values of one sequence in one layer, float32, in pages of the CPU's layout. They grow."""

    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self._layout = KvPages(head_dim, F32.name)
        self.page_bytes = self._layout.page_bytes(kv_heads)
        self.memory = torch.zeros(0, dtype=torch.uint8)
        self.length = 0

    def reserve(self, length: int) -> None:
        """Grow to at least this many positions, keeping the stored keys and values."""
        pages, held = -(-length // PAGE), len(self.memory) // self.page_bytes
        if pages > held:
            grown = torch.zeros(max(pages, 2 * held, FIRST_PAGES) * self.page_bytes, dtype=torch.uint8)
            grown[: len(self.memory)] = self.memory
            self.memory = grown

    def _views(self) -> tuple[Tensor, Tensor]:
        """Return the keys [pages, kv_heads, head_dim, 64] and the values [pages, kv_heads, 64, head_dim]."""
        padded, dim = self._layout.padded, self.head_dim
        halves = self.memory.view(torch.float32).view(-1, self.kv_heads, 2, padded * PAGE)
        keys = halves[:, :, 0].unflatten(-1, (padded, PAGE))
        values = halves[:, :, 1].unflatten(-1, (PAGE, padded))
        return keys[:, :, :dim], values[..., :dim]

    def read(self) -> tuple[Tensor, Tensor]:
        """Return copies of the keys and the values, [1, kv_heads, length, head_dim] each."""
        keys, values = self._views()
        rows = (keys.permute(1, 0, 3, 2), values.transpose(0, 1))
        keys, values = (each.flatten(1, 2)[:, : self.length].contiguous().unsqueeze(0) for each in rows)
        return keys, values

    def write(self, keys: Tensor, values: Tensor) -> None:
        """Replace everything by keys and values [1, kv_heads, length, head_dim]."""
        self.length = keys.shape[2]
        self.reserve(self.length)
        pages = -(-self.length // PAGE)
        wide = (0, 0, 0, pages * PAGE - self.length)
        given = (torch.nn.functional.pad(each[0], wide).unflatten(1, (pages, PAGE)) for each in (keys, values))
        for view, each, order in zip(self._views(), given, ((1, 0, 3, 2), (1, 0, 2, 3)), strict=True):
            view[:pages] = each.permute(order)


def layer_graph(
    layer: PackedLayer, weights: Mapping[str, Any], cache: Any, tokens: Symbol | int, rotary: int, num_pages: int
) -> Graph:
    """Return the graph of a layer. Its outputs are "x", and "normed" where the layer ends before the MLP.

    Inputs are x [tokens, width], positions, the rotary table, slots, starts, lengths, pages, and the layer's vectors.
    """
    shape = layer.shape
    specs = {"x": Spec((tokens, shape.width), F32), "positions": Spec((tokens,), I32)}
    specs |= {"table": Spec((tokens, rotary), F32), "slots": Spec((tokens,), I32), "starts": Spec((2,), I32)}
    specs |= {"lengths": Spec((1,), I32), "pages": Spec((1, num_pages), I32)}
    sizes = {name: rows for name, (rows, _) in shape.matrices().items()}
    sizes |= {"norm": shape.width, "second_norm": shape.width, "q_norm": shape.head_dim, "k_norm": shape.head_dim}
    specs |= {name: Spec((sizes[name.removesuffix("_bias")],), F32) for name in layer.vectors}

    def run(
        x: Any, positions: Any, table: Any, slots: Any, starts: Any, lengths: Any, pages: Any, **vectors: Any
    ) -> Any:
        def multiply(rows: Any, name: str) -> Any:
            bias = vectors.get(f"{name}_bias")
            return ops.linear(rows, weights[name]) if bias is None else ops.linear(rows, weights[name], bias)

        def rotate(rows: Any, name: str) -> Any:
            if f"{name}_norm" in vectors:
                rows = ops.rms_norm(rows, vectors[f"{name}_norm"], eps=shape.head_eps)
            return ops.rope(rows, positions, table, head_dim=shape.head_dim, style="half")

        normed = ops.rms_norm(x, vectors["norm"], eps=shape.eps)
        q, k, v = (multiply(normed, name) for name in ("q", "k", "v"))
        q, k = rotate(q, "q"), rotate(k, "k")
        ops.store_kv(k, v, cache, slots)
        mixed = ops.attention(q, cache, starts, lengths, pages, scale=shape.scale)
        x = ops.add(x, multiply(mixed, "o"))
        normed = ops.rms_norm(x, vectors["second_norm"], eps=shape.second_eps)
        if not shape.kind:
            return {"x": x, "normed": normed}
        gate, up = weights["gate"], weights["up"]
        if shape.kind == "silu":
            hidden = ops.linear_silu_mul(normed, gate, up)
        else:
            hidden = ops.linear_activate_mul(normed, gate, up, kind=shape.kind)
        return {"x": ops.add(x, ops.linear(hidden, weights["down"]))}

    return trace(run, specs)
