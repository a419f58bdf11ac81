"""Arguments that would reach memory: element types, and indices outside what they point into, refused in one line."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.errors import OpError
from sporelm.ops.paged_attention import PAGE
from sporelm.quant import FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32

HUGE = 2_000_000_000
GATED: dict[str, Any] = {"eps": 1e-5, "group": 8, "first": "gate"}


class Arguments:
    """Arguments that every op accepts; a test changes one."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        (self.cache,) = backend.allocate_pages(3, [(1, 8)], F32)
        self.table = self.f32(10, 8)
        matrix = np.ones((16, 32), np.float32)
        blocks = quantize_tensor(FORMATS["Q8_0"], matrix)
        self.weight = backend.pack(StoredTensor("w", FORMATS["Q8_0"], matrix.shape, blocks))
        self.experts = backend.pack(StoredTensor("w", FORMATS["Q8_0"], (2, 8, 32), blocks))
        (self.latent,) = backend.allocate_pages(3, [(8,)], F32)

    def f32(self, *shape: int) -> Any:
        return self.backend.tensor(np.ones(shape, np.float32))

    def i32(self, *values: Any) -> Any:
        return self.backend.tensor(np.array(values, np.int32))

    def other(self, *shape: int, kind: Any = np.int32) -> Any:
        return self.backend.tensor(np.ones(shape, kind))

    def attend(self, starts: Any = (0, 1, 2), lengths: Any = (70, 1), pages: Any = ((2, 0), (1, -1))) -> Any:
        return ops.attention(
            self.f32(2, 8), self.cache, self.i32(*starts), self.i32(*lengths), self.i32(*pages), scale=1.0
        )

    def added(self, *which: Any, y: Any = None, a: Any = (2, 8), b: Any = (2, 16)) -> Any:
        """With one adapter of rank 2, from 8 columns to 16."""
        rows = self.f32(len(which), 16) if y is None else y
        pair = tuple(each if each is None or not isinstance(each, tuple) else self.f32(*each) for each in (a, b))
        return ops.add_lora(rows, self.f32(len(which), 8), self.i32(*which), (pair[0],), (pair[1],))

    def read(self, q: Any = None, starts: Any = None, **options: Any) -> Any:
        """Two texts in three rows."""
        rows, first = self.f32(3, 8), self.i32(0, 1, 3) if starts is None else starts
        return ops.encoder_attention(
            rows if q is None else q, rows, rows, first, **{"head_dim": 4, "scale": 1.0, **options}
        )

    def cross_attention(self, *spans: tuple[int, int], q: Any = None, v: Any = None, **options: Any) -> Any:
        """Two heads of 4 numbers, ten keys."""
        rows, keys = self.f32(len(spans), 8), self.table
        given = (rows if q is None else q, keys, keys if v is None else v, self.i32(*spans))
        return ops.cross_attention(*given, **{"head_dim": 4, "scale": 1.0, **options})

    def apart(self, v: Any = None, starts: Any = None, row_scores: Any = None, **options: Any) -> Any:
        """Two heads of 4 numbers, two columns for either side."""
        rows, known = self.f32(3, 8), {"head_dim": 4, "scale": 1.0, "buckets": 2, "max_distance": 8}
        first, columns = self.i32(0, 1, 3) if starts is None else starts, self.f32(3, 8)
        of = columns if row_scores is None else row_scores
        return ops.disentangled_attention(rows, rows, rows if v is None else v, first, of, columns, **known | options)

    def convolved(self, x: Any, weight: Any = None, state: Any = None) -> Any:
        kept = self.f32(2, 2, 8) if state is None else state
        rows = (self.i32(0, 3), self.i32(3), self.i32(0))
        return ops.causal_conv1d(x, self.f32(3, 8) if weight is None else weight, None, kept, *rows)

    def ruled(self, x: Any, beta: Any = None) -> Any:
        """One head: keys of 4 numbers, values of 4."""
        alpha, bias, rows = self.f32(3, 1), self.f32(1), (self.i32(0, 3), self.i32(3), self.i32(0))
        given = (x, alpha, alpha if beta is None else beta, bias, bias, self.f32(2, 4, 4))
        return ops.gated_delta_rule(*given, *rows, key_heads=1, order="each")

    def scanned(self, x: Any, dt: Any = None) -> Any:
        """One head: a state of 4 rows, values of 4."""
        one, rows = self.f32(1), (self.i32(0, 3), self.i32(3), self.i32(0))
        steps = self.f32(3, 1) if dt is None else dt
        return ops.ssm_scan(x, steps, one, one, one, self.f32(2, 4, 4), *rows, groups=1)

    def faded(self, x: Any, decay: Any = None) -> Any:
        """Two heads of two numbers."""
        rows = self.i32(0, 3), self.i32(3), self.i32(0)
        return ops.lightning_attention(x, self.f32(2) if decay is None else decay, self.f32(2, 4, 2), *rows)

    def selected(self, x: Any, c: Any = None) -> Any:
        """Eight channels, two numbers each."""
        two, rows = self.f32(3, 2), (self.i32(0, 3), self.i32(3), self.i32(0))
        given = (x, self.f32(3, 8), two, two if c is None else c, self.f32(2, 8), self.f32(8))
        return ops.selective_scan(*given, self.f32(2, 2, 8), *rows)

    def gated_lru(self, x: Any, input_gate: Any = None) -> Any:
        """Two heads of four numbers."""
        bias, rows = self.f32(2, 4), (self.i32(0, 3), self.i32(3), self.i32(0))
        given = (x, self.f32(3, 8), self.f32(3, 8) if input_gate is None else input_gate, self.f32(8), bias, bias)
        return ops.gated_lru(*given, self.f32(2, 2, 4), *rows)

    def generalized(self, x: Any, bonus: Any = None) -> Any:
        """Two heads of four numbers."""
        one, rows = self.f32(3, 8), (self.i32(0, 3), self.i32(3), self.i32(0))
        vectors = self.f32(8), self.f32(8), self.f32(2, 4) if bonus is None else bonus
        return ops.wkv7(x, one, one, one, one, *vectors, self.f32(2, 8, 4), *rows)

    def faded_by_row(self, x: Any, keys: Any = None) -> Any:
        """Two heads of four numbers."""
        one, rows = self.f32(3, 8), (self.i32(0, 3), self.i32(3), self.i32(0))
        return ops.wkv6(x, one, one if keys is None else keys, one, self.f32(2, 4), self.f32(2, 8, 4), *rows)

    def gated_linear(self, x: Any, keys: Any = None) -> Any:
        """Two heads of four numbers, one of keys."""
        one, two, rows = self.f32(3, 4), self.f32(3, 8), (self.i32(0, 3), self.i32(3), self.i32(0))
        given = x, two, one if keys is None else keys, one, self.f32(2, 8, 4)
        return ops.gated_linear_attention(*given, *rows, heads=2, key_heads=1)

    def store_latent(self, x: Any, weight: Any = None) -> Any:
        """Latents of 4 numbers, with keys of 4 that are rotated."""
        norm, table = self.f32(4) if weight is None else weight, self.f32(10, 4)
        return ops.store_latent(x, norm, self.i32(0), table, self.latent, self.i32(0), eps=1e-5, style="half")

    def looked(self, latent: Any, q: Any) -> Any:
        places = (self.i32(0, 1), self.i32(1), self.i32((0, 1)))
        return ops.latent_attention(latent, q, self.latent, *places, heads=1, scale=1.0)

    def indexed(self, q: Any, weights: Any, pages: Any = ((2, 0),), lengths: Any = (70,)) -> Any:
        """Two heads of one row."""
        return ops.topk_indexer(q, weights, self.latent, self.i32(0, 1), self.i32(*lengths), self.i32(*pages), k=3)

    def sparse_mla(self, latent: Any, *chosen: Any) -> Any:
        return ops.sparse_mla(latent, self.f32(1, 4), self.latent, self.i32(chosen), heads=1, scale=1.0)

    def rope(self, *positions: int) -> Any:
        return ops.rope(self.f32(len(positions), 8), self.i32(*positions), self.table, head_dim=8, style="half")

    def store(self, *slots: int) -> Any:
        rows = self.f32(len(slots), 8)
        return ops.store_kv(rows, rows, self.cache, self.i32(*slots))

    def rope_store(self, position: int, slot: int) -> Any:
        rows = self.f32(1, 8)
        places = (self.i32(position), self.table, self.cache, self.i32(slot))
        return ops.rope_store(rows, rows, rows, *places, head_dim=8, style="adjacent")


