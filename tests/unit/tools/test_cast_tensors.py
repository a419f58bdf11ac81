"""Casts of single tensors: importance, experts, any span of blocks, what is refused, and without the CPU back-end."""

import logging
from typing import Any

import numpy as np
import pytest

from quant_inputs import Source
from sporelm.backends.backend_registry import open_backend
from sporelm.errors import BackendError, OpError, RequestError
from sporelm.quant import F32, FORMATS, Q4_0, dequantize_tensor, quantize_tensor
from sporelm.tools import block_converter
from sporelm.tools.lazy_model import Blocks, LazyTensor
from sporelm.tools.steps.cast_tensors import ACTIVATION_FORMATS, cast, cast_tensor, list_cast_targets

WIDTH = 768


def lazy(name: str, x: np.ndarray) -> LazyTensor:
    """A tensor whose blocks are those of the values in a number format."""
    kind = FORMATS[name]
    blocks = quantize_tensor(kind, x)

    def read(start: int, stop: int) -> Blocks:
        return blocks[start:stop]

    return LazyTensor("blk.0.ffn_up.weight", kind.ggml_id, x.shape, read)


def normal_values(*shape: int, seed: int = 1) -> np.ndarray:
    return Source(seed).gaussian(int(np.prod(shape))).reshape(shape)


def columns(*shape: int) -> np.ndarray:
    return normal_values(*shape, seed=2) ** 2


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "Q8_0", "F16"])
def test_importance_counts_wherever_a_span_of_blocks_begins(name: str) -> None:
    x, importance = normal_values(9, WIDTH), columns(WIDTH)
    target = FORMATS[name]
    made = cast_tensor(lazy("F32", x), target, importance)
    expected = quantize_tensor(target, x, importance)
    assert np.array_equal(made.read(0, made.block_count), expected)
    for start, stop in (
        (0, 0),
        (0, 1),
        (1, 2),
        (made.block_count - 1, made.block_count),
        (2, made.block_count // 2 + 1),
    ):
        assert np.array_equal(made.read(start, stop), expected[start:stop])


@pytest.mark.parametrize("name", ["Q5_0", "Q6_K"])
def test_experts_have_an_importance_each(name: str) -> None:
    x, importance = normal_values(3, 5, WIDTH), columns(3, WIDTH)
    target = FORMATS[name]
    made = cast_tensor(lazy("F32", x), target, importance)
    alone = [quantize_tensor(target, *pair) for pair in zip(x, importance, strict=True)]
    assert np.array_equal(made.read(0, made.block_count), np.concatenate(alone))
    assert np.array_equal(made.read(7, made.block_count - 7), np.concatenate(alone)[7:-7])
    assert not np.array_equal(alone[1], quantize_tensor(target, x[1], importance[0]))


@pytest.mark.parametrize(("source", "target"), [("Q6_K", "Q8_0"), ("Q4_1", "Q4_K"), ("BF16", "Q5_1"), ("F64", "Q4_0")])
def test_a_span_of_blocks_needs_not_fit_those_of_the_source(source: str, target: str) -> None:
    x = normal_values(40, WIDTH)
    tensor = lazy(source, x)
    known = dequantize_tensor(FORMATS[source], tensor.read(0, tensor.block_count), x.shape)
    made, expected = cast_tensor(tensor, FORMATS[target]), quantize_tensor(FORMATS[target], known)
    for start, stop in ((0, made.block_count), (1, 2), (7, 90), (made.block_count - 3, made.block_count)):
        assert np.array_equal(made.read(start, stop), expected[start:stop])


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5000, 40 * WIDTH - 1])
def test_what_shares_no_scale_is_refused_where_it_lies(number: float, place: int) -> None:
    x = normal_values(40, WIDTH)
    x.reshape(-1)[place] = number
    made = cast_tensor(lazy("F32", x), FORMATS["Q4_0"])
    with pytest.raises(RequestError, match="holds NaN or infinity among values 0 to 30719, which Q4_0"):
        made.read(0, made.block_count)
    before = cast_tensor(lazy("F32", x), FORMATS["BF16"])
    assert np.isnan(before.read(place, place + 1).view("<u2")).sum() == 0
    assert np.array_equal(before.read(0, before.block_count), quantize_tensor(FORMATS["BF16"], x))


