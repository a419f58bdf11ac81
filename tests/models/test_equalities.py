"""A model's results do not depend on how it is run: eager or planned, whole or in chunks, alone or in a batch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import ORDER_BY_ROWS, open_available
from close import assert_close, assert_near_in_nat
from sporelm.quant import BF16, F16, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, QuantFormat
from stepping import Stepper
from tiny_files import gguf_weights, write_gguf
from tiny_models import SUPER, TINY, WIDE, Tiny


@dataclass(frozen=True)
class Mix:
    """Two formats in one file, as Q4_K_M and its like mix them: values and output are in the finer one."""

    main: type[QuantFormat]
    finer: type[QuantFormat]

    @property
    def name(self) -> str:
        return f"{self.main.name}-{self.finer.name}"

    @property
    def activation(self) -> str:
        return self.main.activation

    def others(self, names: Iterable[str]) -> dict[str, type[QuantFormat]]:
        return {name: self.finer for name in names if "attn_v" in name or name == "output.weight"}


FILES = [(WIDE, form) for form in (F16, BF16, Q8_0, Q4_1)] + [(SUPER, Mix(Q4_K, Q6_K))]
MORE = [(WIDE, form) for form in (Q4_0, Q5_0, Q5_1)] + [
    (SUPER, mix) for mix in (Mix(Q4_K, Q4_K), Mix(Q5_K, Q6_K), Mix(Q6_K, Q8_0), Mix(Q4_0, Q6_K), Mix(Q5_K, Q5_1))
]
MODELS = [
    *(pytest.param((tiny, None), id=tiny.name) for tiny in TINY),
    *(pytest.param((tiny, form), id=f"{tiny.name}-{form.name}") for tiny, form in FILES),
    *(pytest.param((tiny, form), id=f"{tiny.name}-{form.name}", marks=pytest.mark.all) for tiny, form in MORE),
]
every_model = pytest.mark.parametrize("tiny_model", MODELS, indirect=True)


@pytest.fixture
def tiny_model(
    request: pytest.FixtureRequest, tmp_path: Path, folder_of: Callable[[Tiny], Path]
) -> tuple[Tiny, type[QuantFormat] | Mix | None, Path]:
    """A tiny model, the number formats of its matrices if it is a GGUF file, and its path."""
    tiny, form = request.param
    if form is None:
        return tiny, form, folder_of(tiny)
    main = form.main if isinstance(form, Mix) else form
    others = form.others(gguf_weights(tiny)) if isinstance(form, Mix) else {}
    return tiny, form, write_gguf(tmp_path / "tiny.gguf", tiny, matrices=main, others=others)


def assert_same(
    found: np.ndarray, expected: np.ndarray, backend: Any, number_format: type[QuantFormat] | Mix | None
) -> None:
    """Logits of the same rows beside others: bit for bit where the back-end's products sum in one order.

    Where they do not, as close as sums in float32 are; if activations are rounded to int8 some of them then fall the
    other way, so the distributions are compared.
    """
    if backend.name not in ORDER_BY_ROWS:
        assert_close(found, expected, "exact")
    elif number_format is None or number_format.activation == "float":
        assert_close(found, expected, "f32")
    else:
        assert_near_in_nat(found, expected, 1e-3)


@every_model
def test_eager_is_planned(tiny_model: Any, backend: Any, load: Callable[..., Stepper]) -> None:
    """In every step bucket: one token, a few, many. Plans of torch join products of one x, which changes last bits."""
    tiny, number_format, path = tiny_model
    runners = [load(path, backend, context=192, eager=eager, sequences=2) for eager in (True, False)]
    ids = tiny.ids()
    steps = [[(0, ids[:40])], [(0, ids[40:41])], [(1, ids[:3]), (0, ids[41:43])], [(1, ids[3:4]), (0, ids[43:44])]]
    for parts in steps:
        eager, planned = (runner.step(parts) for runner in runners)
        assert_same(planned["logits"], eager["logits"], backend, number_format)
        if backend.name not in ORDER_BY_ROWS:
            assert_close(planned["tokens"], eager["tokens"], "exact")


@pytest.mark.parametrize("chunk", [1, 7, 64])
@every_model
def test_whole_is_chunks(tiny_model: Any, chunk: int, backend: Any, load: Callable[..., Stepper]) -> None:
    tiny, number_format, path = tiny_model
    whole = load(path, backend, context=192, eager=False).logits(tiny.ids())
    parts = load(path, backend, context=192, eager=False).logits(tiny.ids(), chunk=chunk)
    assert_same(parts, whole, backend, number_format)


@every_model
def test_alone_is_in_a_batch(tiny_model: Any, backend: Any, load: Callable[..., Stepper]) -> None:
    """Two sequences in one step, after a step of three, against each by itself."""
    tiny, number_format, path = tiny_model
    ids = tiny.ids()
    first, second = {0: ids[:5], 1: ids[5:30], 2: ids[30:31]}, {1: ids[30:32], 2: ids[31:33]}
    batch = load(path, backend, context=192, sequences=3, eager=False)
    batch.step(list(first.items()))
    together = batch.step(list(second.items()))["logits"]
    for sequence, rows in ((1, together[:2]), (2, together[2:])):
        alone = load(path, backend, context=192, eager=False)
        alone.step([(0, first[sequence])])
        assert_same(rows, alone.step([(0, second[sequence])])["logits"], backend, number_format)


def test_rows_are_the_rows_asked_for(
    backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    every = load(folder_of(TINY[0]), backend, context=192, eager=False).logits(TINY[0].ids()[:9])
    picked = load(folder_of(TINY[0]), backend, context=192, eager=False).step([(0, TINY[0].ids()[:9])], rows=[8, 2])
    assert_same(picked["logits"], every[[8, 2]], backend, None)
    assert picked["tokens"].tolist() == np.argmax(every[[8, 2]], axis=1).tolist()


@pytest.mark.parametrize("length", [1, 9, 40])
def test_a_chunk_may_want_no_row(
    length: int, backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    """Chunks of a prompt before its last: nothing comes out, and the caches are as after any other step."""
    ids, results = TINY[0].ids(), []
    for rows in ([], None):
        runner = load(folder_of(TINY[0]), backend, context=192, eager=False)
        first = runner.step([(0, ids[:length])], rows=rows)
        results.append(runner.step([(0, ids[length : length + 1])])["logits"])
        if rows is not None:
            assert first["logits"].shape == (0, TINY[0].config["vocab_size"])
            assert first["tokens"].shape == (0,)
    assert_close(results[0], results[1], "exact")


def test_one_trace_serves_every_length(
    backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's code runs once; there are at most as many programs as step buckets."""
    runner = load(folder_of(TINY[0]), backend, context=192, eager=False)
    assert runner.plan is not None

    def traced_again(*_: Any) -> None:
        raise AssertionError("the model was traced a second time")

    monkeypatch.setattr(type(runner.model), "forward", traced_again)
    ids = TINY[0].ids()
    for length in (1, 2, 3, 5, 8, 13, 1, 21):
        runner.step([(0, ids[:length])])
    made = dict(runner.plan.bucket_programs)
    assert 1 <= runner.plan.num_programs <= len(backend.step_buckets)
    runner.step([(0, ids[:4])])
    runner.step([(0, ids[:1])])
    assert runner.plan.bucket_programs == made


@every_model
def test_one_thread_is_two(tiny_model: Any, load: Callable[..., Stepper]) -> None:
    tiny, _, path = tiny_model
    results = []
    for threads in (1, 2):
        backend = open_available("cpu", threads=threads)
        runner = load(path, backend, context=192, sequences=2, eager=False)
        runner.step([(0, tiny.ids()[:60])])
        results.append(runner.step([(0, tiny.ids()[60:70]), (1, tiny.ids()[:1])])["logits"])
        runner.close()
        backend.close()
    assert_close(results[1], results[0], "exact")
