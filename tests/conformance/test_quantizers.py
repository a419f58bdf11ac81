"""Native quantizers against the formats' numpy meaning, bit for bit on every target, where arithmetic is at its edges.

The meaning is held against ggml in unit/quant.
"""

from typing import Any

import numpy as np
import pytest

from cpu_targets import TARGETS
from quant_inputs import CASES, IMPORTANCES, Source, importance, values
from sporelm import ops
from sporelm.backends.cpu.quantizers import QUANTIZERS
from sporelm.quant import FORMATS, quantize_tensor

WIDTH, EACH = 512, 2  # columns; blocks of 256 values of each case
COMMON = ("Q4_K", "Q4_0")  # tried on every target, by default


def on_targets() -> list[Any]:
    """(target, format): all on the best target, few on the others; the rest is marked `all`."""
    found = []
    for target in TARGETS:
        for name in QUANTIZERS:
            rare = target != TARGETS[0] and name not in COMMON
            found.append(pytest.param(target, name, id=f"{target}-{name}", marks=[pytest.mark.all] if rare else []))
    return found


def assert_equal(cpu: Any, name: str, x: np.ndarray, columns: np.ndarray | None, what: str) -> None:
    """The blocks of rows on a back-end are those of the meaning."""
    given = [cpu.tensor(array) for array in (x, columns) if array is not None]
    native = ops.quantize_blocks(*given, format=name).numpy()
    blocks = quantize_tensor(FORMATS[name], x, columns)
    different = (native.reshape(blocks.shape) != blocks).any(axis=1)
    assert np.flatnonzero(different).tolist() == [], f"blocks of {name} {what}"


def every_case(blocks: int) -> np.ndarray:
    """float32 [rows, WIDTH]: blocks of each case."""
    return np.concatenate([values(case, blocks) for case in CASES]).reshape(-1, WIDTH)


@pytest.mark.parametrize(("opened_cpu", "name"), on_targets(), indirect=["opened_cpu"])
def test_blocks_are_those_of_the_meaning(cpu: Any, name: str) -> None:
    assert_equal(cpu, name, every_case(EACH), None, "without importance")
    if FORMATS[name].can_weigh:
        assert_equal(cpu, name, every_case(EACH), importance("with zeros", WIDTH), "with importance")


@pytest.mark.all
@pytest.mark.parametrize(("opened_cpu", "name"), [p.values for p in on_targets()], indirect=["opened_cpu"])
def test_blocks_of_any_importance_are_those_of_the_meaning(cpu: Any, name: str) -> None:
    kinds = IMPORTANCES if FORMATS[name].can_weigh else {}
    for kind in kinds:
        assert_equal(cpu, name, every_case(6 * EACH), importance(kind, WIDTH), kind)


@pytest.mark.all
@pytest.mark.parametrize(("opened_cpu", "name"), [p.values for p in on_targets()], indirect=["opened_cpu"])
@pytest.mark.parametrize("seed", range(6))
def test_random_blocks_are_those_of_the_meaning(cpu: Any, name: str, seed: int) -> None:
    """Sizes, offsets and importances drawn for each row, in numbers of rows that do not fill a vector."""
    source = Source(seed)
    rows, width = int(source.integers(1, 40, 1)[0]), 256 * int(source.integers(1, 6, 1)[0])
    x = source.gaussian(rows, width) + source.integers(-3, 4, rows, 1).astype(np.float32)
    x = np.ldexp(x, source.integers(-40, 30, rows, 1).astype(np.int32)).astype(np.float32)
    x[source.integers(0, 3, rows, width) == 0] *= np.float32(2.0**-12)
    columns = source.gaussian(width) ** 2 * (source.integers(0, 4, width) > 0)
    assert_equal(cpu, name, x, None, f"of seed {seed}")
    if FORMATS[name].can_weigh:
        assert_equal(cpu, name, x, columns.astype(np.float32), f"of seed {seed} with importance")