@pytest.mark.parametrize("name", ["F16", "Q4_0", "Q4_K", "Q6_K", "TQ1_0", "NVFP4", "BF16", "MXFP4"])
def test_numbers_do_not_become_infinite(name: str) -> None:
    x = normal_values(40, WIDTH)
    x[7, 5] = 1e9
    made = cast_tensor(lazy("F32", x), FORMATS[name])
    if name in ("BF16", "MXFP4", "NVFP4"):
        assert np.isfinite(dequantize_tensor(FORMATS[name], made.read(0, made.block_count), x.shape)).all()
        return
    with pytest.raises(RequestError, match=f"among values 0 to 30719 that are too large for {name}: .*take F32"):
        made.read(0, made.block_count)
    before = np.full((1, WIDTH), np.inf, np.float32)
    if name == "F16":  # what is infinite stays so
        assert (cast_tensor(lazy("F32", before), FORMATS[name]).read(0, WIDTH).view("<f2") == np.inf).all()


def test_a_converter_is_kept_unless_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    idle: list[block_converter.BlockConverter] = []
    monkeypatch.setattr(block_converter, "_idle_converters", idle)
    x = normal_values(40, WIDTH)
    x[0, 0] = np.nan
    with pytest.raises(RequestError, match="NaN"):
        cast_tensor(lazy("F32", x), FORMATS["Q4_0"]).read(0, 64)
    (kept,) = idle

    def fail(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(kept, "convert", fail)
    with pytest.raises(MemoryError):
        cast_tensor(lazy("F32", x), FORMATS["Q4_0"]).read(0, 64)
    assert idle == []
    with pytest.raises(BackendError, match="closed"):
        kept.backend.tensor(x)


def test_importance_is_of_whole_rows() -> None:
    x = normal_values(2, WIDTH)
    with pytest.raises(OpError, match="1024 values of F32 are not whole rows of 768 columns"):
        block_converter.convert_blocks(F32, Q4_0, lazy("F32", x).read(0, 1024), columns(WIDTH))


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        (columns(WIDTH - 1), r"must be float32 \[768\], not float32 \[767\]"),
        (columns(WIDTH).astype(np.float64), "not float64"),
        (-columns(WIDTH), "column 0 is .*finite and not negative"),
        (np.where(np.arange(WIDTH) == 700, np.nan, 1).astype(np.float32), "column 700 is nan"),
    ],
)
def test_importance_that_does_not_fit_is_refused(importance: np.ndarray, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        cast_tensor(lazy("F32", normal_values(4, WIDTH)), FORMATS["Q4_0"], importance)


@pytest.mark.parametrize("name", ACTIVATION_FORMATS)
def test_activation_formats_are_not_a_target(name: str) -> None:
    assert name not in list_cast_targets()
    with pytest.raises(RequestError, match=f"does not make {name}: activations become that"):
        cast(f"linear:{name}")


def test_without_the_cpu_the_reference_converts_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(name: str, **options: Any) -> Any:
        if name == "cpu":
            raise BackendError("no llvmlite here")
        return open_backend(name, **options)

    monkeypatch.setattr(block_converter, "open_backend", missing)
    monkeypatch.setattr(block_converter, "_idle_converters", [])
    monkeypatch.setattr(block_converter, "_reported_reasons", set())
    x, importance = normal_values(40, WIDTH), columns(WIDTH)
    with caplog.at_level(logging.WARNING):
        for name in ("Q4_K", "Q8_0", "F16"):
            made = cast_tensor(lazy("BF16", x), FORMATS[name], importance)
            known = dequantize_tensor(FORMATS["BF16"], quantize_tensor(FORMATS["BF16"], x), x.shape)
            assert np.array_equal(made.read(0, made.block_count), quantize_tensor(FORMATS[name], known, importance))
        x[1, 3] = np.nan
        with pytest.raises(RequestError, match="NaN"):
            cast_tensor(lazy("F32", x), FORMATS["Q8_0"]).read(0, 64)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "conversions run in numpy, which is many times slower"
    ]
