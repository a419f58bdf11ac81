"""Differences between two models, and their size."""

import json
from pathlib import Path

import numpy as np
import pytest

from gguf_samples import patch_entry, sample, stored, values_of
from sporelm.files.gguf import GgufWriter
from sporelm.quant import F32, Q8_0, QuantFormat
from sporelm.tools.diff import ModelDifference, compare_models
from sporelm.tools.model_files import open_model_files


def compare(first: Path, second: Path, **options: object) -> ModelDifference:
    with open_model_files(first) as one, open_model_files(second) as other:
        return compare_models(one, other, **options)


def one_tensor(path: Path, values: np.ndarray, number_format: type[QuantFormat] = F32) -> Path:
    writer = GgufWriter(path)
    writer.add_tensor("w", stored("w", number_format, values))
    writer.write()
    return path


def test_a_file_is_the_same_as_itself_in_any_byte_order(tmp_path: Path) -> None:
    nan = {"x.nan": float("nan"), "x.list": np.array([np.nan], np.float32)}
    little = sample(tmp_path / "a.gguf", more=nan)
    big = sample(tmp_path / "b.gguf", more=nan, byte_order="big")
    for second in (little, big):
        found = compare(little, second, distance=True)
        assert found.same, found
        assert (found.compared, found.other_order) == (5, False)


def test_metadata(tmp_path: Path) -> None:
    first = sample(tmp_path / "a.gguf", more={"x.gone": 1, "x.kind": 1, "x.nested": [[1], [2, 3]], "x.zero": 0.0})
    second = sample(tmp_path / "b.gguf", more={"x.new": "n", "x.kind": 1.0, "x.nested": [[1], [2, 4]], "x.zero": -0.0})
    second.write_bytes(second.read_bytes().replace(b"t30", b"t3_").replace(b"t7", b"T7"))
    found = {change.key: change for change in compare(first, second).metadata}
    assert set(found) == {"x.gone", "x.kind", "x.nested", "x.new", "x.zero", "tokenizer.ggml.tokens"}
    assert (found["x.gone"].first, found["x.gone"].second_kind) == (1, None)
    assert (found["x.kind"].first_kind, found["x.kind"].second_kind) == ("u32", "f32")
    assert found["x.nested"].detail == "1 of 2 elements differ, the first at 1"
    assert found["tokenizer.ggml.tokens"].detail == "2 of 32 elements differ, the first at 7"
    assert compare(first, second, meta=["general.*"]).same


def test_tensors(tmp_path: Path) -> None:
    first, second = sample(tmp_path / "a.gguf"), tmp_path / "b.gguf"
    writer = GgufWriter(second)
    writer.add_tensor("blk.1.norm.weight", values_of((8,), 3))
    writer.add_tensor("blk.0.norm.weight", values_of((8,), 9))
    writer.add_tensor("blk.0.ffn.weight", values_of((5, 64), 2))
    writer.add_tensor("blk.1.ffn.weight", values_of((7, 3), 4))
    writer.add_tensor("new", values_of((2,)))
    writer.write()
    found = compare(first, second, meta=["!*"])
    changes = {change.name: change for change in found.tensors}
    assert set(changes) == {"token_embd.weight", "blk.0.norm.weight", "blk.0.ffn.weight", "blk.1.ffn.weight", "new"}
    assert changes["token_embd.weight"].second_type is None
    assert changes["new"].first_type is None
    assert changes["blk.0.norm.weight"].same_bytes is False
    assert (changes["blk.0.ffn.weight"].first_type, changes["blk.0.ffn.weight"].second_type) == ("Q8_0", "F32")
    assert changes["blk.1.ffn.weight"].second_shape == (7, 3)
    assert found.other_order
    names = {change.name for change in compare(first, second, data=False).tensors}
    assert names == set(changes) - {"blk.0.norm.weight"}
    assert json.dumps(found.as_json(), allow_nan=False)


@pytest.mark.parametrize("number_format", [F32, Q8_0])
def test_distances_are_numpys(tmp_path: Path, number_format: type[QuantFormat]) -> None:
    a, b = values_of((9, 64), 1), values_of((9, 64), 2)
    first = one_tensor(tmp_path / "a.gguf", a)
    second = one_tensor(tmp_path / "b.gguf", b, number_format)
    with open_model_files(second) as source:
        b = source.files.tensor("w").dequantize()
    (change,) = compare(first, second, distance=True).tensors
    found = change.distance
    assert found is not None
    wide_a, wide_b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    apart = wide_a - wide_b
    np.testing.assert_allclose(found.max_abs, np.abs(apart).max())
    np.testing.assert_allclose(found.rms, np.sqrt((apart**2).mean()))
    np.testing.assert_allclose(found.relative, np.linalg.norm(apart) / np.linalg.norm(wide_a))
    np.testing.assert_allclose(found.cosine, wide_a @ wide_b / np.linalg.norm(wide_a) / np.linalg.norm(wide_b))
    assert found.mismatched == 0


def test_distances_beside_nan_and_zeros(tmp_path: Path) -> None:
    first = one_tensor(tmp_path / "a.gguf", np.array([0, np.nan, np.inf, np.nan, 0], np.float32))
    second = one_tensor(tmp_path / "b.gguf", np.array([3, np.nan, -np.inf, 1, 0], np.float32))
    (change,) = compare(first, second, distance=True).tensors
    assert change.distance is not None
    assert change.distance._asdict() == {
        "max_abs": 3.0, "rms": pytest.approx(np.sqrt(4.5)), "relative": None, "cosine": None, "mismatched": 2,
    }  # fmt: skip


def test_where_tensors_lie_does_not_count(tmp_path: Path) -> None:
    first = sample(tmp_path / "a.gguf")
    second = sample(tmp_path / "b.gguf")
    with open_model_files(second) as source:
        start, raw = source.tensors["token_embd.weight"].offset, source.raw("blk.1.ffn.weight").tobytes()
    end = second.stat().st_size
    second.write_bytes(second.read_bytes() + raw)
    patch_entry(second, "blk.1.ffn.weight", offset=end - start)
    with open_model_files(second) as source:
        assert source.tensors["blk.1.ffn.weight"].offset == end
    assert compare(first, second).same
