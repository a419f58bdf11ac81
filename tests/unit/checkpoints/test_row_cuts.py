"""Tensors that are cut at other rows than their weights: joined, and cut again."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from sporelm.checkpoints.row_cuts import RowCut, recut_rows
from sporelm.files.safetensors import open_safetensors

NAMES = ("q", "k", "v")


def written(folder: Path, *rows: int) -> tuple[Path, np.ndarray]:
    """A file of tensors [rows, 1, 3], and all of their values one after the other."""
    values = np.random.RandomState(1).random_sample((sum(rows), 1, 3)).astype(np.float32)
    parts = np.split(values, np.cumsum(rows)[:-1])
    path = folder / "model.safetensors"
    save_file({name: np.ascontiguousarray(part) for name, part in zip(NAMES, parts, strict=True)}, path)
    return path, values


def test_rows_lie_where_the_weights_have_them(tmp_path: Path) -> None:
    path, values = written(tmp_path, 6, 6, 4)
    with recut_rows(open_safetensors(path), [RowCut(NAMES, (4, 4, 8))]) as files:
        assert [files.tensors[name].shape for name in NAMES] == [(4, 1, 3), (4, 1, 3), (8, 1, 3)]
        found = np.concatenate([files.tensor(name).dequantize() for name in NAMES])
    assert np.array_equal(found, values)


def test_other_tensors_stay_as_they_are(tmp_path: Path) -> None:
    path, _ = written(tmp_path, 4, 4, 8)
    with open_safetensors(path) as files:
        assert recut_rows(files, [RowCut(NAMES, (4, 4, 8))]) is files  # in place already
        assert recut_rows(files, [RowCut(NAMES, (4, 4, 9))]) is files  # not these weights
        assert recut_rows(files, [RowCut(("q", "k", "lost"), (4, 4, 8))]) is files
