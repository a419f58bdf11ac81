"""Torch as a back-end: types of activations and pages, packed weights, invariant products, and copies to the host."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from available import open_available
from sporelm import ops
from sporelm.backends.backend_registry import open_backend
from sporelm.backends.stacked_experts import stack_experts
from sporelm.errors import BackendError
from sporelm.ops import Spec, Symbol, trace
from sporelm.ops.canonical_pages import KV_TYPES, read_canonical, to_canonical
from sporelm.ops.number_types import NumberTypes
from sporelm.plan import Plan
from sporelm.quant import FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import BF16, F16, F32

PACKED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "Q2_K", "Q4_K", "Q5_K", "Q6_K")
RANDOM = np.random.default_rng(11)


@pytest.fixture
def open_torch() -> Iterator[Any]:
    """Return a function that opens torch with options, and closes it at the end."""
    backends: list[Any] = []

    def open_one(**options: Any) -> Any:
        backends.append(open_available("torch", **options))
        return backends[-1]

    yield open_one
    for backend in backends:
        backend.close()


def stored(format_name: str, *shape: int, seed: int = 0) -> StoredTensor:
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    form = FORMATS[format_name]
    return StoredTensor("weight", form, shape, quantize_tensor(form, values))


def test_an_unknown_option_is_reported_in_one_line() -> None:
    open_available("torch").close()
    with pytest.raises(BackendError, match=r"dtype: .* \(got 'f64'; allowed auto, f32, f16, bf16\)"):
        open_backend("torch", dtype="f64")
    with pytest.raises(BackendError, match=r"weights: .* \(got 'tiny'; allowed auto, packed, dense\)"):
        open_backend("torch", weights="tiny")


def test_number_types_are_declared_per_op(open_torch: Any) -> None:
    backend = open_torch(dtype="bf16")
    assert backend.number_types(ops.linear) == NumberTypes(BF16, F32)
    assert backend.number_types(ops.route) == NumberTypes(F32, F32)
    assert open_torch().number_types(ops.linear) == NumberTypes(F32, F32)
    assert backend.probe().details["dtype"] == "bf16"


@pytest.mark.parametrize(("dtype", "number_type"), [("bf16", BF16), ("f16", F16)])
def test_results_are_of_the_declared_type(open_torch: Any, dtype: str, number_type: Any) -> None:
    backend, expected = open_torch(dtype=dtype), open_torch()
    x = number_type.to_f32(number_type.from_f32(RANDOM.standard_normal((5, 64), np.float32)))
    weight, norm = stored("BF16", 32, 64), np.ones(64, np.float32)
    for run in (
        lambda on: ops.linear(on.tensor(x), on.pack(weight)),
        lambda on: ops.rms_norm(on.tensor(x), on.tensor(norm), eps=1e-5),
        lambda on: ops.softcap(on.tensor(x), cap=3.0),
        lambda on: ops.add(on.tensor(x), on.tensor(x)),
    ):
        found, exact = (run(on).numpy() for on in (backend, expected))
        assert np.array_equal(found, number_type.to_f32(number_type.from_f32(found))), "the type has more numbers"
        tolerance = backend.number_types(ops.linear).tolerance
        assert np.abs(found - exact).max() <= tolerance * np.abs(exact).max()


def test_outputs_of_programs_are_float32_on_the_device(open_torch: Any) -> None:
    backend = open_torch(dtype="bf16")
    plan = Plan(trace(lambda x: {"y": ops.add(x, x)}, {"x": Spec((Symbol("tokens", 4), 8), F32)}), backend)
    first = plan.launch({"x": np.full((2, 8), 1.5, np.float32)}, {"tokens": 2})["y"]
    assert str(first.dtype) == "torch.float32"
    second = plan.launch({"x": first}, {"tokens": 2})["y"]  # a handle as input
    assert (backend.fetch(second) == 6).all()
    assert (backend.fetch(first) == 3).all(), "a later run leaves it"
    plan.close()


def test_rows_and_copies_of_outputs_reach_the_host(open_torch: Any) -> None:
    backend = open_torch()
    handle = backend.tensor(np.arange(12, dtype=np.float32).reshape(4, 3)).storage
    assert np.array_equal(backend.fetch_rows(handle, [2, 0]), [[6, 7, 8], [0, 1, 2]])
    begun = backend.start_fetch(handle)
    assert np.array_equal(begun.result(), backend.fetch(handle))


@pytest.mark.parametrize("format_name", PACKED)
def test_packed_weights_are_the_stored_numbers(open_torch: Any, format_name: str) -> None:
    weight = stored(format_name, 6, 256)
    packed = open_torch(weights="packed").pack(weight)
    assert packed.storage.values.dtype == open_torch().activation_type
    assert np.array_equal(packed.storage.values.numpy(), weight.dequantize())


@pytest.mark.parametrize("format_name", [*PACKED, "F32", "F16", "BF16", "Q3_K"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("weights", ["packed", "dense"])
def test_packed_bytes_are_those_of_the_device(open_torch: Any, format_name: str, dtype: str, weights: str) -> None:
    backend = open_torch(dtype=dtype, weights=weights)
    for weight in (stored(format_name, 6, 256), stack_experts([stored(format_name, 6, 256) for _ in range(3)])):
        held = backend.pack(weight).storage._stored
        parts = [held] if hasattr(held, "itemsize") else [part for part in held if part is not None]
        assert backend.packed_bytes(weight.format, weight.shape) == sum(part.nbytes for part in parts)


@pytest.mark.parametrize("format_name", ["Q8_0", "Q4_K", "BF16"])
def test_packed_and_dense_weights_give_the_same_numbers(
    open_torch: Any, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("sporelm.backends.torch.torch_weight.TILE_VALUES", 1000)  # tiles of three rows
    weight, x = stored(format_name, 70, 256), RANDOM.standard_normal((5, 256), np.float32)
    ids = np.array([0, 69, 3], np.int32)
    dense, packed = open_torch(), open_torch(weights="packed")
    for run in (
        lambda on: ops.linear(on.tensor(x), on.pack(weight)),
        lambda on: ops.embedding(on.tensor(ids), on.pack(weight)),
        lambda on: ops.linear_group(on.tensor(x), (on.pack(weight), on.pack(weight)))[1],
    ):
        found, expected = (run(on).numpy() for on in (packed, dense))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_joined_matrices_can_still_be_used_one_by_one(open_torch: Any) -> None:
    backend = open_torch()
    weights = [stored("F32", rows, 64, seed=rows) for rows in (8, 24, 16)]
    packed = tuple(backend.pack(weight) for weight in weights)
    x = backend.tensor(RANDOM.standard_normal((3, 64), np.float32))
    together = [result.numpy() for result in ops.linear_group(x, packed)]
    for weight, tensor, found in zip(weights, packed, together, strict=True):
        assert np.array_equal(tensor.storage.values.numpy(), weight.dequantize())
        np.testing.assert_allclose(ops.linear(x, tensor).numpy(), found, rtol=1e-5, atol=1e-5)
    again = [result.numpy() for result in ops.linear_group(x, packed)]
    assert all(np.array_equal(*pair) for pair in zip(together, again, strict=True))


@pytest.mark.parametrize("name", list(KV_TYPES))
def test_pages_hold_every_kv_type(open_torch: Any, name: str) -> None:
    dtype, backend = KV_TYPES[name], open_torch()
    cache = backend.allocate_pages(3, [(2, 32)], dtype)[0]
    k, v = (RANDOM.standard_normal((2, 64), np.float32) * 200 for _ in range(2))
    k[0, 0] = 1e6 if name != "f16" else 1
    slots = np.array([64, 130], np.int32)
    ops.store_kv(backend.tensor(k), backend.tensor(v), cache, backend.tensor(slots))
    values = np.zeros((3, 2, 2, 64, 32), np.float32)
    values[1, 0, :, 0], values[2, 0, :, 2] = k.reshape(2, 2, 32)
    values[1, 1, :, 0], values[2, 1, :, 2] = v.reshape(2, 2, 32)
    exported = backend.export_pages(cache, [0, 1, 2])
    expected = to_canonical(values, dtype)
    assert exported.dtype == expected.dtype
    assert np.array_equal(exported, expected)
    assert np.array_equal(backend.start_export_pages(cache, [2]).result(), expected[2:])
    backend.import_pages(cache, [0], expected[1:2])
    found = read_canonical(backend.export_pages(cache, [0]), dtype, 32)
    assert np.array_equal(found, read_canonical(expected[1:2], dtype, 32))
    backend.free_pages([cache])


@pytest.mark.parametrize("copies", [[], [(0, 1)], [(0, 2), (1, 3)], [(0, 1), (1, 2), (3, 0)], [(0, 3), (1, 3)]])
@pytest.mark.parametrize("name", ["f32", "fp8", "q8_0"])
def test_pages_are_copied_in_order(open_torch: Any, copies: list[tuple[int, int]], name: str) -> None:
    backend, dtype = open_torch(), KV_TYPES[name]
    caches = backend.allocate_pages(4, [(1, 32), (2, 32)], dtype)
    for cache in caches:
        values = to_canonical(RANDOM.standard_normal(cache.shape).astype(np.float32), dtype)
        backend.import_pages(cache, range(4), values)
    expected = [backend.export_pages(cache, range(4)) for cache in caches]
    for pages in expected:
        for source, target in copies:
            pages[target] = pages[source]
    backend.copy_pages(caches, copies)
    for cache, pages in zip(caches, expected, strict=True):
        assert np.array_equal(backend.export_pages(cache, range(4)), pages)
    backend.free_pages(caches)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("weights", ["packed", "dense"])
def test_invariant_products_do_not_depend_on_other_rows(open_torch: Any, dtype: str, weights: str) -> None:
    """Bit for bit: each row alone, in any company, and at any place in it."""
    backend = open_torch(dtype=dtype, weights=weights, batch_invariant=True, threads=2)
    x = RANDOM.standard_normal((130, 256), np.float32)
    for format_name in ("F32", "Q8_0"):
        weight = backend.pack(stored(format_name, 96, 256))
        whole = ops.linear(backend.tensor(x), weight).numpy()
        for rows in (slice(0, 1), slice(57, 58), slice(3, 20), slice(100, 130), slice(7, 71)):
            assert np.array_equal(ops.linear(backend.tensor(x[rows]), weight).numpy(), whole[rows])


@pytest.mark.parametrize("weights", ["packed", "dense"])
def test_invariant_products_of_experts_and_heads_do_not_depend_on_other_rows(open_torch: Any, weights: str) -> None:
    backend = open_torch(weights=weights, batch_invariant=True, threads=1)
    x, ids = RANDOM.standard_normal((40, 256), np.float32), RANDOM.integers(0, 8, (40, 2)).astype(np.int32)
    for format_name in ("F32", "Q8_0"):
        experts = backend.pack(stack_experts([stored(format_name, 96, 256, seed=each) for each in range(8)]))
        heads = backend.pack(stack_experts([stored(format_name, 32, 64, seed=each) for each in range(4)]))

        def multiply(rows: slice, experts: Any = experts, heads: Any = heads) -> tuple[np.ndarray, np.ndarray]:
            given = backend.tensor(x[rows])
            routed = ops.linear_experts(given, experts, backend.tensor(ids[rows]))
            return routed.numpy(), ops.linear_heads(given, heads).numpy()

        whole = multiply(slice(0, 40))
        for rows in (slice(0, 1), slice(5, 6), slice(5, 8), slice(7, 11), slice(20, 40)):
            for found, expected in zip(multiply(rows), whole, strict=True):
                assert np.array_equal(found, expected[rows])


def test_copies_of_experts_are_bounded(open_torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_torch(threads=1)
    from sporelm.backends.torch import linear_experts
    from sporelm.backends.torch.torch_weight import TorchWeight

    weight = backend.pack(stack_experts([stored("F32", 16, 32, seed=each) for each in range(8)]))
    x, ids = backend.tensor(RANDOM.standard_normal((7, 32), np.float32)), np.arange(7, dtype=np.int32)[:, None]
    expected, counts = ops.linear_experts(x, weight, backend.tensor(ids)).numpy(), []
    select = TorchWeight.select

    def count(self: Any, index: Any) -> Any:
        counts.append(len(index))
        return select(self, index)

    monkeypatch.setattr(TorchWeight, "select", count)
    monkeypatch.setattr(linear_experts, "MAX_COPIED", 3 * 16 * 32)
    assert np.allclose(ops.linear_experts(x, weight, backend.tensor(ids)).numpy(), expected, atol=1e-5)
    assert counts == [3, 3, 1]


def test_joined_weights_are_freed_with_the_last_of_them(open_torch: Any) -> None:
    backend = open_torch(threads=1)
    weights = [backend.pack(stored("F32", rows, 32, seed=rows)) for rows in (16, 8)]
    x = backend.tensor(RANDOM.standard_normal((3, 32), np.float32))
    separate = [ops.linear(x, backend.pack(stored("F32", rows, 32, seed=rows))).numpy() for rows in (16, 8)]
    gc.disable()
    try:
        for _ in range(2):
            for found, expected in zip(ops.linear_group(x, tuple(weights)), separate, strict=True):
                assert np.allclose(found.numpy(), expected, atol=1e-5)
        joined = weakref.ref(weights[0].storage._joined)
        assert np.allclose(ops.linear(x, weights[1]).numpy(), separate[1], atol=1e-5), "by itself"
        weights.clear()
        assert joined() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_plain_rows_and_each_layout_have_the_same_products(
    open_torch: Any, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    backend = open_torch(dtype=dtype, threads=1)
    from sporelm.backends.torch import packed_layout, torch_weight

    if not packed_layout.has_packed_layout(backend.activation_type):
        pytest.skip("torch has no packed layout for this type here")
    weight = stored("BF16", 48, 64)
    for rows in (1, 3, 4, 17):
        x = RANDOM.standard_normal((rows, 64), np.float32)
        expected = (
            BF16.to_f32(BF16.from_f32(x)) @ weight.dequantize().T if dtype == "bf16" else x @ weight.dequantize().T
        )
        for layout in (None, *packed_layout.LAYOUTS):
            monkeypatch.setattr(torch_weight, "choose_layout", lambda _, layout=layout: layout)
            packed = backend.pack(weight)
            for _ in range(2):  # the second time in the layout already
                found = ops.linear(backend.tensor(x), packed).numpy()
                tolerance = backend.number_types(ops.linear).tolerance
                assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
            held = packed.storage
            assert (held._packed is None) == (layout is None)
            assert (held._packed is None) != (held._stored is None), "one of both is in memory"
            assert np.array_equal(held.values.float().numpy(), weight.dequantize())


def test_the_layout_is_the_fastest_one_measured_and_measured_once(
    open_torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_torch(threads=2)
    from sporelm.backends.torch import packed_layout

    seconds = {
        "plain": [1.0, 0.95, 2.0],
        "near": [1.0, 0.92, 0.95],
        "packed": [1.0, 0.8, 0.9],
        "filled": [1.0, 0.9, 0.5],
    }
    expected = {"plain": None, "near": None, "packed": packed_layout.LAYOUTS[0], "filled": packed_layout.LAYOUTS[1]}
    monkeypatch.setattr(packed_layout, "has_packed_layout", lambda _: True)
    for case, measured in seconds.items():
        calls: list[Any] = []

        def measure(dtype: Any, measured: Any = measured, calls: list[Any] = calls) -> list[float]:
            calls.append(dtype)
            return list(measured)

        monkeypatch.setattr(packed_layout, "_measure_products", measure)
        packed_layout.choose_layout.cache_clear()
        for _ in range(2):
            assert packed_layout.choose_layout(backend.activation_type) == expected[case]
        assert calls == [backend.activation_type]
    packed_layout.choose_layout.cache_clear()


def test_measuring_products_leaves_the_number_of_threads(open_torch: Any) -> None:
    backend = open_torch(dtype="bf16", threads=2)
    import torch

    from sporelm.backends.torch import packed_layout

    if not packed_layout.has_packed_layout(torch.bfloat16):
        pytest.skip("torch has no packed layout for this type here")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        packed_layout.choose_layout.cache_clear()
        packed_layout.choose_layout(backend.activation_type)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_invariant_products_do_not_depend_on_a_measurement(open_torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_torch(batch_invariant=True, threads=1)
    from sporelm.backends.torch import torch_weight

    def refuse(_: Any) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(torch_weight, "choose_layout", refuse)
    x, weight = RANDOM.standard_normal((20, 64), np.float32), stored("F32", 24, 64)
    for is_available in (True, False):  # invariant with either
        if not is_available:
            monkeypatch.setattr(torch_weight, "has_packed_layout", lambda _: False)
        packed = backend.pack(weight)
        whole = ops.linear(backend.tensor(x), packed).numpy()
        for rows in (slice(0, 1), slice(3, 8), slice(4, 20)):
            assert np.array_equal(ops.linear(backend.tensor(x[rows]), packed).numpy(), whole[rows])
