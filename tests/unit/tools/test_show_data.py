"""Statistics against numpy's, for every kind of number, and cut-outs of tensors."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import save_file

from gguf_samples import sample
from sporelm.errors import RequestError, UnsupportedModel
from sporelm.tools import tensor_values as tool_values
from sporelm.tools.model_files import ModelFiles, open_model_files
from sporelm.tools.show_data import compute_statistics, slice_tensor


def source_of(path: Path, values: np.ndarray) -> ModelFiles:
    save_file({"w": np.ascontiguousarray(values)}, path)
    return open_model_files(path)


def check(source: ModelFiles, name: str, values: np.ndarray) -> None:
    """Compare statistics with numpy's of the same values."""
    found = compute_statistics(source, name)
    flat = values.ravel().astype(np.float64)
    finite = flat[np.isfinite(flat)]
    assert (found.count, found.nan, found.infinite) == (flat.size, np.isnan(flat).sum(), np.isinf(flat).sum())
    if not finite.size:
        assert found.minimum is None
        assert found.percentiles == {}
        return
    assert found.zeros == (finite == 0).sum()
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    scale = np.abs(finite).max()
    np.testing.assert_allclose(found.mean, finite.mean(), rtol=1e-9, atol=1e-12 * scale)
    np.testing.assert_allclose(found.deviation, finite.std(), rtol=1e-6, atol=1e-9 * scale)
    np.testing.assert_allclose(found.rms, np.sqrt((finite**2).mean()), rtol=1e-6, atol=1e-9 * scale)
    wanted = np.percentile(finite.astype(np.float32), [float(key) for key in found.percentiles], method="inverted_cdf")
    np.testing.assert_array_equal(list(found.percentiles.values()), wanted)
    assert sum(found.bins) == finite.size


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.ffn.weight", "blk.1.ffn.weight", "blk.0.norm.weight"])
def test_statistics_of_every_format(tmp_path: Path, name: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_values, "CHUNK_VALUES", 100)  # several chunks, and some that end inside a block
    with open_model_files(sample(tmp_path / "a.gguf", byte_order=order)) as source:
        values = source.files.tensor(name).dequantize()
        check(source, name, values)
        whole = slice_tensor(source, name, slice(None), slice(None)).values
        np.testing.assert_array_equal(whole.reshape(values.shape), values)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.float16, np.float64, np.bool_])
def test_statistics_of_plain_numbers(tmp_path: Path, dtype: type) -> None:
    values = (np.random.default_rng(1).standard_normal((9, 11)) * 50).astype(dtype)
    check(source_of(tmp_path / "a.safetensors", values), "w", values)


@settings(max_examples=30, deadline=None)
@given(values=arrays(np.float32, st.integers(1, 300), elements=st.floats(width=32, allow_subnormal=False)))
def test_statistics_of_any_floats(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray) -> None:
    check(source_of(tmp_path_factory.mktemp("any") / "a.safetensors", values), "w", values)


def test_negative_zero_and_one_value(tmp_path: Path) -> None:
    found = compute_statistics(source_of(tmp_path / "a.safetensors", np.full((3, 3), -0.0, np.float32)), "w", bins=4)
    assert (found.zeros, found.minimum, found.maximum, found.bins) == (9, 0, 0, (9, 0, 0, 0))
    assert set(found.percentiles.values()) == {0.0}


def test_the_histogram_counts_ranges(tmp_path: Path) -> None:
    found = compute_statistics(
        source_of(tmp_path / "a.safetensors", np.array([0, 1, 1.5, 2, 9.9, 10], np.float32)), "w", bins=5
    )
    assert found.bins == (3, 1, 0, 0, 2)


def test_no_values_and_no_finite_ones(tmp_path: Path) -> None:
    found = compute_statistics(source_of(tmp_path / "a.safetensors", np.zeros((0, 4), np.float32)), "w")
    assert (found.count, found.minimum) == (0, None)
    found = compute_statistics(source_of(tmp_path / "b.safetensors", np.array([np.nan, np.inf], np.float32)), "w")
    assert (found.nan, found.infinite, found.mean) == (1, 1, None)


def test_numbers_at_the_limits_do_not_fail(tmp_path: Path) -> None:
    edge = np.finfo(np.float64)
    values = np.array([edge.max, -edge.max, edge.tiny, 0])
    found = compute_statistics(source_of(tmp_path / "a.safetensors", values), "w")
    assert (found.minimum, found.maximum) == (-edge.max, edge.max)
    assert sum(found.bins) == 4
    assert found.as_json()["deviation"] in ("inf", "nan")


def test_cut_outs(tmp_path: Path) -> None:
    with open_model_files(sample(tmp_path / "a.gguf")) as source:
        values = source.files.tensor("blk.0.ffn.weight").dequantize()
        found = slice_tensor(source, "blk.0.ffn.weight", slice(1, 3), slice(-40, -30))
        np.testing.assert_array_equal(found.values, values[1:3, -40:-30])
        assert (found.row, found.column, found.row_count, found.column_count) == (1, 24, 5, 64)
        assert slice_tensor(source, "blk.0.ffn.weight", slice(9, 12), slice(None)).values.size == 0
        assert slice_tensor(source, "blk.0.norm.weight", slice(0, 8), slice(2, 3)).values.shape == (1, 1)


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    with open_model_files(sample(tmp_path / "a.gguf")) as source:
        compute_statistics(source, "token_embd.weight", progress=lambda *call: calls.append(call))
    assert calls[-1][1:] == (2 * 8192, 2 * 8192)


def test_refusals(tmp_path: Path) -> None:
    with open_model_files(sample(tmp_path / "a.gguf")) as source:
        for bins in (0, 1001):
            with pytest.raises(RequestError, match=f"bins is {bins}"):
                compute_statistics(source, "blk.0.norm.weight", bins=bins)
        entry = source.tensors["blk.0.norm.weight"]
        source.tensors["blk.0.norm.weight"] = entry._replace(type_name="Q9_9")
        with pytest.raises(UnsupportedModel, match="has type Q9_9, whose values cannot be read"):
            compute_statistics(source, "blk.0.norm.weight")
