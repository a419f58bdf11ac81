"""A tiny decoder of raw ops, and the steps that it runs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import On
from sporelm.evals.conformance.rows import rope_table
from sporelm.ops import Spec, Symbol
from sporelm.ops.paged_attention import PAGE
from sporelm.quant import FORMATS
from sporelm.tensor.dtype import F16, F32, I32

KV_HEADS, HEAD_DIM, VOCAB = 2, 16, 65


SEQUENCES, TABLE = 3, 4


OUTPUTS = ("logits", "best", "values", "ids")


class TinyDecoder:
    """One layer: every op at least once, written as models are, before any rule merges calls.

    `mix` names a number format, or two as files mix them: "Q4_K Q6_K" has values and embedding in the second.
    """

    def __init__(self, on: On, mix: str) -> None:
        format_name, other = mix.split()[0], mix.split()[-1]
        blocks = 256 in (FORMATS[format_name].values, FORMATS[other].values)
        self.width, hidden, heads = (256, 512, 16) if blocks else (96, 160, 6)
        assert self.width == heads * HEAD_DIM
        self.embedding = on.weight(other, VOCAB, self.width)
        self.norms = [on.tensor(on.values(self.width)) for _ in range(3)]
        outs = {"q": self.width, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": self.width}
        self.attention = {
            name: on.weight(other if name == "v" else format_name, out, self.width) for name, out in outs.items()
        }
        self.bias = on.tensor(on.values(self.width))
        self.gate, self.up = (on.weight(format_name, hidden, self.width) for _ in range(2))
        self.down = on.weight(format_name, self.width, hidden)
        self.table = on.tensor(rope_table(TABLE * PAGE, HEAD_DIM))
        self.cache = on.backend.allocate_pages(
            SEQUENCES * TABLE, [(KV_HEADS, HEAD_DIM)], F32 if format_name == "F32" else F16
        )[0]

    def forward(self, ids: Any, positions: Any, slots: Any, starts: Any, lengths: Any, pages: Any, rows: Any) -> Any:
        x = ops.embedding(ids, self.embedding)
        h = ops.rms_norm(x, self.norms[0], eps=1e-5)
        q = ops.linear(h, self.attention["q"], self.bias)
        k, v = (ops.linear(h, self.attention[name]) for name in "kv")
        q, k = (ops.rope(part, positions, self.table, head_dim=HEAD_DIM, style="half") for part in (q, k))
        ops.store_kv(k, v, self.cache, slots)
        attended = ops.attention(q, self.cache, starts, lengths, pages, scale=HEAD_DIM**-0.5)
        x = ops.add(x, ops.linear(attended, self.attention["o"]))
        h = ops.rms_norm(x, self.norms[1], eps=1e-5)
        x = ops.add(x, ops.linear(ops.silu_mul(ops.linear(h, self.gate), ops.linear(h, self.up)), self.down))
        logits = ops.linear(ops.rms_norm(ops.select_rows(x, rows), self.norms[2], eps=1e-5), self.embedding)
        values, ids = ops.top_k(logits, k=5)
        return dict(zip(OUTPUTS, (logits, ops.argmax(logits), values, ids), strict=True))


def specs() -> dict[str, Spec]:
    tokens, sequences, rows = Symbol("tokens", 512), Symbol("sequences", SEQUENCES), Symbol("rows", 512)
    shapes: dict[str, tuple[Any, ...]] = dict.fromkeys(("ids", "positions", "slots"), (tokens,))
    shapes |= {"starts": (Symbol("starts", SEQUENCES + 1),), "lengths": (sequences,), "pages": (sequences, TABLE)}
    return {name: Spec(shape, I32) for name, shape in (shapes | {"rows": (rows,)}).items()}


class Steps:
    """Inputs of steps: the next ids of some sequences, and the slots that they fill."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.lengths = [0] * SEQUENCES
        self.pages = self.random.permutation(SEQUENCES * TABLE).reshape(SEQUENCES, TABLE)

    def step(self, counts: Mapping[int, int], rows: int) -> dict[str, np.ndarray]:
        """Arrays of a step with `counts[sequence]` new tokens each; the last `rows` of them are scored."""
        positions, slots, starts, lengths = [], [], [0], []
        for sequence, count in counts.items():
            for position in range(self.lengths[sequence], self.lengths[sequence] + count):
                positions.append(position)
                slots.append(self.pages[sequence, position // PAGE] * PAGE + position % PAGE)
            self.lengths[sequence] += count
            starts.append(len(positions))
            lengths.append(self.lengths[sequence])
        tokens = len(positions)
        ids, wanted = self.random.integers(0, VOCAB, tokens), range(tokens - rows, tokens)
        lists = (ids, positions, slots, starts, lengths, self.pages[list(counts)], wanted)
        return {name: np.array(values, np.int32) for name, values in zip(specs(), lists, strict=True)}


def extents_of(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    names = {"tokens": "ids", "sequences": "lengths", "starts": "starts", "rows": "rows"}
    return {symbol: len(arrays[name]) for symbol, name in names.items()}


# (new tokens of each sequence, rows scored): all step_buckets, and every bucket of rows inside that of many tokens
STEPS = (
    ({0: 33, 1: 5}, 1),
    ({0: 1, 1: 1}, 2),
    ({0: 1}, 1),
    ({2: 130}, 130),
    ({0: 20, 1: 1}, 16),
    ({1: 7}, 7),
    ({0: 17, 2: 1}, 17),
    ({0: 1, 1: 1, 2: 1}, 3),
    ({1: 16}, 1),
)
