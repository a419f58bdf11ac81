"""docs/ops.md names ops and tests that exist, and every op of the projects that it compares with."""

import re
from pathlib import Path

import pytest

from sporelm import ops

pytest.importorskip("torch", reason="torch is not installed")

from sporelm.adaptors import dlinfer

RUST = (
    "rms_norm mat_mul rope attention attn_kv_cached swiglu rearrange all_reduce broadcast add add_rows conv layer_norm"
)
RUST += " gelu fused_softmax random_sample"
COURSE = "gather rope masked_softmax rms_norm silu matmul_transb dot random_sample"


def read_rows(root: Path, heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    page = (root / "docs" / "ops.md").read_text("utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("dlinfer", set(dlinfer.OPS)),
        ("InfiniLM's operators (Rust)", set(RUST.split())),
        ("Operators of learning-lm-rs", set(COURSE.split())),
    ],
)
def test_every_op_has_a_row(root: Path, heading: str, expected: set[str]) -> None:
    assert {name for row in read_rows(root, heading) for name in names_in(row[0])} == expected


@pytest.mark.parametrize("heading", ["dlinfer", "InfiniLM's operators (Rust)", "Operators of learning-lm-rs"])
def test_named_ops_exist(root: Path, heading: str) -> None:
    for row in read_rows(root, heading):
        unknown = [name for name in names_in(row[1]) if name not in ops.ALL]
        assert not unknown, row


def test_named_tests_exist(root: Path) -> None:
    tests = (root / "tests" / "unit" / "adaptors" / "test_dlinfer_ops.py").read_text("utf-8")
    for row in read_rows(root, "dlinfer"):
        (name,) = names_in(row[2])
        assert f"def {name}(" in tests, row
    for heading in ("InfiniLM's operators (Rust)", "Operators of learning-lm-rs"):
        for row in read_rows(root, heading):
            for path in re.findall(r"`(tests/[\w/.]+)`", row[2]):
                assert (root / path).exists(), row
            assert "tests/" in row[2] or row[1].startswith("planned"), row
