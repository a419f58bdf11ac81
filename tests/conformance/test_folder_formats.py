"""Products and look-ups of the formats that only folders have, on every CPU target, against their numpy meaning."""

from typing import Any
from zlib import crc32

import numpy as np
import pytest

from close import assert_close
from cpu_targets import TARGETS
from sporelm import ops
from sporelm.backends.cpu.formats.hf_formats import HF_FORMATS as PANELS
from sporelm.backends.reference import ReferenceBackend
from sporelm.quant import FOLDER_FORMATS, QuantFormat
from sporelm.quant.stored_tensor import StoredTensor

# One of each kind, and of each size of group.
COMMON = ("UINT4_128", "INT8_32", "UINT8_64", "F8_E4M3_128", "F8_E5M2_32", "NF4")
FEWEST = ("UINT4_128", "F8_E4M3_128")  # one that multiplies integers, one that multiplies floats
SHAPES = ((1, 1), (33, 3), (50, 5))  # out, groups of the width


def blocks_of(number_format: type[QuantFormat], count: int, random: np.random.Generator) -> np.ndarray:
    """Any integers and finite floats, with scales of both signs and of many sizes, and zero points that can be."""
    blocks = random.integers(0, 256, (count, number_format.nbytes), np.uint8)
    scales = random.choice([2.0**-14, 0.004, -0.5, 3.0, 0.0], (count, 1))
    kind = number_format.name.partition("_")[0]
    if kind.startswith("UINT"):
        blocks[:, :2] = scales.astype("<f2").view(np.uint8)
        low, high = (0, 17) if kind == "UINT4" else (-128, 129)
        blocks[:, 2:4] = random.integers(low, high, (count, 1)).astype("<i2").view(np.uint8)
    elif number_format.values > 1:
        blocks[:, :4] = scales.astype("<f4").view(np.uint8)
    if kind == "F8":
        numbers = blocks[:, 4 if number_format.values > 1 else 0 :]
        numbers[(numbers & 0x7F) >= (0x7F if "E4M3" in number_format.name else 0x7C)] = 3  # NaN and infinity
    return blocks


def weight(backend: Any, number_format: type[QuantFormat], out: int, groups: int, seed: int = 0) -> Any:
    random = np.random.default_rng([crc32(number_format.name.encode()), out, groups, seed])
    blocks = blocks_of(number_format, out * groups, random)
    return backend.pack(
        StoredTensor(
            "weight", number_format, (out, groups * max(32, number_format.values)), _repeated(number_format, blocks)
        )
    )


def _repeated(number_format: type[QuantFormat], blocks: np.ndarray) -> np.ndarray:
    """Of formats without blocks, 32 numbers where others have a group."""
    return blocks if number_format.values > 1 else np.repeat(blocks, 32, axis=0)


def rows(tokens: int, groups: int, number_format: type[QuantFormat]) -> np.ndarray:
    return np.random.default_rng([tokens, groups]).standard_normal(
        (tokens, groups * max(32, number_format.values)), np.float32
    )


def on_targets(best: tuple[str, ...] = COMMON, others: tuple[str, ...] = FEWEST) -> list[Any]:
    """Return (target, format) pairs; `best` formats run by default on the best target, `others` on the others."""
    return [
        pytest.param(target, name, id=f"{target}-{name}", marks=[] if common else [pytest.mark.all])
        for target in TARGETS
        for name in FOLDER_FORMATS
        for common in [name in (best if target == TARGETS[0] else others)]
    ]


def both(cpu: Any, run: Any) -> None:
    """Within the table's tolerance of the result's magnitude."""
    found, expected = run(cpu).numpy(), run(ReferenceBackend()).numpy()
    magnitude = float(np.abs(expected).max(initial=0)) or 1.0
    assert_close(found / magnitude, expected / magnitude, "f32")


@pytest.mark.parametrize(("opened_cpu", "name"), on_targets(), indirect=["opened_cpu"])
def test_products_agree_with_the_meaning(cpu: Any, name: str) -> None:
    number_format = FOLDER_FORMATS[name]
    for tokens in (1, 7, 33):
        for out, groups in SHAPES if tokens == 7 else SHAPES[1:2]:
            x = rows(tokens, groups, number_format)
            both(
                cpu,
                lambda on, x=x, out=out, groups=groups: ops.linear(
                    on.tensor(x), weight(on, number_format, out, groups)
                ),
            )


@pytest.mark.parametrize(("opened_cpu", "name"), on_targets(FEWEST, ()), indirect=["opened_cpu"])
def test_gated_products_agree_with_the_meaning(cpu: Any, name: str) -> None:
    number_format = FOLDER_FORMATS[name]
    for tokens in (1, 7, 33):
        x = rows(tokens, 2, number_format) / np.float32(64)
        both(
            cpu,
            lambda on, x=x: ops.linear_silu_mul(on.tensor(x), *(weight(on, number_format, 33, 2, n) for n in range(2))),
        )


@pytest.mark.parametrize(("opened_cpu", "name"), on_targets(), indirect=["opened_cpu"])
def test_rows_of_a_table_are_its_values(cpu: Any, name: str) -> None:
    number_format, ids = FOLDER_FORMATS[name], np.array([0, 32, 5], np.int32)
    found = ops.embedding(cpu.tensor(ids), weight(cpu, number_format, 33, 3)).numpy()
    reference = ReferenceBackend()
    expected = ops.embedding(reference.tensor(ids), weight(reference, number_format, 33, 3)).numpy()
    assert_close(found, expected, "exact")


@pytest.mark.parametrize(
    "name", [name if name in FEWEST else pytest.param(name, marks=pytest.mark.all) for name in PANELS]
)
def test_a_row_does_not_depend_on_the_others(name: str) -> None:
    from sporelm.backends.cpu import CpuBackend

    number_format, cpu = FOLDER_FORMATS[name], CpuBackend(2)
    x, held = rows(33, 3, number_format), weight(cpu, number_format, 50, 3)
    together = ops.linear(cpu.tensor(x), held).numpy()
    few = ops.linear(cpu.tensor(np.ascontiguousarray(x[20:27])), held).numpy()
    alone = ops.linear(cpu.tensor(x[20:21]), held).numpy()
    cpu.close()
    assert_close(few, together[20:27], "exact")
    assert_close(alone, together[20:21], "exact")


@pytest.mark.parametrize("name", PANELS)
def test_a_weight_takes_no_more_memory_than_its_blocks(opened_cpu: Any, name: str) -> None:
    """On every target: each panel, `lanes` rows high, is filled up to whole cache lines of 64 bytes, no further."""
    number_format = FOLDER_FORMATS[name]
    shape = (64, 3 * number_format.values)
    panels = 64 // opened_cpu.target.lanes
    assert opened_cpu.packed_bytes(number_format, shape) <= number_format.tensor_nbytes(shape) + 63 * panels