@pytest.fixture(scope="module")
def arguments(backend: Any) -> Iterator[Arguments]:
    found = Arguments(backend)
    yield found
    backend.free_pages([found.cache])
    backend.free_pages([found.latent])  # the last refusal still holds them by its traceback


OUTSIDE: dict[str, tuple[Callable[[Arguments], Any], str]] = {
    "row": (lambda a: ops.select_rows(a.f32(2, 64), a.i32(0, 5_000_000)), r"rows\[1\] is 5000000; .* 0 and 1"),
    "negative row": (lambda a: ops.select_rows(a.f32(2, 64), a.i32(-1)), r"rows\[0\] is -1"),
    "row of none": (lambda a: ops.select_rows(a.f32(0, 64), a.i32(0)), r"rows\[0\] is 0"),
    "column": (lambda a: ops.select_columns(a.f32(2, 64), a.i32(3, 64)), r"columns\[1\] is 64; .* 0 and 63"),
    "negative column": (lambda a: ops.select_columns(a.f32(2, 64), a.i32(-1)), r"columns\[0\] is -1"),
    "position": (lambda a: a.rope(3, 10), r"positions\[1\] is 10; .* 0 and 9"),
    "negative position": (lambda a: a.rope(-(2**31)), r"positions\[0\] is -2147483648"),
    "slot": (lambda a: a.store(0, HUGE), rf"slots\[1\] is {HUGE}; .* 0 and {3 * PAGE - 1}"),
    "first slot past the end": (lambda a: a.store(3 * PAGE), rf"slots\[0\] is {3 * PAGE}"),
    "negative slot": (lambda a: a.store(-64), r"slots\[0\] is -64"),
    "stored position": (lambda a: a.rope_store(HUGE, 0), r"positions\[0\] is 2000000000"),
    "stored slot": (lambda a: a.rope_store(0, -1), r"slots\[0\] is -1"),
    "row's slot": (lambda a: ops.store_rows(a.f32(1, 8), a.latent, a.i32(3 * PAGE)), rf"slots\[0\] is {3 * PAGE}"),
    "indexed page": (lambda a: a.indexed(a.f32(1, 16), a.f32(1, 2), ((3, 0),)), r"pages\[0, 0\] is 3; .* 0 and 2"),
    "indexed length": (lambda a: a.indexed(a.f32(1, 16), a.f32(1, 2), lengths=(129,)), r"lengths\[0\] is 129"),
    "chosen slot": (lambda a: a.sparse_mla(a.f32(1, 4), 0, 3 * PAGE), rf"chosen\[0, 1\] is {3 * PAGE}"),
    "chosen before none": (lambda a: a.sparse_mla(a.f32(1, 4), 0, -2), r"chosen\[0, 1\] is -2"),
    "nothing chosen": (lambda a: a.sparse_mla(a.f32(1, 4), -1, -1), "must have a slot in each row"),
    "chosen behind none": (lambda a: a.sparse_mla(a.f32(1, 4), 0, -1, 1), "only behind the last"),
    "page": (lambda a: a.attend(pages=((2, 3), (1, 0))), r"pages\[0, 1\] is 3; .* 0 and 2"),
    "negative page": (lambda a: a.attend(pages=((2, 0), (-1, 0))), r"pages\[1, 0\] is -1"),
    "length": (lambda a: a.attend(lengths=(70, 2 * PAGE + 1)), r"lengths\[1\] is 129; .* 0 and 128"),
    "negative length": (lambda a: a.attend(lengths=(-5, 1)), r"lengths\[0\] is -5"),
    "rows not held": (lambda a: a.attend((0, 0, 2), (70, 1)), r"lengths\[1\] is less than the sequence's rows"),
    "rows past the last": (lambda a: a.attend((0, 1, 3)), "must rise from 0 to the 2 rows of q in 3 elements"),
    "rows left out": (lambda a: a.attend((0, 1, 1)), "must rise from 0 to the 2 rows"),
    "falling starts": (lambda a: a.attend((0, 3, 2)), "must rise"),
    "adapter": (lambda a: a.added(0, 1), r"which\[1\] is 1; .* -1 and 0"),
    "adapter before none": (lambda a: a.added(-2), r"which\[0\] is -2"),
    "apart past the last row": (lambda a: a.apart(starts=a.i32(0, 2, 4)), "must rise from 0 to the 3 rows of q"),
    "span past the last key": (lambda a: a.cross_attention((0, 10), (4, 11)), r"spans\[1, 1\] is 11; .* 0 and 10"),
    "span before the first key": (lambda a: a.cross_attention((-1, 3)), r"spans\[0, 0\] is -1"),
    "span without keys": (
        lambda a: a.cross_attention((0, 3), (3, 3)),
        r"spans\[1\] is \[3, 3\]; it must hold at least one key",
    ),
    "falling spans": (
        lambda a: a.cross_attention((0, 3), (3, 9), (0, 3)),
        r"spans\[2\] is \[0, 3\] after \[3, 9\]; .* Sort the rows",
    ),
    "falling ends of spans": (lambda a: a.cross_attention((0, 3), (0, 2)), r"spans\[1\] is \[0, 2\] after \[0, 3\]"),
    "picture's row": (lambda a: ops.replace_rows(a.f32(2, 8), a.table, a.i32(-1, 10)), r"rows\[1\] is 10; .* -1 and 9"),
    "picture's row before none": (lambda a: ops.add_rows(a.f32(1, 8), a.table, a.i32(-2)), r"rows\[0\] is -2"),
    "texts past the last row": (lambda a: a.read(starts=a.i32(0, 2, 4)), "must rise from 0 to the 3 rows of q"),
    "falling texts": (lambda a: a.read(starts=a.i32(0, 3, 2)), "must rise"),
    "rows past the last averaged": (lambda a: ops.mean_rows(a.f32(3, 8), a.i32(0), a.i32(4)), r"stops\[0\] is 4"),
    "no rows averaged": (lambda a: ops.mean_rows(a.f32(3, 8), a.i32(2), a.i32(2)), r"stops\[0\] is 2; it must be more"),
    "starts of another count": (lambda a: a.attend((0, 2)), "in 3 elements"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_an_index_outside_is_refused(arguments: Arguments, case: str) -> None:
    use, message = OUTSIDE[case]
    with pytest.raises(OpError, match=message) as caught:
        use(arguments)
    assert "\n" not in str(caught.value)


def test_the_last_index_inside_is_taken(arguments: Arguments) -> None:
    """Page-table entries past a sequence's end are not looked at."""
    assert ops.select_rows(arguments.f32(2, 64), arguments.i32(0, 1)).shape == (2, 64)
    assert arguments.rope(0, 9).shape == (2, 8)
    arguments.store(0, 3 * PAGE - 1)
    arguments.rope_store(9, 3 * PAGE - 1)
    assert arguments.added(0, -1).numpy()[:, 0].tolist() == [17.0, 1.0]
    assert np.isfinite(arguments.attend().numpy()).all()
    assert np.isfinite(arguments.attend(pages=((2, 0), (1, HUGE))).numpy()).all()


(ALONE,) = SharedMemoryGroup.create(1)
WRONG: dict[str, tuple[Callable[[Arguments], Any], str]] = {
    "all_reduce": (lambda a: ops.all_reduce(a.other(2, 8), group=ALONE), "x i32"),
    "all_gather": (lambda a: ops.all_gather(a.other(2, 8), group=ALONE, ranges=((0, 8),)), "x i32"),
    "argmax_shards": (lambda a: ops.argmax_shards(a.other(2, 8), group=ALONE, ranges=((0, 8),)), "x i32"),
    "send": (lambda a: ops.send(a.other(2, 8), group=ALONE, target=0), "target 0 must be another rank"),
    "receive": (
        lambda a: ops.receive(a.other(2, 8), group=ALONE, source=0, row_shape=(2,)),
        "source 0 must be another",
    ),
    "add": (lambda a: ops.add(a.other(2, 8), a.other(2, 8)), "x i32"),
    "add vectors": (lambda a: ops.add(a.f32(8), a.f32(8)), "x f32.* 2 dimensions"),
    "silu_mul": (lambda a: ops.silu_mul(a.f32(2, 8), a.other(2, 8, kind=np.float16)), "up?.*f16|y f16"),
    "rms_norm x": (lambda a: ops.rms_norm(a.other(1, 64, kind=np.float16), a.f32(64), eps=1e-5), "x f16"),
    "rms_norm of heads": (lambda a: ops.rms_norm(a.f32(1, 64), a.f32(3, 16), eps=1e-5), "must have a row for each"),
    "rms_norm weight": (lambda a: ops.rms_norm(a.f32(1, 64), a.other(64), eps=1e-5), "weight i32"),
    "add_rms_norm": (lambda a: ops.add_rms_norm(a.f32(1, 8), a.other(1, 8), a.f32(8), eps=1e-5), "residual i32"),
    "rope x": (
        lambda a: ops.rope(a.other(1, 8), a.i32(0), a.table, head_dim=8, style="half"),
        "x i32",
    ),
    "rope positions": (
        lambda a: ops.rope(a.f32(1, 8), a.other(1, kind=np.int64), a.table, head_dim=8, style="half"),
        "positions i64",
    ),
    "rope streams": (
        lambda a: ops.rope(a.f32(1, 8), a.i32(0), a.table, head_dim=8, style="half", streams=(0, 0, 1, 1)),
        "positions i32.* 2 dimensions",
    ),
    "rope table": (
        lambda a: ops.rope(a.f32(1, 8), a.i32(0), a.other(9, 8, kind=np.float16), head_dim=8, style="half"),
        "table f16",
    ),
    "store_kv rows": (lambda a: ops.store_kv(a.other(1, 8), a.other(1, 8), a.cache, a.i32(0)), "k i32"),
    "store_kv slots": (lambda a: ops.store_kv(a.f32(1, 8), a.f32(1, 8), a.cache, a.f32(1)), "slots f32"),
    "store_kv cache": (lambda a: ops.store_kv(a.f32(1, 8), a.f32(1, 8), a.table, a.i32(0)), "cache f32"),
    "add_lora": (lambda a: a.added(0, y=a.other(1, 16)), "y i32"),
    "add_lora rows": (lambda a: a.added(0, y=a.f32(2, 16)), "one row for each token"),
    "add_lora a": (lambda a: a.added(0, a=a.other(2, 8, kind=np.float16)), r"a\[0\] f16"),
    "add_lora columns of a": (lambda a: a.added(0, a=(2, 9)), r"a\[0\] .* as many columns as x"),
    "add_lora b": (lambda a: a.added(0, b=(3, 16)), r"b\[0\] .* must be \[2, 16\]"),
    "add_lora half": (lambda a: a.added(0, b=None), "only one of its two"),
    "add_lora rank": (lambda a: a.added(0, a=(1025, 8), b=(1025, 16)), "rank 1025: it must be 1 to 1024"),
    "add_lora one stacked": (
        lambda a: ops.add_lora(a.f32(1, 16), a.f32(1, 8), a.i32(0), a.f32(2, 4, 8), (a.f32(4, 16),)),
        "both be tuples, or both one tensor",
    ),
    "add_lora columns of stacked a": (
        lambda a: ops.add_lora(a.f32(1, 16), a.f32(1, 8), a.i32(0), a.f32(2, 4, 9), a.f32(2, 4, 16)),
        "a .* as many columns as x",
    ),
    "add_lora slots of stacked b": (
        lambda a: ops.add_lora(a.f32(1, 16), a.f32(1, 8), a.i32(0), a.f32(2, 4, 8), a.f32(3, 4, 16)),
        r"b .* must be \[2, 4, 16\]",
    ),
    "attention": (
        lambda a: ops.attention(a.f32(1, 8), a.cache, a.i32(0, 1), a.f32(1), a.i32((0,)), scale=1.0),
        "lengths f32",
    ),
    "attention tables": (
        lambda a: ops.attention(a.f32(1, 8), a.cache, a.i32(0, 1), a.i32(1), a.i32((0,), (0,)), scale=1.0),
        "pages i32.* one row an element of lengths",
    ),
    "attention sinks": (
        lambda a: ops.attention(a.f32(1, 8), a.cache, a.i32(0, 1), a.i32(1), a.i32((0,)), a.i32(1), scale=1.0),
        "sinks i32",
    ),
    "attention slopes": (
        lambda a: ops.attention(a.f32(1, 8), a.cache, a.i32(0, 1), a.i32(1), a.i32((0,)), None, a.i32(1), scale=1.0),
        "slopes i32",
    ),
    "embedding ids": (lambda a: ops.embedding(a.f32(2), a.weight), "ids f32"),
    "embedding table": (lambda a: ops.embedding(a.i32(0), a.f32(4, 8)), "table f32.* not of a number format"),
    "select_rows": (lambda a: ops.select_rows(a.other(2, 8), a.i32(0)), "x i32"),
    "select_rows rows": (lambda a: ops.select_rows(a.f32(2, 8), a.f32(1)), "rows f32"),
    "join_columns": (lambda a: ops.join_columns(a.f32(2, 8), a.other(2, 8)), "y i32"),
    "join_columns rows": (lambda a: ops.join_columns(a.f32(2, 8), a.f32(1, 8)), "must have as many rows"),
    "gated_lru": (lambda a: a.gated_lru(a.other(3, 8)), "x i32"),
    "gated_lru gates": (lambda a: a.gated_lru(a.f32(3, 8), input_gate=a.f32(3, 4)), "input_gate f32.* must be like x"),
    "join_slots": (lambda a: ops.join_slots(a.other(2, 2, 4), a.i32(0)), "y i32"),
    "join_slots rank": (lambda a: ops.join_slots(a.f32(2, 4), a.i32(0)), "must have a row for each expert"),
    "cut_slots": (lambda a: ops.cut_slots(a.other(2, 8), a.i32(0, 1), k=2), "x i32"),
    "cut_slots rows": (lambda a: ops.cut_slots(a.f32(2, 8), a.i32(0, 1, 2), k=2), "must be a multiple of 2 experts"),
    "select_columns": (lambda a: ops.select_columns(a.other(2, 8), a.i32(0)), "x i32"),
    "select_columns columns": (lambda a: ops.select_columns(a.f32(2, 8), a.f32(1)), "columns f32"),
    "argmax": (lambda a: ops.argmax(a.other(2, 8)), "logits i32"),
    "argmax of a vector": (lambda a: ops.argmax(a.f32(8)), "logits f32.* 2 dimensions"),
    "top_k": (lambda a: ops.top_k(a.other(2, 8), k=1), "logits i32"),
    "quantize_blocks": (lambda a: ops.quantize_blocks(a.other(2, 32), format="Q8_0"), "values i32"),
    "quantize_blocks of part": (lambda a: ops.quantize_blocks(a.f32(2, 33), format="Q8_0"), "whole blocks of 32"),
    "quantize_blocks importance": (
        lambda a: ops.quantize_blocks(a.f32(2, 32), a.f32(31), format="Q4_0"),
        "importance f32.* each of 32 columns",
    ),
    "quantize_blocks format": (
        lambda a: ops.quantize_blocks(a.f32(2, 32), format="Q9"),
        "format 'Q9' is not supported",
    ),
    "quantize_blocks read": (lambda a: ops.quantize_blocks(a.f32(2, 256), format="IQ2_S"), "IQ2_S is only read"),
    "dequantize_blocks": (lambda a: ops.dequantize_blocks(a.f32(2, 34), format="Q8_0"), "blocks f32"),
    "dequantize_blocks of part": (
        lambda a: ops.dequantize_blocks(a.other(2, 33, kind=np.uint8), format="Q8_0"),
        "whole blocks of 34 bytes",
    ),
    "count_nonfinite": (lambda a: ops.count_nonfinite(a.other(2, 8)), "values i32"),
    "quantize_rows": (lambda a: ops.quantize_rows(a.other(2, 32)), "x i32"),
    "quantized twice": (lambda a: ops.quantize_rows(ops.quantize_rows(a.f32(2, 32))), "x int8/32"),
    "linear x": (lambda a: ops.linear(a.other(2, 32), a.weight), "x i32"),
    "linear bias": (lambda a: ops.linear(a.f32(2, 32), a.weight, a.other(16)), "bias i32"),
    "linear weight": (lambda a: ops.linear(a.f32(2, 32), a.f32(16, 32)), "weight f32.* not of a number format"),
    "int8 rows added": (lambda a: ops.add(ops.quantize_rows(a.f32(2, 32)), a.f32(2, 32)), "x int8/32"),
    "int8 rows attend": (lambda a: ops.argmax(ops.quantize_rows(a.f32(2, 32))), "logits int8/32"),
    "route": (lambda a: ops.route(a.other(2, 8), k=2), "logits i32"),
    "route bias": (lambda a: ops.route(a.f32(2, 8), a.other(8), k=2), "selection_bias i32"),
    "split_zero_experts": (lambda a: ops.split_zero_experts(a.other(1, 2), a.i32((0, 1)), experts=1), "weights i32"),
    "split_zero_experts ids": (
        lambda a: ops.split_zero_experts(a.f32(1, 3), a.i32((0, 1)), experts=1),
        "must be of one shape",
    ),
    "split_zero_experts experts": (
        lambda a: ops.split_zero_experts(a.f32(1, 2), a.i32((0, 1)), experts=0),
        "experts 0 must be 1",
    ),
    "linear_experts x": (lambda a: ops.linear_experts(a.other(1, 32), a.experts, a.i32((0, 1))), "x i32"),
    "linear_experts ids": (lambda a: ops.linear_experts(a.f32(1, 32), a.experts, a.f32(1, 2)), "ids f32"),
    "linear_experts weight": (
        lambda a: ops.linear_experts(a.f32(1, 32), a.f32(2, 8, 32), a.i32((0, 1))),
        "weight f32.* not of a number format",
    ),
    "linear_experts bias": (
        lambda a: ops.linear_experts(a.f32(1, 32), a.experts, a.i32((0, 1)), a.other(2, 8)),
        "bias i32",
    ),
    "combine_experts": (lambda a: ops.combine_experts(a.other(1, 2, 8), a.f32(1, 2)), "y i32"),
    "combine_experts weights": (lambda a: ops.combine_experts(a.f32(1, 2, 8), a.other(1, 2)), "weights i32"),
    "clamped_swiglu": (lambda a: ops.clamped_swiglu(a.f32(1, 8), a.other(1, 8), alpha=1.0, limit=1.0), "y i32"),
    "activate": (lambda a: ops.activate(a.other(1, 8), kind="silu"), "x i32"),
    "activate_mul": (lambda a: ops.activate_mul(a.other(1, 8), a.f32(1, 8), kind="silu"), "x i32"),
    "scale": (lambda a: ops.scale(a.other(1, 8), factor=2.0), "x i32"),
    "scale_by": (lambda a: ops.scale_by(a.f32(1, 8), a.f32(2)), "must be one number"),
    "xielu": (lambda a: ops.xielu(a.f32(1, 8), *[a.f32(2)] * 3, a.f32(2, 2), layer=0), "must have one number a layer"),
    "xielu layer": (lambda a: ops.xielu(a.f32(1, 8), *[a.f32(2)] * 4, layer=2), "layer 2 must be one of those"),
    "softcap": (lambda a: ops.softcap(a.other(1, 8), cap=2.0), "x i32"),
    "spread_streams": (lambda a: ops.spread_streams(a.f32(2, 8), (a.f32(2, 8), a.f32(1, 8))), r"others\[1\] f32"),
    "merge_streams": (lambda a: ops.merge_streams(a.other(2, 8), (a.f32(2, 8),)), "x i32"),
    "stream": (lambda a: ops.stream(a.f32(2, 3, 8), index=3), "index 3 must be one of 3 streams"),
    "altup_predict": (lambda a: ops.altup_predict(a.f32(2, 3, 8), a.f32(2, 3)), "coefs f32.* must have 9 columns"),
    "altup_first": (
        lambda a: ops.altup_first(a.f32(2, 3, 8), a.f32(2, 8), a.f32(2, 3), a.f32(3)),
        "scale f32.* must have one element a column",
    ),
    "altup_correct": (
        lambda a: ops.altup_correct(a.f32(2, 3, 8), a.f32(2, 8), a.f32(2, 3), a.f32(1, 8)),
        "added f32.* must have 8 columns",
    ),
    "gaussian_topk": (lambda a: ops.gaussian_topk(a.f32(2, 8), factor=np.inf), "factor inf must be finite"),
    "clip": (lambda a: ops.clip(a.other(1, 8), limit=2.0), "x i32"),
    "norms of heads": (lambda a: ops.layer_norm(a.f32(1, 8), a.f32(3, 2), eps=1e-5), "must have a row for each head"),
    "layer_norm": (lambda a: ops.layer_norm(a.other(1, 8), a.f32(8), eps=1e-5), "x i32"),
    "add_layer_norm": (lambda a: ops.add_layer_norm(a.f32(1, 8), a.other(1, 8), a.f32(8), eps=1e-5), "residual i32"),
    "disentangled_attention": (lambda a: a.apart(v=a.f32(3, 4)), "must have one shape"),
    "disentangled_attention heads": (lambda a: a.apart(head_dim=6), "must be whole heads of 6"),
    "disentangled_attention odd": (lambda a: a.apart(head_dim=1), "head_dim 1 must be even"),
    "disentangled_attention columns": (lambda a: a.apart(row_scores=a.f32(3, 4)), "must be \\[3, 8\\]"),
    "disentangled_attention buckets": (lambda a: a.apart(buckets=1), "buckets 1 must be 2 to"),
    "disentangled_attention farthest": (lambda a: a.apart(max_distance=2), "max_distance 2 must be more than 2"),
    "encoder_attention": (lambda a: a.read(q=a.other(3, 8)), "q i32"),
    "encoder_attention starts": (lambda a: a.read(starts=a.f32(3)), "starts f32"),
    "encoder_attention rows": (lambda a: a.read(q=a.f32(2, 8)), "must have the rows of q"),
    "encoder_attention groups": (lambda a: a.read(q=a.f32(3, 12)), "must be whole groups of k"),
    "encoder_attention heads": (lambda a: a.read(head_dim=6), "must be whole heads of 6"),
    "encoder_attention slopes": (
        lambda a: ops.encoder_attention(*[a.f32(3, 8)] * 3, a.i32(0, 3), a.f32(3), head_dim=4, scale=1.0),
        "must have one element a head: 2",
    ),
    "store_latent table": (
        lambda a: ops.store_latent(
            a.f32(1, 8), a.f32(4), None, a.f32(10, 4), a.latent, a.i32(0), eps=1e-5, style="half"
        ),
        "positions and table must be given together",
    ),
    "encoder_attention biases": (
        lambda a: ops.encoder_attention(*[a.f32(3, 8)] * 3, a.i32(0, 3), None, a.f32(3, 128), head_dim=4, scale=1.0),
        "must have one row a head: 2",
    ),
    "encoder_attention longer than biases": (
        lambda a: ops.encoder_attention(*[a.f32(65, 8)] * 3, a.i32(0, 65), None, a.f32(2, 128), head_dim=4, scale=1.0),
        "a text has 65 rows; biases are for 64",
    ),
    "encoder_attention pages of biases": (
        lambda a: ops.encoder_attention(*[a.f32(3, 8)] * 3, a.i32(0, 3), None, a.f32(2, 6), head_dim=4, scale=1.0),
        "must have whole pages of 64 on both sides",
    ),
    "encoder_attention reach": (lambda a: a.read(half_window=-1), "half_window -1 must not be negative"),
    "cross_attention": (lambda a: a.cross_attention((0, 3), q=a.other(1, 8)), "q i32"),
    "cross_attention values": (lambda a: a.cross_attention((0, 3), v=a.f32(3, 8)), "must have one shape"),
    "cross_attention heads": (lambda a: a.cross_attention((0, 3), head_dim=3), "must be whole heads of 3"),
    "cross_attention groups": (lambda a: a.cross_attention((0, 3), q=a.f32(1, 12)), "must be whole groups of k"),
    "cross_attention spans": (
        lambda a: a.cross_attention((0, 3), q=a.f32(2, 8)),
        "must have a row of two for each of q",
    ),
    "cross_attention scale": (lambda a: a.cross_attention((0, 3), scale=np.inf), "scale inf must be finite"),
    "replace_rows": (lambda a: ops.replace_rows(a.other(2, 8), a.table, a.i32(0, 1)), "x i32"),
    "replace_rows rows": (lambda a: ops.replace_rows(a.f32(2, 8), a.table, a.i32(0)), "one element for each row of x"),
    "replace_rows columns": (
        lambda a: ops.replace_rows(a.f32(2, 8), a.table, a.i32(0, 1), first=1),
        "must have the columns of x .* from 1 on",
    ),
    "add_rows": (lambda a: ops.add_rows(a.f32(2, 8), a.other(10, 8), a.i32(0, 1)), "values i32"),
    "add_rows first": (lambda a: ops.add_rows(a.f32(2, 8), a.table, a.i32(0, 1), first=-1), "must not be negative"),
    "mean_rows": (lambda a: ops.mean_rows(a.other(3, 8), a.i32(0), a.i32(2)), "x i32"),
    "mean_rows stops": (lambda a: ops.mean_rows(a.f32(3, 8), a.i32(0, 1), a.i32(2)), "must have one shape"),
    "causal_conv1d": (lambda a: a.convolved(a.other(3, 8)), "x i32"),
    "causal_conv1d weight": (
        lambda a: a.convolved(a.f32(3, 8), weight=a.f32(3, 4)),
        "must have a column for each of x",
    ),
    "causal_conv1d state": (lambda a: a.convolved(a.f32(3, 8), state=a.other(2, 2, 8)), "state i32"),
    "gated_delta_rule": (lambda a: a.ruled(a.other(3, 12)), "x i32"),
    "gated_delta_rule beta": (lambda a: a.ruled(a.f32(3, 12), beta=a.f32(3, 2)), "beta f32.* must be"),
    "lightning_attention": (lambda a: a.faded(a.other(3, 12)), "x i32"),
    "lightning_attention decay": (lambda a: a.faded(a.f32(3, 12), a.other(2)), "decay i32"),
    "selective_scan": (lambda a: a.selected(a.other(3, 8)), "x i32"),
    "selective_scan c": (lambda a: a.selected(a.f32(3, 8), c=a.f32(3, 1)), "c f32.* must be"),
    "wkv7": (lambda a: a.generalized(a.other(3, 8)), "x i32"),
    "wkv7 bonus": (lambda a: a.generalized(a.f32(3, 8), a.f32(3, 4)), "r f32.* must have 4 columns for each of 3"),
    "wkv6": (lambda a: a.faded_by_row(a.other(3, 8)), "x i32"),
    "wkv6 keys": (lambda a: a.faded_by_row(a.f32(3, 8), a.f32(3, 4)), "k f32.* must be like r"),
    "gated_linear_attention": (lambda a: a.gated_linear(a.other(3, 8)), "x i32"),
    "gated_linear_attention keys": (lambda a: a.gated_linear(a.f32(3, 8), a.f32(3, 8)), "k f32.* must be 1 heads of 4"),
    "mix_rows": (lambda a: ops.mix_rows(a.other(3, 8), a.f32(3, 8), (a.f32(8),)), "x i32"),
    "mix_rows delta": (lambda a: ops.mix_rows(a.f32(3, 8), a.f32(2, 8), (a.f32(8),)), "shapes must be equal"),
    "mix_rows vectors": (lambda a: ops.mix_rows(a.f32(3, 8), a.f32(3, 8), (a.f32(7),)), "a number a column"),
    "mix_rows none": (lambda a: ops.mix_rows(a.f32(3, 8), a.f32(3, 8), ()), "one vector or more"),
    "mix_rows more": (
        lambda a: ops.mix_rows(a.f32(3, 8), a.f32(3, 8), (a.f32(8),), (a.f32(2, 8),)),
        "more f32.* must be like x",
    ),
    "blend": (lambda a: ops.blend(a.other(3, 8), a.f32(3, 8), a.f32(3, 8)), "x i32"),
    "blend gate": (lambda a: ops.blend(a.f32(3, 8), a.f32(3, 8), a.f32(3, 7)), "gate f32.* must be like x"),
    "group_norm": (lambda a: ops.group_norm(a.other(3, 8), a.f32(8), a.f32(8), group=4, eps=1e-5), "x i32"),
    "group_norm groups": (
        lambda a: ops.group_norm(a.f32(3, 8), a.f32(8), a.f32(8), group=3, eps=1e-5),
        "must be whole groups of 3",
    ),
    "ssm_scan": (lambda a: a.scanned(a.other(3, 12)), "x i32"),
    "ssm_scan dt": (lambda a: a.scanned(a.f32(3, 12), dt=a.f32(2, 1)), "dt f32.* must be"),
    "gated_rms_norm": (lambda a: ops.gated_rms_norm(a.other(3, 8), a.f32(3, 8), a.f32(8), **GATED), "x i32"),
    "gated_rms_norm gate": (lambda a: ops.gated_rms_norm(a.f32(3, 8), a.other(3, 8), a.f32(8), **GATED), "gate i32"),
    "linear_heads": (lambda a: ops.linear_heads(a.other(1, 64), a.experts), "x i32"),
    "store_latent": (lambda a: a.store_latent(a.other(1, 8)), "x i32"),
    "store_latent weight": (lambda a: a.store_latent(a.f32(1, 8), weight=a.f32(8)), "must have fewer elements"),
    "latent_attention": (lambda a: a.looked(a.other(1, 4), a.f32(1, 4)), "latent i32"),
    "latent_attention rows": (lambda a: a.looked(a.f32(1, 4), a.f32(2, 4)), "must have as many rows"),
    "store_rows": (lambda a: ops.store_rows(a.other(1, 8), a.latent, a.i32(0)), "x i32"),
    "store_rows width": (lambda a: ops.store_rows(a.f32(1, 4), a.latent, a.i32(0)), "must be as wide as"),
    "topk_indexer": (lambda a: a.indexed(a.other(1, 16), a.f32(1, 2)), "q i32"),
    "topk_indexer heads": (lambda a: a.indexed(a.f32(1, 16), a.f32(1, 3)), "must be 3 heads of 8"),
    "sparse_mla": (lambda a: a.sparse_mla(a.other(1, 4), 0), "latent i32"),
    "sparse_mla rows": (lambda a: a.sparse_mla(a.f32(2, 4), 0), "must have as many rows"),
    "edit_logits": (lambda a: ops.edit_logits(a.other(2, 40), a.other(1, 2), a.f32(1, 3)), "logits i32"),
    "edit_logits columns": (lambda a: ops.edit_logits(a.f32(2, 40), a.other(1, 3), a.f32(1, 3)), "two columns"),
    "mask_logits": (lambda a: ops.mask_logits(a.f32(2, 40), a.i32(0), a.f32(1, 2)), "words f32"),
    "mask_logits words": (lambda a: ops.mask_logits(a.f32(2, 40), a.i32(0), a.other(1, 1)), "32 tokens"),
    "draw_tokens": (lambda a: ops.draw_tokens(a.other(2, 40), a.f32(2, 5), k=4, whole=True), "logits i32"),
    "draw_tokens k": (lambda a: ops.draw_tokens(a.f32(2, 40), a.f32(2, 5), k=41, whole=True), "k 41 must lie"),
    "choose_allowed": (
        lambda a: ops.choose_allowed(a.f32(2, 2), a.other(1, 2), a.other(1, 2), a.other(1, 2)),
        "first f32",
    ),
    "place_tokens": (lambda a: ops.place_tokens(a.f32(2), a.other(2, 2)), "greedy f32"),
    "take_sampled": (lambda a: ops.take_sampled(a.i32(1, 2), a.f32(2), a.i32(3)), "sources f32"),
    "take_sampled sources": (lambda a: ops.take_sampled(a.i32(1, 2), a.i32(0), a.i32(3)), "one element for each"),
    "token_logprobs": (lambda a: ops.token_logprobs(a.f32(2, 40), a.f32(2), a.i32(0), k=2), "tokens f32"),
    "no weights": (lambda a: ops.linear_group(a.f32(2, 32), ()), "at least one weight"),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_element_type_or_rank_is_refused(arguments: Arguments, case: str) -> None:
    use, message = WRONG[case]
    with pytest.raises(OpError, match=message) as caught:
        use(arguments)
    assert "\n" not in str(caught.value)


def test_every_op_refuses_other_elements() -> None:
    tried = {name.split()[0] for name in WRONG} | {"linear_group", "linear_silu_mul", "rope_store"}
    tried |= {"linear_activate_mul", "linear_experts_silu_mul"}  # these by their parts
    assert ops.ALL.keys() <= tried


def test_weights_of_one_product_share_their_format(arguments: Arguments) -> None:
    matrix = np.ones((16, 32), np.float32)
    other = arguments.backend.pack(
        StoredTensor("w", FORMATS["F32"], matrix.shape, quantize_tensor(FORMATS["F32"], matrix))
    )
    for use in (
        lambda: ops.linear_group(arguments.f32(2, 32), (arguments.weight, other)),
        lambda: ops.linear_silu_mul(arguments.f32(2, 32), arguments.weight, other),
    ):
        with pytest.raises(OpError, match="one number format, not of F32 and Q8_0"):
            use()


def test_ids_outside_the_table_give_nan(arguments: Arguments) -> None:
    found = ops.embedding(arguments.i32(0, 16, -1, 15), arguments.weight).numpy()
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]
